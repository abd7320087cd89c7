"""matmul_fused: element types, epilogues, batches, leading dimensions, what is refused, and the compiled code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit import Tile
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.tensor_core.accumulation import accumulation
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import stream_k
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import BY_TMA
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose
from ptxkit.workload.data import Data
from ptxkit.workload.verify import compare_all

SM_90A = Target.parse("sm_90a")
WGMMA_E4M3 = accumulation("wgmma", "e4m3", 90)
SMALL = {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}
IN_TURN = {"CONSUMERS": 2, "REGISTERS": 240, "PING_PONG": 1}


def strict():
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))


def run(device, variant, m, n, k, tile=None, change=None, **options):
    """The case, after the outputs have been compared with numpy. ``change``: a function of the inputs."""
    workload = MatmulFused(m=m, n=n, k=k, **options)
    inputs = workload.inputs(np.random.default_rng(m + n + k))
    if change is not None:
        inputs = {name: change(x) for name, x in inputs.items()}
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(variant), None, tile or SMALL, explicit=True)
    assert result.verdict.verified, f"{variant}: {result.verdict.worst}"
    return case


def small_integers(x):
    """-2, -1, 1 and 2, or one of sixteen, so that all partial sums are exact in 13 bits too."""
    rng = np.random.default_rng(x.size)
    return (rng.integers(1, 3, x.shape) * rng.choice([-1, 0, 0, 0, 1], x.shape)).astype(x.dtype)


@pytest.mark.parametrize(("dtype", "k"), [("bf16", 264), ("tf32", 132), ("e4m3", 528), ("s8", 528)])
def test_each_type_without_races_in_a_ring_that_is_used_again(few_ctas, dtype, k):
    """Five steps along k in three stages, two tiles for each CTA; all sums are integers, and the results exact."""
    change = None if dtype == "s8" else small_integers
    case = run(strict(), "fused", 65, 67, k, change=change, dtype=dtype)
    expected = case.expected["c"]
    if dtype != "s8":
        assert np.abs(expected).max() <= 256
    np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("variant", ["fused", "unfused"])
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "s8", "scale": "rows_columns", "bias": True, "activation": "gelu", "residual": True, "amax": True},
        {"dtype": "bf16", "scale": "tensor", "activation": "silu_mul", "residual": True, "amax": True},
    ],
    ids=lambda o: o["dtype"],
)
def test_epilogues_of_batches_in_larger_matrices(device, variant, options):
    """What lies beside c stays as it is, and what lies beside a and b is not multiplied."""
    case = run(device, variant, 9, 70, 48, batch=2, lda=64, ldb=80, ldc=73, **options)
    width = 35 if options["activation"] == "silu_mul" else 70
    rest = case.outputs()["c"][..., width:]
    np.testing.assert_array_equal(rest.view(np.uint16), case.inputs["c"][..., width:].view(np.uint16))


@pytest.mark.parametrize(
    ("sizes", "tile", "options"),
    [
        ((72, 136, 200), {"CLUSTER_M": 2, "GROUP": 8}, {"batch": 2, "amax": True}),
        ((130, 72, 200), {"CLUSTER_N": 2, "BN": 96, "BOXES": 1}, {"activation": "relu", "bias": True}),  # half boxes
        ((72, 136, 132), {"BN": 96, "BOXES": 1}, {"dtype": "tf32", "residual": True}),  # words
        ((72, 136, 132), {}, {"dtype": "tf32", "activation": "silu_mul", "scale": "rows_columns"}),
        ((72, 272, 144), {"BN": 128}, {"dtype": "e4m3", "activation": "silu_mul", "bias": True}),
        ((72, 208, 144), {"BN": 96, "BOXES": 1}, {"activation": "silu_mul"}),  # boxes of 16 elements
        ((200, 104, 136), {"BM": 192, "BN": 96, "CONSUMERS": 3, "REGISTERS": 160, "BOXES": 1}, {"activation": "gelu"}),
        ((200, 72, 200), {**IN_TURN, "CLUSTER_M": 2}, {"batch": 2, "amax": True}),
        ((200, 72, 144), {**IN_TURN, "BN": 96, "BOXES": 1}, {"dtype": "s8", "scale": "rows_columns", "bias": True}),
    ],
    ids=str,
)
def test_tma_stores_each_kind_of_element_without_races(few_ctas, sizes, tile, options):
    """Boxes of 128, 64 and 32 bytes, of 16 and 32 bits, from one and from two sums, with operands that a cluster shares."""
    workload = MatmulFused(*sizes, **options)
    assert workload.stored_tile(Tile({**SMALL, **tile}), "c").STORE == BY_TMA
    run(strict(), "fused", *sizes, {**SMALL, **tile}, **options)


SHARES = {"CONSUMERS": 1, "ROWS": 1, "COLUMNS": 32, "SHARING": 1, "B_SHARING": 1, "CTAS_PER_SM": 1, "DIVIDED": 0}


@pytest.mark.parametrize(
    ("sizes", "tile", "options"),
    [
        ((17, 73, 144), {"SHARING": 2}, {"dtype": "s8", "scale": "rows_columns", "bias": True, "amax": True, "batch": 2}),
        ((60, 90, 400), {"DIVIDED": 1}, {"dtype": "e4m3", "scale": "tensor", "residual": True, "amax": True, "batch": 3}),
        ((72, 136, 70), {"COLUMNS": 64}, {"layout": "nt", "activation": "silu_mul", "batch": 2}),
        ((5, 72, 260), {"DIVIDED": 1}, {"dtype": "tf32", "ldc": 75}),
    ],
    ids=str,
)
def test_shares_of_k_with_epilogues_and_batches_without_races(few_ctas, sizes, tile, options):
    run(strict(), "stream_k", *sizes, {**SHARES, **tile}, **options)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "e4m3", "bias": True, "activation": "gelu", "amax": True, "batch": 2}, {"dtype": "s8", "residual": True}],
    ids=str,
)
def test_ctas_add_parts_with_epilogues_and_batches_without_races(monkeypatch, options):
    monkeypatch.setattr(stream_k, "FEWEST_TOGETHER", 1)
    tile = {**SHARES, "COLUMNS": 48, "DIVIDED": 2}
    workload = MatmulFused(40, 40, 1040, **options)
    assert stream_k.Shares.of(workload, tile, workload.itemsize, workload.batch).polls
    run(strict(), "stream_k", 40, 40, 1040, tile, **options)


def test_the_transposed_product_has_epilogues_and_batches_without_races():
    tile = {**SHARES, "COLUMNS": 24, "DIVIDED": 3}
    options = {"dtype": "s8", "scale": "rows_columns", "bias": True, "amax": True, "batch": 2}
    run(strict(), "stream_k", 20, 73, 528, tile, **options)


FEW_ROWS = {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 16, "A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 1}


@pytest.mark.parametrize(
    ("variant", "tile"), [("stream_k", {**SHARES, "COLUMNS": 16}), ("multicast", FEW_ROWS)], ids=["pairs", "fours"]
)
@pytest.mark.parametrize(
    ("n", "options"), [(13, {"batch": 2}), (15, {"ldc": 16, "dtype": "s8", "bias": True})], ids=["odd_pitch", "odd_rows"]
)
def test_vectors_are_stored_only_where_they_are_aligned_and_in_the_row(variant, tile, n, options):
    """Matrices of 4 x 13 elements are aligned to four, but not their rows; after 15 elements there is one of another matrix."""
    run(strict(), variant, 4, n, 64, tile, **options)


@pytest.mark.parametrize(
    ("sizes", "options", "variant"),
    [
        ((64, 9216, 4096), {"dtype": "tf32"}, "stream_k"),
        ((1, 4096, 4096), {"dtype": "e4m3", "scale": "rows_columns"}, "multicast"),
        ((4096, 4096, 4096), {"activation": "gelu", "bias": True}, "fused"),
        ((1024, 8192, 2048), {"dtype": "s8"}, "fused"),
    ],
    ids=str,
)
def test_variant_by_the_model(sizes, options, variant):
    assert choose(MatmulFused(*sizes, **options), target=SM_90A).variant == variant


@pytest.mark.parametrize("k", [4096, 14336, 28672])
@pytest.mark.parametrize("bug", ["none", "one percent", "a lost block"])
def test_long_sums_of_e4m3_are_verified_and_small_bugs_are_found(k, bug):
    """The largest error of a sum of 28,672 products hides a factor of 1.01, but not the root mean square of all errors."""
    w = MatmulFused(16, 32, k, dtype="e4m3", scale="rows_columns")
    data = Data(w, 3)
    a, b = (data.inputs[name].astype(np.float32) for name in "ab")
    sums = np.zeros((1, 16, 32), np.float32)
    for first in range(0, k, 32):
        if bug != "a lost block" or not 256 <= first < 384:
            step = slice(first, first + 32)
            sums = WGMMA_E4M3.dot(a[None, :, step], b[:, step].T[None], sums, "e4m3", "e4m3")
    c = sums[0] * data.inputs["row_scales"][:, None] * data.inputs["column_scales"]
    found = {"c": (c * np.float32(1.01 if bug == "one percent" else 1)).astype(ml_dtypes.bfloat16)}
    assert compare_all(found, data.expected, data.tolerance_rule()).verified is (bug == "none")


def test_a_tile_that_ends_a_matrix_has_no_elements_of_the_next_one(device):
    """Both operands are MN-major, so that elements of k beyond 75 would be those of the next matrix."""
    run(device, "fused", 72, 72, 75, layout="nt", batch=2, dtype="f16")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"dtype": "e4m3", "scale": "rows"}, lambda c: c * 1.01),
        ({"dtype": "tf32"}, lambda c: c * 1.01),
        ({"dtype": "s8"}, lambda c: c + 1),
    ],
    ids=["e4m3", "tf32", "s8"],
)
def test_a_wrong_result_is_not_verified(options, wrong):
    """One percent more, or one more than an exact integer, in all elements."""
    workload = MatmulFused(m=64, n=64, k=128, **options)
    case = execute.Case(workload, EmulatedDevice(), seed=3)
    rule, expected = case.data.tolerance_rule(workload.variant("fused"), None), case.expected["c"]
    kind = case.outputs()["c"].dtype
    assert compare_all({"c": expected.astype(kind)}, case.expected, rule).verified
    assert not compare_all({"c": wrong(expected).astype(kind)}, case.expected, rule).verified


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "e4m3", "layout": "nn"}, "layout nn needs an operand transposed, which wgmma does for bf16 and f16"),
        ({"n": 67, "activation": "silu_mul"}, "n must be even"),
        ({"k": 12}, "rows of a have 24 bytes in memory, no multiple of 16"),
        ({"lda": 32}, "lda must be at least 64"),
        ({"ldb": 68}, "rows of b have 136 bytes"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"dtype": "s8", "k": 131072}, "k must be at most 131071, so that no sum of products of s8 exceeds 32 bits"),
    ],
)
def test_what_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        MatmulFused(**{"m": 64, "n": 64, "k": 64, **options})


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({"ldc": 67}, {"BN": 96, "BOXES": 1}, "BN=96 columns has no whole boxes of 64"),
        ({"activation": "silu_mul"}, {"BN": 176, "BOXES": 1}, "BN=176 columns has no whole boxes of 32"),
        ({}, {"CONSUMERS": 1, "PING_PONG": 1}, "two consumers alternate with PING_PONG=1"),
        ({}, {"BM": 128, "CONSUMERS": 2, "REGISTERS": 160}, "2 consumers have REGISTERS=240, or 0"),
        ({}, {"BM": 192, "CONSUMERS": 3, "REGISTERS": 240}, "3 consumers have REGISTERS=160, or 0"),
        ({"layout": "nt"}, {"CLUSTER_M": 2}, "each of 2 CTAs copies 32 rows of b, whose boxes have 64"),
    ],
)
def test_tiles_that_are_refused(options, tile, reason):
    workload = MatmulFused(m=64, n=64, k=64, **options)
    with pytest.raises(UsageError, match=reason):
        workload.variant("fused").select_tile(workload, SM_90A, {**SMALL, **tile})


@pytest.mark.parametrize(
    ("options", "spills"),
    [
        # a bias with scales spills two registers once for each tile, after the products
        ({"dtype": "e4m3", "scale": "rows_columns", "bias": True, "amax": True}, 16),
        ({"dtype": "e4m3", "scale": "rows_columns", "amax": True}, 0),
        ({"dtype": "s8"}, 0),
    ],
)
def test_wgmma_is_asynchronous_and_nothing_spills_in_its_loop(options, spills):
    workload = MatmulFused(**options)
    (step,) = build(workload, workload.variant("fused"), SM_90A).steps
    assert_sass(step.image, has=["QGMMA" if options["dtype"] == "e4m3" else "IGMMA", "UTMALDG"], spills=spills)
    assert "serialized" not in step.image.log
