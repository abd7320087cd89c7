"""A sample of the arithmetic forms, on the emulator and on the GPU of this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import alu_forms
import gpu_comparison
import numpy as np
import ptxas_oracle
import pytest

from ptxkit.errors import UnavailableError
from ptxkit.runtime.device import device


def test_sample_agrees():
    try:
        gpu = device("gpu")
    except UnavailableError as error:
        pytest.skip(str(error))
    version = ptxas_oracle.newest_version()
    forms = gpu_comparison.valid(list(alu_forms.forms())[::40], gpu.target.name, version)
    with ThreadPoolExecutor(2) as pool:
        found = [d for _, differences in gpu_comparison.compare_all(forms, gpu, pool, version) for d in differences]
    assert not found


@pytest.mark.parametrize(
    ("opcode", "thread"),
    [("add.f32", 100), ("cvt.rni.s8.f32", 5), ("setp.lt.s32", 3), ("add.cc.u32", 7), ("fma.rn.f16x2", 900)],
)
def test_comparison_notices_a_wrong_bit(opcode, thread):
    """The comparison itself, without a GPU: the emulator against itself, then with one bit flipped."""
    form = alu_forms.Form(opcode)
    _, (result,) = gpu_comparison.emulate_and_assemble([form], "sm_90a", "8.8")
    assert not gpu_comparison.compared(form, result, result)
    other = result.copy()
    other[len(form.types()[0]) - 1, thread] ^= np.uint64(1)
    (found,) = gpu_comparison.compared(form, other, result)
    assert found.count == 1 and found.form == opcode


def test_comparison_allows_the_documented_error():
    form = alu_forms.Form("ex2.approx.f32")
    _, (result,) = gpu_comparison.emulate_and_assemble([form], "sm_90a", "8.8")
    x = gpu_comparison.values(result[0], "f32")
    lane = int(np.flatnonzero((x > 1) & (x < 1e30))[0])
    for ulps, differs in ((2, False), (4, True)):
        other = result.copy()
        other[0, lane] += np.uint64(ulps)
        assert bool(gpu_comparison.compared(form, other, result)) == differs
