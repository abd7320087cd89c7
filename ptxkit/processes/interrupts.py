"""Starts processes with SIGINT blocked: Ctrl-C is sent to every process of a terminal, and would interrupt their
imports with a traceback."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Inside, this thread starts processes in which SIGINT stays blocked; in this process it waits until the end."""
    resource_tracker.ensure_running()  # it unblocks SIGINT in the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
