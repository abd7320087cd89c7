"""Step 13 of matmul_wgmma: CTAs with equal numbers of steps of k, and the sums of tiles that several CTAs share."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.inspect.disassembly import sass
from ptxkit.kernels.gemm import stream_k
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.workload import Workload

STEP = "step13_stream_k"
SM_90A = Target.parse("sm_90a")


def run(device, m, n, k, tile=None, seed=0, **options):
    """The output of the step, after it has been compared with numpy."""
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    case = execute.Case(workload, device, seed=seed)
    result = execute.run(case, workload.variant(STEP), None, tile, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return case.outputs()["c"]


def strict(sms, **checks):
    """An emulator of few SMs in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(Machine(sms=sms), EmulatorSettings(completion="latest-legal", **checks))


LENGTHS = st.integers(1, 150) | st.integers(1, 18).map(lambda x: 8 * x)  # of rows that TMA cannot read, and that it can


@settings(max_examples=15, deadline=None)
@given(
    *(LENGTHS, LENGTHS, st.integers(1, 300) | st.integers(1, 40).map(lambda x: 8 * x)),
    *(st.sampled_from(["tn", "tt", "nn", "nt"]), st.sampled_from(["bf16", "f16"]), st.integers(1, 7)),
)
@example(1, 1, 8, "tn", "bf16", 1)
@example(8, 8, 1, "nt", "f16", 3)
@example(129, 71, 136, "tn", "f16", 2)
@example(5, 71, 131, "tt", "bf16", 2)
def test_any_size(m, n, k, layout, dtype, sms):
    run(strict(sms), m, n, k, layout=layout, dtype=dtype)


TILES = [  # sizes, SMs, tile, (whole groups of tiles of a cluster, clusters with a share)
    ((20, 264, 1032), 3, {"COLUMNS": 56, "DIVIDED": 1}, (0, 3)),  # shares begin and end within tiles
    ((70, 96, 2056), 5, {"CONSUMERS": 2, "COLUMNS": 48, "DIVIDED": 1}, (0, 5)),  # shares of more steps than stages
    ((40, 500, 712), 3, {"COLUMNS": 80}, (3, 0)),  # whole tiles; the last cluster has one less
    ((130, 200, 776), 3, {"CONSUMERS": 2, "COLUMNS": 112, "DIVIDED": 1}, (0, 3)),
    ((260, 200, 776), 2, {"CONSUMERS": 2, "COLUMNS": 80, "DIVIDED": 1}, (3, 2)),  # whole tiles and shares of the rest
    ((150, 400, 392), 4, {"CONSUMERS": 3, "COLUMNS": 24, "CTAS_PER_SM": 2}, (3, 0)),
    ((256, 250, 520), 3, {"CONSUMERS": 2, "ROWS": 2, "COLUMNS": 128, "DIVIDED": 1}, (0, 3)),
    ((17, 330, 520), 4, {"COLUMNS": 16, "SHARING": 2, "DIVIDED": 1}, (4, 2)),  # a share of a cluster
    ((200, 72, 712), 9, {"CONSUMERS": 2, "COLUMNS": 8, "SHARING": 4}, (3, 0)),
    ((200, 104, 456), 14, {"COLUMNS": 8, "SHARING": 4, "DIVIDED": 1}, (4, 3)),
    ((64, 8, 3000), 132, {"COLUMNS": 8, "DIVIDED": 1}, (0, 47)),  # a step for each CTA
    ((70, 72, 1032), 13, {"COLUMNS": 24, "DIVIDED": 2}, (0, 12)),  # two parts of each tile
    ((20, 30, 5200), 23, {"COLUMNS": 40, "DIVIDED": 2}, (0, 23)),  # one tile
    ((200, 72, 712), 9, {"COLUMNS": 32, "B_SHARING": 2}, (2, 0)),
    ((300, 90, 1032), 20, {"COLUMNS": 32, "SHARING": 2, "B_SHARING": 2, "DIVIDED": 1}, (0, 4)),
    ((140, 90, 1032), 40, {"COLUMNS": 32, "SHARING": 2, "B_SHARING": 2, "DIVIDED": 2}, (0, 8)),
]


def with_defaults(tile):
    """A tile with all parameters."""
    return {"CONSUMERS": 1, "ROWS": 1, "SHARING": 1, "B_SHARING": 1, "CTAS_PER_SM": 1, "DIVIDED": 0, **tile}


@pytest.mark.parametrize(("mnk", "sms", "tile", "divided"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, sms, tile, divided):
    tile = with_defaults(tile)
    facts = replace(reference_facts("sm_90a"), sms=sms)
    workload = MatmulWgmma(*mnk).on(facts)
    shares = stream_k.Shares.of(workload, tile)
    assert (shares.whole, shares.shares) == divided
    run(strict(sms, racecheck="warps"), *mnk, tile)


@pytest.mark.parametrize(
    ("mnk", "sms", "tile"),
    [
        ((8, 40, 5200), 23, {"COLUMNS": 40, "DIVIDED": 2}),  # of vectors with two rows of a warp, the first ones
        ((40, 96, 2056), 5, {"COLUMNS": 48, "DIVIDED": 1}),
        ((72, 24, 1032), 8, {"CONSUMERS": 2, "ROWS": 2, "COLUMNS": 24, "SHARING": 2, "DIVIDED": 1}),
    ],
    ids=str,
)
def test_parts_of_rows_that_a_lacks_are_neither_stored_nor_added(mnk, sms, tile):
    """Their sums are those of shared memory that no copy has filled."""
    run(strict(sms, initcheck=True), *mnk, with_defaults(tile))


def test_lanes_have_stored_a_piece_of_a_tile_before_the_next_one_takes_its_place():
    """Two pieces of 64 columns, of rows of c that begin anywhere."""
    run(strict(3, racecheck="lanes"), 70, 131, 72, with_defaults({"COLUMNS": 128}))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 9000), st.integers(1, 200), st.data())
def test_every_step_belongs_to_one_cluster(m, n, k, sms, data):
    workload = MatmulWgmma(m=m, n=n, k=k).on(replace(reference_facts("sm_90a"), sms=sms))
    tile = data.draw(st.sampled_from([t for t in stream_k.candidates(workload) if stream_k.usable(workload, t) is True]))
    shares = stream_k.Shares.of(workload, tile)
    assert shares.clusters >= 1
    if not shares.shares:
        assert (shares.whole - 1) * shares.clusters < shares.groups <= shares.whole * shares.clusters
        return
    assert shares.shares == shares.clusters
    rest = (shares.groups - shares.whole * shares.shares) * shares.steps
    assert rest >= shares.shares  # no share is empty, so that each has at most one tile that it begins and does not end
    assert shares.longest == shares.whole * shares.steps + -(-rest // shares.shares)


def test_each_launch_gives_the_same_bits():
    """Whichever CTA stores its partial sums first."""
    tile = with_defaults({"COLUMNS": 40, "DIVIDED": 1})
    first, *others = (
        run(
            EmulatedDevice(Machine(sms=5), EmulatorSettings(completion="random", completion_seed=seed)), 13, 136, 520, tile
        )
        for seed in (1, 2, 3)
    )
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.fixture
def together(monkeypatch):
    """Parts are added by the CTAs that have them, however few sums they are."""
    monkeypatch.setattr(stream_k, "FEWEST_TOGETHER", 1)


@pytest.mark.parametrize(
    ("mnk", "sms", "tile", "parts", "polls"),
    [
        ((70, 40, 264), 9, {"COLUMNS": 24}, 2, True),
        ((20, 30, 520), 7, {"COLUMNS": 40}, 7, True),
        ((8, 16, 2056), 32, {"COLUMNS": 16}, 32, True),  # more parts than pieces of the tile, so that few CTAs have a slice
        ((8, 16, 2056), 33, {"COLUMNS": 16}, 33, False),  # more parts than bits of a word
        ((140, 90, 264), 40, {"COLUMNS": 32, "SHARING": 2, "B_SHARING": 2}, 2, True),
        ((150, 64, 520), 5, {"CONSUMERS": 3, "COLUMNS": 64}, 5, True),
    ],
    ids=str,
)
def test_ctas_add_the_parts_of_their_tile_without_races(together, mnk, sms, tile, parts, polls):
    tile = with_defaults({**tile, "DIVIDED": 2})
    shares = stream_k.Shares.of(MatmulWgmma(*mnk).on(replace(reference_facts("sm_90a"), sms=sms)), tile)
    assert (shares.parts, shares.polls > 0) == (parts, polls)
    run(strict(sms, racecheck="warps"), *mnk, tile)


def test_ctas_neither_store_nor_add_parts_of_rows_that_a_lacks(together):
    run(strict(4, initcheck=True), 8, 40, 520, with_defaults({"COLUMNS": 40, "DIVIDED": 2}))


TRANSPOSED = [
    ((40, 70, 264), 9, {"COLUMNS": 24}, 2),
    ((30, 21, 520), 7, {"COLUMNS": 40}, 7),  # rows of c that begin anywhere
    ((5, 8, 2056), 33, {"COLUMNS": 16}, 32),  # no more parts than bits of a word
    ((90, 140, 264), 40, {"COLUMNS": 40, "SHARING": 2, "B_SHARING": 4}, 2),  # CTAs copy ten rows of a
    ((64, 150, 520), 5, {"CONSUMERS": 3, "COLUMNS": 64}, 5),
]


@pytest.mark.parametrize(("mnk", "sms", "tile", "parts"), TRANSPOSED, ids=str)
def test_tiles_of_the_transposed_product_without_races(mnk, sms, tile, parts):
    tile = with_defaults({**tile, "DIVIDED": 3})
    shares = stream_k.Shares.of(MatmulWgmma(*mnk).on(replace(reference_facts("sm_90a"), sms=sms)), tile)
    assert (shares.parts, shares.transposed, shares.polls > 0) == (parts, True, True)
    run(strict(sms, racecheck="warps"), *mnk, tile)


def test_parts_of_rows_that_b_lacks_are_not_added_in_the_transposed_product():
    run(strict(4, initcheck=True), 40, 8, 520, with_defaults({"COLUMNS": 40, "DIVIDED": 3}))


@pytest.mark.parametrize("n", [104, 103])
@pytest.mark.parametrize("layout", ["tn", "nt", "tt"])
def test_epilogues_of_the_transposed_product(device, layout, n):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16", "layout": layout}
    run(device, 40, n, 200, with_defaults({"COLUMNS": 64, "DIVIDED": 3}), **options)


def test_the_last_cta_adds_what_others_have_given_up(together, monkeypatch):
    """Where the other parts are not there when a CTA polls for the first time, with the same bits."""
    tile = with_defaults({"COLUMNS": 24, "DIVIDED": 2})
    expected = run(strict(6), 20, 48, 392, tile)
    monkeypatch.setattr(stream_k, "MOST_POLLS", 1)
    got = run(strict(6, racecheck="warps"), 20, 48, 392, tile)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


def test_small_parts_are_added_by_another_launch():
    facts, tile = reference_facts("sm_90a"), with_defaults({"COLUMNS": 160, "DIVIDED": 2})
    found = [
        stream_k.Shares.of(MatmulWgmma(m=m, n=1000, k=16384).on(facts), tile).polls > 0
        for m in (48, 64)
    ]
    assert found == [False, True]


@pytest.mark.parametrize(("sms", "parts", "counted"), [(132, 2, 2), (264, 4, 3)])
def test_the_slices_that_ctas_keep_do_not_count_as_stored(sms, parts, counted):
    tile = with_defaults({"CONSUMERS": 2, "COLUMNS": 128, "DIVIDED": 2})
    workload = MatmulWgmma(m=1024, n=1024, k=8192).on(replace(reference_facts("sm_90a"), sms=sms))
    shares = stream_k.Shares.of(workload, tile)
    assert (shares.parts, shares.polls > 0) == (parts, True)
    found = [stream_k.stored_bytes(tile, each) for each in (shares, replace(shares, polls=0))]
    assert found == [counted * 4 * 1024 * 1024, parts * 4 * 1024 * 1024]


def test_parts_that_ctas_add_find_room_in_the_ring():
    workload = MatmulWgmma(m=256, n=256, k=65536).on(reference_facts("sm_90a"))
    names = ("CONSUMERS", "ROWS", "COLUMNS", "CTAS_PER_SM")
    for values in itertools.product(*(stream_k.SPACE[name] for name in names)):
        tile = with_defaults({**dict(zip(names, values, strict=True)), "DIVIDED": 2})
        if stream_k.usable(workload, tile) is True:
            pieces = stream_k.height(tile) // 16 * (tile["COLUMNS"] // 8) + stream_k.MOST_TOGETHER  # a slice may have one more
            assert 512 * pieces <= stream_k.stages(workload, tile) * stream_k.stage_bytes(tile), tile


@pytest.mark.parametrize("n", [104, 103])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_epilogues(device, layout, n):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16", "layout": layout}
    run(device, 40, n, 200, **options)


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({"layout": "tt"}, {"COLUMNS": 32, "DIVIDED": 0}, "no whole boxes of a row-major b"),
        ({"layout": "nn"}, {"CONSUMERS": 1, "ROWS": 1, "SHARING": 2, "DIVIDED": 0}, "no whole boxes of a column-major a"),
        ({}, {"COLUMNS": 160, "ROWS": 2}, "a thread holds 160 sums"),
        ({}, {"COLUMNS": 256, "CONSUMERS": 3}, "128 sums need more than"),
        ({}, {"CONSUMERS": 3, "ROWS": 2}, "fewer than 384 of a"),
        ({"k": 64}, {"COLUMNS": 256, "DIVIDED": 1}, "no group of tiles remains"),
        ({"k": 64}, {"COLUMNS": 64, "DIVIDED": 3}, "no group of tiles remains"),
        ({"layout": "nn"}, {"COLUMNS": 32, "DIVIDED": 3}, "no whole boxes of a row-major b"),
        ({"m": 200, "n": 8, "k": 72}, {"CONSUMERS": 3, "COLUMNS": 176, "SHARING": 4, "DIVIDED": 2}, "bytes of partial sums"),
    ],
)
def test_what_the_constraint_refuses(options, tile, reason):
    workload = MatmulWgmma(**{"m": 64, **options})
    with pytest.raises(UsageError, match=reason):
        workload.variant(STEP).select_tile(workload, SM_90A, tile)


ROWS = (1, 4, 16, 33, 64, 100, 128, 300, 2048)
LAYERS = ((4096, 4096), (28672, 8192), (256, 16384), (152064, 3584), (2048, 7168), (5120, 5120), (64, 64))


@pytest.mark.parametrize("sms", [132, 114, 20])
def test_the_sums_fit_the_memory_for_them_on_all_gpus(monkeypatch, sms):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    for m in ROWS:
        for n, k in LAYERS:
            workload = MatmulWgmma(m=m, n=n, k=k)
            tile, _ = workload.variant(STEP).select(workload, SM_90A)
            needed = stream_k.partial_bytes(tile, stream_k.Shares.of(workload, tile))
            assert needed <= 4 * stream_k.partials(workload)


def test_launches_with_and_without_shares_are_one_program(together):
    workload = MatmulWgmma(m=64, n=264, k=1032)
    parts, divided, whole = (
        build(workload, workload.variant(STEP), SM_90A, with_defaults({"COLUMNS": 40, "DIVIDED": d})) for d in (2, 1, 0)
    )
    assert (len(parts.steps), len(divided.steps), len(whole.steps)) == (2, 2, 1)
    assert {step.image.key for step in (*parts.steps, *divided.steps, *whole.steps)} == {whole.steps[0].image.key}


@pytest.mark.parametrize(
    "tile",
    [{"COLUMNS": 8}, {"COLUMNS": 256, "CONSUMERS": 2}, {"COLUMNS": 128, "ROWS": 2}, {"COLUMNS": 176, "CONSUMERS": 3}],
    ids=str,
)
def test_wgmma_is_asynchronous_and_nothing_spills(tile):
    workload = MatmulWgmma(m=300, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    multiply, *_ = build(workload, workload.variant(STEP), SM_90A, with_defaults(tile)).steps
    assert_sass(multiply.image, spills=0)
    (product,) = (function for name, function in sass(multiply.image).items() if "matmul_stream_k" in name)
    assert_sass(product, has=["HGMMA", "UTMALDG"])
    assert "serialized" not in multiply.image.log  # "wgmma.mma_async instructions are serialized due to ..."
