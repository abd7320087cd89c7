"""Diagnostics: message, place, and the source line with a caret; and exceptions and logs of several diagnostics.

:mod:`ptxkit.compiler.front_end` reads them out of NVRTC's log, :mod:`ptxkit.compiler.ptxas` out of what ptxas says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxkit.compiler.image import shorten
from ptxkit.errors import CompileError
from ptxkit.files import native_path


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
        # .file directives and debug information have the absolute path, even of a source that is not a file
        self._lines |= {str(Path.cwd() / name): lines for name, lines in self._lines.items()}

    @property
    def end(self) -> tuple[str, int]:
        """(name, last line) of the given source text; ("", 0) without one."""
        name = next(iter(self._lines), "")
        return name, len(self._lines.get(name, ()))

    def line(self, file: str, number: int) -> str | None:
        """Line ``number`` (1-based) of ``file``, or None when it cannot be read."""
        lines = self.lines(file)
        return lines[number - 1] if 0 < number <= len(lines) else None

    def lines(self, file: str) -> list[str]:
        """All lines of ``file``; none when it cannot be read."""
        if file not in self._lines:
            try:
                self._lines[file] = native_path(file).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                self._lines[file] = []
        return self._lines[file]


def failure(diagnostics: Sequence[Diagnostic], name: str, fallback: str) -> CompileError:
    """The exception for a failed compile: the first error as the message, everything in ``log``."""
    errors = list(dict.fromkeys(d for d in diagnostics if d.severity == "error"))
    if not errors:
        return CompileError(f"{name}: error: {fallback.strip() or 'the compiler failed without a message'}", fallback)
    more = len(errors) - 1
    suffix = f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
    return CompileError(shorten(errors[0].headline + suffix), shorten(render(diagnostics)))


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """All diagnostics as text, each once, in order."""
    return "\n".join(dict.fromkeys(str(d) for d in diagnostics))
