"""A kernel's dtypes in one table: bytes, intensity, errors against one reference, and times where there are some. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ptxkit.bench.report.csv_text import written
from ptxkit.bench.report.details import error_points
from ptxkit.bench.report.run_json import counted_json, time_json
from ptxkit.bench.report.tables import Table
from ptxkit.bench.results.results import CaseResult, Row
from ptxkit.quantities import optional, quantity, time_text

SCHEMA = "ptxkit.precision/1"
POINTS = ("50", "90", "99")
"""Percentiles, before the largest error."""
ERRORS = (("abs", "absolute error"), ("ulp", "ulp"))


def precision_table(cases: Mapping[str, CaseResult], device: Mapping[str, str], option: str) -> Table:
    """A line for each variant in each dtype.

    Args:
        cases: dtype -> the case; its rows have accuracies against one reference, and cold times or counts.
        device: its ``kind``, ``name`` and ``target``. option: the option that differs.
    """
    timed = any(row.cold for case in cases.values() for row in case.rows)
    shown = [(value, case, row) for value, case in cases.items() for row in case.rows if row.accuracy is not None]
    points = " / ".join([*(f"{p}%" for p in POINTS), "max"])
    headers = [option, "", "", "bytes", "flop/B", *(f"{words}, {points}" for _, words in ERRORS)]
    headers += ["time", "", "GB/s"] if timed else ["moved", "flop/B counted"]
    rows = [
        [
            value,
            row.name,
            "verified" if row.verified else "WRONG",
            quantity(case.bytes, "B"),
            f"{case.intensity:.3g}",
            *(" / ".join(optional(e, ".2g") for e in error_points(row.accuracy, kind, POINTS)) for kind, _ in ERRORS),
            *(_time(row) if timed else _counts(row)),
        ]
        for value, case, row in shown
    ]
    return Table(_title(cases, device, option), headers, rows, _notes(cases, timed), keys=2)


def _title(cases: Mapping[str, CaseResult], device: Mapping[str, str], option: str) -> str:
    case = next(iter(cases.values()))
    others = {**case.sizes, **{k: v for k, v in case.options.items() if k != option}}
    return " ".join(
        [case.kernel, *(f"{k}={v}" for k, v in others.items()), f"on {device['name']} ({device['target']})"]
    )


def _notes(cases: Mapping[str, CaseResult], timed: bool) -> list[str]:
    found = [
        f"{value} {row.name}: {row.skipped or row.error}"
        for value, case in cases.items()
        for row in case.rows
        if row.skipped or row.error
    ]
    found += [
        f"{value} {row.name}: WRONG: {row.worst}"
        for value, case in cases.items()
        for row in case.rows
        if row.verified is False
    ]
    found.append(
        "Errors are against one float64 reference of the same random data, drawn in the widest dtype and rounded to the "
        "others: they include the rounding of inputs. ulp: of the output's type. Integer outputs are left out."
    )
    found.append("verified: against the reference of the rounded inputs. bytes, flop/B: the minimum of the work.")
    found.append("Times with a cold L2." if timed else "moved: bytes counted in the emulator; nothing was timed.")
    return found


def _time(row: Row) -> list[str]:
    if row.cold is None:
        return ["-", "", "-"]
    spread = f"± {100 * row.cold.relative_spread:.1f}%"
    return [time_text(row.cold.median_us), spread, optional(row.bandwidth_gbs, ".0f")]


def _counts(row: Row) -> list[str]:
    c = row.counted
    return ["-", "-"] if c is None else [quantity(c.moved_bytes, "B"), optional(c.intensity, ".3g")]


def precision_csv(cases: Mapping[str, CaseResult], option: str) -> str:
    """A line for each variant in each dtype, with bare numbers."""
    errors = [f"{kind}_{p}" for kind, _ in ERRORS for p in (*(f"p{p}" for p in POINTS), "max")]
    header = [option, "candidate", "verified", "work_bytes", "work_intensity", *errors]
    header += ["cold_median_us", "cold_spread_us", "counted_bytes", "counted_intensity"]
    lines = [
        [
            value,
            row.name,
            None if row.verified is None else str(row.verified).lower(),
            case.bytes,
            case.intensity,
            *(e for kind, _ in ERRORS for e in error_points(row.accuracy, kind, POINTS)),
            row.cold.median_us if row.cold else None,
            row.cold.spread_us if row.cold else None,
            row.counted.moved_bytes if row.counted else None,
            row.counted.intensity if row.counted else None,
        ]
        for value, case in cases.items()
        for row in case.rows
        if row.accuracy is not None
    ]
    return written(header, lines)


def precision_json(
    cases: Mapping[str, CaseResult], device: Mapping[str, str], option: str, seed: int
) -> dict[str, Any]:
    """The object of schema ``ptxkit.precision/1``."""
    first = next(iter(cases.values()))
    return {
        "schema": SCHEMA,
        "kernel": first.kernel,
        "sizes": dict(first.sizes),
        "options": {k: v for k, v in first.options.items() if k != option},
        "option": option,
        "seed": seed,
        "device": dict(device),
        "values": [
            {
                "value": value,
                "work": {"flops": case.flops, "bytes": case.bytes, "intensity": case.intensity, "unit": case.unit},
                "variants": [_variant(row) for row in case.rows],
            }
            for value, case in cases.items()
        ],
    }


def _variant(row: Row) -> dict[str, Any]:
    a = row.accuracy
    return {
        "name": row.name,
        "verified": row.verified,
        "skipped": row.skipped,
        "error": row.error,
        "elements": a.elements if a else None,
        "max": {kind: getattr(a, f"max_{kind}") for kind in ("abs", "rel", "ulp")} if a else None,
        "percentiles": asdict(a)["percentiles"] if a else None,
        "time_us": time_json(row.cold),
        "counted": counted_json(row.counted),
    }
