"""Commands that select the thread and the call to which other commands apply."""

from __future__ import annotations

from pathlib import PurePath

from ptxkit.debugger.commands.interpreter import Interpreter, Reply, command, coordinates, number
from ptxkit.debugger.commands.stops import lines_text, place_data, place_text
from ptxkit.errors import UsageError


def _shown(d: Interpreter) -> Reply:
    view = d.session.here
    text = place_text(view)
    return Reply(f"{text}\n{lines_text(view)}" if view.place else text, place_data(view))


@command("thread", "t", usage="[T]", group="threads")
def _thread(d: Interpreter, argument: str) -> Reply:
    """Select a thread of the CTA, linear or x,y,z; without an argument, show the position of the focused thread."""
    d.session.need_running()
    if argument:
        d.session.focus(thread=coordinates(argument, "thread"))
    return _shown(d)


@command("cta", "block", usage="[C]", group="threads")
def _cta(d: Interpreter, argument: str) -> Reply:
    """Select a CTA of the grid, linear or x,y,z; the thread stays the same."""
    d.session.need_running()
    if argument:
        d.session.focus(cta=coordinates(argument, "CTA"))
    return _shown(d)


@command("warp", usage="[W]", group="threads")
def _warp(d: Interpreter, argument: str) -> Reply:
    """Select a warp of the CTA; the lane stays the same."""
    d.session.need_running()
    if argument:
        lane = d.session.controller.focus.thread % 32
        d.session.focus(thread=number(argument, "a warp") * 32 + lane)
    return _shown(d)


@command("lane", usage="[L]", group="threads")
def _lane(d: Interpreter, argument: str) -> Reply:
    """Select a lane of the warp."""
    d.session.need_running()
    if argument:
        lane = number(argument, "a lane")
        if lane > 31:
            raise UsageError(f"a warp has lanes 0 to 31, not {lane}")
        d.session.focus(thread=d.session.controller.focus.thread // 32 * 32 + lane)
    return _shown(d)


@command("cuda", usage="[thread T] [block C] [warp W] [lane L]", group="threads")
def _cuda(d: Interpreter, argument: str) -> Reply:
    """Select block, thread, warp and lane together, as in cuda-gdb."""
    d.session.need_running()
    words = argument.split()
    chosen = []
    while words:
        name = words.pop(0)
        choose = {"thread": _thread, "block": _cta, "cta": _cta, "warp": _warp, "lane": _lane}.get(name)
        if choose is None:
            raise UsageError(f"cuda {name}: one of thread, block, warp, lane")
        if words and words[0].strip("()")[:1].isdigit():
            chosen.append((choose, words.pop(0)))
    before = d.session.controller.focus
    try:
        for choose, value in sorted(chosen, key=lambda c: c[0] is not _cta):
            choose(d, value)
    except UsageError:
        d.session.controller.focus = before
        raise
    return _shown(d)


@command("backtrace", "bt", "where", group="threads")
def _backtrace(d: Interpreter, argument: str) -> Reply:
    """Show the calls that the focused thread is in."""
    view = d.session.here
    level = d.session.controller.focus.level
    lines, data = [], []
    for n, call in enumerate(view.backtrace()):
        source = f" at {PurePath(call.file).name}:{call.line}" if call.line else ""
        inlined = ", where the line above has been inlined" if call.inlined else ""
        lines.append(
            f"{'*' if n == level else ' '}#{n}  {call.function}{source} ({view.ptx_file}:{call.ptx_line}){inlined}"
        )
        data.append({"level": n, "function": call.function, "file": call.file, "line": call.line})
        data[-1] |= {"ptx_line": call.ptx_line, "inlined": call.inlined}
    return Reply("\n".join(lines) or f"{view.name}: {view.state}", {"frames": data})


@command("frame", "f", usage="[LEVEL]", group="threads")
def _frame(d: Interpreter, argument: str) -> Reply:
    """Select a call of the backtrace, whose registers and variables are then shown."""
    calls = d.session.here.backtrace()
    level = number(argument, "the level", d.session.controller.focus.level)
    if level >= len(calls):
        raise UsageError(
            f"no call {level}; the backtrace has 0 to {len(calls) - 1}" if calls else "the thread has ended"
        )
    d.session.controller.focus.level = level
    return _shown(d)


@command("up", usage="[COUNT]", group="threads", repeats=True)
def _up(d: Interpreter, argument: str) -> Reply:
    """Select the caller."""
    return _frame(d, str(d.session.controller.focus.level + number(argument, "the count", 1)))


@command("down", usage="[COUNT]", group="threads", repeats=True)
def _down(d: Interpreter, argument: str) -> Reply:
    """Select the called function, one frame down."""
    level = d.session.controller.focus.level - number(argument, "the count", 1)
    if level < 0:
        raise UsageError("this is the innermost call")
    return _frame(d, str(level))
