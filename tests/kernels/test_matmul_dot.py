"""Step 20 of matmul_wgmma: one or two rows of a as dot products with rows of b."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, strict

from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import dot
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

STEP = "step20_dot"
SM_90A = Target.parse("sm_90a")
check = partial(check_exactly, STEP)


def tile_of(**values):
    """A tile with all parameters."""
    return {"TOKENS": 1, "BATCH": 4, "PARTS": 1, **values}


@settings(max_examples=5, deadline=None)
@given(
    *(st.integers(1, 3), st.integers(1, 70), st.integers(1, 300)),
    *(st.integers(0, 3), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 1, 0, 8, "bf16")
@example(1, 17, 260, 0, 2, "f16")
def test_any_number_of_vectors_of_a_row(m, n, vectors, more, parts, dtype):
    k = 8 * vectors
    check(strict(), MatmulWgmma(m=m, n=n, k=k, lda=k + 8 * more, ldb=k + 8, dtype=dtype), tile_of(PARTS=parts), poison=True)


@pytest.mark.parametrize(
    ("mnk", "tile"),
    [
        ((1, 20, 2056), {"PARTS": 4}),  # a second batch of a part of the warps
        ((2, 9, 520), {"TOKENS": 2, "BATCH": 2}),
        ((3, 9, 1288), {"TOKENS": 2, "PARTS": 8}),  # parts without a vector, and a row of a beyond the last
        ((1, 300, 136), {"BATCH": 8}),
    ],
    ids=str,
)
def test_every_shape_of_tile_without_races(mnk, tile):
    check(strict(racecheck="warps"), MatmulWgmma(*mnk), tile_of(**tile))


def test_sums_of_all_parts_are_added():
    """Of numbers none of which is zero, in the last part as well."""
    case = execute.Case(MatmulWgmma(m=1, n=3, k=2048), strict(), seed=1)
    result = execute.run(case, case.workload.variant(STEP), None, tile_of(BATCH=2, PARTS=4), explicit=True)
    assert result.verdict.verified, result.verdict.worst


def test_epilogues(device):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16"}
    check(device, MatmulWgmma(m=2, n=37, k=48, ldc=50, **options), tile_of())


@pytest.mark.parametrize(
    ("options", "reason"), [({"layout": "tt"}, "layout tn"), ({"k": 60}, "multiples of 16 bytes")], ids=["layout", "rows"]
)
def test_what_has_no_whole_vectors_along_k_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        check(strict(), MatmulWgmma(**{"m": 1, "n": 40, "k": 64, **options}), tile_of())


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [((1, 4096, 4096), True), ((1, 50272, 5120), True), ((2, 4096, 4096), False), ((1, 4099, 4099), False)],
    ids=str,
)
def test_it_is_chosen_for_one_row_of_a(sizes, chosen):
    assert (choose(MatmulWgmma(*sizes), target=SM_90A).variant == STEP) == chosen


def test_no_more_warps_divide_a_row_than_have_a_piece_of_it():
    workload = MatmulWgmma(m=1, n=1000, k=4096).on(reference_facts("sm_90a"))
    tiles = list(dot.candidates(workload))
    assert {t["PARTS"] for t in tiles} == {1, 2, 4}
    assert all(dot.usable(workload, t) is True for t in tiles)


@pytest.mark.parametrize("tokens", [1, 2])
def test_rows_of_b_pass_neither_l1_nor_shared_memory_and_nothing_spills(tokens):
    workload = MatmulWgmma(m=tokens, n=37, k=4096, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of(TOKENS=tokens)).steps
    assert_sass(step.image, has=["LDG.E.NA.128"], spills=0)


def test_nothing_is_read_before_the_previous_grid_has_ended():
    workload = MatmulWgmma(m=1, n=37, k=4096)
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of()).steps
    assert step.image.ptx.index("griddepcontrol.wait") < step.image.ptx.index("ld.global")
