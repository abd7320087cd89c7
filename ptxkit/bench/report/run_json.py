"""The JSON of ``ptxkit run``: schema ``ptxkit.run/3``, a view of the results."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptxkit.bench.results.results import BASELINE, CaseResult, Counted, Results, Row, Timed

if TYPE_CHECKING:
    from ptxkit.workload.choice import Choice

SCHEMA = "ptxkit.run/3"


def run_json(results: Results, choice: Choice | None = None) -> dict[str, Any]:
    """The object of schema ``ptxkit.run/3``, of results with one case; ``choice`` appears only where there is one."""
    (case,) = results.cases
    value = {
        "schema": SCHEMA,
        "kernel": case.kernel,
        "sizes": dict(case.sizes),
        "iterations": results.iterations,
        "device": {"kind": results.device_kind, "name": results.device, "target": results.target},
        "work": _work(case),
        "roof": case.ceiling and dataclasses.asdict(case.ceiling),
        "variants": [_variant(case, row) for row in case.rows],
    }
    return value if choice is None else {**value, "choice": choice.to_json()}


def _work(case: CaseResult) -> dict[str, Any]:
    """The work; ``executed_flops`` appears only where fewer flops are executed."""
    value: dict[str, Any] = {"flops": case.flops, "bytes": case.bytes, "intensity": case.intensity, "unit": case.unit}
    return value if case.executed_flops is None else {**value, "executed_flops": case.executed_flops}


def _variant(case: CaseResult, row: Row) -> dict[str, Any]:
    """A variant's object; ``error`` appears only in one that failed, ``alarms`` only where there are some."""
    value: dict[str, Any] = {
        "name": row.name,
        "target": row.target,
        "tile": dict(row.tile),
        "tile_note": row.tile_note,
        "skipped": row.skipped,
        "verified": row.verified,
        "explanation": row.explanation,
        "max_abs_error": row.accuracy.max_abs if row.accuracy else None,
        "max_rel_error": row.accuracy.max_rel if row.accuracy else None,
        "launches": row.launches,
        "time_us": time_json(row.cold),
        "bandwidth_gbs": row.bandwidth_gbs,
        "roof_fraction": row.roof_fraction,
        "speedup": case.ratio(case.row(BASELINE), row, "cold"),
        "counted": counted_json(row.counted),
    }
    if row.error is not None:
        value["error"] = row.error
    if row.alarms:
        value["alarms"] = list(row.alarms)
    return value


def time_json(time: Timed | None) -> dict[str, Any] | None:
    """A cold time in microseconds."""
    if time is None:
        return None
    return {
        "median": time.median_us,
        "mean": time.mean_us,
        "std": time.std_us,
        "ci95": list(time.ci95_us),
        "spread": time.spread_us,
        "samples": time.samples,
        "dropped": time.dropped,
    }


def counted_json(counted: Counted | None) -> dict[str, Any] | None:
    """Counts of one call."""
    if counted is None:
        return None
    return {name: value for name, value in dataclasses.asdict(counted).items() if name != "sizes"}
