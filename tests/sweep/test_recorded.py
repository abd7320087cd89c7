"""Searches and the model, held against a whole space measured on an H200: micro_tiling_matmul:step7_bulk at 2048 cubed.

``scripts/search_quality.py`` prints the same for more seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxkit.sweep import journal, search
from ptxkit.sweep.model import Geometry, stretch

DATA = Path(__file__).parent / "data"
MEASURED = journal.read(DATA / "step7_bulk-2048-h200.jsonl.gz")
TIMES = {entry.key: entry.value for entry in MEASURED.entries}
BEST = min(TIMES.values())


def test_the_whole_space_is_there():
    assert len(TIMES) == len(MEASURED.entries) == 1440
    assert all(entry.status in ("ok", "slow") for entry in MEASURED.entries)
    assert 0 < sum(time <= 1.02 * BEST for time in TIMES.values()) < 0.02 * len(TIMES)  # not to be found by chance


@pytest.mark.parametrize("seed", range(2))
def test_guided_search_is_within_two_percent_after_a_tenth(seed):
    pytest.importorskip("sklearn")
    shapes = {entry.key: entry for entry in MEASURED.entries}
    axes = {name: tuple(values) for name, values in MEASURED.head["axes"].items()}
    made = search.Guided(list(TIMES), search.described(axes, shapes.__getitem__), seed)
    seen = search.replayed(made, TIMES, len(TIMES) // 10)
    assert seen[-1] <= 1.02 * BEST


def test_those_given_up_early_were_no_candidates():
    given_up = [entry.value for entry in MEASURED.entries if entry.status == "slow"]
    assert given_up
    assert min(given_up) > 1.2 * BEST


def test_the_model_of_the_launch_alone_orders_the_space():
    """How many warps the busiest SM has at a time: what the emulator's counts are multiplied by."""
    stats = pytest.importorskip("scipy.stats")
    modelled = [stretch(Geometry(e.ctas, e.threads, e.occupancy)) for e in MEASURED.entries]
    assert stats.spearmanr(modelled, list(TIMES.values())).statistic > 0.5
