"""Commands that show values, memory, source and PTX."""

from __future__ import annotations

import re
from pathlib import PurePath

from ptxkit.debugger.breakpoints import same_file, source_text
from ptxkit.debugger.commands.interpreter import Interpreter, Reply, command, number
from ptxkit.debugger.ctypes import CType, array_of
from ptxkit.debugger.memory import Location
from ptxkit.debugger.show import FORMATS, scalar_text, text_of
from ptxkit.debugger.thread import pointer_location
from ptxkit.errors import UsageError

LISTED = 10
"""Lines that ``list`` shows."""

_UNITS = {"b": 1, "h": 2, "w": 4, "g": 8}


def _style(d: Interpreter) -> str:
    if d.style and (len(d.style) > 1 or d.style not in FORMATS):
        raise UsageError(f"no format /{d.style}; there are /{' /'.join(FORMATS)}")
    return d.style


@command("print", "p", "inspect", "output", usage="[/FORMAT] EXPRESSION", group="data")
def _print(d: Interpreter, argument: str) -> Reply:
    """Show a value: a register (%r3), a variable, an element (x[5]), a range (x[0:8]), any C expression of them. FORMAT is
    x, d, u, o, t, f, c or a."""
    style = _style(d)
    value = d.session.here.evaluate(argument)
    text = text_of(value, style)
    data = {"expression": argument, "type": value.type.name, "value": value.python, "text": text}
    if value.missing:
        data["missing"] = value.missing
    if value.location is not None:
        data |= {"space": value.location.space, "address": value.location.address}
    return Reply(f"{argument} = {text}", data)


@command("whatis", "ptype", usage="EXPRESSION", group="data")
def _whatis(d: Interpreter, argument: str) -> Reply:
    """Show the type of an expression, and of a structure its members."""
    made = d.session.here.evaluate(argument).type
    text = f"type = {made.name}"
    if made.kind == "struct":
        text += " {" + " ".join(f"{f.type.name} {f.name};" for f in made.fields) + "}"
    return Reply(text, {"expression": argument, "type": made.name, "bytes": made.size})


@command("x", usage="[/COUNT FORMAT SIZE] ADDRESS", group="data")
def _examine(d: Interpreter, argument: str) -> Reply:
    """Show memory: x/16f shared+0, x/4xg y. FORMAT as of print, and i for instructions; SIZE is b, h, w or g: 1, 2, 4 or 8
    bytes."""
    match = re.fullmatch(r"(\d*)([a-z]*)", d.style)
    count = int(match[1] or 1) if match else 0
    letters = match[2] if match else ""
    style = next((c for c in letters if c in FORMATS + "i"), "x")
    size = next((_UNITS[c] for c in letters if c in _UNITS), 1 if style == "c" else 4)
    if not match or any(c not in FORMATS + "i" and c not in _UNITS for c in letters) or count < 1:
        raise UsageError(f"/{d.style}: a count, a format ({FORMATS}i) and a size (bhwg), such as x/16fw")
    if style == "i":
        return _ptx(d, argument, count)
    view = d.session.here
    where = pointer_location(view.evaluate(argument))
    kind = "float" if style == "f" and size in (2, 4, 8) else "bits"
    made = CType(kind, f"{kind}{size * 8}", size, dtype=f"{'f' if kind == 'float' else 'u'}{size}")
    raw = view.resident.memory(where, size * count)
    texts = [scalar_text(made, raw[k * size : (k + 1) * size], style) for k in range(count)]
    per_line = 16 // size if size > 1 else 8
    lines = []
    for k in range(0, count, per_line):
        address = Location(where.space, where.address + k * size)
        lines.append(f"{address}:\t" + "\t".join(texts[k : k + per_line]))
    values = array_of(made, count).decode(raw)
    return Reply("\n".join(lines), {"space": where.space, "address": where.address, "values": values, "texts": texts})


@command("display", usage="[EXPRESSION]", group="data")
def _display(d: Interpreter, argument: str) -> Reply:
    """Show a value at every stop; without EXPRESSION, show all of them now."""
    if argument:
        number_ = max(d.displays, default=0) + 1
        text = d.session.here.text(argument) if d.session.running else "shown at the next stop"
        d.displays[number_] = argument
        return Reply(f"{number_}: {argument} = {text}", {"number": number_, "expression": argument, "text": text})
    rows = [{"number": n, "expression": e, "text": d.session.here.text(e)} for n, e in d.displays.items()]
    return Reply("\n".join(f"{r['number']}: {r['expression']} = {r['text']}" for r in rows), {"displays": rows})


@command("undisplay", usage="[NUMBER]", group="data")
def _undisplay(d: Interpreter, argument: str) -> Reply:
    """Stop showing a value at every stop; without NUMBER, all values."""
    if argument:
        chosen = number(argument, "the number of a display")
        if chosen not in d.displays:
            raise UsageError(f"no display {chosen}; there is {', '.join(map(str, d.displays)) or 'none'}")
        del d.displays[chosen]
    else:
        d.displays.clear()
    return Reply("", {"displays": sorted(d.displays)})


@command("list", "l", usage="[LINE | FILE:LINE | FUNCTION]", group="data", repeats=True)
def _list(d: Interpreter, argument: str) -> Reply:
    """Show the source around the focused thread or a location; repeat the command for the lines that follow."""
    file, line = _place_to_list(d, argument)
    text = _text_of(d, file)
    if line > len(text):
        raise UsageError(f"{PurePath(file).name} has {len(text)} lines")
    here = d.session.here if d.session.running else None
    last = min(line + LISTED - 1, len(text))
    rows = []
    for n in range(line, last + 1):
        at = here is not None and here.place is not None and (here.file, here.line) == (file, n)
        rows.append({"line": n, "text": text[n - 1], "current": at})
    d.listed = file, last + 1
    lines = [f"{'=>' if r['current'] else '  '} {r['line']}\t{r['text']}" for r in rows]
    return Reply("\n".join(lines), {"file": file, "lines": rows})


def _place_to_list(d: Interpreter, argument: str) -> tuple[str, int]:
    session = d.session
    if not argument:
        if d.listed is not None and d._last.split()[:1] in (["list"], ["l"]) and d.listed[1] > 1:
            return d.listed
        if session.running and session.here.line:
            return session.here.file, max(1, session.here.line - LISTED // 2)
        if session.running:
            return session.here.ptx_file, max(1, session.here.ptx_line - LISTED // 2)
        argument = next(iter(session.subjects))
    if argument.isdecimal():
        file = d.listed[0] if d.listed else session._main_file() or ""
        return file, max(1, int(argument) - LISTED // 2)
    match = re.fullmatch(r"(.+):(\d+)", argument)
    if match:
        for path in _files(d):
            if same_file(match[1], path):
                return path, max(1, int(match[2]) - LISTED // 2)
        raise UsageError(f"no code comes from a file {match[1]!r}; there is {', '.join(sorted(_files(d)))}")
    from ptxkit.debugger.breakpoints import chain

    address = session.location(argument).addresses[0]
    for subject in session.subjects.values():
        function = subject.module.functions.get(address.function)
        if function is not None and function.instructions:
            found = next((chain(i)[0] for i in function.instructions if chain(i)), (subject.module.path, function.line))
            return found[0], max(1, found[1] - LISTED // 2)
    raise UsageError(f"{argument} has no code")


def _files(d: Interpreter) -> set[str]:
    from ptxkit.debugger.breakpoints import chain

    modules = [s.module for s in d.session.subjects.values()]
    found = {path for m in modules for f in m.functions.values() for i in f.instructions for path, _ in chain(i)}
    return found | {m.path for m in modules}


def _text_of(d: Interpreter, file: str) -> list[str]:
    for subject in d.session.subjects.values():
        if subject.module.path == file:
            return subject.module.text.split("\n")
    text = source_text(file)
    if text is None:
        raise UsageError(f"{file} cannot be read; 'disassemble' shows the PTX")
    return list(text)


@command("disassemble", "disas", usage="[COUNT]", group="data")
def _disassemble(d: Interpreter, argument: str) -> Reply:
    """Show the PTX around the focused thread, or COUNT instructions from there on."""
    return _ptx(d, "", number(argument, "the count", 0))


def _ptx(d: Interpreter, address: str, count: int) -> Reply:
    view = d.session.here
    call = view.resident.call()
    position = call.position
    if address and address not in ("$pc", "%pc"):
        found = d.session.location(address).addresses[0]
        function = view.resident.subject.module.functions[found.function]
        start = found.position
    else:
        function, start = call.code, position
    first, last = (start, start + count) if count else (max(0, start - LISTED // 2), start + LISTED // 2)
    rows = []
    for k in range(first, min(last, len(function.instructions))):
        i = function.instructions[k]
        at = function is call.code and k == position
        rows.append({"ptx_line": i.line, "instruction": str(i), "source": str(i.loc or ""), "current": at})
    lines = []
    for r in rows:
        source = PurePath(str(r["source"])).name
        lines.append(
            f"{'=>' if r['current'] else '  '} {r['ptx_line']}\t{r['instruction']}{f'  // {source}' if source else ''}"
        )
    return Reply("\n".join(lines), {"function": function.name, "instructions": rows})
