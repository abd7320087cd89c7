from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.report.run_json import run_json
from ptxkit.bench.report.tables import flops_text
from ptxkit.bench.results.results import CaseResult, Row
from ptxkit.errors import CompileError, MemoryFault


def case(*rows):
    return CaseResult("saxpy", {"n": 1000}, {}, 2000, 12000, "f32", 12000, "DRAM", 0, "", rows)


def test_json_has_the_schema_and_nothing_else():
    results = make_results()
    value = json.loads(json.dumps(run_json(results)))
    assert set(value) == {"schema", "kernel", "sizes", "iterations", "device", "work", "roof", "variants"}
    assert value["schema"] == "ptxkit.run/3"
    assert value["device"] == {"kind": "gpu", "name": "NVIDIA H200", "target": ""}
    assert value["work"] == {"flops": 2000, "bytes": 1200, "intensity": pytest.approx(5 / 3), "unit": "f32"}
    assert value["roof"]["bound"] == "memory" and value["roof"]["source"] == "measured"
    row = value["variants"][1]
    assert set(row) == {
        "name", "skipped", "verified", "max_abs_error", "max_rel_error", "launches", "time_us", "bandwidth_gbs",
        "roof_fraction", "speedup", "counted", "target", "tile", "tile_note", "explanation",
    }  # fmt: skip
    assert set(row["time_us"]) == {"median", "mean", "std", "ci95", "spread", "samples", "dropped"}
    assert row["time_us"]["median"] == 25.0 and row["time_us"]["samples"] == 30
    assert row["speedup"] == pytest.approx(4.0)
    assert row["counted"]["instructions"] == 1000 and "sizes" not in row["counted"]


GOOD = Row("ok", verified=True, launches=1)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([GOOD, Row("a", skipped="needs sm_90")], 0),
        ([GOOD, Row("a", verified=False)], 1),
        ([GOOD, replace(GOOD, alarms=("too fast",))], 1),
        ([GOOD, Row("a").failed(CompileError("no"))], 4),
        ([GOOD, Row("a").failed(MemoryFault("no"))], 5),
        ([Row("a", verified=False), Row("b").failed(MemoryFault("no"))], 5),
        ([Row("b").failed(CompileError("no")), Row("a", verified=False)], 1),
        ([Row("a", skipped="needs sm_90a"), Row("b", skipped="needs sm_90a")], 6),
        ([GOOD, Row("torch", kind="peer", error="not installed")], 0),
    ],
)
def test_exit_code_is_that_of_the_most_severe_failure(rows, code):
    assert case(*rows).exit_code == code


def test_an_error_is_in_the_json_of_its_variant_only():
    bad = Row("a").failed(CompileError("x.cu:3: no"))
    good, bad = run_json(make_results(cases=(case(GOOD, bad),)))["variants"]
    assert "error" not in good and bad["error"] == "x.cu:3: no"


def test_the_work_has_the_executed_flops_where_there_are_fewer():
    fewer = replace(case(), executed_flops=1000)
    value = run_json(replace(make_results(), cases=[fewer]))
    assert value["work"]["executed_flops"] == 1000
    assert flops_text(fewer) == "2 kflop (1 kflop executed)"
    assert flops_text(case()) == "2 kflop"
