"""The text of a report, made from values without a run."""

from __future__ import annotations

import click

from ptxkit.bench.results.ceiling import Ceiling, Roofs
from ptxkit.bench.results.results import Accuracy, CaseResult, Counted, Results, Row, Timed
from ptxkit.cli._run_text import report_text
from ptxkit.errors import MemoryFault

GOOD = {"verified": True, "launches": 1, "accuracy": Accuracy(10, 1e-7, 2e-7, 1.0)}
MEMORY = Ceiling("memory", 4000.4, "measured", 3.0)


def timed(median, spread=0.0):
    return Timed(median, median, spread, (median, median), spread, 20)


def counted(**changes):
    return Counted(**{**dict.fromkeys(("instructions", "flops", "load_bytes", "store_bytes", "load_sectors",
                                       "store_sectors", "bank_conflicts"), 0), "intensity": None, **changes})  # fmt: skip


def text(*rows, device_kind="gpu", device="NVIDIA H200", ceiling=MEMORY, iterations=None, unit="f32"):
    case = CaseResult("saxpy", {"n": 1000}, {}, 2000, 12000, unit, 12000, "DRAM", 0, "", rows, ceiling=ceiling)
    roofs = Roofs(4000.4, 6000.0) if device_kind == "gpu" else None
    method = {"iterations": iterations}
    results = Results("", "", (), device_kind, device, {}, method, (case,), roofs=roofs, target="sm_90a")
    return click.unstyle(report_text(results))


def row(report, name):
    (line,) = [line for line in report.splitlines() if line.split()[:1] == [name]]
    return line.split()


def test_times_with_spread_bandwidth_roof_and_speedup():
    fused = Row("fused", cold=timed(1000.0, 5.0), bandwidth_gbs=1234.5, roof_fraction=0.3086, **GOOD)
    report = text(Row("unfused", cold=timed(2500.0), **{**GOOD, "launches": 5}), fused)
    assert "saxpy  n=1000  on NVIDIA H200 (sm_90a)" in report
    assert "work: 2 kflop, 12 kB, 0.167 flop/B" in report
    assert row(report, "fused") == "fused 1 verified 2e-07 1 ms ± 0.5% 1234 30.9% 2.50x 0.167".split()
    assert row(report, "unfused")[4:6] == ["2.5", "ms"]
    assert "Roof: memory, 4000 GB/s, measured." in report and "emulator" not in report


def test_the_roof_of_a_product_is_its_peak_and_a_type_without_one_has_none():
    product = text(Row("a", cold=timed(1.0), **GOOD), ceiling=Ceiling("s8", 1979.0, "documented", 1.0), unit="s8")
    assert "Roof: s8 peak, 1979 TFLOP/s, documented." in product
    unknown = text(Row("a", cold=timed(1.0), **GOOD), ceiling=None, unit="s8")
    assert "Roof: none, because no peak rate of s8 is known for this GPU" in unknown
    assert row(unknown, "a")[-3:] == ["-", "-", "0.167"]


def test_bulk_copies_to_poorly_aligned_shared_memory_are_reported():
    poor = Row("ahead", counted=counted(copied_bytes=4000, misaligned_bytes=1000), **GOOD)
    report = text(poor, device_kind="emulator")
    assert "ahead: 25% of the bytes" in report and "__align__(128)" in report
    aligned = Row("ahead", counted=counted(copied_bytes=4000), **GOOD)
    assert "__align__" not in text(aligned, device_kind="emulator")


def test_counts_and_what_iterations_mean_there():
    counts = counted(
        instructions=12345, flops=2000, load_bytes=8000, store_bytes=4000, load_sectors=250, store_sectors=125,
        bank_conflicts=3, intensity=1 / 6,
    )  # fmt: skip
    report = text(
        Row("fused", counted=counts, **GOOD), device_kind="emulator", device="ptxkit emulator", iterations=100
    )
    assert row(report, "fused") == "fused 1 verified 2e-07 12,345 8 kB 4 kB 375 3 0.167".split()
    assert "no times" in report and "ITERATIONS do not apply" in report and "Roof" not in report


def test_wrong_failed_and_skipped_variants():
    wrong = Row("fused", launches=1, verified=False, accuracy=Accuracy(10, 1.0, 0.5, 9.0))
    report = text(wrong, Row("other").failed(MemoryFault("x")), Row("tma", skipped="needs sm_90"))
    assert row(report, "fused")[2:4] == ["WRONG", "0.5"]
    assert row(report, "other")[:3] == ["other", "-", "fault"]
    assert "tma: skipped, needs sm_90" in report


def test_a_fault_after_the_verification_is_not_shown_as_verified():
    report = text(Row("a", **GOOD).failed(MemoryFault("x")), Row("b", **GOOD))
    assert row(report, "a")[2] == "fault"


def test_no_table_of_dashes_when_nothing_ran():
    assert "instructions" not in text(Row("a").failed(MemoryFault("x")), device_kind="emulator")


def test_a_variant_for_another_target_says_so():
    assert "newest: compiled for sm_100a" in text(Row("newest", target="sm_100a", **GOOD))
