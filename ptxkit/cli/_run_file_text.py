"""What ``ptxkit run ./k.cu`` prints: the kernels of the file, what is launched, and the arrays afterwards."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ptxkit.cli._text import count, styled, table, to_stderr
from ptxkit.quantities import quantity, time_text

if TYPE_CHECKING:
    from ptxkit.source_run.call import Call
    from ptxkit.source_run.entries import CompiledFile, Entry
    from ptxkit.source_run.outputs import ArraySummary
    from ptxkit.source_run.run import FileReport

SET_TOLERANCE = (
    "To set another tolerance: --tolerance relative=...,absolute=... or --tolerance sums=K where results are sums of K terms "
    "(docs/run.md)."
)
SCHEMA_ENTRIES = "ptxkit.entries/1"


def entries_text(file: CompiledFile, entries: Iterable[Entry]) -> str:
    """Each kernel with its parameters, the values they take, and a command line that runs it."""
    blocks = []
    for entry in entries:
        lines = [styled(f"{file.path.name}:{entry.name}", bold=True)]
        if entry.parameters:
            examples = file.examples(entry)
            rows = [
                [
                    f"  #{p.index}",
                    p.name or "-",
                    entry.declarations[p.index],
                    p.wants,
                    "-" if entry.key(p) in entry.handles else examples[p.index].partition("=")[2],
                ]
                for p in entry.parameters
            ]
            lines.append(table(rows, ["", "name", "declared", "takes", "for example"], left=5))
        else:
            lines.append("  no parameters")
        if (block := entry.required_block) is not None:
            lines.append(f"  block: {'x'.join(map(str, block))}, required by the kernel")
        if (launch := file.launch(entry)) is not None:
            lines.append(f"  line {launch.line} launches {launch.shown}")
        lines.append(f"  {entry.unsuitable or file.command(entry)}")
        blocks.append("\n".join(lines))
    if file.templates:
        lines = [f"  {template.text}" for template in file.templates]
        blocks.append("\n".join(["Templates without an instance:", *lines]))
    if file.has_main:
        blocks.append(f"main of {file.path.name} does not run: a command launches one kernel with the arguments of --arg.")
    beside = file.path.with_suffix(".py")
    if beside.is_file():
        blocks.append(f"A description may be in {beside}: ptxkit run {shlex.quote(str(beside))}")
    return "\n\n".join(blocks)


def entries_json(file: CompiledFile, entries: Iterable[Entry]) -> dict[str, Any]:
    """The object of schema ``ptxkit.entries/1``."""
    return {
        "schema": SCHEMA_ENTRIES,
        "file": str(file.path),
        "target": file.image.target,
        "entries": [
            {
                "name": entry.name,
                "mangled": entry.mangled,
                "block": entry.required_block,
                "parameters": [
                    {
                        "position": p.index,
                        "name": p.name or None,
                        "declaration": entry.declarations[p.index],
                        "kind": p.kind,
                        "dtype": p.dtype.name if p.dtype is not None else None,
                        "bytes": p.size,
                        "example": None if entry.key(p) in entry.handles else file.examples(entry)[p.index].partition("=")[2],
                    }
                    for p in entry.parameters
                ],
                "command": None if entry.unsuitable else file.command(entry),
            }
            for entry in entries
        ],
        "templates": [
            {"name": t.name, "parameters": t.parameters, "instantiate": t.instance} for t in file.templates
        ],
    }


def plan_text(call: Call) -> str:
    """The launch and its arguments."""
    lines = [styled(call.title, bold=True) + f"  {launch_text(call)}  ({call.file.image.target})"]
    for p, text in zip(call.entry.parameters, call.texts, strict=True):
        lines.append(f"  #{p.index} {call.entry.declarations[p.index]} = {text}")
    return "\n".join(lines)


def launch_text(call: Call) -> str:
    """``grid 4x1x1, block 256x1x1``."""
    g = call.geometry
    parts = [("grid", g.grid), ("block", g.block), ("cluster", g.cluster)]
    words = [f"{name} {'x'.join(map(str, value))}" for name, value in parts if value is not None]
    if g.shared:
        words.append(f"{g.shared} B dynamic shared memory")
    if g.cooperative:
        words.append("cooperative")
    return ", ".join(words)


def report_text(report: FileReport) -> str:
    """The launch, the verdict, the counts or the time, and every array."""
    call = report.call
    lines = [
        f"{styled(call.title, bold=True)}  {launch_text(call)}  on {report.device_name} ({call.file.image.target})",
        verdict_text(report),
        *counts_text(report),
    ]
    if report.arrays:
        lines += ["", table([_row(a) for a in report.arrays], HEADERS, left=3), ""]
        lines += [f"{a.name}: {_first(a)}" for a in report.arrays]
        lines += [f"{a.name}: written to {a.file}" for a in report.arrays if a.file]
    return "\n".join(lines)


def verdict_text(report: FileReport) -> str:
    """The result of the comparison with ``--expect``, or the statement that nothing was compared."""
    verdict = report.verdict
    if verdict is None:
        return "ran to its end; not verified: no array is compared (--expect NAME=FILE.npy)"
    names = ", ".join(report.call.expected)
    if verdict.verified:
        word = styled("verified", fg="green")
        return f"{word}: {names}, {count(verdict.elements)} elements, max rel error {verdict.max_rel_error:.2g}"
    word = styled("WRONG", fg="red")
    return f"{word}: {names}, {count(verdict.mismatches)} of {count(verdict.elements)} elements"


def counts_text(report: FileReport) -> list[str]:
    """One line of counts, or one of times."""
    counters, time = report.counters, report.time
    if time is not None:
        spread = f"{time_text(time.median_us)} ± {100 * time.relative_spread:.1f}%"
        return [f"time: {spread} (median of {count(time.samples)} samples with a cold L2)"]
    if counters is None:
        return []
    counted = (
        f"counts: {count(counters.instructions)} instructions, {quantity(counters.read_bytes, 'B')} loaded, "
        f"{quantity(counters.written_bytes, 'B')} stored, {count(counters.global_sectors)} sectors, "
        f"{count(counters.shared_bank_conflicts)} bank conflicts, {quantity(counters.flops, 'flop')}"
    )
    if report.iterations is not None:
        return [counted, "ITERATIONS do not apply to exact counts: the kernel ran once."]
    return [counted]


HEADERS = ["array", "type", "changed", "min", "max", "mean", "NaN", "inf"]


def _row(a: ArraySummary) -> list[str]:
    if not a.changed:
        changed = "unchanged"
    else:
        what = "all" if a.changed == a.elements else f"{count(a.changed)} of {count(a.elements)}"
        changed = what if a.initialised else f"{what} written"
    if not a.changed and not a.initialised:
        changed = "not written"
    numbers = ["-" if v is None else _number(v) for v in (a.minimum, a.maximum, a.mean)]
    return [a.name, f"{a.dtype}[{'x'.join(map(str, a.shape))}]", changed, *numbers, count(a.nans), count(a.infinities)]


def _first(a: ArraySummary) -> str:
    more = " ..." if a.elements > len(a.first) else ""
    return " ".join(map(_number, a.first)) + more


def _number(value: float | int | bool) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def complain(file: CompiledFile, report: FileReport | None = None) -> None:
    """The compiler's warnings and a wrong result, on stderr."""
    from ptxkit.compiler.ptxas import concerning

    log = file.image.log if report is None else concerning(file.image.log, report.call.entry.mangled)
    if log:
        to_stderr(log.rstrip(), fg="yellow")
    if report is not None and report.verdict is not None and not report.verdict.verified:
        wrong = report.verdict.explanation or report.verdict.worst
        to_stderr(f"error: {report.call.title}: wrong result: {wrong}", fg="red")
        to_stderr(SET_TOLERANCE)
