"""Text of the command line: counts, tables, colours, suggestions."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ptxkit.errors import CompileError, PtxkitError


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word nearest to ``word``, or the empty string."""
    import difflib

    names = list(known)
    close = [name for name in names if len(word) > 2 and name.startswith(word)]
    close = close or difflib.get_close_matches(word, names, n=1, cutoff=0.65)
    return f"; did you mean {close[0]!r}?" if close else ""


def count(value: float) -> str:
    """An exact count with separated thousands."""
    return f"{int(value):,}"


def number_of(n: int, noun: str) -> str:
    """``"1 image"``, ``"2 images"``."""
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def terminal_width() -> int | None:
    """The number of columns of stdout's terminal; None where stdout is not a terminal and tables may have any width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], *, left: int = 1, indent: int = 0) -> str:
    """A plain table; the first ``left`` columns are aligned left, the others right. It fits the terminal with ``indent``
    columns in front of it."""
    from ptxkit.columns import plain

    width = terminal_width()
    align = ["left"] * left + ["right"] * (len(headers) - left)
    return plain(rows, headers, align, None if width is None else width - indent)


def colourless() -> bool:
    """Whether colours are disabled, by the user (https://no-color.org) or by the terminal."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def styled(text: str, **style: Any) -> str:
    """Styled text; click drops the style where the output is not a terminal."""
    return click.style(text, **style)


def explain(error: PtxkitError) -> str:
    """The text of an error: its one line, or the compiler's diagnostics with source line and caret."""
    log = error.log.rstrip() if isinstance(error, CompileError) else ""
    return log or str(error)


def to_stderr(message: str, **style: Any) -> None:
    """One message on stderr; it is dropped where stderr cannot be written."""
    from ptxkit.cli._progress import erase

    color = False if colourless() else None
    erase()
    try:
        click.secho(message, err=True, color=color, **style)
    except OSError:
        return


def print_json(value: Any) -> None:
    """One JSON value alone on stdout; NaN and infinity, which JSON lacks, become null."""
    from ptxkit.files import finite

    click.echo(json.dumps(finite(value), indent=2, allow_nan=False), file=sys.stdout)
