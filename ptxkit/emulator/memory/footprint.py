"""The bytes of global memory that a launch touches, for the comparison of launches on different streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.memory.allocations import GLOBAL_BASE, Allocation

READ, WRITE, ATOMIC = "read", "write", "atomic"
"""What a launch does to a byte. Atomics and other strong accesses of two launches do not conflict with each other."""


class Partitions(Protocol):
    """Memory that finds the allocations of addresses."""

    def partition(self, addresses: NDArray[np.uint64]) -> list[tuple[Allocation, NDArray[np.int64]]]:
        """Groups addresses by allocation: (allocation, positions in ``addresses``)."""


class Footprint:
    """The bytes that one launch touches. Several worker threads may add to it: marks are only ever set.

    Attributes:
        marks: (base address of an allocation, kind) -> (nbytes,) which of its bytes were touched.
        allocations: base address -> the allocation.
    """

    def __init__(self) -> None:
        self.marks: dict[tuple[int, str], NDArray[np.bool_]] = {}
        self.allocations: dict[int, Allocation] = {}

    def _marks(self, a: Allocation, kind: str) -> NDArray[np.bool_]:
        self.allocations.setdefault(a.base, a)
        key = a.base, kind
        found = self.marks.get(key)
        if found is None:
            found = self.marks.setdefault(key, np.zeros(len(a.data), np.bool_))
        return found

    def span(self, a: Allocation, start: int, nbytes: int, kind: str) -> None:
        """``nbytes`` from byte ``start`` of the allocation; parameters of kernels are left out."""
        if a.base >= GLOBAL_BASE:
            self._marks(a, kind)[start : start + nbytes] = True

    def elements(self, a: Allocation, starts: NDArray[np.int64], size: int, kind: str) -> None:
        """Elements of ``size`` bytes that begin at the bytes ``starts`` of the allocation, multiples of ``size``."""
        if a.base >= GLOBAL_BASE:
            marks = self._marks(a, kind)
            marks[: len(marks) // size * size].reshape(-1, size)[starts.reshape(-1) // size] = True

    def runs(
        self, memory: Partitions, addresses: NDArray[np.uint64], sizes: NDArray[np.int64] | int, kind: str
    ) -> None:
        """Runs of ``sizes`` bytes at ``addresses``, all inside allocations."""
        lengths = np.broadcast_to(np.asarray(sizes, np.int64), addresses.shape)
        some = np.flatnonzero(lengths > 0)
        for a, chosen in memory.partition(addresses[some]) if len(some) else ():
            which = some[chosen]
            starts = (addresses[which] - np.uint64(a.base)).view(np.int64)
            for start, nbytes in zip(starts.tolist(), lengths[which].tolist(), strict=True):
                self.span(a, start, nbytes, kind)

    def forget(self, later: Footprint) -> None:
        """Remove the bytes that a later launch, which is ordered after this one, writes, or touches in the same way.

        A launch that is not ordered after this one is not ordered after the later one either, and conflicts with it at these
        bytes, so that no conflict is lost. What is left over grows with the memory in use and not with the number of launches.
        """
        for base, kind in list(self.marks):
            for covering in {kind, WRITE}:
                covered = later.marks.get((base, covering))
                if covered is not None:
                    self.marks[base, kind] &= ~covered
            if not self.marks[base, kind].any():
                del self.marks[base, kind]

    def release(self, base: int) -> None:
        """The allocation at ``base`` is freed, and no later launch can touch it: let go of its marks and its data."""
        self.allocations.pop(base, None)
        for kind in (READ, WRITE, ATOMIC):
            self.marks.pop((base, kind), None)

    def conflicts(self, earlier: Footprint) -> Iterator[tuple[Allocation, str, str, int, int]]:
        """Bytes that this launch and an earlier one touch, at least one of them writing.

        Yields:
            The allocation, what the earlier and this launch do, the first byte, and how many there are.
        """
        for (base, mine), marks in self.marks.items():
            for theirs in (WRITE, ATOMIC, READ):
                if mine == theirs != WRITE or (other := earlier.marks.get((base, theirs))) is None:
                    continue
                both = marks & other
                if both.any():
                    yield self.allocations[base], theirs, mine, int(np.argmax(both)), int(np.count_nonzero(both))
