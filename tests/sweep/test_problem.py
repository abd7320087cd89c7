"""Spaces: the explored configurations, and those that are refused before any compilation."""

from __future__ import annotations

import math
import pickle

import pytest

from ptxkit.errors import UsageError
from ptxkit.sweep.problem import Problem, explore

NORM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 1024}, {"eps": 1e-12}, "sm_90a")


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


def vars_of(problem):
    return {
        name: getattr(problem, name) for name in ("kernel", "variant", "sizes", "options", "target", "fixed", "space")
    }
