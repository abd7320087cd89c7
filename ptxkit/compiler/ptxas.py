"""Messages of ptxas inside NVRTC and nvJitLink, mapped to the author's source lines.

ptxas reads only PTX and reports ``ptxas application ptx input, line 34; error : ...``. NVRTC returns the PTX even when
ptxas fails. Its ``.loc`` lines map line 34 to the inline assembly in the ``.cu`` file or header, and to the calls it
was inlined at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ptxkit.compiler import explain
from ptxkit.compiler.diagnostics import Diagnostic, SourceText
from ptxkit.compiler.image import FunctionResources
from ptxkit.targets import Target

_PTXAS = re.compile(
    r"^[\s\0]*(?:ptxas|nvJitLink)\s*(?:.*?, line (?P<line>\d+);)?\s*(?P<severity>error|fatal|warning|info)\s*:\s*"
    r"(?P<message>.*)$"
)
_PTXAS_NOISE = re.compile(
    r"Ptx assembly aborted due to errors|Compile time|^\d+ bytes gmem|^Used |^Compiling|^Function prop"
)
_ADVICE = re.compile(r"^\((?P<code>C7\d+)\)\s*(?P<text>.*)")
_AROUND = re.compile(r" in around line (\d+)(?: by compiler)?")
_MIXED_GROUPS = re.compile(r"Function '(?P<name>[^']+)' uses single CTA\(\.cta_group::1\) and CTA pair")
_TOO_MUCH_SHARED = re.compile(
    r"function '(?P<name>[^']+)' uses too much shared data \((?P<used>0x[0-9a-f]+) bytes, (?P<most>0x[0-9a-f]+) max"
)
_IN_FUNCTION = re.compile(r"function '([^']+)'")
_STACK_SIZE = re.compile(r"Stack size for entry function '(?P<entry>[^']+)' cannot be statically determined")


def read(
    log: str, ptx: str, target: Target, sources: SourceText, *, file: str = "", demangle: Callable[[str], str] = str
) -> list[Diagnostic]:
    """The errors, warnings and performance advice of ptxas in a log.

    Args:
        log: of NVRTC or nvJitLink.
        ptx: the text that ptxas read.
        target: the target of ptxas.
        sources: where source lines are read.
        file: path of the PTX itself when it is hand-written; then positions are in it, else ``.loc`` leads to the source.
        demangle: makes a kernel's name readable.
    """
    lines = ptx.splitlines()
    found = []
    for text in log.splitlines():
        match = _PTXAS.match(text)
        if not match or _PTXAS_NOISE.search(match["message"]):
            continue
        severity, message = match["severity"], match["message"].strip()
        advice = _ADVICE.match(message)
        if severity == "info" and not advice:
            continue
        number = int(match["line"] or 0)
        if advice:
            number, message = _advice(advice, ptx, demangle)
        severity = "error" if severity in ("error", "fatal") else "warning"
        notes: tuple[str, ...] = ()
        mixed = _MIXED_GROUPS.search(message)
        if mixed and not number:
            number, other = _mixed_groups(mixed["name"], lines)
            place = _place(other, ptx, file) if other else ""
            notes = (f"the other .cta_group at {place}: {lines[other - 1].strip()}",) if place else ()
        instruction = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        message = explain.explain(message, instruction, target) or _too_much_shared(message, demangle) or message
        if not file:
            d = _located(severity, message, number, instruction, ptx, sources)
            found.append(replace(d, notes=(*d.notes, *notes)))
        else:
            message = re.sub(r" \(--arch \w+\)$", "", message)  # the text itself says what it is for
            source_line = lines[number - 1] if instruction else None
            column = _column_of(message, source_line) if source_line else 0
            found.append(Diagnostic(severity, message, file, number, column, source_line, notes))
    return _together(found)


def _together(found: list[Diagnostic]) -> list[Diagnostic]:
    """The diagnostics, where one stands for all instructions that need the same targets and names the places of the others."""
    kept: list[Diagnostic] = []
    first: dict[str, int] = {}
    places: dict[str, list[str]] = {}
    for d in found:
        key = explain.lacks(d.message) if d.severity == "error" else ""
        if key in first:
            places[key].append(f"{d.file}:{d.line}" if d.file else d.notes[0].partition(":")[0])
            continue
        if key:
            first[key], places[key] = len(kept), []
        kept.append(d)
    for key, k in first.items():
        d = kept[k]
        others = [at for at in dict.fromkeys(places[key]) if at != f"{d.file}:{d.line}"]
        if others:
            kept[k] = replace(d, notes=(*d.notes, f"the same is needed at {', '.join(others)}"))
    return kept


def _mixed_groups(name: str, lines: list[str]) -> tuple[int, int]:
    """PTX lines of the first tcgen05 instruction of a function with another .cta_group than the first, and of the first.

    Zeros where they are not found.
    """
    inside, first, group = False, 0, ""
    for number, line in enumerate(lines, 1):
        if re.search(rf"\.(?:entry|func)\b.*\b{re.escape(name)}\b", line):
            inside = True
        elif inside and line.startswith("}"):
            break
        found = re.search(r"\btcgen05\.[\w.:]*\.cta_group::([12])", line) if inside else None
        if found and not first:
            first, group = number, found[1]
        elif found and found[1] != group:
            return number, first
    return 0, 0


def _too_much_shared(message: str, demangle: Callable[[str], str]) -> str:
    """The error about static shared memory with its sizes in bytes; "" for another message."""
    found = _TOO_MUCH_SHARED.search(message)
    if found is None:
        return ""
    used, most = (int(found[name], 16) for name in ("used", "most"))
    return f"{demangle(found['name'])} has {used:,} bytes of static shared memory; at most {most:,} are possible: use less"


def _place(number: int, ptx: str, file: str) -> str:
    """``file:line`` of a line of PTX: of hand-written PTX itself, else the outermost source line that it came from."""
    if file:
        return f"{file}:{number}"
    from ptxkit.isa.locate import loc_at_line  # imported here, because it imports numpy

    place = loc_at_line(ptx, number)
    while place is not None and place.inlined_at is not None:
        place = place.inlined_at
    return f"{place.file}:{place.line}" if place is not None else f"PTX line {number}"


def _advice(advice: re.Match[str], ptx: str, demangle: Callable[[str], str]) -> tuple[int, str]:
    """(PTX line, message) of advice such as "wgmma.wait_group is injected in around line 52 by compiler ... function 'f'"."""
    text = advice["text"]
    around, function = _AROUND.search(text), _IN_FUNCTION.search(text)
    if around:
        number = int(around[1])
        text = text.replace(around[0], " by the compiler", 1)
    else:
        number = _entry_line(function[1], ptx) if function else 0
    readable = re.sub(r"\b_Z\w+", lambda match: demangle(match[0]), text)
    return number, f"{readable} ({advice['code']})"


def _located(severity: str, message: str, number: int, instruction: str, ptx: str, sources: SourceText) -> Diagnostic:
    """A diagnostic about line ``number`` of generated PTX, placed in the source that it came from."""
    from ptxkit.isa.locate import loc_at_line  # imported here, because it imports numpy

    place = loc_at_line(ptx, number) if number else None
    note = (f"PTX line {number}: {instruction}",) if instruction else ()
    if place is None or place.line == 0:
        return Diagnostic(severity, message, notes=note)
    line, column = _statement(place.file, place.line, place.column, instruction, sources)
    callers = []
    caller = place.inlined_at
    while caller is not None:
        callers.append(f"inlined at {caller.file}:{caller.line}")
        caller = caller.inlined_at
    return Diagnostic(severity, message, place.file, line, column, sources.line(place.file, line), (*note, *callers))


def _statement(file: str, line: int, column: int, instruction: str, sources: SourceText) -> tuple[int, int]:
    """Where the instruction's opcode is written in the asm statement that ``line`` belongs to.

    NVRTC 13.0 gives the end of an asm statement, 13.5 its beginning; either way the opcode may stand some lines off.
    """
    opcode = re.match(r"(?:@!?[\w%$]+\s+)?([a-z][\w.:]*)", instruction.lstrip("{ \t"))
    lines = sources.lines(file)
    if opcode and 0 < line <= len(lines):
        first = last = line - 1
        while "asm" not in lines[first] and first > 0 and not _ends_statement(lines[first - 1]):
            first -= 1
        while not _ends_statement(lines[last]) and last + 1 < len(lines):
            last += 1
        for number in range(first, last + 1):
            at = lines[number].find(opcode[1])
            if at >= 0:
                return number + 1, at + 1
    return line, column


def _ends_statement(line: str) -> bool:
    """Whether a statement or block ends or begins in a line, string literals apart."""
    return any(mark in re.sub(r'"(?:[^"\\]|\\.)*"', "", line) for mark in ";{}")


def _column_of(message: str, source_line: str) -> int:
    """Column of the word that the message quotes or begins with, if the line contains it, else of the line's first
    character."""
    for word in (*re.findall(r"'([^']+)'", message), message.split()[0]):
        at = source_line.find(word)
        if at >= 0:
            return at + 1
    return len(source_line) - len(source_line.lstrip()) + 1


def spills(
    functions: Mapping[str, FunctionResources], readable: Callable[[str], str], ptx: str, *, file: str = ""
) -> list[Diagnostic]:
    """A warning for every kernel that spills registers to local memory, placed at the kernel's first source line.

    ``file`` is the path of hand-written PTX; then the place is the kernel's header in it.
    """
    found = []
    for name, used in functions.items():
        if used.spill_store_bytes or used.spill_load_bytes:
            where, line = _first_line(name, ptx, file)
            found.append(
                Diagnostic(
                    "warning",
                    f"{readable(name)} spills registers at {used.registers} a thread: "
                    f"{used.spill_store_bytes} bytes stored, {used.spill_load_bytes} bytes loaded",
                    where,
                    line,
                )
            )
    return found


def concerning(log: str, entry: str) -> str:
    """A rendered log without the warnings about the stack size of kernels other than ``entry`` (mangled name)."""
    kept = []
    for line in log.splitlines():
        match = _STACK_SIZE.search(line)
        if match is None or match["entry"] == entry:
            kept.append(line)
    return "\n".join(kept)


def _first_line(name: str, ptx: str, file: str) -> tuple[str, int]:
    from ptxkit.isa.locate import loc_at_line

    number = _entry_line(name, ptx)
    if file:
        return file, number
    place = loc_at_line(ptx, number) if number else None
    return (place.file, place.line) if place else ("", 0)


def _entry_line(name: str, ptx: str) -> int:
    """The PTX line of a kernel's first ``.loc``, or of its header if it has none; 0 if the kernel does not exist."""
    header = re.search(rf"\.entry\s+{re.escape(name)}\b", ptx)
    if header is None:
        return 0
    end = ptx.find("\n}", header.end())
    first = ptx.find("\t.loc", header.end(), end if end > 0 else len(ptx))
    return ptx.count("\n", 0, max(first, header.start())) + 1
