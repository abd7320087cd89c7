"""A comparison on the device has the same verdict as one on the host."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.runtime.device import device
from ptxkit.sweep.device_verification import SOURCE, DeviceVerification
from ptxkit.workload import execute, registry
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.tolerance import Rule
from ptxkit.workload.verify import allowed_errors


@pytest.fixture(scope="module", params=["f32", "bf16", "f16"])
def case(request):
    w = registry.get("rmsnorm").make([16, 1024], {"dtype": request.param})
    case = execute.Case(w, device("emulator"))
    prepared = execute.prepare(case, w.variant("vectorized"))
    assert prepared.verify().verified
    return case


def checked(case, output):
    """The verdicts on the device and on the host of an output."""
    variant = case.workload.variant("vectorized")
    name, good = next((name, case.array(name).numpy().copy()) for name in case.output_specs)
    case.array(name).copy_from(output(good.copy()))
    found = DeviceVerification(case.device, case, variant).within_tolerance(), case.verify(variant).verified
    case.array(name).copy_from(good)
    return found


@pytest.mark.parametrize("change", [None, 3e-1, np.nan, np.inf, -np.inf])
def test_one_wrong_element_is_found(case, change):
    def changed(output):
        if change is not None:
            output[7, 513] = np.float32(output[7, 513]) + np.float32(change)
        return output

    assert checked(case, changed) == (change is None, change is None)


def test_errors_around_the_tolerance_are_judged_as_on_the_host(case):
    (name, _), *_ = case.output_specs.items()
    expected = case.expected[name]
    variant = case.workload.variant("vectorized")
    allowed = allowed_errors(case.output_specs[name][1], expected, case.data.tolerance_rule(variant), name)
    for share in (0.5, 0.9, 1.1, 2.0):

        def moved(output, share=share):
            output[:] = (expected + share * allowed).astype(output.dtype)
            return output

        there, here = checked(case, moved)
        assert there == here


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_number_of_16_bits_is_read_as_numpy_reads_it(kind):
    emulator = device("emulator")
    bits = np.arange(1 << 16, dtype=np.uint16)
    if kind == "float16":
        numbers = bits.view(np.float16).astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):  # signaling NaN
            numbers = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    name = f"count_outside<{kind}>"
    kernel = emulator.load(compile_source(SOURCE, target="sm_90a", name="check.cu", instantiate=(name,)), SOURCE)[name]
    arrays = [emulator.upload(array) for array in (bits, numbers, np.zeros(bits.size), np.zeros(1, np.uint64))]
    kernel.prepare(*arrays[:3], np.uint64(bits.size), arrays[3], grid=16, block=256)()
    assert arrays[3].numpy()[0] == np.count_nonzero(~np.isfinite(numbers))


def test_a_limit_of_the_root_mean_square_is_left_to_the_host(case, monkeypatch):
    limited = Rule(Tolerance(relative=1.0, rms=1e-9), "as given")
    monkeypatch.setattr(type(case.data), "tolerance_rule", lambda self, variant=None, own=None: limited)
    assert not DeviceVerification(case.device, case, case.workload.variant("vectorized")).within_tolerance()


def test_other_outputs_are_left_to_the_host():
    w = registry.get("quantize_int8").make([4096], {})
    case = execute.Case(w, device("emulator"))
    assert not DeviceVerification(case.device, case, w.variant("fused")).within_tolerance()
