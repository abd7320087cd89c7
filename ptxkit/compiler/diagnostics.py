"""What NVRTC, ptxas and nvJitLink say, as diagnostics that name a file, a line and the mend.

NVRTC's front end reports ``file(line): error: ...`` with a source line and a caret. ptxas, behind it, sees only the generated
PTX and reports ``ptxas application ptx input, line 34; error : ...``; that PTX survives the failure, and its ``.loc`` lines
lead from line 34 to the inline assembly in the ``.cu`` file or header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxkit.compiler import explain
from ptxkit.compiler.image import FunctionResources, shorten
from ptxkit.compiler.targets import Target
from ptxkit.errors import CompileError


@dataclass(frozen=True)
class Diagnostic:
    """One message.

    Attributes:
        severity: ``"error"`` or ``"warning"``.
        message: one line, without position.
        file: path as the compiler gave it; ``""`` when there is none.
        line, column: 1-based; 0 when unknown.
        source_line: the text of that line, or None.
        notes: further lines, shown indented.
    """

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        """``saxpy.cu:12:5: error: message``."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return f"{place}: {self.severity}: {self.message}" if place else f"{self.severity}: {self.message}"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.source_line is not None and self.source_line.strip():
            lines += caret(self.source_line, self.column)
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def caret(text: str, column: int) -> list[str]:
    """A source line and the line with the caret under ``column`` (1-based; 0 for none), both indented by two."""
    prefix = text[: column - 1].expandtabs(4) if column else ""
    shown = [f"  {text.expandtabs(4).rstrip()}"]
    return [*shown, f"  {' ' * len(prefix)}^"] if column else shown


class SourceText:
    """Lines of source files, read once; sources that only exist in memory are given up front."""

    def __init__(self, in_memory: dict[str, str] | None = None) -> None:
        self._lines = {name: text.splitlines() for name, text in (in_memory or {}).items()}
        # .file directives and debug information hold the name below the working directory
        self._lines |= {str(Path.cwd() / name): lines for name, lines in self._lines.items()}

    def line(self, file: str, number: int) -> str | None:
        """Line ``number`` (1-based) of ``file``, or None when it cannot be read."""
        lines = self.lines(file)
        return lines[number - 1] if 0 < number <= len(lines) else None

    def lines(self, file: str) -> list[str]:
        """All lines of ``file``; none when it cannot be read."""
        if file not in self._lines:
            try:
                self._lines[file] = Path(file).read_text(errors="replace").splitlines()
            except OSError:
                self._lines[file] = []
        return self._lines[file]


def failure(diagnostics: Sequence[Diagnostic], name: str, fallback: str) -> CompileError:
    """The exception for a failed compile: the first error as the message, everything in ``log``."""
    errors = [d for d in diagnostics if d.severity == "error"]
    if not errors:
        return CompileError(f"{name}: error: {fallback.strip() or 'the compiler failed without a message'}", fallback)
    more = len(errors) - 1
    suffix = f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
    return CompileError(shorten(errors[0].headline + suffix), shorten(render(diagnostics)))


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """All diagnostics as text, each once, in order."""
    return "\n".join(dict.fromkeys(str(d) for d in diagnostics))


# NVRTC's front end

_FRONT_END = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?(?P<severity>error|warning|note)(?: #[\w-]+)?: (?P<message>.*)$"
)
_NOISE = re.compile(
    r"^(\d+ (catastrophic )?errors? detected in the compilation of|Compilation terminated|Remark: |"
    r"Error limit reached|At end of source)"
)
_NO_PLACE = re.compile(r"^nvrtc: (?P<severity>error|warning)\s*: (?P<message>.*)$")
_NAME_MAP = "__nv_name_map"  # NVRTC's own pseudo file, where it parses name expressions


def front_end(log: str, sources: SourceText, names: Sequence[str] = ()) -> list[Diagnostic]:
    """The diagnostics in NVRTC's log, without those of ptxas and without NVRTC's closing lines.

    Args:
        log: as nvrtcGetProgramLog gives it.
        sources: where source lines are read.
        names: the name expressions of the compile, in order, to name the one that does not parse.
    """
    found: list[Diagnostic] = []
    block: list[str] = []
    header: re.Match[str] | None = None

    def close() -> None:
        if header is not None:
            found.append(_front_end_diagnostic(header, block, sources))
        block.clear()

    for line in log.splitlines():
        if line.startswith("ptxas") or _NOISE.match(line):
            close()
            header = None
        elif match := (_FRONT_END.match(line) or _NO_PLACE.match(line)):
            close()
            header = match
        elif header is not None and line.strip():
            block.append(line)
    close()
    return _with_notes_folded(_name_expressions_named(found, names))


def _front_end_diagnostic(header: re.Match[str], block: list[str], sources: SourceText) -> Diagnostic:
    values = header.groupdict()
    file, number = values.get("file", ""), int(values.get("line") or 0)
    column, notes = 0, []
    text = [values["message"]]
    shown: str | None = None
    for index, line in enumerate(block):
        if re.fullmatch(r"\s*\^\s*", line):
            shown = block[index - 1][2:] if index else None
            column = line.index("^") - 1  # the log indents source and caret by two
        elif index + 1 < len(block) and re.fullmatch(r"\s*\^\s*", block[index + 1]):
            continue
        elif column or line.lstrip().startswith("detected during"):
            notes.append(" ".join(line.split()))
        else:
            text.append(line.strip())  # a long message goes over several lines
    source_line = sources.line(file, number) if file != _NAME_MAP else None
    if source_line is None:
        source_line = shown
    elif shown is not None and shown.strip() != source_line.strip():
        column = 0  # the log shows another part of a long or continued line
    severity = values["severity"]
    return Diagnostic(severity, " ".join(text), file, number, column, source_line, tuple(notes))


def _with_notes_folded(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    folded: list[Diagnostic] = []
    for d in diagnostics:
        if d.severity == "note" and folded:
            last = folded.pop()
            note = (f"{d.file}:{d.line}: " if (d.file, d.line) != (last.file, last.line) else "") + f"note: {d.message}"
            d = Diagnostic(
                last.severity, last.message, last.file, last.line, last.column, last.source_line,
                (*last.notes, note, *d.notes),
            )  # fmt: skip
        folded.append(d)
    return folded


def _name_expressions_named(diagnostics: list[Diagnostic], names: Sequence[str]) -> list[Diagnostic]:
    """Errors in NVRTC's pseudo file told as what they are: a template instantiation that does not exist."""
    out: list[Diagnostic] = []
    seen: dict[str, str] = {}
    for d in diagnostics:
        if d.file != _NAME_MAP:
            out.append(d)
            continue
        shown = (d.source_line or "").strip().removeprefix("#pragma nv_mangled_name").strip()
        expression = next((n for n in names if n.split() == shown.split()), shown)
        if not d.message.startswith("Error in parsing name expression"):
            seen.setdefault(expression, d.message)
        elif expression not in seen:
            seen[expression] = "it does not name a function"
    for expression, reason in seen.items():
        out.append(Diagnostic("error", f"cannot instantiate {expression!r}: {reason}"))
    return out


# ptxas

_PTXAS = re.compile(
    r"^(?:ptxas|nvJitLink)\s*(?:.*?, line (?P<line>\d+);)?\s*(?P<severity>error|fatal|warning|info)\s*:\s*(?P<message>.*)$"
)
_PTXAS_NOISE = re.compile(
    r"Ptx assembly aborted due to errors|Compile time|^\d+ bytes gmem|^Used |^Compiling|^Function prop"
)
_ADVICE = re.compile(r"^\((?P<code>C7\d+)\)\s*(?P<text>.*)")
_AROUND = re.compile(r" in around line (\d+)(?: by compiler)?")
_IN_FUNCTION = re.compile(r"function '([^']+)'")


def ptxas(
    log: str, ptx: str, target: Target, sources: SourceText, *, file: str = "", demangle: Callable[[str], str] = str
) -> list[Diagnostic]:
    """The errors, warnings and performance advice of ptxas in a log.

    Args:
        log: of NVRTC or nvJitLink.
        ptx: the text that ptxas read.
        target: what it assembled for.
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
        instruction = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        message = explain.explain(message, instruction, target) or message
        if not file:
            found.append(_located(severity, message, number, instruction, ptx, sources))
        else:
            source_line = lines[number - 1] if instruction else None
            column = _column_of(message, source_line) if source_line else 0
            found.append(Diagnostic(severity, message, file, number, column, source_line))
    return found


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
    from ptxkit.isa.locate import loc_at_line  # here, because it brings numpy

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
    """Column of the first quoted or leading word of the message in the line, else of the line's first character."""
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


def _first_line(name: str, ptx: str, file: str) -> tuple[str, int]:
    from ptxkit.isa.locate import loc_at_line

    number = _entry_line(name, ptx)
    if file:
        return file, number
    place = loc_at_line(ptx, number) if number else None
    return (place.file, place.line) if place else ("", 0)


def _entry_line(name: str, ptx: str) -> int:
    """The PTX line of a kernel's first ``.loc``, or of its header when it has none; 0 when there is no such kernel."""
    header = re.search(rf"\.entry\s+{re.escape(name)}\b", ptx)
    if header is None:
        return 0
    end = ptx.find("\n}", header.end())
    first = ptx.find("\t.loc", header.end(), end if end > 0 else len(ptx))
    return ptx.count("\n", 0, max(first, header.start())) + 1
