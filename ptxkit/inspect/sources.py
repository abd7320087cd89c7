"""The source files that a kernel's line table names, and whether they have changed since compilation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ptxkit.files import native_path
from ptxkit.inspect.model import SassFunction


@dataclass(frozen=True)
class SourceFile:
    """One source file.

    Attributes:
        path: as the line table names it.
        lines: its text; empty when it could not be read.
        note: a problem: the file moved, changed since, or is shorter than the line table requires; or ``""``.
    """

    path: str
    lines: tuple[str, ...]
    note: str = ""

    def line(self, number: int) -> str:
        """The text of a 1-based line; ``""`` past the end."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""


def source_files(
    functions: Iterable[SassFunction], beside: Path | None = None, made: float | None = None
) -> dict[str, SourceFile]:
    """Every source file of these kernels by the path in the line table, the one with the most instructions first.

    Args:
        functions: the kernels.
        beside: the cubin's directory, which is searched by name for a file that is not at its path.
        made: when the cubin was written (seconds since the epoch): a newer source gets a note. None when the sources have
            just been compiled.
    """
    last: dict[str, int] = {}
    weight: dict[str, int] = {}
    for function in functions:
        for instruction in function.instructions:
            loc = instruction.source
            weigh = 1
            while loc:
                last[loc.file] = max(last.get(loc.file, 0), loc.line)
                weight[loc.file] = weight.get(loc.file, 0) + weigh
                loc, weigh = loc.inlined_at, 0
    return {path: _read(path, last[path], beside, made) for path in sorted(weight, key=lambda p: -weight[p])}


def _read(path: str, last_line: int, beside: Path | None, made: float | None) -> SourceFile:
    place = native_path(path)
    note = ""
    if not place.is_file() and beside and (beside / place.name).is_file():
        place = beside / place.name
        note = f"{path} does not exist; showing {shortest(place)}, which has the same name"
    try:
        lines = tuple(place.read_text(encoding="utf-8", errors="replace").split("\n"))
        changed = place.stat().st_mtime
    except OSError:
        return SourceFile(
            path, (), f"{path} does not exist: it was moved after compilation, or was compiled on another machine"
        )
    if made is not None and changed > made and not note:
        note = f"{shortest(place)} changed after it was compiled; its lines may have moved"
    if last_line > len(lines):
        note = f"{shortest(place)} has {len(lines)} lines, the line table refers to line {last_line}: it has changed"
    return SourceFile(path, lines, note)


def shortest(path: str | Path) -> str:
    """A path relative to the working directory when it lies below it, else as it is."""
    text = str(path)
    relative = os.path.relpath(text) if Path(text).is_absolute() else text
    return text if relative.startswith("..") else relative
