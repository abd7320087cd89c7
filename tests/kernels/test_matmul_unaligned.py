"""Steps 11 and 12 of matmul_wgmma: rows in memory of any number of bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptxkit_exact_products import check_exactly, leave_out_proxy_fences, strict

from ptxkit.errors import MemoryFault, UsageError
from ptxkit.kernels.gemm import unaligned
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

BY_THREADS, BY_COPIES = "step11_unaligned", "step12_aligned_copy"
SM_90A = Target.parse("sm_90a")
H200 = reference_facts("sm_90a")
SMALL = {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}
LAYOUTS = ("tn", "nn", "nt", "tt")


def check(device, step, m, n, k, tile=None, **options):
    """Compare a step with numpy exactly."""
    check_exactly(step, device, MatmulWgmma(m=m, n=n, k=k, **options), tile)


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


def test_consumers_that_alternate_store_rows_that_begin_anywhere(few_ctas):
    tile = {"BM": 64, "BN": 64, "STAGES": 3, "PING_PONG": 1}
    check(strict(racecheck="warps"), BY_COPIES, 200, 61, 75, tile)


ALTERNATING = {"BM": 128, "CONSUMERS": 2, "REGISTERS": 240, "STAGES": 5, "PING_PONG": 1}
ONE_CONSUMER = {"BM": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 6}


@pytest.mark.parametrize(
    ("tile", "sizes", "options"),
    [
        pytest.param({**ALTERNATING, "BN": 176}, (66, 181, 24), {}, id="two pieces of an odd number of vectors"),
        pytest.param({**ONE_CONSUMER, "BN": 112}, (70, 117, 24), {}, id="lanes without a vector"),
        pytest.param({**ONE_CONSUMER, "BN": 64}, (19, 61, 9), {}, id="elements after vectors"),
        pytest.param({**ONE_CONSUMER, "BN": 64}, (19, 7, 9), {}, id="no vector in most rows"),
        pytest.param({**ONE_CONSUMER, "BN": 64}, (70, 61, 16), {"ldc": 72}, id="rows that begin at vectors"),
        pytest.param({**ONE_CONSUMER, "BN": 64}, (70, 64, 16), {"ldc": 70}, id="an even pitch"),
    ],
)
def test_rows_that_begin_anywhere_in_tiles_of_any_width(tile, sizes, options):
    check(strict(racecheck="warps", initcheck=True), BY_COPIES, *sizes, tile, **options)


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
    leave_out_proxy_fences(monkeypatch)
    with pytest.raises(MemoryFault, match=r"no fence\.proxy\.async"):
        check(strict(racecheck="warps"), BY_THREADS, 64, 65, 67, SMALL)


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((3001, 3001, 3001), BY_COPIES),
        ((1, 359, 188), "step19_short_k"),
        ((8, 2001, 2001), "step16_direct"),
        ((32, 4099, 4099), "step18_row_classes"),
        ((4099, 32, 4099), "step18_row_classes"),
        ((3765, 65, 63), "step19_short_k"),
        ((16, 4099, 4096), "step15_multicast"),  # c alone is unaligned
        ((4096, 4099, 4096), BY_COPIES),
        ((4096, 4096, 4096), "step8_tma_store"),
    ],
)
def test_which_step_is_chosen(sizes, step):
    assert choose(MatmulWgmma(*sizes), target=SM_90A).variant == step


@pytest.mark.parametrize("step", ["step1_tma", "step8_tma_store", "step9_swapped", "step10_split_k", "ptx"])
def test_the_steps_that_use_tma_alone_name_the_rows_that_it_cannot_read(step):
    workload = MatmulWgmma(m=8, n=8, k=12)
    with pytest.raises(UsageError, match="rows of a have 24 bytes in memory, no multiple of 16, .*: steps 11 to 19"):
        workload.variant(step).select_tile(workload, SM_90A)


@pytest.mark.parametrize("layout", ["tn", "tt"])
def test_wgmma_is_asynchronous_and_nothing_spills(layout):
    workload = MatmulWgmma(m=3001, n=3001, k=3001, layout=layout, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(BY_THREADS), SM_90A).steps
    assert_sass(step.image, has=["HGMMA", "LDG.E.128", "STS.128"], spills=0)
    assert "serialized" not in step.image.log


def test_the_sums_of_the_largest_tile_that_stores_rows_that_begin_anywhere_do_not_spill():
    tile = {**ALTERNATING, "BN": 192}
    workload = MatmulWgmma(m=3001, n=3001, k=3000)
    (step,) = build(workload, workload.variant(BY_COPIES), SM_90A, tile=tile).steps
    assert_sass(step.image, spills=0)


@pytest.mark.parametrize(("k", "most"), [(576, 1), (577, 2)])
def test_consumers_that_alternate_store_rows_in_pieces_if_they_multiply_long_enough(k, most):
    workload = MatmulWgmma(m=3001, n=3001, k=k).on(H200)
    alternating = [t for t in unaligned.candidates(workload) if t.get("PING_PONG")]
    assert max(unaligned.pieces(workload, t) for t in alternating) == most
