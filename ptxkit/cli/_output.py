"""Output on terminals and pipes that cannot show every character: ``LC_ALL=C``, or names of files that are not UTF-8."""

from __future__ import annotations

import codecs
import io
import sys

_PLAIN = {
    "×": "x", "µ": "u", "μ": "u", "–": "-", "—": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=", "≈": "~", "→": "->",
    "←": "<-", "·": "*", "²": "2", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|", "─": "-", "█": "#",
}  # fmt: skip
ERRORS = "ptxkit.plain"


def show_any_text() -> None:
    """From here on, what stdout and stderr cannot encode is written in plain characters instead of raising."""
    codecs.register_error(ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    out = b""
    for c in error.object[error.start : error.end]:
        if 0xDC80 <= ord(c) <= 0xDCFF:  # a byte of a file name that is no text, as os.fsdecode gives it
            out += bytes([ord(c) - 0xDC00])
        else:
            out += _PLAIN.get(c, "?").encode("ascii")
    return out, error.end
