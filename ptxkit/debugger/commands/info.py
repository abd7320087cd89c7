"""``info``: the state of registers, warps, barriers and asynchronous operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ptxkit.columns import plain
from ptxkit.debugger import overview
from ptxkit.debugger.commands.interpreter import Interpreter, Reply, command
from ptxkit.debugger.commands.stops import lines_text, place_data, place_text
from ptxkit.debugger.evaluate import Value
from ptxkit.debugger.show import FORMATS, text_of
from ptxkit.errors import UsageError

SHOWN = 72
"""Characters of an instruction that a table shows."""


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    return plain([[str(c) for c in row] for row in rows], headers, ["left"] * len(headers))


def _source(row: overview.Row) -> str:
    return f"{PurePath(row['file']).name}:{row['line']}" if row["line"] else ""


def _next(row: overview.Row) -> str:
    """What the threads of a row wait for, else the instruction that they execute next, shortened."""
    if row["waits_for"]:
        return str(row["waits_for"])
    text = str(row["instruction"])
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _values(found: dict[str, Value], style: str, key: str, none: str) -> Reply:
    lines = [f"{name:<12} {text_of(value, style)}" for name, value in found.items()]
    data = {n: {"type": v.type.name, "value": v.python, "text": text_of(v, style)} for n, v in found.items()}
    return Reply("\n".join(lines) or none, {key: data})


@command("info registers", "info r", "info all-registers", usage="[NAME]...", group="status")
def _registers(d: Interpreter, argument: str) -> Reply:
    """Show the registers that the focused thread has written in this call, or those named."""
    if d.style and d.style not in FORMATS:
        raise UsageError(f"no format /{d.style}; there are /{' /'.join(FORMATS)}")
    thread = d.session.here.resident
    found = {n: thread.evaluate(n) for n in argument.split()} if argument else thread.all_registers()
    return _values(found, d.style, "registers", "No register has been written.")


@command("info locals", group="status")
def _locals(d: Interpreter, argument: str) -> Reply:
    """Show the C variables in scope, but for parameters."""
    thread = d.session.here.resident
    found = thread.all_variables(parameters=False)
    if not found and not thread.subject.variables:
        return Reply("The kernel was compiled without -G, so its C variables have no names here.", {"variables": {}})
    return _values(found, d.style, "variables", "No variable is in scope.")


@command("info args", group="status")
def _args(d: Interpreter, argument: str) -> Reply:
    """Show the parameters of the function."""
    return _values(d.session.here.resident.all_variables(parameters=True), d.style, "parameters", "No parameters.")


@command("info frame", "info line", group="status")
def _frame(d: Interpreter, argument: str) -> Reply:
    """Show the position of the focused thread, and what it waits for."""
    view = d.session.here
    text = place_text(view)
    return Reply(f"{text}\n{lines_text(view)}" if view.place else text, place_data(view))


@command("info warps", "info w", group="status")
def _warps(d: Interpreter, argument: str) -> Reply:
    """Show the position of each warp of the CTA, and what it waits for; a diverged warp has a line for each group of lanes."""
    rows = overview.warps(d.session)
    focus = d.session.controller.focus.thread // 32
    shown = [
        [
            "*" if r["warp"] == focus else " ",
            r["warp"],
            f"{r['lanes']:08x}",
            r["state"],
            _source(r),
            r["ptx_line"] or "",
            _next(r),
        ]
        for r in rows
    ]
    headers = ["", "warp", "lanes", "state", "source", "PTX line", "waits for, or executes next"]
    return Reply(_table(shown, headers), {"warps": rows})


@command("info threads", "info t", group="status")
def _threads(d: Interpreter, argument: str) -> Reply:
    """Show all resident threads, with one line for those at the same instruction."""
    rows = overview.threads(d.session)
    shown = [
        [
            r["threads"],
            r["warps"],
            r["ctas"],
            _xyz(r["first_cta"]),
            _xyz(r["first_thread"]),
            r["state"],
            _source(r),
            r["ptx_line"],
            _next(r),
        ]
        for r in rows
    ]
    headers = ["threads", "warps", "CTAs", "first CTA", "first thread", "state", "source", "PTX line"]
    return Reply(_table(shown, [*headers, "waits for, or executes next"]), {"threads": rows})


@command("info lanes", "info l", group="status")
def _lanes(d: Interpreter, argument: str) -> Reply:
    """Show the position of each lane of the warp."""
    rows = overview.lanes(d.session)
    focus = d.session.controller.focus.thread % 32
    shown = [
        [
            "*" if r["lane"] == focus else " ",
            r["lane"],
            _xyz(r["thread"]),
            r["state"],
            _source(r),
            r["ptx_line"] or "",
            _next(r),
        ]
        for r in rows
    ]
    headers = ["", "lane", "thread", "state", "source", "PTX line", "waits for, or executes next"]
    return Reply(_table(shown, headers), {"lanes": rows})


@command("info cta", "info ctas", "info blocks", group="status")
def _ctas(d: Interpreter, argument: str) -> Reply:
    """Show the resident CTAs with how many threads are ready, wait and have exited."""
    rows = overview.ctas(d.session)
    focus = d.session.controller.focus.cta
    shown = [
        ["*" if r["index"] == focus else " ", _xyz(r["cta"]), r["cluster_rank"], r["ready"], r["waiting"], r["exited"]]
        for r in rows
    ]
    launch = d.session.controller.launch
    done = len(d.session.controller.done_ctas)
    total = launch.ctas if launch is not None else len(rows)
    rest = total - done - len(rows)
    text = _table(shown, ["", "CTA", "cluster rank", "ready", "waiting", "exited"])
    return Reply(
        f"{text}\n{done} CTAs have ended, {rest} have not started.", {"ctas": rows, "ended": done, "not_started": rest}
    )


@command("info barriers", group="status")
def _barriers(d: Interpreter, argument: str) -> Reply:
    """Show the barriers of the CTA at which threads have arrived, and that of the cluster."""
    rows = overview.barriers(d.session)
    if not rows:
        return Reply("No thread of this CTA is at a barrier.", {"barriers": []})
    shown = [[r["barrier"], r["arrived"], r["expected"], r["waiting"]] for r in rows]
    return Reply(_table(shown, ["barrier", "arrived", "expected", "waiting"]), {"barriers": rows})


@command("info mbarriers", group="status")
def _mbarriers(d: Interpreter, argument: str) -> Reply:
    """Show the mbarriers of the CTA: parity, pending arrivals and bytes of the current phase, and waiting threads."""
    rows = overview.mbarriers(d.session)
    if not rows:
        return Reply("This CTA has initialised no mbarrier.", {"mbarriers": []})
    shown = [
        [r["name"], r["parity"], r["pending"], r["expected"], r["tx_bytes"], r["waiting"]]
        if r["valid"]
        else [r["name"], "invalid", "", "", "", ""]
        for r in rows
    ]
    headers = ["mbarrier", "parity", "pending", "expected", "tx bytes", "threads waiting"]
    return Reply(_table(shown, headers), {"mbarriers": rows})


@command("info async", group="status")
def _async(d: Interpreter, argument: str) -> Reply:
    """Show the asynchronous operations in flight: issued and not yet performed. There are none in eager mode."""
    rows = overview.operations(d.session)
    if not rows:
        controller = d.session.controller
        mode = controller.launch.settings.completion if controller.launch is not None else ""
        why = " (eager mode performs them when they are issued; --completion latest-legal keeps them)" * (
            mode == "eager"
        )
        return Reply(f"No asynchronous operation is in flight{why}.", {"operations": []})
    shown = [
        [
            r["serial"],
            r["mechanism"],
            r["group"],
            _xyz(r["first_cta"]),
            _xyz(r["first_thread"]),
            r["elements"],
            r["issued_at"],
        ]
        for r in rows
    ]
    headers = ["number", "completes on", "group or mbarrier", "CTA", "thread", "elements", "issued at"]
    return Reply(_table(shown, headers), {"operations": rows})


@command("info shared", group="status")
def _shared(d: Interpreter, argument: str) -> Reply:
    """Show the variables in shared memory with their addresses and sizes."""
    rows = overview.shared_variables(d.session)
    if not rows:
        return Reply("The kernel has no shared memory.", {"shared": []})
    shown = [
        [r["name"], f"{r['address']:#x}", f"shared+{r['offset']}", r["bytes"], "dynamic" if r["dynamic"] else ""]
        for r in rows
    ]
    return Reply(_table(shown, ["variable", "address", "expression", "bytes", ""]), {"shared": rows})


@command("info kernels", "info functions", group="status")
def _kernels(d: Interpreter, argument: str) -> Reply:
    """Show the kernels that are debugged, and the functions that breakpoints can name."""
    from ptxkit.isa.mangled import base_name

    rows = []
    launch = d.session.controller.launch
    for module in {id(s.module): s.module for s in d.session.subjects.values()}.values():
        for f in module.functions.values():
            if f.declared_only or (f.is_entry and f.name not in d.session.subjects):
                continue
            rows.append(
                {
                    "function": base_name(f.name),
                    "mangled": f.name,
                    "kernel": f.is_entry,
                    "ptx": f"{module.path}:{f.line}",
                    "running": d.session.running and launch is not None and launch.name == f.name,
                }
            )
    shown = [["*" if r["running"] else " ", r["function"], "kernel" if r["kernel"] else "", r["ptx"]] for r in rows]
    return Reply(_table(shown, ["", "function", "", "PTX"]), {"functions": rows})


def _xyz(value: Sequence[int]) -> str:
    return f"({','.join(map(str, value))})"
