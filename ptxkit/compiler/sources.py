"""Reads a source that a caller passes as a path or as text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ptxkit.errors import UsageError
from ptxkit.files import decode, read_bytes, read_text


def is_path(source: str | os.PathLike[str]) -> bool:
    """Whether a source is meant as a path: a string with a newline or ``{`` in it is text."""
    return not (isinstance(source, str) and ("\n" in source or "{" in source))


def read_source(source: str | os.PathLike[str], name: str | None, default_name: str) -> tuple[str, str, str]:
    """(text, name, directory) of a path or a text.

    The name is what messages and debug information call it: the absolute path, unless the caller says otherwise. The
    directory is where the source's own includes look first: the working directory for a text. A ``.cu`` file that is not UTF-8
    is taken as Latin-1, because nvcc accepts any bytes in comments.

    Raises:
        UsageError: the file cannot be read.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"a source is a path or a text, not a {type(source).__name__}")
    if not is_path(source):
        named = name or default_name
        return decode(str(source).encode(errors="surrogatepass"), named), named, str(Path.cwd())
    if not str(source).strip():
        raise UsageError("the source is empty: give a path, or a text that holds a newline or a brace")
    path = Path(source)
    try:
        text = _read(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(_unreadable(source, error)) from error
    path = path.absolute()
    return text, name or str(path), str(path.parent)


def _unreadable(source: str | os.PathLike[str], error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(source, str) and re.search(r"[;()#]|\s__|^\s*\.version", source):
        shown = source if len(source) <= 60 else source[:57] + "..."
        return f"there is no file {shown!r}; a source that is given as text must contain a newline or a brace"
    return f"cannot read {os.fspath(source)}: {reason}"


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


def _read(path: Path) -> str:
    """The text of a source; PTX that a program has saved as NVRTC returns it ends with a NUL, at which ptxas stops, too."""
    if path.suffix == ".ptx":
        return decode(read_bytes(path).rstrip(b"\0"), str(path))
    return read_text(path, legacy=path.suffix == ".cu")
