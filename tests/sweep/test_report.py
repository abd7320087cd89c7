"""The reports of a sweep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptxkit.bench.results.ceiling import Roofs, ceiling
from ptxkit.errors import UsageError
from ptxkit.sweep import heatmap, report, run
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.problem import Problem, Space

AXES = {"A": (1, 2), "B": (1, 2, 3), "C": (5,)}


def entry(a, b, time=None, status="ok", **more):
    return Entry({"A": a, "B": b, "C": 5}, status, time_us=time, **more)


ENTRIES = [entry(1, 1, 10.0), entry(1, 2, 20.0), entry(2, 1, 30.0), entry(2, 3, status="compile", error="no\nway")]


def test_t4_has_milliseconds_and_reasons():
    value = report.to_t4(ENTRIES, timed=True)
    assert value["schema_version"] == "1.0.0"
    assert [r["invalidity"] for r in value["results"]] == ["correct", "correct", "correct", "compile"]
    first = value["results"][0]
    assert first["configuration"] == {"A": 1, "B": 1, "C": 5}
    assert first["times"]["runtimes"] == [0.01]
    assert first["measurements"] == [{"name": "time", "value": 0.01, "unit": "milliseconds"}]
    assert value["results"][3]["measurements"] == []


def test_t4_does_not_call_a_model_a_time():
    (result,) = report.to_t4([Entry({"A": 1}, "ok", cost=5.0)], timed=False)["results"]
    assert result["times"]["runtimes"] == []
    assert result["objectives"] == ["modelled_cost"]


def test_wrong_results_are_not_correct():
    assert report.to_t4([entry(1, 1, 1.0, "wrong")], timed=True)["results"][0]["correctness"] == 0


def test_failures_are_grouped_with_an_example():
    (line,) = report.failures(ENTRIES)
    assert line == "1 do not compile, such as A=2 B=3 C=5: no"


def test_a_cell_holds_the_best_there():
    found = heatmap.grid([*ENTRIES, entry(1, 1, 8.0)], "B", "A", AXES)
    assert found.shape == (2, 3)
    assert found[0, 0] == 8.0
    assert np.isnan(found[1, 2])


def test_the_axes_that_matter_most():
    assert set(heatmap.most_telling(ENTRIES, AXES)) == {"A", "B"}
    assert len(set(heatmap.most_telling(ENTRIES[:1], AXES))) == 2
    with pytest.raises(UsageError, match="no tile parameter D"):
        heatmap.grid(ENTRIES, "D", "A", AXES)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A", "takes two tile parameters"),
        ("A,B,C", "takes two tile parameters"),
        ("A,", "takes two tile parameters"),
        ("", "takes two tile parameters"),
        ("A,D", "no tile parameter D"),
        ("A,A", "must be different"),
    ],
)
def test_axes_that_cannot_be_drawn(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        heatmap.check_axes(text, AXES)


def test_axes_are_chosen_where_two_vary():
    assert heatmap.check_axes("B, A", AXES) == ("B", "A")
    assert heatmap.check_axes(None, {"A": (1, 2), "B": (1, 2)}) is None
    with pytest.raises(UsageError, match="two tile parameters that vary"):
        heatmap.check_axes(None, {"A": (1, 2), "B": (1,)})


def test_axes_are_in_numerical_order_and_words_as_they_are_declared():
    assert heatmap.in_order((256, 1024, 64)) == (64, 256, 1024)
    assert heatmap.in_order(("row", "column")) == ("row", "column")
    assert heatmap.in_order((True, False)) == (False, True)


def test_a_heat_map_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    heatmap.draw(ENTRIES, tmp_path / "h.svg", AXES, ("B", "A"), "title", True)
    assert (tmp_path / "h.svg").read_text().startswith("<?xml")


def test_leaders_are_near_the_best_and_distinct():
    entries = [
        entry(1, 1, 10.0, fingerprint="a"),
        entry(1, 2, 10.1, fingerprint="a"),
        entry(2, 1, 10.4, fingerprint="b"),
        entry(2, 2, 12.0, fingerprint="c"),
        entry(2, 3, 9.0, "slow", fingerprint="d"),
    ]
    assert [e.value for e in run.leaders(entries)] == [10.0, 10.4]
    assert run.leaders([]) == []


def test_a_failure_is_infinitely_slow():
    assert entry(1, 1, 3.0, "wrong").value == math.inf


NORM = Problem("fused_l2norm", "vectorized", {"rows": 8192, "cols": 4096}, {"eps": 1e-12}, "sm_90a")


def swept(bound):
    tile = {name: values[0] for name, values in NORM.axes.items()}
    return report.Outcome(NORM, Space((), {}, 1), [Entry(tile, "ok", time_us=100.0)], "GPU", True, 1.0, ceiling=bound)


def share_of_roof(bound):
    headers, (row,) = report.rows(swept(bound), 1)
    return row[headers.index("of roof")]


def test_a_rate_is_a_share_of_what_bounds_the_work():
    bound = ceiling(1.0, 4e8, "f32", Roofs(4000, 8000, {"f32": 60}))
    assert bound.time_us == pytest.approx(100.0)
    assert share_of_roof(bound) == "100.0%"
    assert report.to_json(swept(bound))["ceiling"]["bound"] == "memory"


def test_without_a_known_peak_there_is_no_share_of_a_roof():
    bound = ceiling(1.0, 4e8, "s8", Roofs(4000, 8000))
    assert bound is None
    assert share_of_roof(bound) == "-"
    assert report.to_json(swept(bound))["ceiling"] is None
