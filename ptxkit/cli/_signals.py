"""Interruption: SIGTERM, which timeout(1) and job schedulers send, is handled as Ctrl-C is."""

from __future__ import annotations

import contextlib
import os
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
    """Make SIGTERM raise :class:`Terminated` inside the block, so that the results known by then can be kept."""
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
    """The exception that interrupted the work, kept so that partial results can be shown before it is raised again.

    Attributes:
        reason: Ctrl-C, SIGTERM or an error; None if the work was not interrupted.
    """

    def __init__(self) -> None:
        self.reason: BaseException | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Catch Ctrl-C, SIGTERM, errors of ptxkit and a lack of memory; each ends the block only."""
        try:
            with terminable():
                yield
        except (KeyboardInterrupt, PtxkitError, MemoryError) as error:
            self.reason = error


def interruptible() -> Any:
    """Let Ctrl-C raise KeyboardInterrupt from here on, where :mod:`ptxkit.start` had it end the process.

    Returns:
        The handler to restore when the command is done: a Ctrl-C after that ends the process without a traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if getattr(before, "__module__", "") == "ptxkit.start":
        handle_interrupts(signal.default_int_handler)
    return before


@contextlib.contextmanager
def lost_interrupts_repeated() -> Iterator[None]:
    """Send a signal again if Python discards the KeyboardInterrupt that its handler raised inside the block.

    An exception that a signal handler raises inside a finalizer or a weak reference's callback, such as those of the import
    system's locks, ends the callback only. The signal is sent from a thread a moment later, when the callback has returned.
    """
    before = sys.unraisablehook

    def repeat(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        number = signal.SIGTERM if issubclass(unraisable.exc_type, Terminated) else signal.SIGINT
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


def handle_interrupts(handler: Any) -> None:
    """Set the handler of SIGINT, which only the main thread may do."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def release_semaphores() -> None:
    """Unlink the semaphores of worker processes before ``os._exit``, which would not remove them."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._run_finalizers(0)
