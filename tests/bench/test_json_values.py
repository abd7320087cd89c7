"""Result files that were edited, truncated or invented: an error that names the place, or a result, and never a traceback."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptxkit_bench_samples import make_results

from ptxkit.bench.measure import rerun
from ptxkit.bench.report import roofline, tables
from ptxkit.bench.results import results as module
from ptxkit.bench.results.files import load
from ptxkit.bench.results.json_values import NotNegative, Positive, read_as
from ptxkit.errors import PtxkitError, UsageError

WHOLE = json.loads(json.dumps(make_results().to_json()))
MISSING = object()
STRANGE = [None, "x", -1, 0, 1.5, [], {}, True, "Infinity", MISSING]


def places(value, place=()):
    """All values inside a JSON value, by path."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, v in inner:
        yield from places(v, (*place, name))


def changed(place, new):
    value = copy.deepcopy(WHOLE)
    at = value
    for name in place[:-1]:
        at = at[name]
    if new is MISSING:
        del at[place[-1]]
    else:
        at[place[-1]] = new
    return json.dumps(value).replace('"Infinity"', "1e999")


@given(st.sampled_from(list(places(WHOLE))), st.sampled_from(STRANGE))
def test_any_field_may_be_wrong(tmp_path_factory, place, new):
    file = tmp_path_factory.getbasetemp() / "edited.json"
    file.write_text(changed(place, new))
    whole = make_results()
    try:
        found = load(file)
        for table in [tables.compare_table(whole, found), *(tables.variants_table(t) for t in found.cases)]:
            tables.render(table, "table")
        tables.distance_table(found, whole)
        roofline.text(found)
        list(rerun.changes(found, whole))
        [rerun.plan_of(case) for case in found.cases]
    except PtxkitError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("length", [0, 1, 100, 1000])
def test_a_file_that_was_cut_off(tmp_path, length):
    file = tmp_path / "cut.json"
    file.write_text(json.dumps(WHOLE)[:length])
    with pytest.raises(UsageError, match="cut.json is not JSON"):
        load(file)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "\xff"])
def test_what_python_cannot_read_as_json_is_no_json(tmp_path, text):
    file = tmp_path / "deep.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="is not (JSON|UTF-8)"):
        load(file)


@pytest.mark.parametrize("text", ["[1, 2]", "null", "{}", '{"schema": null}'])
def test_json_without_a_schema_is_not_called_one_of_another_schema(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(
        UsageError, match=r"other\.json holds a JSON .*; pass a file written by ptxkit bench run --json"
    ):
        load(file)


@pytest.mark.parametrize("value", [0, -1.0, None, True, "1", float("inf"), float("nan")])
def test_a_time_is_a_number_above_zero(value):
    with pytest.raises(UsageError, match=r"median_us must be a number above 0"):
        read_as(module.Timed, {**WHOLE["cases"][0]["rows"][0]["cold"], "median_us": value})


def test_a_spread_may_be_nothing():
    cold = WHOLE["cases"][0]["rows"][0]["cold"]
    assert read_as(module.Timed, {**cold, "spread_us": 0}).spread_us == 0.0
    with pytest.raises(UsageError, match="spread_us must be a number, 0 or more"):
        read_as(module.Timed, {**cold, "spread_us": -0.1})
    assert Positive != NotNegative


def test_what_stands_in_an_object_has_its_place():
    with pytest.raises(UsageError, match=r"roofs\.peak_tflops\.f32 must be a number above 0, not \"x\""):
        read_as(module.Results, {**WHOLE, "roofs": {**WHOLE["roofs"], "peak_tflops": {"f32": "x"}}})


def test_true_is_no_number_of_samples():
    with pytest.raises(UsageError, match="samples must be a whole number, not true"):
        read_as(module.Timed, {**WHOLE["cases"][0]["rows"][0]["cold"], "samples": True})
