"""Reading what a caller hands in as a source: a path, or the text itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ptxkit.errors import UsageError


def is_path(source: str | os.PathLike[str]) -> bool:
    """Whether a source is meant as a path: a string with a newline or ``{`` in it is text."""
    return not (isinstance(source, str) and ("\n" in source or "{" in source))


def read_source(source: str | os.PathLike[str], name: str | None, default_name: str) -> tuple[str, str, str]:
    """(text, name, directory) of a path or a text.

    The name is what messages and debug information call it: the absolute path, unless the caller says otherwise. The
    directory is where the source's own includes look first: the working directory for a text.

    Raises:
        UsageError: the file cannot be read.
    """
    if not is_path(source):
        return str(source), name or default_name, str(Path.cwd())
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: it is not UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    path = path.absolute()
    return text, name or str(path), str(path.parent)


SOURCE_SUFFIXES = ("cu", "ptx")


def split_entry(words: str, suffixes: Iterable[str] = SOURCE_SUFFIXES) -> tuple[Path | None, str]:
    """``"./k.cu:saxpy<4>"`` as (path, entry), (None, "") when ``words`` name no file with one of these suffixes.

    A directory may have ``:`` in its name: of the places where a path may end, the first that is a file counts, and where
    none is, the first.
    """
    if Path(words).is_file() and words.endswith(tuple(f".{suffix}" for suffix in suffixes)):
        return Path(words), ""
    ends = rf"\.(?:{'|'.join(suffixes)})(?:\.[\d.]*\d)?(?=:|$)"
    found = [(words[: m.end()], words[m.end() + 1 :]) for m in re.finditer(ends, words)]
    for path, entry in found:
        if Path(path).is_file():
            return Path(path), entry
    return (Path(found[0][0]), found[0][1]) if found else (None, "")
