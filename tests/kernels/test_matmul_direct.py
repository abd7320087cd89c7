"""Step 16 of matmul_wgmma: rows of b of any length that begin anywhere, from device memory to the operands of mma.sync."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, strict

from ptxkit.errors import RaceError, UsageError
from ptxkit.kernels.gemm import direct, unaligned
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build, compiled
from ptxkit.workload.choice import choose

STEP = "step16_direct"
SM_90A = Target.parse("sm_90a")
check = partial(check_exactly, STEP)


def tile_of(**values):
    """A tile with all parameters."""
    return {"TOKENS": 8, "ROWS": 1, "STAGES": 4, "PARTS": 8, "CLUSTER": 1, "ALIGN": 16, **values}


@settings(max_examples=5, deadline=None)
@given(
    *(st.integers(1, 20), st.integers(1, 70), st.integers(1, 400)),
    *(st.integers(0, 17), st.integers(0, 17), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 1, 0, 0, "bf16")
@example(9, 17, 3, 1, 0, "f16")
@example(3, 40, 264, 0, 0, "bf16")
def test_any_size_and_pitch(m, n, k, more_a, more_b, dtype):
    check(strict(), MatmulWgmma(m=m, n=n, k=k, lda=k + more_a, ldb=k + more_b, dtype=dtype))


@pytest.mark.parametrize("pitch", range(72, 80))
def test_rows_that_begin_at_every_place_of_a_vector(pitch):
    """What lies beside a row is not a number, so that it must not be multiplied, not even by zero."""
    tile = tile_of(ALIGN=(16, 32)[pitch % 2], TOKENS=(8, 16)[pitch // 2 % 2])
    check(strict(), MatmulWgmma(m=9, n=19, k=69, lda=pitch, ldb=pitch, dtype="f16"), tile, poison=True)


TILES = [  # sizes and tile
    ((3, 37, 1301), {"ROWS": 2}),  # the ring is used again
    ((16, 70, 1032), {"TOKENS": 16, "ROWS": 4, "PARTS": 2}),  # four warps with other rows
    ((33, 29, 302), {"TOKENS": 16, "PARTS": 1, "ALIGN": 64}),  # three tiles of rows of a
    ((40, 29, 301), {"TOKENS": 32, "ROWS": 2, "STAGES": 3}),
    ((5, 20, 2055), {"CLUSTER": 4, "PARTS": 4}),
    ((2, 20, 8), {"CLUSTER": 8}),  # parts without a step
    ((1, 300, 130), {"ALIGN": 128}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    check(strict(racecheck="warps"), MatmulWgmma(*mnk), tile_of(**tile))


def test_epilogues(device):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16"}
    check(device, MatmulWgmma(m=3, n=37, k=41, ldc=50, **options), tile_of())


def test_sums_that_are_read_before_all_warps_have_stored_theirs_are_found(monkeypatch):
    """Which the tests above rely on: the barrier after the stores is left out."""

    def without_barrier(*arguments):
        built = compiled(*arguments)
        texts = [step.image.ptx.rsplit("barrier.sync 0;", 1) for step in built.steps]
        assert all(len(text) == 2 for text in texts)
        steps = [
            replace(step, image=replace(step.image, ptx="".join(text), key="no barrier"))
            for step, text in zip(built.steps, texts, strict=True)
        ]
        return replace(built, steps=tuple(steps))

    monkeypatch.setattr(execute, "compiled", without_barrier)
    with pytest.raises(RaceError, match="read-after-write"):
        check(strict(racecheck="warps"), MatmulWgmma(3, 37, 301), tile_of())


def test_other_layouts_are_refused():
    workload = MatmulWgmma(m=3, n=40, k=64, layout="tt")
    with pytest.raises(UsageError, match="layout tn"):
        check(strict(), workload)


@settings(max_examples=50)
@given(st.integers(1, 2**20), st.sampled_from([16, 32, 64, 128]))
def test_rows_of_a_place_begin_at_the_same_byte(pitch, align):
    rows = direct.period(pitch, align)
    assert rows * pitch * unaligned.SIZE % align == 0
    assert all(row * pitch * unaligned.SIZE % align for row in range(1, rows))


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ((2, 999, 3333), True),
        ((3, 16381, 16381), False),  # which step 18 reads by TMA
        ((1, 359, 188), False),  # a short k, for step 19
        ((1, 127, 16383), True),  # clusters divide k
        ((17, 4099, 4099), False),  # more rows than a warp reads quickly
        ((3, 4096, 4096), False),  # rows that TMA reads
        ((3, 4099, 4096), False),  # only those of c are no multiples of 16 bytes
        ((7, 16383, 127), False),  # a short k
    ],
)
def test_it_is_chosen_for_few_rows_that_tma_cannot_read(sizes, chosen):
    assert (choose(MatmulWgmma(*sizes), target=SM_90A).variant == STEP) == chosen


def test_tiles_fit_and_hold_all_rows():
    workload = MatmulWgmma(m=5, n=1000, k=4099).on(reference_facts("sm_90a"))
    tiles = list(direct.candidates(workload))
    assert {t["TOKENS"] for t in tiles} == {8}
    assert all(direct.usable(workload, t) is True for t in tiles)


@pytest.mark.parametrize("tokens", [8, 16, 32])
def test_b_is_copied_asynchronously_and_nothing_spills(tokens):
    workload = MatmulWgmma(m=tokens, n=37, k=41, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of(TOKENS=tokens, ROWS=4)).steps
    assert_sass(step.image, has=["LDGSTS.E.BYPASS.128", "HMMA"], spills=0)
