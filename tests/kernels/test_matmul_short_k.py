"""Step 19 of matmul_wgmma: rows that begin anywhere in shared memory, read word by word for mma.sync."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, strict

from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import short_k
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload.build import build

STEP = "step19_short_k"
SM_90A = Target.parse("sm_90a")
check = partial(check_exactly, STEP)


def tile_of(**values):
    """A tile with all parameters."""
    return {"DOWN": 2, "ACROSS": 1, "DEEP": 1, "WM": 16, "WN": 16, "STAGED": 0, **values}


@settings(max_examples=5, deadline=None)
@given(
    *(st.integers(1, 70), st.integers(1, 70), st.integers(1, 300)),
    *(st.integers(0, 17), st.integers(0, 17), st.integers(0, 9), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 1, 0, 0, 0, "bf16")
@example(65, 66, 64, 0, 0, 0, "f16")
@example(70, 9, 113, 0, 0, 0, "bf16")
def test_any_size_and_pitch(m, n, k, more_a, more_b, more_c, dtype):
    check(strict(), MatmulWgmma(m=m, n=n, k=k, lda=k + more_a, ldb=k + more_b, ldc=n + more_c, dtype=dtype))


@pytest.mark.parametrize("more", [0, 1], ids=["contiguous", "rows apart"])
@pytest.mark.parametrize("mnk", [(5, 3, 1), (6, 7, 2), (12, 2, 3)], ids=str)
def test_a_matrix_ends_within_a_vector_that_has_several_rows(mnk, more):
    """Which is not copied beyond the end of the matrix, for none of these rows."""
    m, n, k = mnk
    check(strict(), MatmulWgmma(m, n, k, lda=k + more, ldb=k + more), tile_of())


@pytest.mark.parametrize("pitch", range(72, 80))
def test_rows_that_begin_at_every_place_of_a_vector(pitch):
    """What lies beside a row is not a number, so that it must not be multiplied, not even by zero."""
    check(strict(), MatmulWgmma(m=9, n=19, k=69, lda=pitch, ldb=pitch, dtype="f16"), tile_of(), poison=True)


@pytest.mark.parametrize("k", [66, 68, 71, 72, 80])
def test_rows_of_contiguous_matrices(k):
    """Pieces with rows at words, anywhere and at vectors, and rows that would begin in the same banks."""
    check(strict(), MatmulWgmma(m=35, n=37, k=k), tile_of())


@pytest.mark.parametrize("staged", [0, 1])
@pytest.mark.parametrize("ldc", range(37, 45))
def test_rows_of_c_that_begin_at_every_place_of_a_vector(ldc, staged):
    check(strict(), MatmulWgmma(m=9, n=37, k=16, ldc=ldc), tile_of(STAGED=staged))


TILES = [  # sizes and tile
    ((70, 40, 555), {"DOWN": 4, "ACROSS": 2}),
    ((40, 70, 400), {"ACROSS": 2, "WM": 32}),
    ((70, 33, 130), {"ACROSS": 2, "WN": 32, "STAGED": 1}),
    ((70, 25, 60), {"WN": 32, "STAGED": 1}),  # c is one row in memory
    ((3, 9, 24), {"DOWN": 1, "ACROSS": 2}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    """Neither of warps nor of the lanes that put rows of c into shared memory."""
    check(strict(racecheck="lanes"), MatmulWgmma(*mnk), tile_of(**tile))


def test_warps_that_divide_k_have_read_the_copies_before_sums_replace_them():
    check(strict(racecheck="warps"), MatmulWgmma(9, 7, 60), tile_of(DEEP=2))


def ptx_of(**tile):
    """The PTX of the step with a tile."""
    workload = MatmulWgmma(9, 7, 60)
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of(**tile)).steps
    return step.image.ptx


@pytest.mark.parametrize("copy", ["cp.async.cg", "cp.async.bulk.shared"])
def test_nothing_is_copied_before_the_previous_grid_has_ended(copy):
    ptx = ptx_of()
    assert ptx.index("griddepcontrol.wait") < ptx.index(copy)


def test_rows_are_requested_before_the_previous_grid_has_ended():
    ptx = ptx_of()
    assert ptx.index("cp.async.bulk.prefetch.L2") < ptx.index("griddepcontrol.wait")


def test_the_next_grid_starts_when_all_before_this_one_have_ended():
    ptx = ptx_of()
    assert ptx.index("griddepcontrol.wait") < ptx.index("griddepcontrol.launch_dependents")


@pytest.mark.parametrize("n", [20, 37])
def test_epilogues(device, n):
    check(device, MatmulWgmma(m=3, n=n, k=41, alpha=-1.5, beta=0.25, epilogue="bias_gelu", dtype="f16"), tile_of())


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({"layout": "tt"}, {}, "layout tn"),
        ({"k": 4001}, {"DOWN": 4}, "bytes of shared memory"),
        ({}, {"DOWN": 1}, "32 threads"),
    ],
)
def test_what_it_cannot_compute_is_refused(options, tile, reason):
    with pytest.raises(UsageError, match=reason):
        check(strict(), MatmulWgmma(**{"m": 3, "n": 40, "k": 320, **options}), tile_of(**tile))


def test_a_long_k_is_left_to_other_steps():
    short, long = (MatmulWgmma(m=300, n=65, k=k).on(reference_facts("sm_90a")) for k in (1023, 1025))
    assert short_k.considered(short)
    assert not short_k.considered(long)


@pytest.mark.parametrize(("k", "considered"), [(97, True), (96, False)])
def test_where_tma_reads_both_operands_an_sm_has_one_cta(k, considered):
    workload = MatmulWgmma(m=2079, n=344, k=k).on(reference_facts("sm_90a"))
    assert any(short_k.candidates(workload)) == considered


def test_copies_are_asynchronous_and_nothing_spills():
    workload = MatmulWgmma(m=17, n=37, k=81, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of(ACROSS=2, WM=32, WN=32)).steps
    assert_sass(step.image, has=["LDGSTS.E.BYPASS", "UBLKCP", "HMMA", "LDSM"], spills=0)
