"""When asynchronous operations complete with ``completion="random"``: at points drawn from a seed.

Every element of an operation draws for itself. A quarter completes right after the block of instructions that has issued
it, a quarter not before a wait forces it, and the others after 1 to 256 blocks that the wave executes. When no thread can
continue, the operation whose point comes next completes at once, whether a thread waits for it or not. So operations
overtake one another, as PTX allows, and complete while threads are at any of their instructions.

The numbers are the raw output of PCG64, which numpy keeps the same in all its versions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Index

AT_ONCE, WHEN_FORCED = 0, 1
"""The values of the lowest two bits of a number that do not draw a delay."""


class RandomTimes:
    """The points at which the operations of one wave complete.

    Args:
        seed: of the launch.
        wave: number of the wave.
    """

    def __init__(self, seed: int, wave: int) -> None:
        self._numbers = np.random.PCG64([seed, wave])
        self._now = 0
        self._due: list[tuple[int, int, Callable[[Index], bool], Index]] = []
        self._entries = 0

    def issued(self, elements: int, complete: Callable[[Index], bool]) -> None:
        """Draw the points of the elements of an operation.

        Args:
            elements: how many.
            complete: completes the given elements; False if all of them were complete already.
        """
        raw = np.asarray(self._numbers.random_raw(elements), np.uint64)
        kind = raw & np.uint64(3)
        spread = np.uint64(2) << (raw >> np.uint64(2) & np.uint64(7))
        delay = np.where(kind == AT_ONCE, 0, 1 + (raw >> np.uint64(8)) % spread).astype(np.int64)
        drawn = kind != WHEN_FORCED
        for value in np.unique(delay[drawn]).tolist():
            self._entries += 1
            which = np.flatnonzero(drawn & (delay == value))
            heapq.heappush(self._due, (self._now + value, self._entries, complete, which))

    def tick(self) -> None:
        """The wave has executed a block."""
        self._complete()
        self._now += 1

    def advance(self) -> bool:
        """No thread can continue: complete what comes next. False if nothing does."""
        while self._due:
            self._now = max(self._now, self._due[0][0])
            if self._complete():
                return True
        return False

    def order(self, count: int) -> list[int]:
        """The numbers below ``count`` in random order."""
        raw = np.asarray(self._numbers.random_raw(count), np.uint64)
        return np.argsort(raw, kind="stable").tolist()

    def _complete(self) -> bool:
        """Complete what is due; False if all of it was complete already."""
        some = False
        while self._due and self._due[0][0] <= self._now:
            _, _, complete, which = heapq.heappop(self._due)
            some |= complete(which)
        return some
