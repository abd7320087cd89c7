"""Searches and the model, evaluated on a whole tile space measured on an H200: micro_tiling_matmul:step7_bulk at 2048
cubed.

``scripts/search_quality.py`` prints the same for more seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxkit.sweep import journal, search
from ptxkit.sweep.model import Geometry, transferred
from ptxkit.targets.gpus import reference_facts

DATA = Path(__file__).parent / "data"
MEASURED = journal.read(DATA / "step7_bulk-2048-h200.jsonl.gz")
TIMES = {entry.key: entry.value for entry in MEASURED.entries}
BEST = min(TIMES.values())
H200_SMS = reference_facts("sm_90a").sms


def test_the_whole_space_is_there():
    assert len(TIMES) == len(MEASURED.entries) == 1440
    assert all(entry.status in ("ok", "slow") for entry in MEASURED.entries)
    assert 0 < sum(time <= 1.02 * BEST for time in TIMES.values()) < 0.02 * len(TIMES)  # so that chance does not find it


def test_guided_search_is_within_two_percent_after_a_tenth(seed=0):
    pytest.importorskip("sklearn")
    shapes = {entry.key: entry for entry in MEASURED.entries}
    axes = {name: tuple(values) for name, values in MEASURED.head["axes"].items()}
    made = search.Guided(list(TIMES), search.described(axes, shapes.__getitem__, H200_SMS), seed)
    seen = search.replayed(made, TIMES, len(TIMES) // 10)
    assert seen[-1] <= 1.02 * BEST


def test_those_given_up_early_were_no_candidates():
    given_up = [entry.value for entry in MEASURED.entries if entry.status == "slow"]
    assert given_up
    assert min(given_up) > 1.2 * BEST


def test_the_model_ranks_the_space_and_has_the_best_among_its_first():
    """Counts of the emulator at 256 cubed, a size that it executes in reasonable time, compared with times at 2048 cubed."""
    stats = pytest.importorskip("scipy.stats")
    counted = {entry.key: entry for entry in journal.read(DATA / "step7_bulk-256-emulator.jsonl.gz").entries}
    costs = {e.key: transferred(counted[e.key].value, geometry(counted[e.key]), geometry(e)) for e in MEASURED.entries}
    assert stats.spearmanr(list(costs.values()), list(TIMES.values())).statistic > 0.65
    first = sorted(costs, key=lambda tile: costs[tile])[: len(costs) // 100]
    assert min(TIMES[tile] for tile in first) <= 1.02 * BEST


def geometry(entry):
    return Geometry(entry.ctas, entry.threads, entry.occupancy)
