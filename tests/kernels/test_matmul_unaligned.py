"""Steps 11 and 12 of matmul_wgmma: rows in memory of any number of bytes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, UsageError
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build, compiled
from ptxkit.workload.choice import choose

BY_THREADS, BY_COPIES = "step11_unaligned", "step12_aligned_copy"
SM_90A = Target.parse("sm_90a")
SMALL = {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}
LAYOUTS = ("tn", "nn", "nt", "tt")


def strict(**checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", **checks))


def check(device, step, m, n, k, tile=None, **options):
    """Compare a step with numpy, on whole numbers whose sums the types hold exactly."""
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    rng = np.random.default_rng(m + n + k)
    inputs = {
        name: np.where(rng.random(x.shape) < 16 / k, rng.integers(-2, 3, x.shape), 0).astype(x.dtype)
        for name, x in workload.inputs(rng).items()
    }
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(step), None, tile, explicit=True)
    assert result.verdict.verified, f"{step} {result.tile}: {result.verdict.worst}"
    if workload.epilogue == "none" and np.abs(case.expected["c"]).max() <= 256:
        np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


@settings(max_examples=3, deadline=None)
@given(*(st.integers(1, 100),) * 3, st.sampled_from(LAYOUTS), st.just("bf16"))
@example(1, 1, 1, "tn", "bf16")
@example(3, 3001, 1, "tn", "f16")
@example(2, 3, 2, "nt", "bf16")
def test_any_size(m, n, k, layout, dtype):
    check(strict(), BY_THREADS, m, n, k, SMALL, layout=layout, dtype=dtype)


@pytest.mark.parametrize(
    ("step", "layout"), [*((BY_THREADS, layout) for layout in LAYOUTS), (BY_COPIES, "tn"), (BY_COPIES, "nt")]
)
def test_no_races_in_a_ring_that_is_used_again(few_ctas, step, layout):
    """Five steps along k, in a ring of three stages, and two tiles for each of two CTAs."""
    check(strict(racecheck="warps"), step, 65, 67, 259, SMALL, layout=layout)


@pytest.mark.parametrize("sizes", [(65, 72, 77), (72, 65, 80)], ids=["a and b unaligned", "c unaligned"])
def test_tma_reads_the_operands_that_it_can(sizes):
    """And a tile has two consumers with registers of the producer."""
    check(strict(racecheck="warps"), BY_THREADS, *sizes, {"BM": 128, "BN": 128}, layout="tt")


@pytest.mark.parametrize("step", [BY_THREADS, BY_COPIES])
def test_epilogues(device, step):
    check(device, step, 33, 37, 41, SMALL, alpha=-1.5, beta=0.25, epilogue="bias_gelu", dtype="f16")


def test_a_bias_without_gelu(device):
    check(device, BY_THREADS, 33, 37, 41, SMALL, epilogue="bias", dtype="f16")
    check(device, "step9_swapped", 9, 40, 136, {"TOKENS": 16}, epilogue="bias")


def test_stores_that_wgmma_may_not_see_are_found(monkeypatch):
    """The threads' stores reach wgmma by the fence of the async proxy alone."""

    def without_fence(*arguments):
        built = compiled(*arguments)
        ptx = [re.sub(r"fence\.proxy\.async[^;]*;", "", step.image.ptx) for step in built.steps]
        steps = [
            replace(s, image=replace(s.image, ptx=text, key="unfenced")) for s, text in zip(built.steps, ptx, strict=True)
        ]
        return replace(built, steps=tuple(steps))

    monkeypatch.setattr(execute, "compiled", without_fence)
    with pytest.raises(MemoryFault, match=r"no fence\.proxy\.async"):
        check(strict(racecheck="warps"), BY_THREADS, 64, 65, 67, SMALL)


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((3001, 3001, 3001), BY_COPIES),
        ((1, 4099, 4099), "step16_direct"),
        ((32, 4099, 4099), "step13_stream_k"),
        ((16, 4099, 4096), "step13_stream_k"),  # c alone is unaligned
        ((4096, 4099, 4096), BY_THREADS),
        ((4096, 4096, 4096), "step8_tma_store"),
    ],
)
def test_which_step_is_chosen(sizes, step):
    assert choose(MatmulWgmma(*sizes), target=SM_90A).variant == step


@pytest.mark.parametrize("step", ["step1_tma", "step8_tma_store", "step9_swapped", "step10_split_k", "ptx"])
def test_the_steps_that_use_tma_alone_name_the_rows_that_it_cannot_read(step):
    workload = MatmulWgmma(m=8, n=8, k=12)
    with pytest.raises(UsageError, match="rows of a have 24 bytes in memory, no multiple of 16, .*: steps 11 to 17"):
        workload.variant(step).select_tile(workload, SM_90A)


@pytest.mark.parametrize("layout", ["tn", "tt"])
def test_wgmma_is_asynchronous_and_nothing_spills(layout):
    workload = MatmulWgmma(m=3001, n=3001, k=3001, layout=layout, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(BY_THREADS), SM_90A).steps
    assert_sass(step.image, has=["HGMMA", "LDG.E.128", "STS.128"], spills=0)
    assert "serialized" not in step.image.log
