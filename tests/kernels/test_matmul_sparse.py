"""matmul_sparse in all its steps: types, ragged sizes, tiles, late completion, races, and the compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import sparse
from ptxkit.kernels.gemm.matmul_sparse import MatmulSparse
from ptxkit.kernels.gemm.product import gemm_of
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

STEPS = [
    (dtype, name)
    for dtype in ("bf16", "f16", "e4m3")
    for name in MatmulSparse.variants()
    if (dtype, name) != ("e4m3", "step1_mma_sp")
]
BOTH = [step for step in STEPS if step[0] != "f16"]  # the kernels for f16 are those for bf16


def check(device, dtype, variant, m, n, k, tile=None, **options):
    workload = MatmulSparse(m=m, n=n, k=k, dtype=dtype, **options)
    case = execute.Case(workload, device, seed=m + n + k)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


@pytest.mark.parametrize(("dtype", "variant"), [*BOTH, ("f16", "step1_mma_sp"), ("f16", "step5_multicast")])
def test_ragged_sizes(device, dtype, variant):
    check(device, dtype, variant, 300, 72, 352)


@pytest.mark.parametrize(("dtype", "variant"), BOTH)
def test_the_smallest_size(device, dtype, variant):
    check(device, dtype, variant, 1, 8, 32)


@pytest.mark.parametrize(("dtype", "variant"), BOTH)
def test_small_integers_are_exact(device, dtype, variant):
    """Every product and every sum, at most 4 * 16, is a number of each type, so that the order of the sums does not matter."""
    workload = MatmulSparse(m=70, n=136, k=32, dtype=dtype, weights="dense")
    rng = np.random.default_rng(0)
    given = {
        name: rng.integers(-2, 3, shape).astype(dtype_of(dtype)) for name, shape in (("a", (70, 32)), ("b", (136, 32)))
    }
    case = execute.Case(workload, device, inputs=given)
    execute.prepare(case, workload.variant(variant)).launch()
    np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


@pytest.mark.parametrize(("dtype", "variant"), [step for step in BOTH if step[1] != "unfused"])
def test_infinity_where_nothing_is_stored_has_no_effect(device, dtype, variant):
    """The tensor cores skip the elements of a that meet no stored element of b; a dense product of zero and NaN is NaN."""
    workload = MatmulSparse(m=16, n=64, k=64, dtype=dtype)
    one = dtype_of(dtype).type(1)
    b = np.zeros((64, 64), dtype_of(dtype))
    b[:, ::4] = b[:, 1::4] = one
    a = np.full((16, 64), np.nan, np.float32).astype(dtype_of(dtype))
    a[:, ::4] = a[:, 1::4] = one
    values, metadata = sparse.compress(b)
    case = execute.Case(workload, device, inputs={"a": a, "b": b, "values": values, "metadata": metadata})
    execute.prepare(case, workload.variant(variant)).launch()
    np.testing.assert_array_equal(case.outputs()["c"].astype(np.float32), 32)


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("variant", ["step4_persistent", "step5_multicast"])
def test_no_races_over_several_tiles(few_ctas, dtype, variant):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    check(device, dtype, variant, 264, 264, 352)  # more steps than stages


@pytest.mark.parametrize(("dtype", "variant"), BOTH)
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, dtype, variant):
    """Operations complete as late as the waits allow, with several tiles per CTA, and nothing uninitialised is used."""
    settings = EmulatorSettings(initcheck=True, completion="latest-legal", trap=("nan",))
    check(EmulatedDevice(settings=settings), dtype, variant, 150, 136, 224, weights="dense")


TILES = [
    {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "CLUSTER_N": 1},
    {"BM": 192, "BN": 256, "STAGES": 3},
    {"BM": 176, "BN": 256},  # parts of a and boxes of c have 88 rows
    {"BM": 200, "BN": 256},  # 200 sums a thread; parts of a and boxes of c have 40 rows
    {"BM": 128, "BN": 256, "CLUSTER_M": 2, "GROUP": 1},
    {"BN": 128, "CLUSTER_M": 2, "CLUSTER_N": 1, "BOXES": 4},
    {"REGISTERS": 0, "BOXES": 1},
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_shape_of_tile(few_ctas, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, "bf16", "step5_multicast", 392, 264, 160, tile)


MMA_TILES = [
    {"BM": 64, "BN": 64, "STAGES": 3},
    {"BM": 256, "WM": 64},
    {"BM": 64, "WN": 32, "STAGES": 5, "GROUP": 1},
]


@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
def test_every_shape_of_mma_tile(device, tile):
    check(device, "bf16", "step1_mma_sp", 150, 280, 208, tile)


@pytest.mark.parametrize(("dtype", "variant"), STEPS)
def test_wgmma_is_sparse_and_asynchronous_and_nothing_spills(dtype, variant):
    if variant == "unfused":
        pytest.skip("a dense product")
    workload = MatmulSparse(dtype=dtype)
    (step,) = build(workload, workload.variant(variant), Target.parse("sm_90a")).steps
    assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
    opcode = {"e4m3": "QGMMA.SP", "bf16": "HGMMA.SP", "f16": "HGMMA.SP"}[dtype]
    assert_sass(step.image, has="HMMA.SP" if variant == "step1_mma_sp" else opcode, spills=0)


@pytest.mark.parametrize(("dtype", "opcode"), [("bf16", "HGMMA.SP.64x200x32"), ("e4m3", "QGMMA.SP.64x200x64")])
def test_the_largest_tile_does_not_spill(dtype, opcode):
    workload = MatmulSparse(dtype=dtype)
    (step,) = build(workload, workload.variant("step5_multicast"), Target.parse("sm_90a"), {"BM": 200, "BN": 256}).steps
    assert "serialized" not in step.image.log
    assert_sass(step.image, has=[opcode, "STSM.16.MT88.4", "STSM.16.MT88.2", "UTMASTG"], spills=0)


def test_mma_sp_runs_on_sm_80():
    assert_sass("matmul_sparse:step1_mma_sp@sm_80", has=["HMMA.SP.16832", "LDSM.16.M88.4", "LDGSTS"], spills=0)


def test_half_of_the_flops_are_executed():
    work = MatmulSparse(m=256, n=256, k=256).work()
    assert (work.flops, work.executed) == (2 * 256**3, 256**3)
    device = EmulatedDevice()
    case = execute.Case(MatmulSparse(m=256, n=256, k=256), device)
    result = execute.run(case, case.workload.variant("step5_multicast"))
    assert result.counters.flops_by_type["tensor.bf16"] == work.executed


def test_libraries_multiply_the_pruned_matrix():
    assert gemm_of(MatmulSparse()).sparse == "b"
    assert gemm_of(MatmulSparse(weights="dense")) is None
    given = MatmulSparse(m=8, n=16, k=32).inputs(np.random.default_rng(0))
    kept = given["b"].astype(np.float32).reshape(-1, 4) != 0
    assert kept.sum(axis=1).max() <= 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"k": 24}, "k must be a multiple of 16"),
        ({"k": 48, "dtype": "e4m3"}, "k must be a multiple of 32"),
        ({"n": 12}, "n must be a multiple of 8"),
    ],
)
def test_rows_are_multiples_of_16_bytes(sizes, message):
    with pytest.raises(UsageError, match=message):
        MatmulSparse(**{"m": 8, "n": 8, "k": 32, **sizes})


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ({"BM": 256, "BN": 192}, "not a multiple of 64 columns for each of 2 consumers"),
        ({"BM": 256, "BN": 256}, "holds 256 sums of 256 x 256, more than 200"),
        ({"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 240}, "one consumer has enough registers"),
        ({"BM": 256, "BN": 128, "STAGES": 8}, "bytes of shared memory, more than 232448"),
    ],
)
def test_tiles_that_cannot_be_are_refused(tile, message):
    workload = MatmulSparse()
    with pytest.raises(UsageError, match=message):
        workload.variant("step5_multicast").select_tile(workload, Target.parse("sm_90a"), tile)


def test_mma_sp_has_no_e4m3():
    workload = MatmulSparse(dtype="e4m3")
    with pytest.raises(UsageError, match="this step multiplies bf16 and f16"):
        workload.variant("step1_mma_sp").select_tile(workload, Target.parse("sm_80"))
