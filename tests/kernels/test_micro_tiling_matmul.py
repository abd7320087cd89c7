"""micro_tiling_matmul: every step at sizes that are not multiples of tiles, and the machine code of the best ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ptxkit.compiler.paths import kernels_dir
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm.micro_tiling_matmul import bulk_usable, ring_usable, usable
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute, registry
from ptxkit.workload.workload import Workload

MATMUL = registry.get("micro_tiling_matmul")
STEPS = list(MATMUL.variants())
ALIGNED = ("step7_bulk", "step8_ring")
TENSOR_MAPS = (*ALIGNED, "step9_stream_k", "step10_cluster_k", "step11_partial_sums")


def check(device, name, m, n, k, **tile):
    w = MATMUL.make([m, n, k], {})
    result = execute.run(execute.Case(w, device), w.variant(name), tile=tile)
    if result.skipped is not None:
        pytest.skip(result.skipped)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("m,n,k", [(1, 4, 4), (132, 76, 44), (64, 260, 20)])
def test_sizes_with_aligned_rows(device, name, m, n, k):
    check(device, name, m, n, k)


@pytest.mark.parametrize("name", [s for s in STEPS if s not in ALIGNED])
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (129, 65, 33), (3, 130, 7)])
def test_sizes_with_odd_rows(device, name, m, n, k):
    check(device, name, m, n, k)


@pytest.mark.parametrize("name", ALIGNED)
def test_tensor_maps_need_aligned_rows(name):
    w = MATMUL.make([8, 6, 8], {})
    with pytest.raises(UsageError, match="multiples of 4"):
        next(w.variant(name).tiles(w), None) or w.variant(name).select_tile(w, _sm_90a())


TILES = [
    {"BM": 64, "BN": 128, "BK": 8, "TM": 8, "TN": 16, "WM": 32, "WN": 128, "STAGES": 5},
    {"BM": 128, "BN": 256, "BK": 16, "TM": 16, "TN": 8, "WM": 32, "WN": 128, "STAGES": 2, "CTAS": 1},
    {"BM": 64, "BN": 64, "BK": 32, "TM": 4, "TN": 8, "WM": 32, "WN": 32, "GROUP": 16, "STAGES": 2},
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(device, tile):
    check(device, "step6_warps", 140, 132, 52, **tile)


RING_TILES = [
    {"BM": 64, "BN": 128, "BK": 16, "TM": 8, "TN": 16, "WM": 32, "WN": 128, "STAGES": 4, "CTAS": 4},
    {"BM": 128, "BN": 128, "BK": 32, "TM": 16, "TN": 8, "WM": 32, "WN": 128, "STAGES": 2, "CTAS": 2},
    {"BM": 128, "BN": 128, "BK": 32, "TM": 8, "TN": 8, "WM": 64, "WN": 32, "STAGES": 3, "CTAS": 1},
    {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 16, "WM": 64, "WN": 32, "STAGES": 2, "CTAS": 1},
]


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("tile", RING_TILES, ids=str)
def test_tiles_of_the_ring(tile, completion):
    """The order of copies, waits and releases, with copies as early and as late as is legal, and more tiles than stages."""
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
    check(device, "step8_ring", 140, 132, 148, **tile)


STREAM_TILE = {
    "BM": 64,
    "BN": 128,
    "BK": 16,
    "TM": 8,
    "TN": 8,
    "WM": 32,
    "WN": 64,
    "STAGES": 3,
    "CTAS": 2,
    "MIN_STEPS": 2,
}


SHARES = [  # multiprocessors, m, n, k, SHARED_WAVES
    # 9 tiles for 2 CTAs: at most 1, 2 and 4 tiles of a CTA are shared
    (1, 140, 260, 52, 1),
    (1, 140, 260, 52, 2),
    (1, 140, 260, 52, 4),
    (1, 128, 256, 84, 1),  # the same number of whole tiles for each, and no shared tile
    # 15 tiles for 4 CTAs: whole tiles, and shares of a few steps; everything is shared
    (2, 132, 516, 52, 1),
    (2, 132, 516, 52, 2),
    (2, 132, 516, 52, 4),
    (4, 64, 64, 500, 1),  # 8 CTAs share one tile
    (3, 64, 640, 148, 1),  # fewer tiles than CTAs
]


@pytest.mark.parametrize(
    "completion,sms,m,n,k,waves",
    # early copies once for each kind of share: the number of shared tiles does not change what a copy may overwrite
    [("latest-legal", *s) for s in SHARES] + [("eager", *SHARES[n]) for n in (2, 3, 4, 7, 8)],
)
def test_shares(monkeypatch, completion, waves, sms, m, n, k):
    """Shares that begin and end at any step, with copies as early and as late as is legal."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
    w = MATMUL.make([m, n, k], {})
    variant = w.variant("step9_stream_k")
    prepared = execute.prepare(execute.Case(w, device), variant, tile=STREAM_TILE | {"SHARED_WAVES": waves})
    # One launch: execute.run would repeat it with other poison, as it does for shares in the test below.
    prepared.case.reset()
    prepared.launch()
    verdict = prepared.case.verify(variant, smallest_store=prepared.build.smallest_store)
    assert verdict.verified, verdict.worst


def test_shared_sums_are_added_in_one_order(device, monkeypatch):
    """Every launch gives the same bits, also when the flags of the previous launch are still set."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=4))
    w = MATMUL.make([64, 64, 996], {})
    case = execute.Case(w, device)
    result = execute.run(case, w.variant("step9_stream_k"), tile=STREAM_TILE)
    if result.skipped is not None:
        pytest.skip(result.skipped)
    first = case.outputs()["c"]
    assert result.prepared is not None
    for _ in range(3):
        result.prepared.launch()
        assert np.array_equal(case.outputs()["c"], first)


@pytest.mark.parametrize("size", [64, 1000, 2048, 4096, 8192])
def test_shares_are_of_all_that_is_left(size):
    """Whole tiles and shares together cover all steps of all tiles, and the shares of two CTAs differ by at most one step."""
    w = MATMUL.make([size] * 3, {})
    variant = w.variant("step9_stream_k")
    for tile in itertools.islice(variant.tiles(w), 50):
        *_, launch = variant.launches(w, tile)
        *_, whole, shares = launch.args
        tiles, steps, ctas = w.grid(tile.BM, tile.BN), -(-size // tile.BK), launch.grid[0]
        assert 0 <= tiles - whole * ctas <= max(1, tile.SHARED_WAVES) * ctas
        assert 1 <= shares <= ctas <= 132 * tile.CTAS
        assert shares == ctas or shares == 1 or (tiles - whole * ctas) * steps // shares >= tile.MIN_STEPS


def test_constraints_say_what_static_asserts_say():
    w = MATMUL.make([256, 256, 256], {})
    tile = dict(next(w.variant("step6_warps").tiles(w)))
    for change, words in (
        ({"WM": 32, "TM": 16, "TN": 16}, "do not cover a warp"),
        ({"BM": 64, "WM": 128, "TM": 16, "WN": 32, "TN": 8}, "do not cover 64"),
        ({"STAGES": 500}, "shared memory"),
    ):
        from ptxkit import Tile

        assert words in usable(w, Tile({**tile, **change}))
    ring = dict(next(w.variant("step8_ring").tiles(w)))
    for change, words in (
        ({"BK": 8}, "16 or 32 columns"),
        ({"BM": 128, "BN": 128, "TM": 64, "WM": 64, "TN": 4, "WN": 128}, "neighbours"),
        ({"STAGES": 500}, "shared memory"),
    ):
        assert words in ring_usable(w, Tile({**ring, **change}))
    assert "multiples of 4" in bulk_usable(MATMUL.make([8, 6, 8], {}), Tile(tile))


@pytest.mark.parametrize("name", ["step5_async", "step6_warps", *TENSOR_MAPS])
def test_what_ptxas_makes_of_it(name):
    assert_sass(multiplying(name), has="LDS.128", spills=0, max_registers=255)


def test_copies_go_past_the_registers():
    assert_sass("micro_tiling_matmul:step6_warps@sm_90a", has="LDGSTS", spills=0)
    for name in TENSOR_MAPS:
        assert_sass(multiplying(name), has="UTMALDG", spills=0)


def multiplying(name):
    """The last kernel of a variant, in the form of ``ptxkit inspect``."""
    w = MATMUL.make()
    variant = w.variant(name)
    launch = variant.launches(w, variant.select_tile(w, _sm_90a()))[-1]
    return f"{kernels_dir() / str(variant.source_of(w, launch))}:{launch.entry}@sm_90a"


def _sm_90a():
    from ptxkit.targets import Target

    return Target.parse("sm_90a")
