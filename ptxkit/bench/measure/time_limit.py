"""A limit on the time of one variant: a signal ends what Python executes; a second timer, what waits for a GPU that hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ptxkit.errors import TimeLimitError

GRACE_S = 2.0
"""Seconds after the limit until the main thread counts as stuck in a call that no signal ends, such as a synchronization."""


@dataclass(frozen=True)
class TimeLimit:
    """How long one variant may take.

    Args:
        seconds: None for no limit.
        stuck: called from another thread when the main thread does not come back; it must end the process.
    """

    seconds: float | None = None
    stuck: Callable[[str], None] = lambda what: None

    @contextmanager
    def around(self, what: str, spent_s: float = 0.0) -> Iterator[None]:
        """Limit a ``with`` block. Without a limit, and in other threads than the main one, nothing is limited.

        Args:
            what: is named to ``stuck``. spent_s: seconds of the limit that earlier blocks took.

        Raises:
            TimeLimitError: the block took longer.
        """
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        left_s = max(self.seconds - spent_s, 1e-3)
        message = f"not done within {self.seconds:g} s, the limit of --timeout"

        def late(*_: object) -> None:
            raise TimeLimitError(message)

        watchdog = threading.Timer(left_s + GRACE_S, self.stuck, (what,))
        watchdog.daemon = True
        before = signal.signal(signal.SIGALRM, late)
        watchdog.start()
        signal.setitimer(signal.ITIMER_REAL, left_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watchdog.cancel()
            signal.signal(signal.SIGALRM, before)
