"""Values derived from a case: bounds follow from the executed flops, rates from all flops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.report.tables import executed_text
from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.derived import with_figures
from ptxkit.bench.results.results import CaseResult


def figures(executed: int | None) -> CaseResult:
    """10 Gflop of bf16 in the time of the sample's row, at a peak of half the rate."""
    (sample,) = make_results().cases
    row = replace(sample.row("fused"), alarms=(), hot=None)
    flops = 10**10
    peak = flops / row.cold.median_us / 1e6 / 2
    case = CaseResult("p", {"n": 1}, {}, flops, 1200, "bf16", 12, "L2", 0, "", (row,), executed_flops=executed)
    return with_figures(case, Roofs(4000.0, 8000.0, {"bf16": peak}))


def test_a_rate_above_the_peak_is_no_alarm_if_half_of_the_flops_are_skipped():
    assert figures(None).rows[0].alarms
    half = figures(5 * 10**9)
    assert not half.rows[0].alarms
    assert half.rows[0].roof_fraction == pytest.approx(1.0)
    assert half.rows[0].tflops == pytest.approx(figures(None).rows[0].tflops)
    assert executed_text(half) == f"TFLOP/s without skipped zeros: fused {half.rows[0].tflops / 2:.3g}"
    assert executed_text(figures(None)) == ""
