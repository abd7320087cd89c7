"""Step 18 of matmul_wgmma: rows of b of any length, of which a tile has one class, and a copy of a for each class."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, leave_out_proxy_fences, strict

from ptxkit.errors import MemoryFault, UsageError
from ptxkit.kernels.gemm import row_classes
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload.build import build

STEP = "step18_row_classes"
SM_90A = Target.parse("sm_90a")
check = partial(check_exactly, STEP)


def tile_of(**values):
    """A tile with all parameters."""
    alone = {"A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 1}
    return {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 16, **alone, **values}


@settings(max_examples=5, deadline=None)
@given(
    *(st.integers(1, 70), st.integers(1, 130), st.integers(1, 200)),
    *(st.integers(0, 8).map(lambda x: 2 * x), st.integers(0, 8).map(lambda x: 2 * x), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 1, 0, 0, "bf16")
@example(17, 521, 65, 0, 0, "f16")
def test_any_size_and_pitch(m, n, k, more_a, more_b, dtype):
    k |= 1  # neither a nor b has rows that TMA can read
    check(strict(), MatmulWgmma(m=m, n=n, k=k, lda=k + more_a, ldb=k + more_b, dtype=dtype), tile_of())


@pytest.mark.parametrize("pitch", range(73, 80))
def test_rows_that_begin_at_every_place_of_a_vector(pitch):
    """What lies beside a row is not a number, so that it must not be multiplied, not even by zero."""
    check(strict(), MatmulWgmma(m=9, n=19, k=69, lda=pitch, ldb=pitch, dtype="f16"), tile_of(), poison=True)


TILES = [  # sizes and tile
    ((40, 140, 332), {"TOKENS": 40, "ROWS": 3}),
    ((40, 300, 76), {"TOKENS": 24, "CONSUMERS": 2, "A_SHARING": 2}),
    ((70, 70, 130), {"TOKENS": 24, "B_SHARING": 2, "A_SHARING": 2}),
    ((20, 70, 333), {"TOKENS": 24, "PARTS": 3, "B_SHARING": 2}),
    ((300, 39, 76), {"TOKENS": 24, "ROWS": 2, "B_SHARING": 2}),  # more rows of a than of b
    ((70, 20, 333), {"TOKENS": 24, "PARTS": 2}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    """What lies before a row of b is not a number. With a pitch of a multiple of 4, a class has half of the rows."""
    pitch = mnk[2] + 8
    check(strict(racecheck="warps"), MatmulWgmma(*mnk, lda=pitch, ldb=pitch), tile_of(**tile), poison=True)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 37, 149), (37, 3, 149)], ids=str)
def test_epilogues(device, sizes, parts):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16"}
    check(device, MatmulWgmma(*sizes, ldc=50, **options), tile_of(PARTS=parts))


def test_zeros_that_wgmma_reads_without_a_proxy_fence_are_found(monkeypatch):
    """Which the tests above rely on: the fence after the stores is left out."""
    leave_out_proxy_fences(monkeypatch)
    with pytest.raises(MemoryFault, match=r"no fence\.proxy\.async"):
        check(strict(racecheck="warps"), MatmulWgmma(3, 37, 61), tile_of())


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        ((3, 40, 65), {"layout": "tt"}, "layout tn"),
        ((3, 40, 64), {}, "TMA reads the rows of b by one tensor map"),
        ((257, 258, 65), {}, "257 rows of a are more than the 256"),
        ((65, 40, 65), {"lda": 72}, "TMA reads the rows of a by one tensor map"),
    ],
)
def test_what_it_cannot_compute_is_refused(sizes, options, reason):
    with pytest.raises(UsageError, match=reason):
        check(strict(), MatmulWgmma(*sizes, **options), tile_of())


@pytest.mark.parametrize(("ldb", "classes"), [(81, 8), (82, 4), (84, 2)])
def test_the_pitch_decides_how_many_classes_there_are(ldb, classes):
    assert row_classes.period(MatmulWgmma(m=3, n=37, k=81, ldb=ldb)) == classes


def test_products_are_asynchronous_and_nothing_spills():
    workload = MatmulWgmma(m=17, n=37, k=81, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    copies, step = build(workload, workload.variant(STEP), SM_90A, tile_of(ROWS=3, TOKENS=72)).steps
    assert_sass(copies.image, has=["LDG.E.128", "STG.E.128"], spills=0)
    assert_sass(step.image, has=["HGMMA", "UTMALDG"], spills=0)
    assert "serialized" not in step.image.log
