"""Recording the times of a GPU, and comparing new results with them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.results import expectations
from ptxkit.errors import UnavailableError, UsageError


def test_the_file_is_called_after_the_gpu(tmp_path):
    assert expectations.path_for("NVIDIA H200", tmp_path).name == "nvidia-h200.json"


def test_recorded_then_compared(tmp_path, results):
    path = tmp_path / "e" / "x.json"
    expectations.save(path, expectations.updated(None, results))
    known = expectations.load(path)
    assert {h.judgement.word for h in expectations.check(known, results)} == {"same"}
    slower = list(expectations.check(known, make_results(fused=30.0)))
    assert [(h.row, h.mode, h.judgement.word) for h in slower if h.judgement.word != "same"] == [
        ("fused", "cold", "slower")
    ]


def test_peers_are_recorded_but_not_compared(results):
    known = expectations.updated(None, results)
    assert known["cases"]["saxpy n=1000"]["rows"]["torch"]["version"] == "torch 2.11"
    assert {h.row for h in expectations.check(known, make_results(peer=400.0))} == {"unfused", "fused"}


def test_an_update_keeps_what_was_not_run(results):
    other = replace(results, cases=(replace(results.cases[0], sizes={"n": 2000}),))
    both = expectations.updated(expectations.updated(None, results), other)
    assert set(both["cases"]) == {"saxpy n=1000", "saxpy n=2000"}


def test_alarms_are_not_recorded():
    known = expectations.updated(None, make_results(alarms=("below the floor",)))
    assert "fused" not in known["cases"]["saxpy n=1000"]["rows"]


def test_the_emulator_has_nothing_to_record(results):
    with pytest.raises(UsageError, match="no times"):
        expectations.updated(None, replace(results, device_kind="emulator"))


def test_no_file_and_another_file(tmp_path):
    with pytest.raises(UnavailableError, match="--update-expectations"):
        expectations.load(tmp_path / "none.json")
    (tmp_path / "x.json").write_text(json.dumps({"schema": "other"}))
    with pytest.raises(UsageError, match=r"ptxkit\.expectations/3"):
        expectations.load(tmp_path / "x.json")


def test_two_partial_runs_merge_candidate_by_candidate(results):
    """One run measures the variants alone, another the peers: neither removes the results of the other."""
    (case,) = results.cases
    variants = replace(results, cases=(replace(case, rows=[r for r in case.rows if r.kind == "variant"]),))
    peers = replace(results, cases=(replace(case, rows=[r for r in case.rows if r.kind == "peer"]),))
    both = expectations.updated(expectations.updated(None, variants), peers)
    assert set(both["cases"]["saxpy n=1000"]["rows"]) == {"unfused", "fused", "torch"}


def test_earlier_files_are_read_in_todays_names(tmp_path, results):
    path = tmp_path / "x.json"
    known = expectations.updated(None, results)
    known["cases"]["saxpy n=1000"]["environment"] = {"gpu": "G", "driver": "13.0"}
    expectations.save(path, known)
    assert expectations.load(path)["cases"]["saxpy n=1000"]["environment"] == {"gpu": "G", "cuda_driver": "13.0"}


@pytest.mark.parametrize(
    ("schema", "cases"), [("ptxkit.expectations/1", "targets"), ("ptxkit.expectations/2", "cases")]
)
def test_earlier_files_are_read_with_todays_names_of_cases_and_peers(tmp_path, results, schema, cases):
    known = expectations.updated(None, results)
    (case,) = known["cases"].values()
    case["rows"]["ladder"] = case["rows"].pop("torch")
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": schema, "gpu": known["gpu"], cases: known["cases"]}))
    again = expectations.load(path)
    assert again["schema"] == "ptxkit.expectations/3"
    assert set(again["cases"]["saxpy n=1000"]["rows"]) == {"unfused", "fused", "ptxkit_gemm"}


def test_whether_the_code_is_the_same_is_said_where_it_is_known(results):
    known = expectations.updated(None, make_results(code="a" * 64))
    codes = {
        code: {h.code for h in expectations.check(known, make_results(code=code)) if h.row == "fused"}
        for code in ("a" * 64, "b" * 64, "")
    }
    assert codes == {"a" * 64: {"same code"}, "b" * 64: {"changed code"}, "": {""}}
    del known["cases"]["saxpy n=1000"]["rows"]["fused"]["code"]  # the form that earlier versions recorded
    assert {h.code for h in expectations.check(known, make_results(code="a" * 64)) if h.row == "fused"} == {""}


def test_two_records_at_the_same_time_are_both_kept(tmp_path):
    path, inside, let_go = tmp_path / "x.json", threading.Event(), threading.Event()

    def reader(file):
        return json.loads(file.read_text())

    def first(known):
        inside.set()
        assert let_go.wait(30)
        return {**(known or {}), "first": 1}

    def second(known):
        return {**(known or {}), "second": 2}

    one = threading.Thread(target=expectations.record, args=(path, first, reader))
    one.start()
    assert inside.wait(30)
    two = threading.Thread(target=expectations.record, args=(path, second, reader))
    two.start()
    let_go.set()
    one.join(30)
    two.join(30)
    assert reader(path) == {"first": 1, "second": 2}
