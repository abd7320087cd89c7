"""Kernels as text: the page ``ptxkit inspect`` prints, its listings, occupancy curves and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptxkit.cli._text import quantity, styled, table

if TYPE_CHECKING:
    from ptxkit.inspect.advice import Finding
    from ptxkit.inspect.classes import Mix
    from ptxkit.inspect.compare import Difference
    from ptxkit.inspect.model import SassInstruction
    from ptxkit.inspect.sources import SourceFile
    from ptxkit.inspect.subject import Subject
    from ptxkit.isa.model import Loc

# Groups of instructions that catch the eye, by colour.
COLOURS = {
    "tensor": "magenta",
    "tensor memory": "magenta",
    "global": "green",
    "bulk": "green",
    "shared": "cyan",
    "local": "red",
    "sync": "yellow",
    "control": "blue",
    "special": "bright_magenta",
}


@dataclass(frozen=True)
class Columns:
    """What stands beside each SASS instruction."""

    encoding: bool = False
    control: bool = False
    registers: bool = False
    bar: int = 0  # width of the bars that show register pressure


def heading(subject: Subject) -> str:
    """One line: what is inspected and for which target."""
    parts = [styled(subject.title, bold=True)]
    if subject.kernel not in subject.title:
        parts.append(subject.kernel)
    parts.append(subject.function.target.name)
    if subject.tile:
        parts.append(subject.tile)
    return "  ".join(parts)


def page(subject: Subject) -> Iterator[str]:
    """The default page: resources, occupancy, mix, loops, findings."""
    from ptxkit.inspect.advice import findings
    from ptxkit.inspect.classes import mix
    from ptxkit.inspect.cycles import loops
    from ptxkit.inspect.report import mix_of_ptx

    yield heading(subject)
    yield ""
    yield from _indented(_resources(subject))
    yield ""
    sass = mix(subject.function)
    yield from _mix_table(f"SASS ({sass.total} instructions)", sass)
    ptx = mix_of_ptx(subject.function)
    if ptx is not None:
        yield ""
        yield from _mix_table(f"PTX ({ptx.total} instructions)", ptx)
    found = loops(subject.function)
    if found:
        rows = [
            [
                "  " * (loop.depth - 1) + where(loop.source),
                f"{loop.own_lines[0]}-{loop.own_lines[1]}" if loop.own_lines else "",
                str(len(loop.instructions)),
                str(loop.stall_cycles),
                _mix_words(mix(loop.instructions)),
            ]
            for loop in found
        ]
        yield ""
        text = table(
            [[*r[:2], r[4], *r[2:4]] for r in rows],
            ["loop", "lines", "mix", "instructions", "stall cycles"],
            left=3,
        )
        yield from _indented(text.split("\n"))
    notes = [f.note for f in subject.sources.values() if f.note]
    advice = [_finding_text(f) for f in findings(subject.function, subject.image)]
    if advice or notes:
        yield ""
    for text in (*advice, *(styled(f"note: {n}", fg="yellow") for n in notes)):
        yield f"  {text}"


def _resources(subject: Subject) -> Iterator[str]:
    resources, found = subject.function.resources, subject.occupancy
    peak = subject.function.peak
    at = f", {peak.live['R']} live at most at {where(peak.source) or hex(peak.address)}" if peak else ""
    yield f"registers  {resources.registers}{at}"
    dynamic = f" + {subject.dynamic_shared_bytes} dynamic" if subject.dynamic_shared_bytes else ""
    yield f"shared     {resources.shared_bytes} B{dynamic}"
    spills = f"{resources.spill_store_bytes} B stored, {resources.spill_load_bytes} B loaded"
    yield f"local      {resources.local_bytes} B; spills {spills if subject.spills_known else 'unknown: a cubin does not tell'}"
    yield f"barriers   {resources.barriers}"
    threads = f"{subject.block} threads{'' if subject.block_known else ' (assumed; --block N)'}"
    cluster = f", clusters of {subject.cluster}" if subject.cluster > 1 else ""
    if found.impossible:
        yield styled(f"occupancy  none with {threads}{cluster}: {found.impossible}", fg="red")
        return
    yield (
        f"occupancy  {found.ctas_per_sm} CTAs of {threads}{cluster}: {found.warps_per_sm} of {found.max_warps} warps "
        f"({found.fraction:.0%}), limited by {' and '.join(found.limiters)}"
    )
    yield "           CTAs by each limit: " + ", ".join(f"{n} {c}" for n, c in found.limits.items() if c < 1 << 30)


def _mix_table(title: str, mix: Mix) -> Iterator[str]:
    rows = []
    for group, count in mix.groups.items():
        kinds = [f"{name} {n}" for name, n in mix.classes[group].items()]
        more = f", {len(kinds) - 8} kinds more" if len(kinds) > 8 else ""
        rows.append(
            [_coloured(group, group), ", ".join(kinds[:8]) + more, str(count), f"{count / max(1, mix.total):.0%}"]
        )
    yield from _indented(table(rows, [title, "", "n", "share"], left=2).split("\n"))


def _mix_words(mix: Mix) -> str:
    wide = ("tensor", "tensor memory", "global", "bulk", "shared", "local", "special", "sync")
    named = [f"{name} {n}" for g in wide for name, n in mix.classes.get(g, {}).items()]
    rest = [f"{group} {n}" for group, n in mix.groups.items() if group not in wide]
    return ", ".join([*named[:6], *rest[:3]])


def _finding_text(finding: Finding) -> str:
    place = where(finding.source) or (f"PTX line {finding.ptx_line}" if finding.ptx_line else "")
    return styled(f"{place}: " if place else "", bold=True) + f"{finding.message} [{finding.rule}]"


# Listings


def listing(subject: Subject, *, source: bool, ptx: bool, sass: bool, columns: Columns) -> Iterator[str]:
    """Source, PTX and SASS, alone or interleaved in the order of the lowest of them that is asked for."""
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
    coloured = _coloured(text, group_of(instruction))
    return f"  {instruction.address:04x}  {coloured}{padding}{'  ' if beside else ''}{'  '.join(beside)}"


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
    locs = _locs(function.ptx, function.name) if source else {}
    shown = None
    for number, line in enumerate(function.ptx.split("\n")[first - 1 : last], first):
        if (loc := locs.get(number)) and loc != shown:
            shown = loc
            yield from _source_heading(loc, subject)
        if source and line.strip().startswith(".loc"):
            continue
        yield f"  {styled(f'{number:5d}', fg='bright_black')}  {line}".rstrip()


def _locs(text: str, name: str) -> dict[int, Loc]:
    """PTX line -> source position, for the lines that hold instructions."""
    from ptxkit.isa.parser import parse

    found = parse(text).functions.get(name)
    return {i.line: i.loc for i in found.instructions if i.loc} if found else {}


def _source(subject: Subject) -> Iterator[str]:
    """The lines that code comes from and their neighbours, with the number of SASS instructions in front."""
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
    wanted = sorted(
        {n for line in counts for n in range(line - around, line + around + 1) if 0 < n <= len(file.lines)}
    )
    previous = 0
    for number in wanted:
        if previous and number > previous + 1:
            yield "           ..."
        previous = number
        count = styled(f"{counts.get(number) or '':>5}", fg="green")
        yield f"  {count}  {styled(f'{number:5d}', fg='bright_black')}  {file.line(number)}".rstrip()


# Occupancy and differences


def curves(subject: Subject) -> Iterator[str]:
    """What more or fewer registers, shared memory or threads would do to occupancy."""
    from ptxkit.inspect.residency import curve

    function, found = subject.function, subject.occupancy
    yield heading(subject)
    yield ""
    yield from _indented(list(_resources(subject))[4:])
    units = {"registers": "registers a thread", "shared memory": "B of shared memory", "threads": "threads a CTA"}
    now = {"registers": found.registers, "shared memory": found.shared_bytes, "threads": found.block}
    for axis, unit in units.items():
        steps = curve(found, function.target, axis, function.resources.barriers)
        here = max((n for n, s in enumerate(steps) if s.quantity <= now[axis]), default=0)
        rows = []
        for index, step in enumerate(steps):
            last = steps[index + 1].quantity - 1 if index + 1 < len(steps) else None
            span = (
                str(step.quantity)
                if axis == "threads"
                else f"{step.quantity} {'or more' if last is None else f'to {last}'}"
            )
            mark = f"<- {now[axis]} now" if index == here else ""
            share = f"{step.warps_per_sm / found.max_warps:.0%}"
            rows.append([span, mark, str(step.ctas_per_sm), str(step.warps_per_sm), share])
        yield ""
        yield from _indented(table(rows, [unit, "", "CTAs", "warps", "share"], left=2).split("\n"))
        if axis != "threads" and here + 1 < len(steps):
            room = steps[here + 1].quantity - now[axis]
            one = "B" if axis == "shared memory" else "register"
            amount = quantity(room, "B") if one == "B" else f"{room} {one}{'' if room == 1 else 's'}"
            yield f"  {amount} more: {steps[here + 1].warps_per_sm} warps instead of {steps[here].warps_per_sm}"


def difference(found: Difference, titles: Sequence[str], *, whole: bool, columns: Columns) -> Iterator[str]:
    """Resources, mix and SASS of two kernels; SASS with three lines of context, or whole."""
    yield f"{styled('-', fg='red')} {titles[0]}  {found.left.target}"
    yield f"{styled('+', fg='green')} {titles[1]}  {found.right.target}"
    rows = [[name, str(a), str(b), f"{b - a:+d}"] for name, (a, b) in found.resources.items() if a != b]
    rows += [[f"{name} ({group})", str(a), str(b), f"{b - a:+d}"] for name, (group, a, b) in found.classes.items()]
    if rows:
        yield ""
        yield from _indented(table(rows, ["", "-", "+", "change"]).split("\n"))
    changed = [n for n, line in enumerate(found.lines) if line.mark != " "]
    yield ""
    if not changed:
        yield "  the same instructions, but for register numbers and addresses"
        if not whole:
            return
    width = max(len(str(i)) for f in (found.left, found.right) for i in f.instructions) if columns.control else 0
    near = {n + d for n in changed for d in range(-3, 4)}
    previous = -1
    for index, line in enumerate(found.lines):
        if not whole and index not in near:
            continue
        if index != previous + 1:
            yield styled("  ...", fg="bright_black")
        previous = index
        instruction = line.right or line.left
        if instruction is None:
            continue
        place = f"  // {where(instruction.source)}" if line.mark != " " and instruction.source else ""
        text = f"{line.mark} {instruction.address:04x}  {instruction!s:<{width}}"
        if columns.control:
            text += f"  {instruction.control}"
        yield styled(text, fg={"-": "red", "+": "green"}.get(line.mark)) + styled(place, fg="bright_black")


def where(loc: Loc | None) -> str:
    """``"saxpy.cu:6"``, the file without its directories; ``""`` for None."""
    return f"{where_file(loc.file)}:{loc.line}" if loc else ""


def where_file(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]


def _coloured(text: str, group: str) -> str:
    return styled(text, fg=COLOURS[group]) if group in COLOURS else text


def _indented(lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}".rstrip()
