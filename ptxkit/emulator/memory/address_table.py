"""Allocations in the order of their addresses, which device code may add to and take from thousands of times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray


class Range(Protocol):
    """What is kept of an allocation: its addresses and its bytes in the memory of the host."""

    base: int
    nbytes: int
    data: NDArray[np.uint8]


R = TypeVar("R", bound=Range)


class AddressTable(Generic[R]):
    """Ranges of addresses that do not overlap.

    Other threads may read a table while one thread adds a range at its end, or removes one: a removed range keeps its place,
    without an end. Any other change needs a new table.

    Attributes:
        bases: of all places. ranges: None where one was removed.
        base, end, host: the same as arrays, whose first ``len(bases)`` elements are valid: first address, address behind the
            last byte (the first address where the range was removed), and where its bytes are in the memory of the host.
    """

    def __init__(self, ranges: Iterable[R] = ()) -> None:
        self.bases: list[int] = []
        self.ranges: list[R | None] = []
        self.removed = 0
        found = list(ranges)
        self.base, self.end, self.host = (np.zeros(2 * len(found) + 64, np.uint64) for _ in range(3))
        for r in found:
            self.append(r)

    @property
    def is_full(self) -> bool:
        """No further range fits; also true if most of the places are empty, so that a new table is due."""
        return len(self.bases) == len(self.base) or self.removed > 64 + len(self.bases) // 2

    def live(self) -> tuple[R, ...]:
        """The ranges, by address."""
        return tuple([r for r in self.ranges if r is not None])

    def append(self, r: R) -> None:
        """Add a range behind all others; the table must not be full."""
        n = len(self.bases)
        self.base[n], self.end[n] = r.base, r.base + r.nbytes
        self.host[n] = r.data.__array_interface__["data"][0]
        self.ranges.append(r)  # before its base, by which it is found
        self.bases.append(r.base)

    def remove(self, address: int) -> R | None:
        """Remove the range that begins at an address; None if there is none."""
        i = bisect_right(self.bases, address) - 1
        found = self.ranges[i] if i >= 0 else None
        if found is None or found.base != address:
            return None
        self.ranges[i] = None
        self.end[i] = found.base
        self.removed += 1
        return found

    def below(self, address: int) -> R | None:
        """The range that begins at an address, or the nearest one before it."""
        i = bisect_right(self.bases, address) - 1
        while i >= 0:
            found = self.ranges[i]
            if found is not None:
                return found
            i -= 1
        return None

    def above(self, address: int) -> R | None:
        """The first range that begins after an address."""
        return next((r for r in self.ranges[bisect_right(self.bases, address) :] if r is not None), None)

    def places(self, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each address the last place that does not begin after it; -1 for none."""
        return np.searchsorted(self.base[: len(self.bases)], addresses, "right") - 1
