"""Candidates of two results, and the ratio of each peer to the fastest variant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.results.comparison import compared, distances
from ptxkit.bench.results.judge import judge_ratio
from ptxkit.bench.results.results import Timed


def with_rows(results, change):
    (case,) = results.cases
    return replace(results, cases=(replace(case, rows=tuple(filter(None, map(change, case.rows)))),))


def test_each_candidate_has_a_verdict_of_its_own():
    words = {
        (c.row, c.mode): (c.kind, c.judgement.word)
        for c in compared(make_results(), make_results(fused=30.0, peer=35.0))
    }
    assert words["fused", "cold"] == ("variant", "slower")
    assert words["fused", "hot"] == ("variant", "same")
    assert words["torch", "cold"] == ("peer", "faster")


def test_a_clock_that_falls_for_all_leaves_the_distance():
    slow = make_results(fused=30.0, unfused=120.0, peer=48.0)
    (found,) = distances(make_results(), slow)
    assert (found.variant, found.peer, found.mode) == ("fused", "torch", "cold")
    assert (found.before, found.after) == pytest.approx((1.6, 1.6))
    assert found.judgement.word == "same"
    (found,) = distances(make_results(), make_results(fused=30.0))
    assert (found.before, found.after) == pytest.approx((1.6, 40 / 30))
    assert found.judgement.word == "slower"


def test_the_distance_is_of_the_variant_that_was_the_fastest_then():
    (found,) = distances(make_results(), make_results(unfused=10.0))
    assert found.variant == "fused"


def test_what_is_wrong_or_alarmed_stands_for_nothing():
    (found,) = distances(make_results(), make_results(alarms=("too fast",)))
    assert found.variant == "unfused"
    wrong = with_rows(make_results(), lambda row: replace(row, verified=False))
    assert list(distances(make_results(), wrong)) == []


def test_what_one_of_them_lacks_is_left_out():
    without = with_rows(make_results(), lambda row: None if row.name == "torch" else row)
    assert list(distances(make_results(), without)) == []
    assert {c.row for c in compared(make_results(), without)} == {"fused", "unfused"}
    assert list(compared(make_results(), replace(make_results(), cases=()))) == []


def test_four_spreads_make_more_noise_than_two():
    wide = Timed(100.0, 100.0, 1.0, (99.0, 101.0), 2.0, 30)
    assert judge_ratio((wide, wide), (wide, wide)).noise == pytest.approx(0.04)
