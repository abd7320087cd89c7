"""A stop as text and as JSON values."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ptxkit.debugger.breakpoints import source_text
from ptxkit.debugger.commands.interpreter import Reply
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.debugger.commands.interpreter import Interpreter
    from ptxkit.debugger.stop import Stop, ThreadView


def stop_reply(d: Interpreter, stop: Stop) -> Reply:
    """The output of a command that resumes the kernel."""
    data: dict[str, Any] = {
        "reason": stop.reason,
        "message": stop.message,
        "breakpoints": list(stop.breakpoints),
        "threads": stop.threads,
    }
    if stop.ended:
        return _ended(d, stop, data)
    view = d.session.here
    data |= place_data(view)
    names = ", ".join(map(str, stop.breakpoints))
    head = {
        "breakpoint": f"Breakpoint {names}, ",
        "watchpoint": f"Watchpoint {names}: {stop.message}\n",
        "fault": f"Fault: {stop.message}\n",
        "race": f"Race: {stop.message}\n",
        "interrupt": "Interrupted, ",
    }.get(stop.reason, "")
    if stop.reason == "exited":
        return Reply(f"{view.name} has ended.", data)
    many = f"; {stop.threads} threads stopped here" if stop.threads > 1 else ""
    text = f"{head}{place_text(view)}{many}"
    if stop.reason == "breakpoint" and stop.message:
        text += f"\n{stop.message}"
    text += "\n" + lines_text(view)
    shown = []
    for number, expression in d.displays.items():
        try:
            value = view.text(expression)
        except UsageError as error:
            value = f"<{error}>"
        shown.append({"number": number, "expression": expression, "text": value})
        text += f"\n{number}: {expression} = {value}"
    if shown:
        data["displays"] = shown
    return Reply(text, data)


def _ended(d: Interpreter, stop: Stop, data: dict[str, Any]) -> Reply:
    if stop.reason == "failed":
        return Reply(f"The kernel has ended in a fault: {stop.message}", data)
    more = d.finished(stop.event.outcome) if d.finished is not None else Reply()
    return Reply(f"The kernel has ended.{' ' + more.text if more.text else ''}", {**data, **more.data})


def place_data(view: ThreadView) -> dict[str, Any]:
    """The position of a thread as JSON values."""
    return {
        "cta": list(view.cta),
        "thread": list(view.thread),
        "warp": view.focus.thread // 32,
        "lane": view.focus.thread % 32,
        "state": view.state,
        "waits_for": view.waits_for,
        "function": view.function,
        "file": view.file,
        "line": view.line,
        "ptx_file": view.ptx_file if view.place else "",
        "ptx_line": view.ptx_line,
        "instruction": view.instruction,
    }


def place_text(view: ThreadView) -> str:
    """The position of a thread: ``saxpy at saxpy.cu:12, saxpy.ptx:40; CTA (1,0,0), thread (3,0,0), warp 0, lane 3``."""
    who = (
        f"CTA ({','.join(map(str, view.cta))}), thread ({','.join(map(str, view.thread))}), "
        f"warp {view.focus.thread // 32}, lane {view.focus.thread % 32}"
    )
    if view.place is None:
        return f"{who}: {view.state}"
    source = f"{PurePath(view.file).name}:{view.line}, " if view.line else ""
    waits = f"; waits: {view.waits_for}" if view.waits_for else ""
    return f"{view.function} at {source}{view.ptx_file}:{view.ptx_line}; {who}{waits}"


def lines_text(view: ThreadView) -> str:
    """The source line and the PTX instruction at the position of a thread."""
    lines = []
    text = source_text(view.file) if view.line else None
    if text is not None and view.line <= len(text):
        lines.append(f"{view.line}\t{text[view.line - 1]}")
    lines.append(f"{view.ptx_line}\t{view.instruction or 'end of the function'}")
    return "\n".join(lines)
