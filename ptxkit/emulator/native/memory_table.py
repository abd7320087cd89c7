"""Where the allocations are, as a table that machine code searches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.memory.address_table import AddressTable
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
        self._table: AddressTable[Allocation] | None = None
        self._known = 0  # places of the table that have been read
        self._marked = -1  # what Allocation.marked was
        self._sentinels = self._no_stores = np.zeros(0, np.int64)

    def refresh(self, c: NDArray[np.int64], wave: HostWave) -> None:
        """Write the addresses of the table to the context, if an allocation was added, released or marked.

        Args:
            c: the context.
        """
        table = wave.launch.machine.memory.table
        if table is not self._table:
            self._begin(c, table)
        for k in range(self._known, len(table.bases)):
            a = table.ranges[k]
            self._sentinels[k] = -1 if a is None or a.sentinel is None else a.sentinel
        self._known = c[Field.ALLOCATIONS] = len(table.bases)
        self._mark(table)

    def _begin(self, c: NDArray[np.int64], table: AddressTable[Allocation]) -> None:
        self._table, self._known, self._marked = table, 0, -1
        self._sentinels, self._no_stores = (np.zeros(len(table.base), np.int64) for _ in range(2))
        arrays = (table.base, table.end, table.host, self._sentinels, self._no_stores)
        fields = (Field.BASE, Field.END, Field.HOST, Field.SENTINEL, Field.NO_STORES)
        for key, array in zip(fields, arrays, strict=True):
            c[key] = address_of(array)
        np.minimum(self.hints, max(0, len(table.bases) - 1), out=self.hints)

    def _mark(self, table: AddressTable[Allocation]) -> None:
        """Note the allocations to which undefined bytes were copied."""
        marked = Allocation.marked
        if marked != self._marked:
            for k, a in enumerate(table.ranges):
                self._no_stores[k] = a is not None and a.undefined_stores is not None
            self._marked = marked
