"""compute_bound and memory_bound: any intensity, and exactly the flops and bytes that they state."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.inspect.banks import register_banks
from ptxkit.inspect.disassembly import sass
from ptxkit.kernels.elementwise.compute_bound import ComputeBound
from ptxkit.kernels.elementwise.memory_bound import MemoryBound
from ptxkit.targets import Target
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build

VARIANTS = ["unfused", "fused", "vectorized", "packed"]


def check(case, variant, tile=None):
    result = execute.run(case, case.workload.variant(variant), tile=tile)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize("intensity", [0.25, 0.5, 1.75, 16, 128])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_intensity(device, variant, intensity):
    result = check(execute.Case(ComputeBound(n=1027, intensity=intensity), device), variant)
    assert result.launches == (min(4, 4 * intensity) if variant == "unfused" else 1)


@pytest.mark.parametrize("n", [1, 4, 130])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, n):
    check(execute.Case(MemoryBound(n=n), device), variant)


@pytest.mark.parametrize("workload", [MemoryBound(n=4096), ComputeBound(n=512, intensity=64)], ids=lambda w: w.name)
def test_work_is_what_is_counted(device, workload):
    case = execute.Case(workload, device)
    for variant in ("fused", "vectorized"):
        counters = check(case, variant).counters
        if counters is None:
            pytest.skip("this device does not count")
        assert (counters.flops, counters.global_bytes) == (workload.work().flops, workload.work().bytes)
    assert workload.work().intensity == workload.intensity


def test_variants_agree_bit_for_bit(device):
    case = execute.Case(ComputeBound(n=700, intensity=25.25), device)
    outputs = []
    for variant in ("unfused", "fused", "vectorized"):
        check(case, variant)
        outputs.append(case.outputs()["out"].view(np.uint32))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_one_step_too_few_is_found(device):
    """The tolerance increases with the length of the chain, and still distinguishes 1024 steps from 1023."""
    long, short = ComputeBound(n=64), ComputeBound(n=64, intensity=255.75)
    case = execute.Case(short, device)
    check(case, "fused")
    verdict = execute.Case(long, device, inputs=case.inputs).expected["out"] - case.outputs()["out"]
    assert (np.abs(verdict) > long.tolerance.absolute).mean() > 0.9


def test_the_packed_variant_says_what_it_needs():
    workload = ComputeBound(n=4096)
    with pytest.raises(UnavailableError, match="f32x2 needs sm_100"):
        build(workload, workload.variant("packed"), Target.parse("sm_90a"))
    image = build(workload, workload.variant("packed"), Target.parse("sm_100a")).images[0]
    assert image.ptx.count("fma.rn.f32x2") >= 64


@pytest.mark.parametrize("variant", ["fused", "vectorized"])
def test_no_fma_waits_for_a_register_bank(variant):
    """The kernel measures the peak of the FMA pipe: the three registers of each fma are in two banks."""
    workload = ComputeBound(n=1 << 16)
    image = build(workload, workload.variant(variant), Target.parse("sm_90a")).images[0]
    (function,) = sass(image).values()
    found = register_banks(function)
    assert found is not None and found.arithmetic >= 256 and found.delayed == 0


@pytest.mark.parametrize("intensity", [0, 0.1, 5000, float("nan")])
def test_intensities_that_are_no_whole_number_of_steps(intensity):
    with pytest.raises(UsageError, match="intensity must be a multiple of 0.25 from 0.25 to 4096"):
        ComputeBound(n=4, intensity=intensity)


def test_both_are_found_by_name():
    assert registry.get("memory_bound") is MemoryBound
    assert registry.get("compute_bound") is ComputeBound
    assert list(MemoryBound.variants()) == VARIANTS
