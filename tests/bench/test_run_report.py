from __future__ import annotations

import json

import pytest

from ptxkit.bench.measure.statistics import summarize
from ptxkit.bench.results.run_report import COUNTERS, RunReport, VariantReport
from ptxkit.emulator.counters.counters import Counters
from ptxkit.errors import CompileError, MemoryFault
from ptxkit.workload.launch import Work

GOOD = {"verified": True, "max_abs_error": 1e-7, "max_rel_error": 2e-7, "launches": 1}


def report(*variants, **changes):
    facts = {
        "kernel": "saxpy",
        "sizes": {"n": 1000},
        "iterations": None,
        "device_kind": "emulator",
        "device_name": "ptxkit emulator",
        "target": "sm_90a",
        "work": Work(flops=2000, bytes=12000),
        "roof_gbs": None,
        "variants": variants,
    }
    return RunReport(**{**facts, **changes})


def test_json_has_the_schema_and_nothing_else():
    time_us = summarize([1.0, 2.0, 3.0])
    timed = VariantReport("fused", time_us=time_us, bandwidth_gbs=6.0, roof_fraction=0.5, speedup=2.0, **GOOD)
    value = json.loads(json.dumps(report(timed, iterations=3).to_json()))
    assert set(value) == {"schema", "kernel", "sizes", "iterations", "device", "work", "variants"}
    assert value["schema"] == "ptxkit.run/2"
    assert value["device"] == {"kind": "emulator", "name": "ptxkit emulator", "target": "sm_90a"}
    assert value["work"] == {"flops": 2000, "bytes": 12000, "intensity": pytest.approx(1 / 6)}
    (row,) = value["variants"]
    assert set(row) == {
        "name", "skipped", "verified", "max_abs_error", "max_rel_error", "launches", "time_us", "bandwidth_gbs",
        "roof_fraction", "speedup", "counters", "target", "tile", "tile_note", "explanation",
    }  # fmt: skip
    assert set(row["time_us"]) == {"median", "mean", "std", "ci95", "samples"}
    assert row["time_us"]["median"] == 2.0 and row["time_us"]["samples"] == 3
    assert row["counters"] is None


def test_counters_in_json():
    row = VariantReport("fused", counters=Counters(instructions=7, shared_bank_conflicts=3), **GOOD).to_json()
    assert set(row["counters"]) == set(COUNTERS)
    assert row["counters"]["instructions"] == 7 and row["counters"]["shared_bank_conflicts"] == 3
    assert row["time_us"] is None


def test_a_skipped_variant_is_no_failure():
    skipped = VariantReport("tma", skipped="needs sm_90")
    assert report(VariantReport("fused", **GOOD), skipped).exit_code == 0
    assert skipped.to_json()["skipped"] == "needs sm_90" and skipped.to_json()["verified"] is None


@pytest.mark.parametrize(
    "failed, code",
    [
        (VariantReport("a", **{**GOOD, "verified": False}), 1),
        (VariantReport("a", error=CompileError("no")), 4),
        (VariantReport("a", error=MemoryFault("no")), 5),
    ],
)
def test_exit_code_is_that_of_the_failure(failed, code):
    assert report(VariantReport("ok", **GOOD), failed).exit_code == code


def test_exit_code_is_that_of_the_most_severe_failure():
    wrong = VariantReport("a", **{**GOOD, "verified": False})
    assert report(wrong, VariantReport("b", error=MemoryFault("no"))).exit_code == 5
    assert report(VariantReport("b", error=CompileError("no")), wrong).exit_code == 1


def test_a_report_in_which_nothing_ran_is_not_a_success():
    assert report(VariantReport("a", skipped="needs sm_90a"), VariantReport("b", skipped="needs sm_90a")).exit_code == 6
    assert report(VariantReport("a", skipped="needs sm_90a"), VariantReport("ok", **GOOD)).exit_code == 0


def test_an_error_is_in_the_json_of_its_variant_only():
    good, bad = report(VariantReport("ok", **GOOD), VariantReport("a", error=CompileError("x.cu:3: no"))).to_json()[
        "variants"
    ]
    assert "error" not in good and bad["error"] == "x.cu:3: no"
