"""Step 15 of matmul_wgmma and ``multicast`` of matmul_fused: clusters whose CTAs load both operands for each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels import measured as measurements
from ptxkit.kernels.gemm import multicast
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

STEP = "step15_multicast"
SM_90A = Target.parse("sm_90a")


def run(device, workload, variant=STEP, tile=None, seed=0):
    """The tile, after the output of the variant has been compared with numpy."""
    case = execute.Case(workload, device, seed=seed)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return result.tile


def strict(sms=132, **checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(Machine(sms=sms), EmulatorSettings(completion="latest-legal", **checks))


def tile_of(**values):
    """A tile with all parameters."""
    return {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 16, "A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 1, **values}


LENGTHS = st.integers(1, 150) | st.integers(1, 18).map(lambda x: 8 * x)  # of rows that TMA cannot read, and that it can


@settings(max_examples=12, deadline=None)
@given(
    *(LENGTHS, LENGTHS, st.integers(1, 300) | st.integers(1, 40).map(lambda x: 8 * x)),
    *(st.sampled_from(["tn", "tt", "nn", "nt"]), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 8, "tn", "bf16")
@example(129, 71, 136, "tn", "f16")
@example(5, 71, 131, "tt", "bf16")
def test_any_size(m, n, k, layout, dtype):
    run(strict(), MatmulWgmma(m=m, n=n, k=k, layout=layout, dtype=dtype))


TILES = [  # sizes and tile
    ((70, 136, 200), {"TOKENS": 40, "A_SHARING": 2, "B_SHARING": 2}),  # both are shared; rows beyond the last one of a
    ((168, 300, 456), {"TOKENS": 168, "A_SHARING": 4}),  # parts of 42 rows, no whole swizzle patterns; 64 elements in a stage
    ((1, 97, 2600), {"TOKENS": 8, "A_SHARING": 8}),  # parts of one row, more steps than stages, elements alone
    ((100, 520, 264), {"TOKENS": 56, "B_SHARING": 2, "ROWS": 2, "CONSUMERS": 2}),
    ((250, 130, 1544), {"TOKENS": 64, "A_SHARING": 2, "B_SHARING": 4, "CONSUMERS": 2}),
    ((208, 128, 200), {"TOKENS": 208, "ROWS": 2}),
    ((70, 130, 520), {"TOKENS": 40, "PARTS": 3}),  # rows of the last tile that none of the parts has
    ((100, 200, 1300), {"TOKENS": 56, "A_SHARING": 2, "B_SHARING": 2, "PARTS": 2, "CTAS_PER_SM": 2}),
    ((90, 300, 1096), {"TOKENS": 96, "ROWS": 2, "CONSUMERS": 2, "PARTS": 8}),
    ((50, 200, 520), {"TOKENS": 56, "ROWS": 3, "PARTS": 2}),  # 48 vectors of a row, no power of two
    ((81, 400, 264), {"TOKENS": 88, "CONSUMERS": 3, "A_SHARING": 2}),
    ((140, 520, 264), {"TOKENS": 136, "ROWS": 2, "CONSUMERS": 2, "A_SHARING": 2}),  # a producer warpgroup gives up registers
    ((190, 200, 136), {"TOKENS": 192, "CONSUMERS": 3}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    run(strict(racecheck="warps"), MatmulWgmma(*mnk), tile=tile_of(**tile))


@pytest.mark.parametrize(
    ("sizes", "tile", "options"),
    [
        ((17, 73, 400), {"A_SHARING": 2}, {"dtype": "s8", "scale": "rows_columns", "bias": True, "amax": True, "batch": 2}),
        ((60, 90, 400), {"B_SHARING": 2}, {"dtype": "e4m3", "scale": "tensor", "residual": True, "amax": True, "batch": 3}),
        ((72, 136, 134), {"TOKENS": 64}, {"layout": "nt", "activation": "silu_mul", "batch": 2}),
        ((5, 72, 260), {"TOKENS": 8, "A_SHARING": 4}, {"dtype": "tf32", "ldc": 75}),
        ((70, 90, 640), {"TOKENS": 80, "A_SHARING": 2}, {"dtype": "s8"}),
        ((17, 73, 1040), {"A_SHARING": 2, "PARTS": 4}, {"dtype": "s8", "scale": "rows", "amax": True, "batch": 2}),
        ((60, 90, 400), {"B_SHARING": 2, "PARTS": 3}, {"dtype": "tf32", "residual": True, "batch": 3}),
        # rows of whole vectors of eight elements
        ((40, 72, 400), {"TOKENS": 24}, {"dtype": "e4m3", "scale": "columns", "bias": True, "activation": "gelu", "batch": 2}),
        ((30, 136, 200), {"ROWS": 2}, {"dtype": "f16", "ldc": 144}),
        # rows that begin at multiples of 4 elements, and whose last vector has elements of another matrix
        ((30, 72, 200), {"TOKENS": 32}, {"dtype": "f16", "ldc": 76}),
        ((30, 12, 200), {"TOKENS": 32}, {"dtype": "f16", "ldc": 16}),
    ],
    ids=str,
)
def test_epilogues_types_and_batches_without_races(sizes, tile, options):
    run(strict(racecheck="warps"), MatmulFused(*sizes, **options), "multicast", tile_of(**tile))


@pytest.mark.parametrize(("n", "beta"), [(104, 0.0), (104, 0.25), (102, 0.0), (103, 0.25)])
def test_epilogues(device, n, beta):
    run(device, MatmulWgmma(40, n, 200, alpha=-1.5, beta=beta, epilogue="bias_gelu", dtype="f16"))


@pytest.mark.parametrize(
    ("n", "ldc", "beta", "stored"), [(104, 0, 0.0, 2), (104, 108, 0.0, 0), (104, 0, 0.5, 1), (103, 0, 0.0, 0)]
)
def test_vectors_of_elements_are_stored_where_every_row_of_c_begins_with_one(n, ldc, beta, stored):
    workload = MatmulWgmma(40, n, 200, ldc=ldc, beta=beta)
    assert multicast.stores(workload) == stored
    (launch,) = workload.variant(STEP).select(workload, SM_90A, tile_of())[1]
    assert launch.template[-1] == stored


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({}, {"A_SHARING": 4, "B_SHARING": 4}, "A_SHARING x B_SHARING x PARTS = 16 CTAs are more than the 8 of a cluster"),
        ({}, {"TOKENS": 24, "A_SHARING": 1, "B_SHARING": 1, "layout": "nn"}, "24 rows of a are no whole boxes for 1 CTAs"),
        ({}, {"TOKENS": 8, "B_SHARING": 2, "layout": "tt"}, "64 rows of b are no whole boxes for 2 CTAs"),
        ({}, {"TOKENS": 208, "ROWS": 2, "CONSUMERS": 2}, "208 sums of 128 x 208 need more than the registers"),
        ({}, {"TOKENS": 208, "CONSUMERS": 3}, "104 sums of 64 x 208 need more than the registers"),
        ({"k": 200}, {"PARTS": 4}, "k=200 has 2 steps of 256 bytes, fewer than PARTS=4"),
        ({}, {"TOKENS": 256, "CTAS_PER_SM": 2}, "shared memory has room for 2 stages of 40960 bytes"),
    ],
)
def test_what_the_constraint_refuses(options, tile, reason):
    layout = tile.pop("layout", "tn")
    workload = MatmulWgmma(m=64, layout=layout, **options)
    with pytest.raises(UsageError, match=reason):
        workload.variant(STEP).select_tile(workload, SM_90A, tile_of(**tile))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1200), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([132, 114, 20]))
def test_candidates_fit_the_device(m, n, k, sms):
    facts = replace(reference_facts("sm_90a"), sms=sms)
    workload = MatmulWgmma(m=m, n=n, k=k).on(facts)
    for tile in multicast.candidates(workload):
        assert multicast.usable(workload, tile) is True
        limit = facts.target.limits.shared_bytes_per_cta
        assert multicast.shared_bytes(workload, tile) + multicast.STATIC_BYTES <= limit
        own_a, own_b = multicast.loaded_rows(tile)  # the parts of a cluster are the whole tiles
        assert (own_a * tile["A_SHARING"], own_b * tile["B_SHARING"]) == (tile["TOKENS"], multicast.weights(tile))


@pytest.mark.parametrize("workload", [MatmulWgmma(325, 3600, 3584), MatmulFused(120, 5392, 3584, dtype="e4m3")], ids=str)
def test_it_is_not_chosen_before_it_was_measured(workload, monkeypatch):
    h200 = measurements.H200
    monkeypatch.setattr(measurements, "MEASURED", {h200.gpu: replace(h200, multicast=None)})
    choice = choose(workload.on(reference_facts("sm_90a")), target=SM_90A)
    assert not choice.variant.endswith("multicast")
    assert any(o.name.endswith("multicast") and o.objection == "no times of it were measured" for o in choice.candidates)


@pytest.mark.parametrize("layout", ["tn", "tt"])
@pytest.mark.parametrize("kernel", [MatmulWgmma, MatmulFused])
def test_it_is_chosen_for_some_hundred_rows_in_either_layout_of_b(kernel, layout):
    w = kernel(m=328, n=3584, k=3584, layout=layout).on(measurements.H200_FACTS)
    assert choose(w, target=SM_90A).variant.endswith("multicast")


@pytest.mark.parametrize(("m", "n", "layout"), [(64, 8192, "tt"), (64, 8192, "nt"), (328, 3588, "tt")])
def test_it_is_not_chosen_for_products_of_which_there_are_no_times(m, n, layout):
    choice = choose(MatmulWgmma(m=m, n=n, k=3072, layout=layout).on(measurements.H200_FACTS), target=SM_90A)
    assert next(o for o in choice.candidates if o.name == STEP).objection == "no times of it were measured"


@pytest.mark.parametrize(
    "tile", [{"TOKENS": 208, "ROWS": 2}, {"TOKENS": 200, "ROWS": 2, "CONSUMERS": 2}, {"TOKENS": 192, "CONSUMERS": 3}], ids=str
)
def test_wgmma_is_asynchronous_and_nothing_spills(tile):
    workload = MatmulWgmma(m=300, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (multiply,) = build(workload, workload.variant(STEP), SM_90A, tile_of(**tile)).steps
    assert_sass(multiply.image, has=["HGMMA", "UTMALDG"], spills=0)
    assert "serialized" not in multiply.image.log  # "wgmma.mma_async instructions are serialized due to ..."
