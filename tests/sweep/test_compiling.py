"""The result of compiling one tile."""

from __future__ import annotations

from ptxkit.sweep.compiling import compile_tile
from ptxkit.sweep.problem import Problem, explore

PROBLEM = Problem("saxpy", "vectorized", {"n": 4096}, {}, "sm_90a")


def test_tiles_differ_and_are_recognized():
    tiles = explore(PROBLEM).tiles
    found = [compile_tile(PROBLEM, tile) for tile in tiles]
    assert [c.error for c in found] == [""] * len(tiles)
    assert len({c.fingerprint for c in found}) == len(tiles)
    assert [c.threads for c in found] == [tile.THREADS for tile in tiles]
    assert compile_tile(PROBLEM, tiles[0]).fingerprint == found[0].fingerprint
