"""Progress on stderr where that is a terminal: one line, and where there is room, further lines below it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

WIDE = 72  # columns from which further lines are shown: narrower ones would cut what they say
UP, CLEAR = "\x1b[{}A", "\x1b[K"


class Block:
    """What is on the terminal now. Without further lines nothing is written but text, which works on every terminal."""

    def __init__(self) -> None:
        self._columns = 0  # of the only line; it is overwritten with blanks
        self._lines = 1
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Replace what is shown; each line is cut to the width of the terminal, since one that wraps could not be cleared."""
        first, *rest = text.split("\n")
        size = os.get_terminal_size(sys.stderr.fileno())
        columns = size.columns or 80  # 0 where the terminal's width is unknown
        if columns < WIDE or os.environ.get("TERM") == "dumb":
            rest = []
        rest = rest[: max(0, (size.lines or 24) - 2)]
        with self._lock:
            if not rest and self._lines == 1:
                self._write_line(f"{first} ..."[: columns - 1])
                return
            lines = [line[: columns - 1] for line in (f"{first} ...", *rest)]
            lines += [""] * (self._lines - len(lines))
            self._write(self._top() + "\n".join(f"\r{line}{CLEAR}" for line in lines))
            self._lines, self._columns = len(lines), 0

    def erase(self) -> None:
        """Clear what is shown."""
        with self._lock:
            if self._lines == 1:
                self._write_line("")
                return
            self._write(self._top() + "\n".join([f"\r{CLEAR}"] * self._lines) + self._top() + "\r")
            self._lines = 1

    def _top(self) -> str:
        return UP.format(self._lines - 1) if self._lines > 1 else ""

    def _write_line(self, text: str) -> None:
        self._write(f"\r{text:<{self._columns}}{chr(8) * max(0, self._columns - len(text))}")
        self._columns = len(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


_shown: list[Block] = []


def erase() -> None:
    """Clear the progress that is shown, if any, before a message is written; the next report shows it again below."""
    for block in _shown:
        block.erase()


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows progress on stderr where that is a terminal; it is cleared at the end.

    The text may have several lines: those after the first are shown where the terminal is wide enough.
    """
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    block = Block()
    _shown.append(block)
    try:
        yield block.show
    finally:
        _shown.remove(block)
        block.erase()
