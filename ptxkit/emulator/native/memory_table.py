"""Where the allocations are, as a table that machine code searches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.host import HostWave
from ptxkit.emulator.native.storage import address_of


class MemoryTable:
    """The allocations that machine code can access, in the order of their addresses.

    Args:
        sites: number of instructions, for each of which machine code remembers the allocation of the last access.
    """

    def __init__(self, sites: int) -> None:
        self.hints = np.zeros(sites, np.int64)
        self._allocations: tuple[Allocation, ...] = ()
        self._marked: tuple[bool, ...] = ()  # allocations to which undefined bytes were copied
        self._arrays: list[NDArray[np.generic]] = []

    def refresh(self, c: NDArray[np.int64], wave: HostWave) -> None:
        """Write the addresses of the table to the context, if an allocation was added, released or marked.

        Args:
            c: the context.
        """
        check = None if wave.instrumentation is None else wave.instrumentation.check
        allocations = wave.launch.machine.memory.allocations()
        marked = () if check is None else tuple([a.undefined_stores is not None for a in allocations])
        if self._allocations != allocations or marked != self._marked:
            self._read(c, allocations)
            self._allocations, self._marked = allocations, marked

    def _read(self, c: NDArray[np.int64], allocations: tuple[Allocation, ...]) -> None:
        self._arrays = [
            np.array([a.base for a in allocations], np.uint64),
            np.array([a.base + a.nbytes for a in allocations], np.uint64),
            np.array([address_of(a.data) for a in allocations], np.uint64),
            np.array([-1 if a.sentinel is None else a.sentinel for a in allocations], np.int64),
            np.array([a.undefined_stores is not None for a in allocations], np.int64),
        ]
        fields = (Field.BASE, Field.END, Field.HOST, Field.SENTINEL, Field.NO_STORES)
        for key, array in zip(fields, self._arrays, strict=True):
            c[key] = address_of(array)
        c[Field.ALLOCATIONS] = len(allocations)
        np.minimum(self.hints, max(0, len(allocations) - 1), out=self.hints)
