"""Reading what a caller hands in as a source: a path, or the text itself."""

from __future__ import annotations

import os
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
