"""Listings of a kernel: source, PTX and SASS, alone or interleaved, with columns beside each instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptxkit.cli._inspect_text import coloured, heading, where, where_file
from ptxkit.cli._text import styled

if TYPE_CHECKING:
    from ptxkit.inspect.model import SassFunction, SassInstruction
    from ptxkit.inspect.sources import SourceFile
    from ptxkit.inspect.subject import Subject
    from ptxkit.isa.model import Loc


@dataclass(frozen=True)
class Columns:
    """The columns printed beside each SASS instruction."""

    encoding: bool = False
    control: bool = False
    registers: bool = False
    bar: int = 0  # width of the bars that show register pressure


def listing(subject: Subject, *, source: bool, ptx: bool, sass: bool, columns: Columns) -> Iterator[str]:
    """Source, PTX and SASS, alone or interleaved in the order of the lowest level that is requested."""
    yield heading(subject)
    yield from (styled(f"note: {f.note}", fg="yellow") for f in subject.sources.values() if f.note)
    yield ""
    if sass:
        yield from _sass(subject, source, ptx, columns)
    elif ptx:
        yield from _ptx(subject, source)
    else:
        yield from _source(subject)


def _sass(subject: Subject, source: bool, ptx: bool, columns: Columns) -> Iterator[str]:
    function = subject.function
    ptx_lines = function.ptx.split("\n")
    width = min(72, max((len(str(i)) for i in function.instructions), default=0))
    shown_source: Loc | None = None
    shown_ptx: int | None = None
    peak = function.peak
    if columns.registers and peak:
        columns = replace(columns, bar=peak.live["R"] // 4)
        yield f"at most {peak.live['R']} registers are live, first at {peak.address:#06x} {where(peak.source)}".rstrip()
        yield ""
    for block in function.blocks:
        first = block.instructions[0]
        for label in function.labels_at.get(first.address, ()):
            yield styled(f"{label}:", fg="blue")
        if columns.control:
            yield styled(f"  // block {block.index}: {block.stall_cycles} stall cycles", fg="bright_black")
        for instruction in block.instructions:
            if source and instruction.source and instruction.source != shown_source:
                shown_source = instruction.source
                yield from _source_heading(shown_source, subject)
            if ptx and instruction.ptx_line and instruction.ptx_line != shown_ptx:
                shown_ptx = instruction.ptx_line
                text = ptx_lines[shown_ptx - 1].strip() if shown_ptx <= len(ptx_lines) else ""
                yield styled(f"    ptx:{shown_ptx}  {text}", fg="bright_black")
            yield _instruction(instruction, columns, width)


def _instruction(instruction: SassInstruction, columns: Columns, width: int) -> str:
    from ptxkit.inspect.classes import group_of

    text = str(instruction)
    beside = []
    if columns.control:
        beside.append(str(instruction.control))
    if columns.registers:
        live = instruction.live.get("R", 0)
        others = " ".join(f"{f}{n}" for f, n in instruction.live.items() if f != "R" and n)
        beside.append(f"{live:3d} {'#' * (live // 4):<{columns.bar}} {others}".rstrip())
    if columns.encoding:
        beside.append(f"{instruction.encoding >> 64:016x} {instruction.encoding & (1 << 64) - 1:016x}")
    padding = " " * (width - len(text)) if beside else ""
    shown = coloured(text, group_of(instruction))
    return f"  {instruction.address:04x}  {shown}{padding}{'  ' if beside else ''}{'  '.join(beside)}"


def _source_heading(loc: Loc, subject: Subject) -> Iterator[str]:
    file = subject.sources.get(loc.file)
    yield styled(f"{where(loc)}  {file.line(loc.line).strip() if file else ''}".rstrip(), fg="cyan")
    caller = loc.inlined_at
    while caller:
        yield styled(f"  inlined at {where(caller)}", fg="bright_black")
        caller = caller.inlined_at


def _ptx(subject: Subject, source: bool) -> Iterator[str]:
    from ptxkit.inspect.report import ptx_range

    function = subject.function
    found = ptx_range(function)
    if found is None:
        yield "the PTX is not known: the cubin was made without line information"
        return
    first, last = found
    locs = _locs(function) if source else {}
    shown = None
    for number, line in enumerate(function.ptx.split("\n")[first - 1 : last], first):
        if (loc := locs.get(number)) and loc != shown:
            shown = loc
            yield from _source_heading(loc, subject)
        if source and line.strip().startswith(".loc"):
            continue
        yield f"  {styled(f'{number:5d}', fg='bright_black')}  {line}".rstrip()


def _locs(function: SassFunction) -> dict[int, Loc]:
    """PTX line -> source position: from the PTX's own .loc, or from the SASS where the PTX has none, as in a cubin."""
    from ptxkit.errors import PtxSyntaxError
    from ptxkit.isa.parser import parse

    try:
        found = parse(function.ptx).functions.get(function.name)
    except PtxSyntaxError:  # the PTX is of a newer version than the parser supports
        found = None
    written = {i.line: i.loc for i in found.instructions if i.loc} if found else {}
    return written or {i.ptx_line: i.source for i in function.instructions if i.ptx_line and i.source}


def _source(subject: Subject) -> Iterator[str]:
    """The source lines that have code, and their neighbours, each preceded by its number of SASS instructions."""
    from ptxkit.inspect.report import instructions_by_line

    counted = instructions_by_line(subject.function)
    if not counted:
        yield "the cubin has no source lines (compiled without line information, or from PTX without .loc): see --ptx"
    for path, counts in counted.items():
        file = subject.sources.get(path)
        if file is None or not file.lines:
            continue
        yield styled(where_file(path), bold=True)
        yield from _excerpt(file, counts)


def _excerpt(file: SourceFile, counts: dict[int, int], around: int = 2) -> Iterator[str]:
    wanted = sorted({n for line in counts for n in range(line - around, line + around + 1) if 0 < n <= len(file.lines)})
    previous = 0
    for number in wanted:
        if previous and number > previous + 1:
            yield "           ..."
        previous = number
        count = styled(f"{counts.get(number) or '':>5}", fg="green")
        yield f"  {count}  {styled(f'{number:5d}', fg='bright_black')}  {file.line(number)}".rstrip()
