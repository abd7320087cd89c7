"""No kernel has a race in shared memory or lacks a wait, and a barrier that is deleted from its PTX is reported as missing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import DeadlockError, RaceError
from ptxkit.kernels.measured import H200
from ptxkit.kernels.rows import row_pipeline
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build

pytestmark = pytest.mark.sampled(8)

ELSEWHERE = {"cutlass_gemm"}  # tests/cutlass/test_emulated.py
COSTLY = {  # gigabytes of memory and up to a minute at the emulator's default sizes, if races of lanes are checked
    ("moe_routed", "step4_quantized"),
    ("ffn_sublayer", "cluster"),
    ("linear_layernorm_gelu", "cluster"),
    ("attention_backward", "step5_persistent"),
}
EVERY = [
    (name, variant)
    for name in registry.names()
    if name not in ELSEWHERE
    for variant in registry.get(name).variants()
    if "tcgen05" not in registry.get(name).variant(variant).requires  # tests of their own, at other sizes
]
CASES = [(*case, False if case in COSTLY else "lanes") for case in EVERY]
CASES += [pytest.param(*case, "lanes", marks=pytest.mark.slow) for case in sorted(COSTLY)]


SIZES = {"fused_l2norm": (40, 4096)}
"""Where those of the emulator are larger than eight multiprocessors need to compute several rows each."""
SIZES_OF = {
    ("attention", "late_wait"): (1, 1, 130, 200, 256),
    ("attention_backward", "step6_deferred"): (1, 1, 130, 200, 128),
    ("matmul_wgmma", "step18_row_classes"): (100, 70, 100),
}
"""Of variants that are not for the default sizes."""
OPTIONS = {("attention_scores", "step4_mask_tiles"): {"mask": "array"}, ("moe_routed", "step5_promoted"): {"dtype": "e4m3"}}
"""Of variants that cannot run with the default ones."""


def checked(racecheck: bool | str = "warps", sms: int | None = None, completion: str = "eager") -> EmulatedDevice:
    settings = EmulatorSettings(racecheck=racecheck, counting=False, completion=completion)
    return EmulatedDevice(Machine(sms=sms), settings)


@pytest.mark.parametrize(("name", "variant", "racecheck"), CASES)
def test_no_races_and_no_missing_waits(name, variant, racecheck, monkeypatch):
    """No accesses race, and the result is right where asynchronous operations complete as late as is legal."""
    short = replace(H200, rows=replace(H200.rows, persistent_cols=0))
    monkeypatch.setattr(row_pipeline, "measured", lambda facts: short)
    kind = registry.get(name)
    workload = kind.make(SIZES_OF.get((name, variant), SIZES.get(name, ())), OPTIONS.get((name, variant), {}), small=True)
    if not any(".shared" in step.image.ptx for step in build(workload, kind.variant(variant)).steps):
        pytest.skip("no shared memory in it")
    device = checked(racecheck, sms=8, completion="latest-legal")  # persistent CTAs compute many rows each
    case = execute.Case(workload, device, seed=5)
    prepared = execute.prepare(case, kind.variant(variant))
    case.reset()
    prepared.launch()
    verdict = case.verify(kind.variant(variant))
    assert verdict.verified, verdict.worst


BARRIER = re.compile(
    r"(?:bar(?:rier)?\.(?:sync|arrive)|mbarrier\.(?:try_wait|arrive)|cp\.async\.(?:wait|bulk\.wait)|wgmma\.wait)[^;]*;"
)

SMALL = {"THREADS": 128, "QUADS": 1, "CTAS": 1}
RING = {"CONSUMERS": 128, "QUADS": 1, "CTAS": 1, "PRODUCERS": 32, "STAGES": 2}
MUTILATED: list[tuple[str, str, tuple[int, ...], dict[str, int] | None, tuple[int, ...]]] = [
    # kernel, variant, sizes, tile, and the barriers whose deletion is not reported, in the order of the PTX
    ("layernorm", "fused", (), None, ()),
    # the last one is for columns beyond registers
    ("fused_l2norm", "ptx", (), None, (1,)),
    ("micro_tiling_matmul", "step2_shared", (64, 64, 64), None, ()),
    ("micro_tiling_matmul", "step5_async", (128, 128, 64), None, ()),
    ("micro_tiling_matmul", "step8_ring", (), None, ()),
    ("two_stage_pipeline", "two_stage", (270336,), SMALL, ()),
    # the first: another one stands before the first wait; the last: memory that is not used again
    ("two_stage_pipeline", "bulk", (270336,), SMALL, (0, 7)),
    ("warp_specialized", "named_barriers", (270336,), RING, ()),
    ("warp_specialized", "mbarriers", (270336,), RING, ()),
    # the last: no copies are left
    ("matmul_mma", "step3_multistage", (128, 128, 256), None, (2,)),
    # the last: one warpgroup, whose wgmma.wait_group is for all its warps
    ("matmul_wgmma", "step2_larger_tile", (128, 128, 384), None, (4,)),
    # the last two: for registers, and for a stage that no copy fills
    ("matmul_wgmma", "step3_specialized", (128, 128, 640), None, (6, 7)),
]


@pytest.mark.parametrize(("name", "variant", "sizes", "tile", "unneeded"), MUTILATED)
def test_a_barrier_that_is_deleted_is_missed(name, variant, sizes, tile, unneeded):
    """A deleted wait is a race. A deleted arrival is a race or a deadlock."""
    without_each(BARRIER, "warps", name, variant, sizes, tile, unneeded)


WARP_BARRIER = re.compile(r"bar\.warp\.sync[^;]*;")

SPLIT = [
    # a lane releases what its warp has read
    ("micro_tiling_matmul", "step8_ring", (), None, ()),
    ("warp_specialized", "mbarriers", (270336,), RING, ()),
    # a lane stores what its warp has written; the others: boxes that are used for the first time
    ("matmul_wgmma", "step8_tma_store", (), None, (0,)),
]


@pytest.mark.parametrize(("name", "variant", "sizes", "tile", "unneeded"), SPLIT)
def test_a_deleted_warp_barrier_is_reported_with_racecheck_lanes(name, variant, sizes, tile, unneeded):
    without_each(WARP_BARRIER, "lanes", name, variant, sizes, tile, unneeded)
    without_each(WARP_BARRIER, "warps", name, variant, sizes, tile, None)


def without_each(barrier_of, racecheck, name, variant, sizes, tile, unneeded):
    """Delete barriers one at a time; the deletion of those with the numbers ``unneeded`` (None: all) is not reported."""
    kind = registry.get(name)
    built = build(kind.make(sizes, {}, small=True), kind.variant(variant), tile=tile)
    (step,) = built.steps
    barriers = list(barrier_of.finditer(step.image.ptx))
    assert barriers
    raced = unneeded is None
    for n, barrier in enumerate(barriers):
        image = replace(step.image, ptx=without(step.image.ptx, barrier), key=f"{step.image.key} without barrier {n}")
        case = execute.Case(kind.make(sizes, {}, small=True), checked(racecheck), seed=5)
        prepared = execute.bound(case, replace(built, steps=(replace(step, image=image),)))
        found: RaceError | DeadlockError | None
        try:
            prepared.launch()
            found = None
        except (RaceError, DeadlockError) as error:
            found = error
        assert (found is None) == (unneeded is None or n in unneeded), f"{barrier[0]}: {found}"
        raced |= isinstance(found, RaceError)
    assert raced


def without(ptx: str, barrier: re.Match[str]) -> str:
    """The PTX without one barrier; a predicate that the barrier would have set is true."""
    predicate = re.search(r"\.b64\s+(\w+),", barrier[0]) if "try_wait" in barrier[0] else None
    instead = f"setp.eq.u32 {predicate[1]}, 0, 0;" if predicate else ""
    return ptx[: barrier.start()] + instead + ptx[barrier.end() :]
