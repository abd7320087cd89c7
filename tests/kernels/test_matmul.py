"""matmul_wgmma and matmul_mma in all their steps: ragged sizes, epilogues, element types, tiles, and the compiled code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import DeadlockError, UsageError
from ptxkit.kernels.gemm.matmul_mma import MatmulMma
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build, compiled

OTHERS = (  # which have tests of their own
    *("step10_split_k", "step11_unaligned", "step12_aligned_copy", "step14_cluster_k", "step15_multicast"),
    *("step16_direct", "step17_shifted", "step18_row_classes", "step19_short_k", "step20_dot"),
)
WGMMA = [name for name in MatmulWgmma.variants() if name not in OTHERS]
MMA = list(MatmulMma.variants())
STEPS = [("matmul_wgmma", name) for name in WGMMA] + [("matmul_mma", name) for name in MMA]


def check(device, kernel, variant, m, n, k, tile=None, **options):
    """Run a variant on random numbers; where bf16 holds every sum of small integers, on integers too, and exactly."""
    workload = registry.get(kernel).make([m, n, k], options)
    rng = np.random.default_rng(m + n + k)
    given = workload.inputs(rng)
    run(execute.Case(workload, device, inputs=given), variant, tile)
    if not options and k <= 32:  # at most 4 * 32
        whole = {name: rng.integers(-2, 3, x.shape).astype(x.dtype) for name, x in given.items()}
        case = execute.Case(workload, device, inputs=whole)
        run(case, variant, tile)
        np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


def run(case, variant, tile):
    result = execute.run(case, case.workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


SIZES = [
    (1, 8, 8),
    (65, 72, 24),
    (300, 40, 328),  # more steps than stages
]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize(("kernel", "variant"), STEPS)
def test_any_size(device, kernel, variant, m, n, k):
    check(device, kernel, variant, m, n, k)


EPILOGUES = [
    {"alpha": 0.5},
    {"beta": 2.0},
    {"epilogue": "bias_gelu"},
    {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu"},
]


STORES = [  # every way to write c
    ("matmul_wgmma", "step1_tma"),
    ("matmul_wgmma", "step8_tma_store"),
    ("matmul_mma", "step1_ldmatrix"),
    ("matmul_mma", "step5_coalesced"),
    ("matmul_mma", "step6_tma"),
]


@pytest.mark.parametrize(
    ("kernel", "variant", "options"),
    # all of an epilogue with every way to write c; its parts, which are computed by one header, with one of each kernel
    [(*store, EPILOGUES[-1]) for store in STORES]
    + [(*store, part) for store in (STORES[1], STORES[4]) for part in EPILOGUES[:-1]],
    ids=str,
)
def test_epilogues(device, kernel, variant, options):
    check(device, kernel, variant, 90, 104, 40, **options)


@pytest.mark.parametrize("variant", ["step1_ldmatrix", "step4_registers_ahead", "step6_tma"])
def test_f16(device, variant):
    check(device, "matmul_mma", variant, 70, 80, 40, dtype="f16")


TILES = [
    {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3},
    {"BM": 128, "BN": 128, "CONSUMERS": 1, "REGISTERS": 0, "BOXES": 1},
    {"BM": 128, "BN": 192, "CONSUMERS": 2, "BOXES": 4},
    {"BM": 256, "BN": 128, "CONSUMERS": 2},
    {"BM": 256, "BN": 192, "STAGES": 3},  # 192 sums per thread
    {"BM": 192, "BN": 192, "CONSUMERS": 3, "REGISTERS": 160, "BOXES": 1},
    {"BM": 128, "BN": 224, "BOXES": 1, "CLUSTER_M": 2},  # boxes of 32 columns
    {"CLUSTER_M": 2, "GROUP": 1},
    {"CLUSTER_N": 2, "GROUP": 4},
    {"BN": 128, "CLUSTER_M": 2, "CLUSTER_N": 2},
    {"BN": 64, "CLUSTER_M": 4},
    {"REGISTERS": 0},
    {"BM": 128, "BN": 128, "STAGES": 3, "PING_PONG": 1},
    {"BM": 64, "BN": 176, "STAGES": 3, "PING_PONG": 1, "CLUSTER_N": 2},  # boxes of 16 columns
    {"BM": 128, "BN": 192, "STAGES": 3, "BOXES": 1, "PING_PONG": 1, "CLUSTER_M": 2},  # 192 sums per thread
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_shape_of_tile(device, few_ctas, tile):
    """At least two tiles per CTA; in the emulator asynchronous operations complete as late as is legal."""
    if device.kind == "emulator":
        device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, "matmul_wgmma", "step8_tma_store", 300, 392, 264, tile)


MMA_TILES = [
    {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "BK": 32, "STAGES": 4},
    {"BM": 64, "BN": 128, "WM": 32, "WN": 64, "STAGES": 3},
    {"BM": 128, "BN": 64, "WM": 64, "WN": 32, "BK": 64, "STAGES": 5, "GROUP": 1},
    {"BM": 128, "BN": 256, "BK": 32, "STAGES": 6},
]


@pytest.mark.parametrize("step", ["step5_coalesced", "step6_tma"])
@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
def test_every_shape_of_mma_tile(device, tile, step):
    check(device, "matmul_mma", step, 150, 280, 200, tile)


PERSISTENT = [
    ("matmul_wgmma", "step5_persistent"),
    ("matmul_wgmma", "step7_setmaxnreg"),
    ("matmul_wgmma", "step8_tma_store"),
    ("matmul_mma", "step6_tma"),
]


@pytest.mark.parametrize("k", [24, 264])  # fewer stages than the ring has, and more
def test_consumers_that_alternate_take_many_tiles(few_ctas, k):
    """The last tile of a CTA is that of either consumer."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))
    tile = {"BM": 64, "BN": 64, "STAGES": 3, "BOXES": 1, "PING_PONG": 1}
    check(device, "matmul_wgmma", "step8_tma_store", 264, 200, k, tile)


def test_consumers_that_do_not_wait_for_each_other_mistake_a_stage(few_ctas, monkeypatch):
    """The second one takes a stage of the other one's tile for its own, because a parity tells only two phases apart."""

    def without_barriers(image):
        ptx = re.sub(r"barrier\.(sync|arrive) %r\d+, %r\d+;", "", image.ptx)
        assert ptx != image.ptx
        return replace(image, ptx=ptx, key=f"{image.key} without barriers")

    def mutilated(*arguments):
        built = compiled(*arguments)
        return replace(built, steps=tuple(replace(s, image=without_barriers(s.image)) for s in built.steps))

    monkeypatch.setattr(execute, "compiled", mutilated)
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    case = execute.Case(MatmulWgmma(m=128, n=128, k=200), device, seed=1)
    tile = {"BM": 64, "BN": 64, "STAGES": 3, "BOXES": 1, "PING_PONG": 1}
    variant = case.workload.variant("step8_tma_store")
    with pytest.raises(DeadlockError, match="every thread waits"):
        execute.run(case, variant, None, tile, explicit=True)


@pytest.mark.parametrize("k", [24, 104])  # in the shorter one the ring contains stages of several tiles
@pytest.mark.parametrize(("kernel", "variant"), PERSISTENT)
def test_a_cta_takes_many_tiles(device, few_ctas, kernel, variant, k):
    check(device, kernel, variant, 520, 520, k)


@pytest.mark.parametrize(("kernel", "variant"), STEPS)
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, kernel, variant):
    """Asynchronous operations complete as late as the program's waits allow, with several tiles per CTA."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, kernel, variant, 300, 264, 200)


def test_an_epilogue_that_reads_has_registers_left():
    workload = MatmulWgmma(beta=0.5)
    with pytest.raises(UsageError, match="holds 192 sums of 256 x 192, more than 128"):
        workload.variant("step8_tma_store").select_tile(workload, Target.parse("sm_90a"), {"BM": 256, "BN": 192})


def test_threads_share_the_copies_of_the_smaller_operand_unless_tma_copies():
    workload = MatmulMma(m=64, n=256, k=64)
    tile = {"BM": 64, "BN": 256, "BK": 32, "WM": 32, "WN": 32}  # 16 warps
    with pytest.raises(UsageError, match="512 threads cannot share 256 copies of 16 bytes"):
        workload.variant("step5_coalesced").select_tile(workload, Target.parse("sm_90a"), tile)
    workload.variant("step6_tma").select_tile(workload, Target.parse("sm_90a"), tile)


@pytest.mark.parametrize("name", ["n", "k"])
def test_rows_are_multiples_of_16_bytes(name):
    with pytest.raises(UsageError, match=f"{name} must be a multiple of 8"):
        MatmulMma(**{"m": 8, "n": 8, "k": 8, name: 12})


@pytest.mark.parametrize("size", [64, 1000, 1024, 2048, 4096, 8192, 16384])
@pytest.mark.parametrize("kernel", ["matmul_wgmma", "matmul_mma"])
def test_the_preferred_tile_satisfies_the_constraint(kernel, size):
    workload = registry.get(kernel).make([size] * 3)
    usable = [v for v in workload.variants().values() if v.prefer is not None and v.refusal(workload) is None]
    variant = next(v for v in reversed(usable) if v.slower is None or v.slower(workload) is None)
    tile = variant.select_tile(workload, Target.parse("sm_90a"))
    assert tile.items() >= next(iter(variant.prefer(workload))).items()


@pytest.mark.parametrize("step", WGMMA)
def test_wgmma_is_asynchronous_and_nothing_spills(step):
    assert_sass(f"matmul_wgmma:{step}@sm_90a", has="HGMMA", spills=0)
    workload = MatmulWgmma()
    for made in build(workload, workload.variant(step), Target.parse("sm_90a")).steps:
        assert "serialized" not in made.image.log  # "wgmma.mma_async instructions are serialized due to ..."


@pytest.mark.parametrize(
    ("tile", "options"),
    [
        ({}, {"alpha": 2.0, "beta": 0.5, "epilogue": "bias_gelu"}),
        ({"BM": 256, "BN": 192}, {"alpha": 2.0}),
        ({"BM": 128, "BN": 128, "PING_PONG": 1}, {"alpha": 2.0, "epilogue": "bias_gelu"}),
        ({"BM": 128, "BN": 192, "PING_PONG": 1}, {"alpha": 2.0}),
    ],
)
def test_no_epilogue_spills(tile, options):
    workload = MatmulWgmma(**options)
    (step,) = build(workload, workload.variant("step8_tma_store"), Target.parse("sm_90a"), tile).steps
    assert_sass(step.image, has=["HGMMA", "STSM", "UTMASTG"], spills=0)


MMA_SASS = [
    (step, target) for step in MMA for target in ("sm_80", "sm_90a") if (step, target) != ("step6_tma", "sm_80")
]


@pytest.mark.parametrize(("step", "target"), MMA_SASS)
def test_mma_reads_matrices_and_nothing_spills(step, target):
    copy = "UTMALDG" if step == "step6_tma" else "LDGSTS"
    assert_sass(f"matmul_mma:{step}@{target}", has=["HMMA.16816.F32.BF16", "LDSM.16.M88.4", copy], spills=0)
