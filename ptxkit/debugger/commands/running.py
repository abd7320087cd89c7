"""Commands that start, resume and end the kernel."""

from __future__ import annotations

from ptxkit.debugger.breakpoints import Breakpoint
from ptxkit.debugger.commands.interpreter import Interpreter, Reply, command, number
from ptxkit.debugger.commands.stops import stop_reply
from ptxkit.errors import UsageError


@command("run", "r", "restart", group="running")
def _run(d: Interpreter, argument: str) -> Reply:
    """Start the kernel, or restart it with the initial contents of memory."""
    _none(argument, "run")
    return stop_reply(d, d.session.run())


@command("start", group="running")
def _start(d: Interpreter, argument: str) -> Reply:
    """Start the kernel and stop before its first instruction."""
    _none(argument, "start")
    return stop_reply(d, d.session.run(stop_at_entry=True))


@command("continue", "c", "fg", usage="[COUNT]", group="running", repeats=True)
def _continue(d: Interpreter, argument: str) -> Reply:
    """Resume all threads until the next stop; with COUNT, ignore the current breakpoint COUNT-1 times."""
    count = number(argument, "the count", 1, 1)
    if not d.session.running and d.session.stop is None:
        return stop_reply(d, d.session.run())
    d.session.need_running()
    assert d.session.stop is not None
    for n in d.session.stop.breakpoints if count > 1 else ():
        point = next((p for p in d.session.controller.breakpoints if p.number == n), None)
        if isinstance(point, Breakpoint):
            point.ignore = count - 1
    return stop_reply(d, d.session.resume())


@command("step", "s", usage="[COUNT]", group="running", repeats=True)
def _step(d: Interpreter, argument: str) -> Reply:
    """Execute the focused thread to another source line, entering called functions."""
    return stop_reply(d, d.session.step(number(argument, "the count", 1, 1)))


@command("next", "n", usage="[COUNT]", group="running", repeats=True)
def _next(d: Interpreter, argument: str) -> Reply:
    """Execute the focused thread to another source line, without stopping in called functions."""
    return stop_reply(d, d.session.next(number(argument, "the count", 1, 1)))


@command("stepi", "si", usage="[COUNT]", group="running", repeats=True)
def _stepi(d: Interpreter, argument: str) -> Reply:
    """Execute one PTX instruction of the focused thread, or COUNT."""
    return stop_reply(d, d.session.stepi(number(argument, "the count", 1, 1)))


@command("nexti", "ni", usage="[COUNT]", group="running", repeats=True)
def _nexti(d: Interpreter, argument: str) -> Reply:
    """Execute one PTX instruction of the focused thread; a call counts as one."""
    return stop_reply(d, d.session.nexti(number(argument, "the count", 1, 1)))


@command("finish", "fin", group="running")
def _finish(d: Interpreter, argument: str) -> Reply:
    """Execute the focused thread until it returns from its function."""
    _none(argument, "finish")
    return stop_reply(d, d.session.finish())


@command("until", "u", "advance", usage="[LOCATION]", group="running", repeats=True)
def _until(d: Interpreter, argument: str) -> Reply:
    """Execute the focused thread to LOCATION; without LOCATION, to a later line, which is after the end of a loop."""
    return stop_reply(d, d.session.until(argument or None))


@command("kill", "k", group="running")
def _kill(d: Interpreter, argument: str) -> Reply:
    """End the run at the current position; breakpoints are kept."""
    _none(argument, "kill")
    d.session.need_running()
    d.session.close()
    return Reply("The run has been ended.", {"reason": "killed"})


@command("quit", "q", "exit", group="running")
def _quit(d: Interpreter, argument: str) -> Reply:
    """End the session."""
    _none(argument, "quit")
    return Reply(quit=True)


@command("set scheduler-locking", usage="step|off", group="running")
def _locking(d: Interpreter, argument: str) -> Reply:
    """Set whether other warps execute while one is stepped: with 'step', the default, only while the focused warp waits
    for them; with 'off', always."""
    if argument not in ("step", "off"):
        raise UsageError(f"scheduler-locking is step or off, not {argument!r}")
    d.session.locking = argument
    return Reply("", {"scheduler_locking": argument})


def _none(argument: str, name: str) -> None:
    if argument:
        raise UsageError(f"{name} takes no argument, not {argument!r}")
