"""The text of a report, from values alone."""

from __future__ import annotations

import click

from ptxkit.bench.measure.statistics import summarize
from ptxkit.bench.results.run_report import RunReport, VariantReport
from ptxkit.cli._run_text import report_text
from ptxkit.emulator.counters.counters import Counters
from ptxkit.errors import MemoryFault
from ptxkit.workload.launch import Work

GOOD = {"verified": True, "max_abs_error": 1e-7, "max_rel_error": 2e-7}


def text(*variants, **changes):
    facts = {
        "kernel": "saxpy",
        "sizes": {"n": 1000},
        "iterations": None,
        "device_kind": "gpu",
        "device_name": "NVIDIA H200",
        "target": "sm_90a",
        "work": Work(flops=2000, bytes=12000),
        "roof_gbs": 4000.4,
        "variants": variants,
    }
    return click.unstyle(report_text(RunReport(**{**facts, **changes})))


def row(report, name):
    (line,) = [line for line in report.splitlines() if line.split()[:1] == [name]]
    return line.split()


def test_times_with_spread_bandwidth_roof_and_speedup():
    times = summarize([9.9, 10.0, 10.0, 10.1, 10.1])
    timed = VariantReport(
        "fused", launches=1, time_us=times, bandwidth_gbs=1234.5, roof_fraction=0.3086, speedup=2.5, **GOOD
    )
    report = text(VariantReport("unfused", launches=5, time_us=summarize([2500.0]), **GOOD), timed)
    assert "saxpy  n=1000  on NVIDIA H200 (sm_90a)" in report
    assert "work: 2 kflop, 12 kB, 0.167 flop/B" in report
    assert row(report, "fused") == "fused 1 verified 2e-07 10 us ± 0.5% 1234 30.9% 2.50x 0.167".split()
    assert row(report, "unfused")[4:6] == ["2.5", "ms"]
    assert "Roof: 4000 GB/s" in report and "emulator" not in report


def test_bulk_copies_to_poorly_aligned_shared_memory_are_told():
    counters = Counters(async_bytes={"global_to_shared": 4000}, async_misaligned_bytes=1000)
    counted = VariantReport("ahead", launches=1, counters=counters, **GOOD)
    assert "ahead: 25% of the bytes" in text(counted, device_kind="emulator") and "__align__(128)" in text(counted)
    aligned = VariantReport("ahead", launches=1, counters=Counters(async_bytes={"global_to_shared": 4000}), **GOOD)
    assert "__align__" not in text(aligned, device_kind="emulator")


def test_counts_and_what_iterations_mean_there():
    counters = Counters(
        instructions=12345, flops=2000, global_load_bytes=8000, global_store_bytes=4000, global_load_sectors=250,
        global_store_sectors=125, shared_bank_conflicts=3,
    )  # fmt: skip
    counted = VariantReport("fused", launches=1, counters=counters, **GOOD)
    report = text(counted, device_kind="emulator", device_name="ptxkit emulator", roof_gbs=None, iterations=100)
    assert row(report, "fused") == "fused 1 verified 2e-07 12,345 8 kB 4 kB 375 3 0.167".split()
    assert "no times" in report and "ITERATIONS do not apply" in report and "Roof" not in report


def test_wrong_failed_and_skipped_variants():
    wrong = VariantReport("fused", launches=1, verified=False, max_abs_error=1.0, max_rel_error=0.5)
    report = text(wrong, VariantReport("other", error=MemoryFault("x")), VariantReport("tma", skipped="needs sm_90"))
    assert row(report, "fused")[2:4] == ["WRONG", "0.5"]
    assert row(report, "other")[:3] == ["other", "-", "fault"]
    assert "tma: skipped, needs sm_90" in report


def test_no_table_of_dashes_when_nothing_ran():
    assert "instructions" not in text(VariantReport("a", error=MemoryFault("x")), device_kind="emulator")


def test_a_variant_for_another_target_says_so():
    assert "newest: compiled for sm_100a" in text(VariantReport("newest", launches=1, target="sm_100a", **GOOD))
