"""The output streams: characters that they cannot encode, and text that other code prints to stdout.

Terminals and pipes cannot show every character under ``LC_ALL=C``, or where names of files are not UTF-8.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator

_PLAIN = {
    "×": "x", "µ": "u", "μ": "u", "–": "-", "—": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=", "≈": "~", "→": "->",
    "←": "<-", "·": "*", "²": "2", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|", "─": "-", "█": "#",
}  # fmt: skip
ERRORS = "ptxkit.plain"


def show_any_text() -> None:
    """Make stdout and stderr write characters that they cannot encode in plain ASCII instead of raising an error."""
    codecs.register_error(ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    out = b""
    for c in error.object[error.start : error.end]:
        if 0xDC80 <= ord(c) <= 0xDCFF:  # a byte of a file name that is not valid text, as os.fsdecode represents it
            out += bytes([ord(c) - 0xDC00])
        else:
            out += _PLAIN.get(c, "?").encode("ascii")
    return out, error.end


def open_missing() -> None:
    """Open /dev/null in place of stdin, stdout and stderr that the parent process closed, as ``>&-`` does.

    In place of stdout it is opened for reading only: requested output must not be lost without an error, and a command
    that prints nothing must not fail.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextlib.contextmanager
def stdout_set_aside(wanted: bool = True) -> Iterator[None]:
    """Redirect stdout to stderr inside the block, so that stdout carries the command's own output only.

    Kernel descriptions may print when they are imported and when they make inputs, and so may processes that they start; a
    kernel's printf on a GPU writes to file descriptor 1 directly. Processes that are started inside inherit the redirection.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept, stdout = os.dup(1), sys.stdout
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(
            OSError, ValueError
        ):  # text that a description wrote to a stream object that it had stored
            stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
