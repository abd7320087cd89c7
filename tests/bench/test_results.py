"""The schema of results: what is written, read and refused."""

from __future__ import annotations

import json

import pytest

from ptxkit.bench.results import files as module
from ptxkit.errors import UsageError
from ptxkit.files import write_json


def saved(tmp_path, value):
    path = tmp_path / "r.json"
    write_json(path, value)
    return path


def test_what_is_written_is_read_back(results, tmp_path):
    again = module.load(saved(tmp_path, results.to_json()))
    assert json.dumps(again.to_json()) == json.dumps(results.to_json())


def test_infinite_errors_survive_as_infinite(results, tmp_path):
    value = results.to_json()
    value["cases"][0]["rows"][1]["accuracy"]["max_rel"] = float("inf")
    path = saved(tmp_path, value)
    assert json.loads(path.read_text())["cases"][0]["rows"][1]["accuracy"]["max_rel"] is None
    assert module.load(path).cases[0].rows[1].accuracy.max_rel == float("inf")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda v: v.update(schema="ptxkit.bench/9"), "ptxkit.bench/9"),
        (lambda v: v.pop("device"), "device is missing"),
        (lambda v: v["cases"][0].update(flops="many"), "cases[0].flops must be a whole number"),
        (lambda v: v["cases"][0].update(rows={}), "cases[0].rows must be a list"),
        (lambda v: v["cases"][0]["rows"][0]["cold"].update(median_us="x"), "rows[0].cold.median_us must be a number"),
        (lambda v: v["cases"][0].update(lives_in="L3"), "lives_in must be one of L2, DRAM"),
    ],
)
def test_a_wrong_field_is_named(results, tmp_path, change, complaint):
    value = json.loads(json.dumps(results.to_json()))
    change(value)
    with pytest.raises(UsageError) as raised:
        module.load(saved(tmp_path, value))
    assert complaint in str(raised.value)


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        module.load(tmp_path / "nowhere.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        module.load(tmp_path / "x.json")


def test_the_best_has_no_alarm(results):
    assert results.cases[0].best("variant", "cold").name == "fused"
    from dataclasses import replace

    rows = tuple(replace(r, alarms=("no",)) if r.name == "fused" else r for r in results.cases[0].rows)
    assert replace(results.cases[0], rows=rows).best("variant", "cold").name == "unfused"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_place_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        write_json(tmp_path / "no" / "a.json", 1)


def test_some_kernels_of_a_result(results):
    assert results.of_kernels(()) == results
    assert [t.kernel for t in results.of_kernels(["saxpy"]).cases] == ["saxpy"]
    with pytest.raises(UsageError, match="no kernel 'softmax'; they have saxpy"):
        results.of_kernels(["softmax"])


def test_an_earlier_file_is_read_in_todays_names(results, tmp_path):
    value = json.loads(json.dumps(results.to_json()))
    del value["cases"][0]["conditions"]
    value["targets"] = value.pop("cases")
    value.update(
        schema="ptxkit.bench/1", environment={"driver": "13.0", "gpu": "G"}, facts={"driver": "13.0", "name": "G"}
    )
    again = module.load(saved(tmp_path, value))
    assert again.environment == {"cuda_driver": "13.0", "gpu": "G"}
    assert again.facts["cuda_driver"] == "13.0"
    assert again.cases[0].conditions is None
    assert again.schema == "ptxkit.bench/4"
    value["environment"] = []
    with pytest.raises(UsageError, match="environment must be an object"):
        module.load(saved(tmp_path, value))


def test_version_3_is_read_with_todays_names_of_peers_and_its_own_ceilings(results, tmp_path):
    value = json.loads(json.dumps(results.to_json()))
    (case,) = value["cases"]
    peer = next(row for row in case["rows"] if row["kind"] == "peer")
    peer["name"] = "ladder"
    case["ceiling"] = None
    value.update(schema="ptxkit.bench/3", absent={"ladder": "no faster kernel"})
    again = module.load(saved(tmp_path, value))
    assert [row.name for row in again.cases[0].rows if row.kind == "peer"] == ["ptxkit_gemm"]
    assert again.absent == {"ptxkit_gemm": "no faster kernel"}
    assert again.cases[0].ceiling is None, "only versions 1 and 2 lack ceilings"
    assert again.schema == "ptxkit.bench/4"
    value["cases"] = {}
    with pytest.raises(UsageError, match="cases must be a list"):
        module.load(saved(tmp_path, value))


def test_conditions_are_read_back_and_shown_in_a_line(results, tmp_path):
    from dataclasses import replace

    from ptxkit.bench.report.tables import case_table
    from ptxkit.bench.results.conditions import Conditions, Span

    conditions = Conditions(5, Span(1935, 1965, 1980), None, Span(40, 41, 42), {"power cap": 2}, 4)
    there = replace(results, cases=(replace(results.cases[0], conditions=conditions),))
    again = module.load(saved(tmp_path, there.to_json()))
    assert again.cases[0].conditions == conditions
    assert str(conditions) in case_table(again.cases[0], 4000.0).notes
