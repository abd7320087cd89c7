"""Results as tables, for a terminal and as markdown; :mod:`ptxkit.bench.report.csv_text` writes them for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ptxkit.bench.results.comparison import compared, distances, other_launches
from ptxkit.bench.results.judge import judge, machine_difference
from ptxkit.bench.results.results import BASELINE, COUNTS, CaseResult, Counted, Mode, Results, Row, Timed
from ptxkit.columns import plain
from ptxkit.quantities import optional, quantity, time_text

Format = Literal["table", "markdown"]


@dataclass(frozen=True)
class Table:
    """Headers, rows of text, a title above and notes below."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    texts: bool = False  # whether all columns are words, which begin on the left
    keys: int = 1  # columns that say what a row is


TIMED = [
    "",
    "cold",
    "",
    "hot",
    "",
    "GB/s",
    "of roof",
    "TFLOP/s",
    "x unfused",
    "x best peer",
    "traffic ratio",
    "max rel err",
    "regs",
]
COUNTED = [
    "",
    "",
    "instructions",
    "loaded",
    "stored",
    "sectors",
    "bank conflicts",
    "flop/B",
    "traffic ratio",
    "x unfused",
]


def case_table(case: CaseResult, roof_gbs: float | None) -> Table:
    """One case: timed on a GPU, counted in the emulator."""
    notes = [f"{row.name}: skipped, {row.skipped}" for row in case.rows if row.skipped]
    notes += [f"{row.name}: error: {row.error}" for row in case.rows if row.error]
    notes += [f"{row.name}: WRONG: {row.worst}" for row in case.rows if row.verified is False]
    notes += [f"{row.name}: less accurate: {row.less_accurate}" for row in case.rows if row.less_accurate]
    notes += [f"{row.name}: ALARM: {alarm}" for row in case.rows for alarm in row.alarms]
    notes += [f"{row.name}: {row.note}" for row in case.rows if row.note and row.cold]
    if any(row.cold for row in case.rows):
        notes.append(f"of roof: {roof_note(case)}")
    if executed := executed_text(case):
        notes.append(executed)
    shown = [row for row in case.rows if row.cold or row.counted]
    title = (
        f"{case.key}: {flops_text(case)}, {quantity(case.bytes, 'B')}, {case.intensity:.3g} flop/B; "
        f"{quantity(case.footprint_bytes, 'B')} of arrays"
    )
    if case.conditions:
        notes.append(str(case.conditions))
    if roof_gbs is None:
        return Table(title, COUNTED, [_counted_row(case, row) for row in shown], notes)
    small = {tuple(row.counted.sizes.items()) for row in shown if row.counted and row.counted.sizes}
    notes += [
        "traffic ratio: bytes loaded and stored over the minimum, counted in the emulator"
        + (f" at {' '.join(f'{k}={v}' for k, v in sizes)}" if sizes else "")
        for sizes in sorted(small)[:1]
    ]
    title += f", in {case.lives_in}"
    return Table(title, TIMED, [_timed_row(case, row) for row in shown], notes)


def flops_text(case: CaseResult) -> str:
    """``"1.1 Tflop"``, or ``"1.1 Tflop (550 Gflop executed)"`` where the work states that fewer are executed."""
    text = quantity(case.flops, "flop")
    return text if case.executed == case.flops else f"{text} ({quantity(case.executed, 'flop')} executed)"


def executed_text(case: CaseResult) -> str:
    """The variants' rates in executed flops, where these are fewer; the column has the rates in all flops."""
    share = case.executed / case.flops if case.flops else 1.0
    rates = [f"{row.name} {row.tflops * share:.3g}" for row in case.rows if row.kind == "variant" and row.tflops]
    return f"TFLOP/s without skipped zeros: {', '.join(rates)}" if share < 1 and rates else ""


def _timed_row(case: CaseResult, row: Row) -> list[str]:
    base, peer = case.row(BASELINE), case.best("peer", "cold")
    mode: Mode = "cold"
    return [
        row.name,
        *_time(row.cold),
        *_time(row.hot),
        optional(row.bandwidth_gbs, ".0f"),
        optional(row.roof_fraction, ".1%"),
        optional(row.tflops, ".3g"),
        _ratio(base, row, mode),
        _ratio(peer, row, mode),
        optional(traffic(case, row.counted), ".2f", "x"),
        optional(row.accuracy.max_rel if row.accuracy else None, ".2g"),
        optional(row.registers, "d"),
    ]


def _counted_row(case: CaseResult, row: Row) -> list[str]:
    c, base = row.counted, case.row(BASELINE)
    if c is None:
        return [row.name, *["-"] * (len(COUNTED) - 1)]
    mine = c.moved_bytes
    others = base.counted.moved_bytes if base and base.counted else None
    return [
        row.name,
        "verified" if row.verified else "WRONG",
        f"{c.instructions:,}",
        quantity(c.load_bytes, "B"),
        quantity(c.store_bytes, "B"),
        f"{c.load_sectors + c.store_sectors:,}",
        f"{c.bank_conflicts:,}",
        optional(c.intensity, ".3g"),
        optional(traffic(case, c), ".2f", "x"),
        optional(others / mine if others and mine else None, ".2f", "x"),
    ]


def traffic(case: CaseResult, c: Counted | None) -> float | None:
    """Bytes loaded and stored over the minimum of the sizes that were counted; None where that minimum is not known."""
    if c is None or not case.bytes:
        return None
    minimum = case.bytes
    if c.sizes:
        from ptxkit.bench.cases import kernel_of
        from ptxkit.errors import UsageError

        try:
            kernel = kernel_of(case)
        except UsageError:
            return None  # the kernel does not exist in this version
        minimum = kernel(**{**case.options, **c.sizes}).work().bytes
    return c.moved_bytes / minimum


def list_table(rows: Sequence[Sequence[str]]) -> Table:
    """The cases that can be measured."""
    return Table("", ["kernel", "sizes", "variants", "peers"], rows, texts=True)


def compare_table(before: Results, after: Results) -> Table:
    """All times that both results have, or all counts if both are from the emulator."""
    if before.roofs is None and after.roofs is None:
        return _compare_counts(before, after)
    rows = [
        [
            c.case,
            c.row,
            c.mode,
            " ".join(_time(c.before)),
            " ".join(_time(c.after)),
            f"{c.judgement.change:+.1%}",
            f"{c.judgement.noise:.1%}",
            c.judgement.word,
            c.code,
        ]
        for c in compared(before, after)
    ]
    notes = []
    if different := machine_difference(before.environment, after.environment):
        notes.append(f"not the same machine: {different}")
    notes += other_launches(before, after)
    notes += _only(before, after)
    return Table("", ["", "", "", "before", "after", "change", "noise", "", "code"], rows, notes, keys=3)


def distance_table(before: Results, after: Results) -> Table | None:
    """Each peer's time over that of the fastest variant, before and after; None where no peer was timed in both."""
    rows = [
        [
            d.case,
            f"{d.variant} over {d.peer}",
            d.mode,
            f"{d.before:.3g}x",
            f"{d.after:.3g}x",
            f"{d.judgement.change:+.1%}",
            f"{d.judgement.noise:.1%}",
            d.judgement.word,
        ]
        for d in distances(before, after)
    ]
    if not rows:
        return None
    notes = [
        "before, after: the peer's time over the variant's in one run, with interleaved samples. change: of the inverse ratio."
    ]
    return Table("", ["", "", "", "before", "after", "change", "noise", ""], rows, notes, keys=3)


def compared_counts(before: Results, after: Results) -> Iterator[tuple[str, str, str, int, int]]:
    """Every count that both have and that is not 0 in both: case, candidate, which count, before, after."""
    for case in before.cases:
        other = after.case(case.key)
        for row in case.rows:
            now = other.row(row.name) if other else None
            if row.counted is None or now is None or now.counted is None:
                continue
            for name in COUNTS:
                a, b = getattr(row.counted, name), getattr(now.counted, name)
                if a or b:
                    yield case.key, row.name, name, a, b


def _compare_counts(before: Results, after: Results) -> Table:
    rows = []
    for case, row, name, a, b in compared_counts(before, after):
        change = "same" if a == b else f"{b / a - 1:+.1%}" if a else "new"
        rows.append([case, row, name.replace("_", " "), f"{a:,}", f"{b:,}", change])
    notes = [*_only(before, after), "Counts of the emulator, exact; neither has times."]
    return Table("", ["", "", "", "before", "after", "change"], rows, notes, keys=3)


def _only(before: Results, after: Results) -> list[str]:
    """Targets that one of two results lacks, in words."""
    only = [t.key for t in before.cases if after.case(t.key) is None]
    only += [t.key for t in after.cases if before.case(t.key) is None]
    return [f"only in one of them: {key}" for key in only]


def variants_table(case: CaseResult) -> Table:
    """A case's variants compared with its baseline, and whether their outputs agree with the same reference."""
    ran = [row for row in case.rows if row.cold] or [row for row in case.rows if row.counted]
    notes = [f"{row.name}: {row.skipped or row.error or 'no figures'}" for row in case.rows if row not in ran]
    if not ran:
        return Table(case.key, ["", "outputs"], [], notes or ["nothing was run"])
    base = next((row for row in ran if row.name == BASELINE), ran[0])
    if base.cold is None:
        counted = [[row.name, *_less(base, row), _agreement(base, row)] for row in ran]
        return Table(case.key, ["", "instructions", "bytes", f"x {base.name}", "outputs"], counted, notes)
    rows = []
    for row in ran:
        j = judge(base.cold, row.cold) if row.cold else None
        rows.append([row.name, " ".join(_time(row.cold)), str(j) if j else "-", _agreement(base, row)])
    return Table(case.key, ["", "cold", f"compared with {base.name}", "outputs"], rows, notes)


def _less(base: Row, row: Row) -> list[str]:
    """Instructions, bytes, and how many times fewer bytes than the baseline moves."""
    assert row.counted is not None
    mine = row.counted.moved_bytes
    theirs = base.counted.moved_bytes if base.counted else 0
    return [f"{row.counted.instructions:,}", quantity(mine, "B"), f"{theirs / mine:.2f}x" if mine else "-"]


def _agreement(base: Row, row: Row) -> str:
    """Whether a row's outputs agree with the baseline's."""
    if row.accuracy is None or not row.verified:
        return "not verified"
    if base.accuracy and base.accuracy.outputs_sha256 == row.accuracy.outputs_sha256 != "":
        return "identical, bit for bit"
    return f"verified, at most {row.accuracy.max_ulp:.3g} ulp from the reference"


def roof_note(case: CaseResult) -> str:
    """The roof that the column "of roof" refers to."""
    if case.ceiling is not None:
        return str(case.ceiling)
    return f"unknown, because no peak rate of {case.unit} was measured or is documented for this GPU"


def render(table: Table, kind: Format, width: int | None = None) -> str:
    """The table as text; a plain one fits into ``width`` columns, where it is given."""
    align = ["left"] + ["left" if table.texts else "right"] * (len(table.headers) - 1)
    parts = [f"**{table.title}**" if kind == "markdown" else table.title] if table.title else []
    notes = "\n".join(f"- {n}" if kind == "markdown" else n for n in table.notes)
    if table.rows or not notes:  # without rows, only the notes are shown, which state the reason
        whole = kind == "markdown"
        parts.append(_markdown(table, align) if whole else plain(table.rows, table.headers, align, width, table.keys))
    return "\n\n".join([*parts, *([notes] if notes else [])])


def _markdown(table: Table, align: Sequence[str]) -> str:
    from tabulate import tabulate

    given = align if table.rows else None
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]  # a bar would begin another cell
    return tabulate(rows, headers=table.headers, colalign=given, disable_numparse=True, tablefmt="github")


def by_case(table: Table) -> list[Table]:
    """A table whose first column is the case as one table for each case."""
    if not table.rows:
        return [table]
    groups: dict[str, list[Sequence[str]]] = {}
    for case, *rest in table.rows:
        groups.setdefault(case, []).append(rest)
    keys = max(1, table.keys - 1)
    made = [replace(table, title=t, headers=table.headers[1:], rows=r, notes=(), keys=keys) for t, r in groups.items()]
    return [*made[:-1], replace(made[-1], notes=table.notes)]


def _time(timed: Timed | None) -> tuple[str, str]:
    if timed is None:
        return "-", ""
    return time_text(timed.median_us), f"± {100 * timed.spread_us / timed.median_us:.1f}%"


def _ratio(base: Row | None, row: Row, mode: Mode) -> str:
    return optional(CaseResult.ratio(base, row, mode), ".3g", "x")
