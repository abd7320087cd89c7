"""Commands for breakpoints and watchpoints."""

from __future__ import annotations

import re
from typing import Any

from ptxkit.debugger.breakpoints import Breakpoint, Watchpoint
from ptxkit.debugger.commands.interpreter import Interpreter, Reply, command, coordinates, number
from ptxkit.debugger.syntax import parse
from ptxkit.errors import UsageError

_THREAD = re.compile(r"\s(thread|cta|block)\s+(\(?\d+(?:\s*,\s*\d+){0,2}\)?)\s*$")


def set_breakpoint(d: Interpreter, argument: str, temporary: bool = False) -> Breakpoint:
    """The breakpoint of ``LOCATION [thread T] [cta C] [if CONDITION]``."""
    text, _, condition = f" {argument}".partition(" if ")
    if " if " in f" {argument} " and not condition.strip():
        raise UsageError(f"break {argument}: a condition is missing after 'if'")
    where: dict[str, list[int]] = {}
    while match := _THREAD.search(text):
        where.setdefault("thread" if match[1] == "thread" else "cta", coordinates(match[2], match[1]))
        text = text[: match.start()]
    return d.session.break_at(
        text.strip(),
        condition.strip() or None,
        thread=where.get("thread"),
        cta=where.get("cta"),
        temporary=temporary,
    )


def _set(d: Interpreter, argument: str, temporary: bool) -> Reply:
    made = set_breakpoint(d, argument, temporary)
    count = len(made.where.addresses)
    many = f" ({count} places)" if count > 1 else ""
    return Reply(f"Breakpoint {made.number} at {made.where.place}{many}", point_data(made))


@command("break", "b", "br", usage="[LOCATION] [thread T] [cta C] [if CONDITION]", group="breakpoints")
def _break(d: Interpreter, argument: str) -> Reply:
    """Stop before a source line (file.cu:12), a PTX line (file.ptx:40) or a function; without LOCATION, at the current
    instruction."""
    return _set(d, argument, False)


@command("tbreak", "tb", usage="[LOCATION] [thread T] [cta C] [if CONDITION]", group="breakpoints")
def _tbreak(d: Interpreter, argument: str) -> Reply:
    """Set a breakpoint that is deleted when it is hit."""
    return _set(d, argument, True)


@command("watch", usage="EXPRESSION", group="breakpoints")
def _watch(d: Interpreter, argument: str) -> Reply:
    """Stop after each instruction that changes a value, such as y[3] or %r5."""
    made = d.session.watch(argument)
    return Reply(f"Watchpoint {made.number}: {made.text}", point_data(made))


@command("delete", "d", usage="[NUMBER]...", group="breakpoints")
def _delete(d: Interpreter, argument: str) -> Reply:
    """Delete the breakpoints and watchpoints with these numbers; without a number, delete all."""
    chosen = _numbers(d, argument)
    for point in chosen:
        d.session.delete(point.number)
    return Reply("", {"deleted": [p.number for p in chosen]})


@command("enable", usage="[NUMBER]...", group="breakpoints")
def _enable(d: Interpreter, argument: str) -> Reply:
    """Let breakpoints and watchpoints stop the kernel again."""
    return _switch(d, argument, True)


@command("disable", usage="[NUMBER]...", group="breakpoints")
def _disable(d: Interpreter, argument: str) -> Reply:
    """Keep breakpoints and watchpoints without stopping for them."""
    return _switch(d, argument, False)


def _switch(d: Interpreter, argument: str, on: bool) -> Reply:
    chosen = _numbers(d, argument)
    for point in chosen:
        point.enabled = on
    return Reply("", {"enabled" if on else "disabled": [p.number for p in chosen]})


@command("condition", usage="NUMBER [CONDITION]", group="breakpoints")
def _condition(d: Interpreter, argument: str) -> Reply:
    """Stop only where CONDITION is true; without CONDITION, stop always."""
    word, _, text = argument.partition(" ")
    point = d.session.point(number(word, "the number of a breakpoint"))
    if not isinstance(point, Breakpoint):
        raise UsageError(f"{point.number} is a watchpoint, which takes no condition")
    point.condition = parse(text) if text.strip() else None
    point.condition_text = text.strip()
    return Reply("", point_data(point))


@command("ignore", usage="NUMBER COUNT", group="breakpoints")
def _ignore(d: Interpreter, argument: str) -> Reply:
    """Ignore the next COUNT stops at a breakpoint."""
    word, _, text = argument.partition(" ")
    point = d.session.point(number(word, "the number of a breakpoint"))
    if not isinstance(point, Breakpoint):
        raise UsageError(f"{point.number} is a watchpoint, which cannot be ignored")
    point.ignore = number(text, "the count")
    return Reply(f"Breakpoint {point.number} is passed over {point.ignore} times.", point_data(point))


@command("info breakpoints", "info b", "info watchpoints", group="status")
def _info(d: Interpreter, argument: str) -> Reply:
    """List breakpoints and watchpoints with how often they were hit."""
    points = _all(d)
    lines = []
    for p in points:
        data = point_data(p)
        where = data["where"] if isinstance(p, Breakpoint) else p.text
        extra = [f"if {data['condition']}"] if data.get("condition") else []
        extra += [f"{k} {data[k]}" for k in ("thread", "cta") if data.get(k) is not None]
        extra += [] if p.enabled else ["disabled"]
        extra += ["temporary"] if data.get("temporary") else []
        hits = f"hit {p.hits} time{'s' * (p.hits != 1)}"
        lines.append(f"{p.number}  {data['kind']:<10}  {where}  {', '.join([*extra, hits])}")
    return Reply("\n".join(lines) or "No breakpoints.", {"breakpoints": [point_data(p) for p in points]})


def point_data(point: Breakpoint | Watchpoint) -> dict[str, Any]:
    """A breakpoint or watchpoint as JSON values."""
    common = {"number": point.number, "enabled": point.enabled, "hits": point.hits}
    if isinstance(point, Watchpoint):
        return {"kind": "watchpoint", **common, "expression": point.text}
    return {
        "kind": "breakpoint",
        **common,
        "location": point.where.text,
        "where": point.where.place,
        "places": [{"function": a.function, "instruction": a.position} for a in point.where.addresses],
        "condition": point.condition_text,
        "cta": point.thread[0],
        "thread": point.thread[1],
        "temporary": point.temporary,
    }


def _all(d: Interpreter) -> list[Breakpoint | Watchpoint]:
    points: list[Breakpoint | Watchpoint] = [*d.session.controller.breakpoints, *d.session.controller.watchpoints]
    return sorted(points, key=lambda p: p.number)


def _numbers(d: Interpreter, argument: str) -> list[Breakpoint | Watchpoint]:
    words = argument.replace(",", " ").split()
    return [d.session.point(number(w, "the number of a breakpoint")) for w in words] if words else _all(d)
