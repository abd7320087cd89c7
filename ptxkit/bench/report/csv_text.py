"""Results as CSV, for programs: one header, a line for each candidate, bare numbers, units in the columns' names. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from ptxkit.bench.report.tables import compared_counts, traffic
from ptxkit.bench.results.comparison import Compared, compared
from ptxkit.bench.results.results import BASELINE, COUNTS, CaseResult, Mode, Results, Row

Cell = str | int | float | None
Column = Callable[[CaseResult, Row], Cell]


def written(header: Sequence[str], lines: Iterable[Sequence[Cell]]) -> str:
    """CSV text without its last line end; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return out.getvalue().rstrip("\n")


def results_csv(results: Results) -> str:
    """Every candidate of every case with all that is known of it; a column that is empty in every line is left out."""
    rows = [(case, row) for case in results.cases for row in case.rows]
    cells = {name: [column(case, row) for case, row in rows] for name, column in COLUMNS.items()}
    kept = {name: column for name, column in cells.items() if any(c not in (None, "") for c in column)}
    return written(list(kept), zip(*kept.values(), strict=True))


def compare_csv(before: Results, after: Results) -> str:
    """Every time that both have, in microseconds, or every count where both are the emulator's."""
    if before.roofs is None and after.roofs is None:
        header = ["case", "candidate", "count", "before", "after"]
        return written(header, compared_counts(before, after))
    header = ["case", "candidate", "kind", "mode", "before_us", "before_spread_us", "after_us", "after_spread_us"]
    return written([*header, "change", "noise", "judgement", "code"], map(_compared_cells, compared(before, after)))


def _compared_cells(c: Compared) -> list[Cell]:
    times: list[Cell] = [c.before.median_us, c.before.spread_us, c.after.median_us, c.after.spread_us]
    return [c.case, c.row, c.kind, c.mode, *times, c.judgement.change, c.judgement.noise, c.judgement.word, c.code]


def _state(case: CaseResult, row: Row) -> str:
    if row.skipped or row.error:
        return "skipped" if row.skipped else "error"
    if row.verified and row.less_accurate:
        return "less accurate"
    return {True: "verified", False: "WRONG", None: "not compared"}[row.verified]


def _timed(mode: Mode, name: str) -> Column:
    return lambda case, row: getattr(row.timed(mode), name, None)


def _ratio(of: Callable[[CaseResult], Row | None]) -> Column:
    """Ratio of the cold median of another row to that of this row."""

    def ratio(case: CaseResult, row: Row) -> float | None:
        return case.ratio(of(case), row, "cold")

    return ratio


def _of(part: str, name: str) -> Column:
    """A field of a part of the row that may not be there."""
    return lambda case, row: getattr(getattr(row, part), name, None)


def _measured(name: str) -> Column:
    return lambda case, row: (row.measured or {}).get(name)


def _timed_columns(mode: Mode) -> dict[str, Column]:
    names = ("median_us", "mean_us", "std_us", "spread_us", "samples", "dropped")
    return {f"{mode}_{name}": _timed(mode, name) for name in names}


COLUMNS: Mapping[str, Column] = {
    "case": lambda case, row: case.key,
    "candidate": lambda case, row: row.name,
    "kind": lambda case, row: row.kind,
    "version": lambda case, row: row.version,
    "tile": lambda case, row: " ".join(f"{k}={v}" for k, v in row.tile.items()),
    "state": _state,
    "reason": lambda case, row: row.skipped or row.error or row.worst or row.less_accurate or " ".join(row.alarms),
    **_timed_columns("cold"),
    **_timed_columns("hot"),
    "bandwidth_gbs": lambda case, row: row.bandwidth_gbs,
    "bound": lambda case, row: case.ceiling.bound if case.ceiling and row.cold else None,
    "roof_fraction": lambda case, row: row.roof_fraction,
    "tflops": lambda case, row: row.tflops,
    "x_unfused": _ratio(lambda case: case.row(BASELINE)),
    "x_best_peer": _ratio(lambda case: case.best("peer", "cold")),
    "work_flops": lambda case, row: case.flops,
    "work_bytes": lambda case, row: case.bytes,
    "footprint_bytes": lambda case, row: case.footprint_bytes,
    "counted_sizes": lambda case, row: (
        " ".join(f"{k}={v}" for k, v in row.counted.sizes.items()) if row.counted else None
    ),
    **{f"counted_{name}": _of("counted", name) for name in COUNTS},
    "traffic_ratio": lambda case, row: traffic(case, row.counted),
    "dram_read_bytes": _measured("dram_read_bytes"),
    "dram_write_bytes": _measured("dram_write_bytes"),
    "l2_hit_percent": _measured("l2_hit_percent"),
    "occupancy_percent": _measured("occupancy_percent"),
    "registers": lambda case, row: row.registers,
    "shared_bytes": lambda case, row: row.shared_bytes,
    "launches": lambda case, row: row.launches or None,
    **{f"{name}_error": _of("accuracy", name) for name in ("max_abs", "max_rel", "max_ulp")},
    "outputs_sha256": _of("accuracy", "outputs_sha256"),
}
