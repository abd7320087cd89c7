"""The source position of a line of PTX that may be invalid.

A compiler that rejects PTX reports only "ptx input, line N". The ``.loc`` before that line names the source line. It is
found here without parsing the text, which may be invalid anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ptxkit.isa.comments import without_comments
from ptxkit.isa.lexer import unescape
from ptxkit.isa.model import Loc

_FILE = re.compile(r'\.file[ \t]+(\d+)[ \t]+("(?:[^"\\\n]|\\.)*")')
_PLACE = r"[ \t]+(\d+)[ \t]+(\d+)(?:[ \t]+(\d+))?"
_LOC = re.compile(rf"\.loc{_PLACE}(?:[^\n]*?\binlined_at{_PLACE})?")
_HEADER = re.compile(r"\.(?:entry|func)\b")

Place = tuple[int, int, int]


def loc_at_line(text: str, line: int) -> Loc | None:
    """The location in force on a line of PTX.

    Args:
        text: PTX, complete or not.
        line: 1-based line in it.

    Returns:
        The last ``.loc`` on or before the line in the same function, with the places it was inlined at; None if the
        function has none so far, or the line lies outside the text.
    """
    lines = without_comments(text).split("\n")
    if not 1 <= line <= len(lines):
        return None
    start = next((n for n in range(line - 1, -1, -1) if _HEADER.search(lines[n])), 0)
    files = {int(match[1]): unescape(match[2]) for match in _FILE.finditer(text)}
    seen: dict[Place, Loc] = {}
    current: Loc | None = None
    for match in _LOC.finditer("\n".join(lines[start:line])):
        place, outer = _place(match, 1), _place(match, 4) if match[4] else None
        current = seen[place] = _loc(place, files, (seen.get(outer) or _loc(outer, files)) if outer else None)
    return current


def _place(match: re.Match[str], group: int) -> Place:
    return int(match[group]), int(match[group + 1]), int(match[group + 2] or 0)


def _loc(place: Place, files: Mapping[int, str], inlined_at: Loc | None = None) -> Loc:
    return Loc(files.get(place[0], f"<file {place[0]}>"), place[1], place[2], inlined_at)
