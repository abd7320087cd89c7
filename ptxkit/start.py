"""Where the command ``ptxkit`` begins: imports nothing but the standard library's smallest parts.

Importing the command line takes a tenth of a second. A Ctrl-C during it would end in a traceback from some import, so until the
command line handles interrupts itself, one ends the process with a line and the exit code of an interrupt.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the module signal imports enum first
import os

TYPE_CHECKING = False  # typing's own, without importing typing
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130  # as ExitCode.INTERRUPTED, which is not imported yet


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """The signal handler while modules are imported, and after the command is done."""
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> NoReturn:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from ptxkit.cli import main as command_line

    command_line()
