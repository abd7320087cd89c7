"""Figures that follow from a case's work, its times and the ceilings of the run. Pure."""

from __future__ import annotations

from dataclasses import replace

from ptxkit.bench.results.ceiling import Roofs, ceiling
from ptxkit.bench.results.judge import alarms
from ptxkit.bench.results.results import CaseResult, Row


def with_ceiling(case: CaseResult, roofs: Roofs) -> CaseResult:
    """The case with what bounds its work, and each row with its fraction of that."""
    found = ceiling(case.executed, case.bytes, case.unit, roofs)
    rows = [
        replace(row, roof_fraction=found.time_us / row.cold.median_us if found and row.cold else None)
        for row in case.rows
    ]
    return replace(case, ceiling=found, rows=tuple(rows))


def with_figures(case: CaseResult, roofs: Roofs) -> CaseResult:
    """The case with all that follows from its times: rates, fractions of the ceiling, alarms."""
    return with_ceiling(replace(case, rows=tuple(_with_rates(case, row, roofs) for row in case.rows)), roofs)


def _with_rates(case: CaseResult, row: Row, roofs: Roofs) -> Row:
    if row.cold is None and row.hot is None:
        return row
    found = []
    for mode, timed in (("cold", row.cold), ("hot", row.hot)):
        if timed is not None:
            in_l2 = mode == "hot" or case.lives_in == "L2"
            complaints = alarms(timed.median_us, case.bytes, case.executed, case.unit, in_l2, roofs)
            found += [f"{mode}: {complaint}" for complaint in complaints]
    row = replace(row, alarms=tuple(found))
    if row.cold is None:
        return row
    bandwidth_gbs = case.bytes / row.cold.median_us / 1e3  # bytes/us is MB/s
    return replace(row, bandwidth_gbs=bandwidth_gbs, tflops=case.flops / row.cold.median_us / 1e6)
