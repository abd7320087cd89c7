"""Sources that are no translation units of their own: another source includes them, after what they need is declared."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ptxkit.source_run.survey_reasons import PART, Reason

SUFFIXES = (".cu", ".cuh", ".cc", ".cpp", ".cxx", ".c", ".h", ".hpp")
LARGEST = 1 << 22
"""Bytes of a file that is searched for includes; generated tables are larger."""
_MAIN = re.compile(r"^[ \t]*(?:int|void|auto)\s+main\s*\(", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def includer(path: Path) -> Path | None:
    """A file in the directory of a source, or in the one above, that includes the source; None without one."""
    wanted = path.resolve()
    for directory in (path.parent, path.parent / ".."):
        for file in sorted(directory.iterdir()):
            if file.suffix not in SUFFIXES or not file.is_file() or file.resolve() == wanted:
                continue
            if file.stat().st_size > LARGEST:
                continue
            names = _INCLUDE.findall(file.read_text(encoding="utf-8", errors="replace"))
            if any(name.endswith(path.name) and (file.parent / name).resolve() == wanted for name in names):
                return file
    return None


def reason_of_part(path: Path) -> Reason | None:
    """The reason why a source with undeclared names does not compile alone.

    None if no other source includes it, or if it is a program of its own, with ``main``.
    """
    if _MAIN.search(path.read_text(encoding="utf-8", errors="replace")):
        return None
    found = includer(path)
    if found is None:
        return None
    return Reason(PART, f"compile {os.path.normpath(found)}, which includes this file after declaring what it needs")
