"""Allocations in the order of their addresses, which device code may add to and take from thousands of times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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

    Args:
        ranges: in the order of their addresses. more: room for this number of further ones.

    Attributes:
        bases: of all places. ranges: None where one was removed.
        base, end, host: the same as arrays, whose first ``len(bases)`` elements are valid: first address, address behind the
            last byte (the first address where the range was removed), and where its bytes are in the memory of the host.
    """

    def __init__(self, ranges: Iterable[R] = (), more: int = 0) -> None:
        self.bases: list[int] = []
        self.ranges: list[R | None] = []
        self.removed = 0
        found = list(ranges)
        self.base, self.end, self.host = (np.zeros(2 * len(found) + more + 64, np.uint64) for _ in range(3))
        self.extend(found)

    @property
    def room(self) -> int:
        """How many further ranges fit; 0 if most of the places are empty, so that a new table is due."""
        return 0 if self.removed > 64 + len(self.bases) // 2 else len(self.base) - len(self.bases)

    def live(self) -> tuple[R, ...]:
        """The ranges, by address."""
        return tuple([r for r in self.ranges if r is not None])

    def extend(self, more: Sequence[R], hosts: Sequence[int] | None = None) -> None:
        """Add ranges behind all others, in the order of their addresses; there must be room for them.

        Args:
            hosts: where their bytes are in the memory of the host; by default, what their arrays say.
        """
        first, bases = len(self.bases), [r.base for r in more]
        last = first + len(more)
        self.base[first:last] = bases
        self.end[first:last] = [r.base + r.nbytes for r in more]
        self.host[first:last] = [r.data.__array_interface__["data"][0] for r in more] if hosts is None else hosts
        self.ranges.extend(more)  # before their bases, by which they are found
        self.bases.extend(bases)

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

    def remove_all(self, addresses: Sequence[int]) -> list[R]:
        """Remove the ranges that begin at these addresses, which are all different; there must be one for each."""
        places = np.searchsorted(self.base[: len(self.bases)], np.array(addresses, np.uint64)).tolist()
        ranges, gone = self.ranges, []
        for i in places:
            found = ranges[i]
            assert found is not None
            gone.append(found)
            ranges[i] = None
        self.end[places] = self.base[places]
        self.removed += len(gone)
        return gone

    def starting_at(self, addresses: Sequence[int]) -> list[R | None]:
        """The range that begins at each address, or None."""
        places = np.searchsorted(self.base[: len(self.bases)], np.array(addresses, np.uint64)).tolist()
        count, bases, ranges = len(self.bases), self.bases, self.ranges
        return [ranges[i] if i < count and bases[i] == a else None for i, a in zip(places, addresses, strict=True)]

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
