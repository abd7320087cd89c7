"""Kernels as text: the page ``ptxkit inspect`` prints, occupancy curves and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptxkit.cli._text import styled, table
from ptxkit.quantities import quantity

if TYPE_CHECKING:
    from ptxkit.inspect.advice import Finding
    from ptxkit.inspect.classes import Mix
    from ptxkit.inspect.compare import Difference
    from ptxkit.inspect.subject import Subject
    from ptxkit.isa.model import Loc

# Colours of the instruction groups that are highlighted.
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
    from ptxkit.inspect.natural_loops import loops
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
                "> " * (loop.depth - 1) + where(loop.source),
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
            indent=2,
        )
        yield from _indented(text.split("\n"))
        yield from _indented(_banks(subject))
    notes = [f.note for f in subject.sources.values() if f.note]
    advice = [_finding_text(f) for f in findings(subject.function, subject.image)]
    if advice or notes:
        yield ""
    for text in (*advice, *(styled(f"note: {n}", fg="yellow") for n in notes)):
        yield f"  {text}"


def _banks(subject: Subject) -> Iterator[str]:
    """One line about register-bank conflicts in the hottest loop; no line where there are none."""
    from ptxkit.inspect.banks import register_banks

    found = register_banks(subject.function)
    if found and found.delayed:
        yield ""
        yield (
            f"register banks  {found.delayed} of {found.arithmetic} arithmetic instructions of the loop at "
            f"{where(found.loop.source) or hex(found.loop.address)} wait for an operand: {found.share:.1%} of its issue slots "
            "(a model)"
        )


def _resources(subject: Subject) -> Iterator[str]:
    resources, found = subject.function.resources, subject.occupancy
    peak = subject.function.peak
    at = f", {peak.live['R']} live at most at {where(peak.source) or hex(peak.address)}" if peak else ""
    yield f"registers  {resources.registers}{at}"
    dynamic = f" + {subject.dynamic_shared_bytes} dynamic" if subject.dynamic_shared_bytes else ""
    yield f"shared     {resources.shared_bytes} B{dynamic}"
    spills = f"{resources.spill_store_bytes} B stored, {resources.spill_load_bytes} B loaded"
    yield f"local      {resources.local_bytes} B; spills {spills if subject.function.spills_known else 'unknown'}"
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
            [coloured(group, group), ", ".join(kinds[:8]) + more, str(count), f"{count / max(1, mix.total):.0%}"]
        )
    yield from _indented(table(rows, [title, "", "n", "share"], left=2, indent=2).split("\n"))


def _mix_words(mix: Mix) -> str:
    wide = ("tensor", "tensor memory", "global", "bulk", "shared", "local", "special", "sync")
    named = [f"{name} {n}" for g in wide for name, n in mix.classes.get(g, {}).items()]
    rest = [f"{group} {n}" for group, n in mix.groups.items() if group not in wide]
    return ", ".join([*named[:6], *rest[:3]])


def _finding_text(finding: Finding) -> str:
    place = where(finding.source) or (f"PTX line {finding.ptx_line}" if finding.ptx_line else "")
    caller = finding.source
    while caller and caller.inlined_at:
        caller = caller.inlined_at
    called = f", inlined at {where(caller)}" if caller is not finding.source else ""
    return styled(f"{place}{called}: " if place else "", bold=True) + f"{finding.message} [{finding.rule}]"


# Occupancy and differences


def curves(subject: Subject) -> Iterator[str]:
    """How occupancy changes with more or fewer registers, shared memory or threads."""
    from ptxkit.targets.occupancy import curve

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
        yield from _indented(table(rows, [unit, "", "CTAs", "warps", "share"], left=2, indent=2).split("\n"))
        if axis != "threads" and here + 1 < len(steps):
            room = steps[here + 1].quantity - now[axis]
            one = "B" if axis == "shared memory" else "register"
            amount = quantity(room, "B") if one == "B" else f"{room} {one}{'' if room == 1 else 's'}"
            yield f"  {amount} more: {steps[here + 1].warps_per_sm} warps instead of {steps[here].warps_per_sm}"


def difference(
    found: Difference,
    titles: Sequence[str],
    times_us: tuple[float | None, float | None] = (None, None),
    *,
    whole: bool,
    control: bool,
) -> Iterator[str]:
    """Resources, times, mix and SASS of two kernels; SASS with three lines of context, or whole."""
    yield f"{styled('-', fg='red')} {titles[0]}  {found.left.target}"
    yield f"{styled('+', fg='green')} {titles[1]}  {found.right.target}"
    rows = [[name, str(a), str(b), f"{b - a:+d}"] for name, (a, b) in found.resources.items() if a != b]
    if times_us[0] is not None and times_us[1] is not None:
        change = f"{times_us[1] / times_us[0] - 1:+.1%}"
        rows.append(["time (us)", f"{times_us[0]:.2f}", f"{times_us[1]:.2f}", change])
    rows += [[f"{name} ({group})", str(a), str(b), f"{b - a:+d}"] for name, (group, a, b) in found.classes.items()]
    if rows:
        yield ""
        yield from _indented(table(rows, ["", "-", "+", "change"], indent=2).split("\n"))
    changed = [n for n, line in enumerate(found.lines) if line.mark != " "]
    yield ""
    if not changed:
        yield "  the same instructions, but for register numbers and addresses"
        if not whole:
            return
    width = max(len(str(i)) for f in (found.left, found.right) for i in f.instructions) if control else 0
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
        if control:
            text += f"  {instruction.control}"
        yield styled(text, fg={"-": "red", "+": "green"}.get(line.mark)) + styled(place, fg="bright_black")


def where(loc: Loc | None) -> str:
    """``"saxpy.cu:6"``, the file without its directories; ``""`` for None."""
    return f"{where_file(loc.file)}:{loc.line}" if loc else ""


def where_file(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]


def coloured(text: str, group: str) -> str:
    return styled(text, fg=COLOURS[group]) if group in COLOURS else text


def _indented(lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}".rstrip()
