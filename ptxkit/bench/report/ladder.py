"""A kernel at growing sizes in one table: where the data lives, and how cold and hot bandwidths converge. Pure.

Data that fits the L2 cache is served by it in hot calls; larger data comes from device memory in both modes, so that the hot
and the cold bandwidth converge to the same value.
"""

from __future__ import annotations

from ptxkit.bench.report.tables import Table, traffic
from ptxkit.bench.results.judge import combined_spread
from ptxkit.bench.results.results import BASELINE, CaseResult, Results, Row, Timed
from ptxkit.quantities import optional, quantity, time_text

TIMED = ["", "bytes", "in", "", "cold", "", "GB/s", "hot", "", "GB/s", "cold / hot", "", "of roof"]
TIMED_RATIOS = ["x unfused", "", "x best peer", ""]
COUNTED = ["", "bytes", "in", "", "", "loaded", "stored", "traffic ratio", "x unfused", "flop/B", "instructions"]


def ladder_table(results: Results, l2_bytes: int, gpu: str) -> Table:
    """A line for each candidate at each size: times of a GPU, or counts of the emulator.

    Args:
        l2_bytes: size of the L2 cache that "in" refers to. gpu: the GPU that has it.
    """
    timed = results.roofs is not None
    rows = [
        (_timed_cells if timed else _counted_cells)(case, row, l2_bytes)
        for case in results.cases
        for row in case.rows
        if (row.cold if timed else row.counted)
    ]
    headers = [*TIMED, *TIMED_RATIOS] if timed else COUNTED
    return Table(_title(results), headers, rows, _notes(results, l2_bytes, gpu), keys=4)


def _title(results: Results) -> str:
    """The kernel with its options, and the device."""
    case = results.cases[0] if results.cases else None
    options = " ".join(f"{k}={v}" for k, v in case.options.items()) if case else ""
    named = f"{case.kernel} {options}".rstrip() if case else "no sizes"
    return f"{named} on {results.device} ({results.target})"


def _notes(results: Results, l2_bytes: int, gpu: str) -> list[str]:
    notes = []
    for case in results.cases:
        size = _size(case)
        notes += [f"{size} {row.name}: {_reason(row)}" for row in case.rows if _reason(row)]
        notes += [f"{size} {row.name}: ALARM: {alarm}" for row in case.rows for alarm in row.alarms]
    notes += [f"{name}: not available, {reason}" for name, reason in results.absent.items()]
    notes.append(f"in: whether all arrays, bytes, fit the {quantity(l2_bytes, 'B')} of L2 of the {gpu}.")
    if results.roofs is None:
        notes.append(
            "Counts are exact, of PTX instructions; nothing was timed. traffic ratio: bytes moved over the minimum."
        )
    else:
        notes.append(
            "GB/s: the minimum bytes of the work over the median. cold / hot: near 1 where the data comes from device memory "
            "in both. ± of a time: half the interquartile range; of a ratio: the root of the sum of the squares of both."
        )
    return notes


def _reason(row: Row) -> str:
    if row.verified is False:
        return f"WRONG: {row.worst}"
    return row.skipped or row.error or (f"less accurate: {row.less_accurate}" if row.less_accurate else "")


def _size(case: CaseResult) -> str:
    return " ".join(f"{name}={value}" for name, value in case.sizes.items())


def _keys(case: CaseResult, row: Row, l2_bytes: int) -> list[str]:
    where = "L2" if case.footprint_bytes <= l2_bytes else "DRAM"
    return [_size(case), quantity(case.footprint_bytes, "B"), where, row.name]


def _timed_cells(case: CaseResult, row: Row, l2_bytes: int) -> list[str]:
    base, peer = case.row(BASELINE), case.best("peer", "cold")
    return [
        *_keys(case, row, l2_bytes),
        *_time(case, row.cold),
        *_time(case, row.hot),
        *_ratio(row.cold, row.hot),
        optional(row.roof_fraction, ".1%"),
        *_ratio(base.cold if base else None, row.cold),
        *_ratio(peer.cold if peer else None, row.cold),
    ]


def _time(case: CaseResult, timed: Timed | None) -> tuple[str, str, str]:
    if timed is None:
        return "-", "", "-"
    bandwidth = case.bytes / timed.median_us / 1e3  # bytes/us is MB/s
    return time_text(timed.median_us), f"± {100 * timed.relative_spread:.1f}%", f"{bandwidth:.0f}"


def _ratio(theirs: Timed | None, mine: Timed | None) -> tuple[str, str]:
    if theirs is None or mine is None:
        return "-", ""
    return f"{theirs.median_us / mine.median_us:.3g}x", f"± {100 * combined_spread(theirs, mine):.1f}%"


def _counted_cells(case: CaseResult, row: Row, l2_bytes: int) -> list[str]:
    c, base = row.counted, case.row(BASELINE)
    assert c is not None
    theirs = base.counted.moved_bytes if base and base.counted else None
    return [
        *_keys(case, row, l2_bytes),
        "verified" if row.verified else "WRONG",
        quantity(c.load_bytes, "B"),
        quantity(c.store_bytes, "B"),
        optional(traffic(case, c), ".2f", "x"),
        optional(theirs / c.moved_bytes if theirs and c.moved_bytes else None, ".2f", "x"),
        optional(c.intensity, ".3g"),
        f"{c.instructions:,}",
    ]
