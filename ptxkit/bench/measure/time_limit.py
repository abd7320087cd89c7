"""A limit on the time in which kernels execute: a signal ends what Python executes; a second thread, a driver call that hangs.

The limit is for launches, their verification and their timing. Compiling, inputs and references are outside it: how long they
take says nothing about the kernel.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ptxkit.errors import TimeLimitError

GRACE_S = 2.0
"""Seconds without any Python code in the main thread, after the limit, until it counts as stuck in a driver call."""
BEAT_S = 0.25
"""Interval of the signals after the limit. Each one that is handled shows that the main thread executes Python."""
DRIVER = ("cuda", "ptxkit.runtime.gpu")
"""The packages whose calls may block in the driver until a kernel ends."""


@dataclass
class TimeLimit:
    """How long the kernels of one variant may execute.

    Args:
        seconds: None for no limit.
        stuck: called from another thread when the main thread does not return from a call of the driver; it must end the
            process. None for a device whose launches are Python, which signals interrupt.
        driver: packages whose calls may block.
    """

    seconds: float | None = None
    stuck: Callable[[str], None] | None = None
    driver: tuple[str, ...] = DRIVER
    _spent_s: dict[str, float] = field(default_factory=dict, init=False)

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Limit a ``with`` block. Without a limit, and in other threads than the main one, nothing is limited.

        Args:
            what: the variant, which is named to ``stuck``; the times of all its blocks count together.

        Raises:
            TimeLimitError: the block took longer.
        """
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        begin = time.monotonic()
        left_s = max(self.seconds - self._spent_s.get(what, 0.0), 1e-3)
        alarm = _Alarm(begin + left_s, f"not done within {self.seconds:g} s, the limit of --timeout")
        before = signal.signal(signal.SIGALRM, alarm.ring)
        ended = threading.Event()
        if self.stuck is not None:
            watchdog = threading.Thread(target=self._watch, args=(what, alarm, ended, self.stuck), daemon=True)
            watchdog.start()
        signal.setitimer(signal.ITIMER_REAL, left_s, BEAT_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            ended.set()
            signal.signal(signal.SIGALRM, before)
            self._spent_s[what] = self._spent_s.get(what, 0.0) + time.monotonic() - begin

    def _watch(self, what: str, alarm: _Alarm, ended: threading.Event, stuck: Callable[[str], None]) -> None:
        """The watchdog's thread: end the process if the main thread stays in one call of the driver."""
        main = threading.main_thread().ident
        assert main is not None
        while not ended.wait(max(alarm.alive_at + GRACE_S - time.monotonic(), BEAT_S)):
            if time.monotonic() - alarm.alive_at >= GRACE_S and self._in_driver(main) and not ended.is_set():
                stuck(what)
                return

    def _in_driver(self, thread: int) -> bool:
        frame = sys._current_frames().get(thread)
        module = str(frame.f_globals.get("__name__", "")) if frame else ""
        return any(module == package or module.startswith(package + ".") for package in self.driver)


@dataclass
class _Alarm:
    """The signal handler.

    Attributes:
        alive_at: when the main thread last executed Python, as far as the signals show; at first the end of the limit.
    """

    alive_at: float
    message: str
    rung: bool = False

    def ring(self, *_: object) -> None:
        """Raise TimeLimitError at the first signal; the later ones show only that the main thread executes Python."""
        self.alive_at = time.monotonic()
        if not self.rung:
            self.rung = True
            raise TimeLimitError(self.message)
