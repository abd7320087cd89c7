"""Step 17 of matmul_wgmma: rows of any length that begin anywhere, shifted in shared memory on their way to wgmma."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, leave_out_proxy_fences, strict

from ptxkit.errors import MemoryFault, UsageError
from ptxkit.kernels.gemm import shifted
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload.build import build

STEP = "step17_shifted"
SM_90A = Target.parse("sm_90a")
check = partial(check_exactly, STEP)


def tile_of(**values):
    """A tile with all parameters."""
    return {"CONSUMERS": 1, "COLUMNS": 64, "PARTS": 1, **values}


@settings(max_examples=5, deadline=None)
@given(
    *(st.integers(1, 70), st.integers(1, 70), st.integers(1, 300)),
    *(st.integers(0, 17), st.integers(0, 17), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 1, 0, 0, "bf16")
@example(65, 66, 64, 0, 0, "f16")
def test_any_size_and_pitch(m, n, k, more_a, more_b, dtype):
    check(strict(), MatmulWgmma(m=m, n=n, k=k, lda=k + more_a, ldb=k + more_b, dtype=dtype))


@pytest.mark.parametrize("pitch", range(72, 80))
def test_rows_that_begin_at_every_place_of_a_vector(pitch):
    """What lies beside a row is not a number, so that it must not be multiplied, not even by zero."""
    check(strict(), MatmulWgmma(m=9, n=19, k=69, lda=pitch, ldb=pitch, dtype="f16"), tile_of(), poison=True)


TILES = [  # sizes and tile
    ((130, 70, 333), {"CONSUMERS": 2}),  # the stages are used again
    ((40, 130, 97), {"COLUMNS": 128}),
    ((70, 70, 333), {"PARTS": 3}),
    ((130, 70, 130), {"CONSUMERS": 2, "COLUMNS": 128, "PARTS": 2}),
    ((2, 20, 505), {"PARTS": 8}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    """Neither of warps nor of the lanes that store rows of c through shared memory."""
    check(strict(racecheck="lanes"), MatmulWgmma(*mnk), tile_of(**tile))


@pytest.mark.parametrize("parts", [1, 2])
def test_epilogues(device, parts):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16"}
    check(device, MatmulWgmma(m=3, n=37, k=81, ldc=50, **options), tile_of(PARTS=parts))


def test_vectors_that_wgmma_reads_without_a_proxy_fence_are_found(monkeypatch):
    """Which the tests above rely on: the fence after the stores is left out."""
    leave_out_proxy_fences(monkeypatch)
    with pytest.raises(MemoryFault, match=r"no fence\.proxy\.async"):
        check(strict(racecheck="warps"), MatmulWgmma(3, 37, 61), tile_of())


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [({"layout": "tt"}, {}, "layout tn"), ({}, {"PARTS": 2}, "k=64 has 1 step of 128 bytes, fewer than PARTS=2")],
)
def test_what_it_cannot_compute_is_refused(options, tile, reason):
    with pytest.raises(UsageError, match=reason):
        check(strict(), MatmulWgmma(m=3, n=40, k=64, **options), tile_of(**tile))


def test_k_is_divided_where_there_are_few_tiles():
    few, many = (MatmulWgmma(m=17, n=n, k=4099).on(reference_facts("sm_90a")) for n in (1000, 100_000))
    assert {t["PARTS"] for t in shifted.candidates(many)} == {1}
    assert {t["PARTS"] for t in shifted.candidates(few)} == set(shifted.SPACE["PARTS"])


@pytest.mark.parametrize("tile", [{"CONSUMERS": 1, "COLUMNS": 64}, {"CONSUMERS": 2, "COLUMNS": 128, "PARTS": 2}], ids=str)
def test_copies_and_products_are_asynchronous_and_nothing_spills(tile):
    workload = MatmulWgmma(m=17, n=37, k=81, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile_of(**tile)).steps
    assert_sass(step.image, has=["LDGSTS.E.BYPASS", "HGMMA"], spills=0)
    assert "serialized" not in step.image.log
