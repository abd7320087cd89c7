"""CSV for programs: one header, numbers without units, one line per candidate."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.report import csv_text


def lines(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_every_candidate_of_every_target_is_a_line_under_one_header(results):
    other = replace(results.cases[0], sizes={"n": 2000})
    found = lines(csv_text.results_csv(replace(results, cases=(*results.cases, other))))
    assert [(line["case"], line["candidate"]) for line in found] == [
        (case, name) for case in ("saxpy n=1000", "saxpy n=2000") for name in ("unfused", "fused", "torch")
    ]


def test_numbers_are_bare_and_their_units_stand_in_the_header(results):
    _, fused, torch = lines(csv_text.results_csv(results))
    assert float(fused["cold_median_us"]) == 25.0
    assert float(fused["x_unfused"]) == 4.0
    assert float(fused["x_best_peer"]) == 1.6
    assert (int(fused["counted_load_bytes"]), int(fused["traffic_ratio"] == "1.0")) == (800, 1)
    assert (fused["state"], fused["tile"]) == ("verified", "THREADS=128")
    assert (torch["kind"], torch["version"], torch["counted_load_bytes"]) == ("peer", "torch 2.11", "")


def test_empty_columns_are_left_out(results):
    (line, *_) = lines(csv_text.results_csv(results))
    assert "dram_read_bytes" not in line and "reason" not in line
    assert "" not in line and None not in line


def test_why_there_are_no_figures_is_said(results):
    unfused, fused, torch = results.cases[0].rows
    wrong, marked = replace(fused, verified=False, worst="y[3] is 7"), replace(torch, less_accurate="by 2")
    rows = (replace(unfused, skipped="no wgmma"), wrong, marked)
    found = lines(csv_text.results_csv(replace(results, cases=(replace(results.cases[0], rows=rows),))))
    states = [("skipped", "no wgmma"), ("WRONG", "y[3] is 7"), ("less accurate", "by 2")]
    assert [(line["state"], line["reason"]) for line in found] == states


def test_two_results_have_both_times_and_the_word(results):
    found = lines(csv_text.compare_csv(results, make_results(fused=30.0)))
    (line,) = [x for x in found if (x["candidate"], x["mode"]) == ("fused", "cold")]
    assert (float(line["before_us"]), float(line["after_us"]), line["judgement"]) == (25.0, 30.0, "slower")
    assert float(line["change"]) == pytest.approx(0.2)


def test_two_results_of_the_emulator_have_counts(results):
    counted = replace(results, roofs=None)
    found = lines(csv_text.compare_csv(counted, counted))
    assert {
        "case": "saxpy n=1000",
        "candidate": "fused",
        "count": "load_bytes",
        "before": "800",
        "after": "800",
    } in found


def test_nothing_is_a_header(results):
    assert csv_text.results_csv(replace(results, cases=())) == ""
    assert csv_text.written(["a", "b"], []) == "a,b"
