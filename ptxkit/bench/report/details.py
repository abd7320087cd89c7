"""Details of a case: the bytes that each candidate moves, counted and measured, and the errors of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxkit.bench.report.roofline import moved_intensity
from ptxkit.bench.report.tables import Table
from ptxkit.bench.results.results import BASELINE, Accuracy, CaseResult, Row
from ptxkit.quantities import optional, quantity

Column = tuple[str, Callable[[Row], str]]
SHOWN = ("50", "99.9")  # percentiles, before the largest


def traffic_table(case: CaseResult) -> Table | None:
    """Bytes of each variant: by threads, as the emulator counts them, and in device memory, as ncu measures them. None if
    neither is known."""
    rows = [row for row in case.rows if row.cold and (row.counted or row.measured)]
    if not rows:
        return None
    base = case.row(BASELINE)
    columns: list[Column] = [
        ("flop/B moved", lambda row: f"{moved_intensity(case, row):.3g}"),
        ("loaded", lambda row: quantity(row.counted.load_bytes, "B") if row.counted else "-"),
        ("stored", lambda row: quantity(row.counted.store_bytes, "B") if row.counted else "-"),
        ("counted, x unfused", lambda row: _fewer(_counted_bytes(base), _counted_bytes(row))),
        ("DRAM read", lambda row: _measured(row, "dram_read_bytes", "B")),
        ("DRAM written", lambda row: _measured(row, "dram_write_bytes", "B")),
        ("DRAM, x unfused", lambda row: _fewer(_dram_bytes(base), _dram_bytes(row))),
        ("L2 hits", lambda row: optional((row.measured or {}).get("l2_hit_percent"), ".1f", "%")),
        ("occupancy", lambda row: optional((row.measured or {}).get("occupancy_percent"), ".1f", "%")),
        ("registers", lambda row: optional((row.measured or {}).get("registers", row.registers), ".0f")),
        ("shared", lambda row: "-" if row.shared_bytes is None else quantity(row.shared_bytes, "B")),
        ("launches", lambda row: str(row.launches or "-")),
    ]
    notes = []
    sizes = next((row.counted.sizes for row in rows if row.counted and row.counted.sizes), None)
    if any(row.counted for row in rows):
        at = f", at {' '.join(f'{k}={v}' for k, v in sizes.items())}" if sizes else ""
        notes.append(f"loaded, stored: bytes requested by threads and asynchronous copies, counted in the emulator{at}")
    if any(row.measured for row in rows):
        notes.append("DRAM, L2 hits, occupancy: measured by ncu, one call; ratios are of the longest kernel")
    return _table(f"{case.key}: memory traffic", rows, columns, notes)


def kernels_table(case: CaseResult, most: int = 8) -> Table | None:
    """The kernels of one call of each candidate, as torch's profiler saw them, by time. None if none were profiled.

    Args:
        most: kernels of a candidate that are shown; one line has the others.
    """
    lines = []
    for row in case.rows:
        total = sum(kernel.time_us for kernel in row.kernels)
        for kernel in row.kernels[:most]:
            lines.append([row.name, _shortened(kernel.name), *_kernel_cells(kernel.launches, kernel.time_us, total)])
        if others := row.kernels[most:]:
            taken = sum(kernel.time_us for kernel in others)
            count = sum(kernel.launches for kernel in others)
            lines.append([row.name, f"{len(others)} others", *_kernel_cells(count, taken, total)])
    if not lines:
        return None
    note = "one call after another one, in a process of its own; times of single launches with the caches as they were"
    return Table(f"{case.key}: kernels, by torch's profiler", ["", "kernel", "launches", "time", "share"], lines, [note])


def _kernel_cells(launches: int, time_us: float, total: float) -> list[str]:
    return [str(launches), f"{time_us:.2f} us", f"{100 * time_us / total:.0f}%" if total else "-"]


def _shortened(name: str, length: int = 88) -> str:
    """The name of a kernel in a table; those of templates can have thousands of characters."""
    return name if len(name) <= length else name[: length - 3] + "..."


def accuracy_table(case: CaseResult) -> Table | None:
    """Errors against the float64 reference: median, 99.9th percentile, largest. None where nothing was compared."""
    rows = [row for row in case.rows if row.accuracy]
    if not rows:
        return None
    columns: list[Column] = [
        (
            f"{name}, {' / '.join(f'{p}%' for p in SHOWN)} / max",
            lambda row, key=key: _errors(row.accuracy, key),  # type: ignore[misc]
        )
        for name, key in (("absolute error", "abs"), ("relative error", "rel"), ("ulp", "ulp"))
    ]
    return _table(f"{case.key}: accuracy", rows, columns, ())


def error_points(accuracy: Accuracy | None, kind: str, points: Sequence[str] = SHOWN) -> list[float | None]:
    """Percentiles of the errors, of the worst output each, then the largest error of all; None for unknown ones.

    Args:
        kind: ``"abs"``, ``"rel"`` or ``"ulp"``. points: the percentiles, ``("50", "99.9")``.
    """
    if accuracy is None:
        return [None] * (len(points) + 1)
    known = [output[kind] for output in accuracy.percentiles.values() if kind in output]
    found = [max((p.get(point, 0.0) for p in known), default=None) for point in points]
    return [*found, {"abs": accuracy.max_abs, "rel": accuracy.max_rel, "ulp": accuracy.max_ulp}[kind]]


def _errors(accuracy: Accuracy | None, kind: str) -> str:
    if accuracy is None:
        return "-"
    return " / ".join(optional(value, ".2g") for value in error_points(accuracy, kind))


def _table(title: str, rows: Sequence[Row], columns: Sequence[Column], notes: Sequence[str]) -> Table:
    """A table without the columns that are empty in every row."""
    made = [(header, [cell(row) for row in rows]) for header, cell in columns]
    kept = [(header, cells) for header, cells in made if any(c != "-" for c in cells)]
    lines = [[row.name, *(cells[i] for _, cells in kept)] for i, row in enumerate(rows)]
    return Table(title, ["", *(header for header, _ in kept)], lines, notes)


def _counted_bytes(row: Row | None) -> float | None:
    return row.counted.moved_bytes if row and row.counted else None


def _dram_bytes(row: Row | None) -> float | None:
    return row.measured.get("dram_bytes") if row and row.measured else None


def _fewer(base: float | None, mine: float | None) -> str:
    return f"{base / mine:.2f}x" if base and mine else "-"


def _measured(row: Row, name: str, unit: str) -> str:
    value = (row.measured or {}).get(name)
    return "-" if value is None else quantity(value, unit)
