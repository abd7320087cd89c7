"""Spaces: the explored configurations, and those that are refused before any compilation."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import replace

import pytest

from ptxkit import Tile
from ptxkit.errors import UsageError
from ptxkit.sweep.problem import Problem, drawn, explore, with_known
from ptxkit.workload.variant import Variant

NORM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 1024}, {"eps": 1e-12}, "sm_90a")

SMALL = replace(NORM, fixed={"CACHE": 1, "WIDTH": 0, "SHIFTED": False, "EVEN": False, "NO_EARLY_LAUNCH": False})


def test_every_tile_is_one_that_the_constraint_allows():
    space = explore(NORM)
    check = NORM.chosen.constraint
    assert space.tiles
    assert all(check(NORM.workload, tile) is True for tile in space.tiles)
    assert len(space.tiles) + sum(space.refused.values()) == space.size


def test_the_combinations_of_a_large_space_are_not_listed(monkeypatch):
    """Twenty million, as some products have, would take gigabytes."""
    axes = {name: (*values, *range(10_000, 20_000)) for name, values in NORM.axes.items()}
    tiles = explore(NORM).tiles
    monkeypatch.setattr(Problem, "axes", axes)
    space = explore(NORM)
    assert space.tiles == tiles
    assert space.size == math.prod(map(len, axes.values())) > 10**8


def test_clusters_need_a_target_that_has_them():
    old = explore(Problem(**{**vars_of(NORM), "target": "sm_80"}))
    assert {tile.CLUSTER for tile in old.tiles} == {1}
    assert any("clusters" in reason for reason in old.refused)


def test_fixed_and_restricted_parameters():
    fixed = explore(Problem(**{**vars_of(NORM), "fixed": {"THREADS": 256}, "space": {"VECTORS": [1, 2]}}))
    assert {tile.THREADS for tile in fixed.tiles} == {256}
    assert {tile.VECTORS for tile in fixed.tiles} <= {1, 2}


def test_a_limited_list_has_the_first_tiles():
    tiles = explore(SMALL).tiles
    some = explore(SMALL, 3)
    assert some.tiles == tiles[:3] and not some.complete
    assert explore(SMALL, len(tiles)).complete


def test_a_sample_of_millions_of_tiles_lists_none_of_the_others(monkeypatch):
    large = Problem("micro_tiling_matmul", "step9_stream_k", {"m": 33, "n": 65, "k": 127}, {}, "sm_90a")
    asked = []
    permits = Variant.permits
    monkeypatch.setattr(Variant, "permits", lambda *given: asked.append(1) or permits(*given))
    some = drawn(large, 5, 0, preferred=True)
    assert len(some.tiles) == 5 and len(asked) < 5_000 < some.size
    assert some.tiles[0] == explore(large, 1).tiles[0]


def test_a_sample_depends_on_the_seed_and_a_larger_one_begins_with_it():
    five, six, others = (drawn(SMALL, count, seed, preferred=False).tiles for count, seed in ((5, 1), (6, 1), (5, 2)))
    assert six[:5] == five != others
    assert set(six) <= set(explore(SMALL).tiles)


def test_a_space_with_too_few_tiles_has_no_sample():
    assert drawn(SMALL, len(explore(SMALL).tiles) + 1, 0, preferred=False) is None


def test_an_incomplete_space_has_the_known_tiles_that_can_be_built():
    tiles = explore(SMALL).tiles
    space, refused = explore(SMALL, 1), next(t for t in map(Tile, product_of(SMALL.axes)) if t not in tiles)
    known = [tiles[-1], refused, *space.tiles, Tile({"A": 1})]
    assert with_known(SMALL, space, known).tiles == (*space.tiles, tiles[-1])


def test_a_problem_crosses_processes_without_its_workload():
    _ = NORM.workload, NORM.chosen
    again = pickle.loads(pickle.dumps(NORM))
    assert again == NORM
    assert again.key == NORM.key


def test_different_sweeps_have_different_keys():
    assert Problem(**{**vars_of(NORM), "target": "sm_80"}).key != NORM.key


def test_nothing_to_sweep():
    with pytest.raises(UsageError, match="no tile parameters"):
        explore(Problem("fused_l2norm", "fused", {"rows": 64, "cols": 1024}, {"eps": 1e-12}, "sm_90a"))


def product_of(axes):
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def vars_of(problem):
    return {
        name: getattr(problem, name) for name in ("kernel", "variant", "sizes", "options", "target", "fixed", "space")
    }
