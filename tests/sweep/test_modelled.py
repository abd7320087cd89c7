"""Configurations in the emulator: verified, counted, modelled, and given up in time."""

from __future__ import annotations

import time

import pytest

from ptxkit.sweep import modelled
from ptxkit.sweep.compiling import compile_tile
from ptxkit.sweep.problem import Problem, explore

PROBLEM = Problem("fused_l2norm", "vectorized", {"rows": 4, "cols": 1024}, {"eps": 1e-12}, "sm_90a")


@pytest.fixture(scope="module")
def first():
    tile = explore(PROBLEM).tiles[0]
    return tile, compile_tile(PROBLEM, tile)


def test_a_cost_and_no_time(first):
    entry = modelled.model_tile(PROBLEM, first[0], first[1], 0, timeout_s=60)
    assert entry.status == "ok"
    assert entry.cost > 0
    assert entry.time_us is None


def test_what_takes_too_long_is_given_up(first, monkeypatch):
    def forever(*_, **__):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(modelled.execute.Prepared, "check", forever)
    begin = time.monotonic()
    entry = modelled.model_tile(PROBLEM, first[0], first[1], 0, timeout_s=0.3)
    assert entry.status == "timeout"
    assert entry.value == float("inf")
    assert time.monotonic() - begin < 5
    monkeypatch.undo()
    assert modelled.model_tile(PROBLEM, first[0], first[1], 0, timeout_s=60).status == "ok"
