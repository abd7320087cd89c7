"""Being stopped in the middle: SIGTERM, which timeout(1) and job schedulers send, as Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ptxkit.errors import PtxkitError


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises :class:`Terminated`, so that what is known by then can be kept."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """What ended work before its time, kept so that what is known by then can be shown before it is raised again.

    Attributes:
        reason: Ctrl-C, SIGTERM or an error; None where nothing did.
    """

    def __init__(self) -> None:
        self.reason: BaseException | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, Ctrl-C, SIGTERM, errors of ptxkit and a lack of memory end the block and no more."""
        try:
            with terminable():
                yield
        except (KeyboardInterrupt, PtxkitError, MemoryError) as error:
            self.reason = error


def interruptible() -> Any:
    """Let Ctrl-C raise KeyboardInterrupt from here on, where :mod:`ptxkit.start` had it end the process.

    Returns:
        The handler to set again once the command is done: what comes then ends the process without a traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if getattr(before, "__module__", "") == "ptxkit.start":
        handle_interrupts(signal.default_int_handler)
    return before


def handle_interrupts(handler: Any) -> None:
    """Set the handler of SIGINT, which only the main thread may."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def release_semaphores() -> None:
    """Unlink the semaphores of worker processes before ``os._exit``, which would leave them behind."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._run_finalizers(0)
