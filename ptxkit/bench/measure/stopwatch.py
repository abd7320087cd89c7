"""Adds up the seconds that the steps of a measurement take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """The time of each step; a step lasts until the next one begins.

    Args:
        now: the present time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._step = ""
        self._began = now()

    def step(self, name: str) -> None:
        """Begin a step, or go on with one."""
        now = self._now()
        if self._step:
            self._seconds[self._step] = self._seconds.get(self._step, 0.0) + now - self._began
        self._step, self._began = name, now

    def seconds(self) -> dict[str, float]:
        """Those of each step so far, in the order in which they began."""
        self.step(self._step)
        return {name: round(value, 3) for name, value in self._seconds.items()}
