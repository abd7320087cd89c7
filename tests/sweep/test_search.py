"""Searches of a space whose times follow from a formula."""

from __future__ import annotations

import itertools
import math

import pytest

from ptxkit.sweep import search
from ptxkit.workload.launch import Tile

AXES = {
    "M": (16, 32, 64, 128),
    "N": (16, 32, 64, 128),
    "K": (4, 8, 16, 32),
    "STAGES": (1, 2, 3, 4),
    "FAST": (False, True),
}
TILES = [Tile(dict(zip(AXES, values))) for values in itertools.product(*AXES.values())]


def time_of(tile):
    """A smooth minimum and a step, where registers spill."""
    registers = tile.M * tile.N / 128 + 8 * tile.STAGES
    if registers > 150:
        return math.inf
    value = 100 + 4000 / tile.M + 3000 / tile.N + 30 * abs(math.log2(tile.K / 16)) + 10 * abs(tile.STAGES - 3)
    return value * (1.5 if registers > 100 else 1) * (0.95 if tile.FAST else 1)


def run(s, evaluations):
    best, seen = math.inf, []
    while len(seen) < evaluations:
        for tile in s.ask(min(s.batch, evaluations - len(seen))):
            seen.append(tile)
            s.tell(tile, time_of(tile))
            best = min(best, time_of(tile))
    return best, seen


def test_exhaustive_asks_for_each_once_in_order():
    _, seen = run(search.exhaustive(TILES), len(TILES))
    assert seen == TILES
    assert search.exhaustive([]).ask(3) == []


@pytest.mark.parametrize("guided", [False, True])
def test_reserved_tiles_are_not_returned_by_ask(guided):
    if guided:
        pytest.importorskip("sklearn")
    made = search.Guided(TILES[:40], search.numbers(AXES)) if guided else search.exhaustive(TILES[:40])
    foreign = TILES[50]
    assert made.reserve([TILES[3], TILES[3], foreign, TILES[0]]) == [TILES[3], TILES[0]]
    assert made.reserve([TILES[3]]) == []
    made.tell(TILES[3], 1.0)
    made.tell(TILES[0], 2.0)
    _, seen = run(made, 38)
    assert set(seen) == set(TILES[:40]) - {TILES[3], TILES[0]}
    assert made.ask(1) == []


def test_random_can_be_repeated():
    first, again, other = (run(search.shuffled(TILES, seed), 50)[1] for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 50


@pytest.mark.parametrize("seed", range(2))
def test_guided_comes_within_two_percent_with_a_seventh_of_the_space(seed):
    pytest.importorskip("sklearn")
    best = min(map(time_of, TILES))
    found, seen = run(search.Guided(TILES, search.numbers(AXES), seed), round(0.15 * len(TILES)))
    assert len(set(seen)) == len(seen)
    assert found <= 1.02 * best


def test_guided_tries_the_preferred_tile_first():
    pytest.importorskip("sklearn")
    assert search.Guided(TILES, search.numbers(AXES)).ask(1) == [TILES[0]]


def test_guided_ends_with_the_space():
    pytest.importorskip("sklearn")
    _, seen = run(search.Guided(TILES[:20], search.numbers(AXES)), 20)
    assert set(seen) == set(TILES[:20])


def test_guided_survives_a_space_where_nothing_works():
    pytest.importorskip("sklearn")
    s = search.Guided(TILES[:30], search.numbers(AXES))
    for _ in range(10):
        for tile in s.ask(3):
            s.tell(tile, math.inf)
    assert s.ask(1) == []
