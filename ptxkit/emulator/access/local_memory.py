"""Accesses to local memory: the stack frames of each thread."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.access.site import Loaded, Site
from ptxkit.emulator.arrays import Addresses, Index, Lanes
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW
from ptxkit.emulator.memory.traffic import local_sectors
from ptxkit.emulator.simt.threads import Group


class LocalSite(Site):
    """Accesses to the stack frame of the executing thread."""

    space = "local"

    def locate(self, x: Group, base: Addresses) -> tuple[Index, Index]:
        """Byte offsets in the frame and element indices in the wave's local memory, after a check of bounds and alignment."""
        wave = x.wave
        address = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).view(np.int64)
        address = np.where(address >= LOCAL_WINDOW, address - LOCAL_WINDOW, address)
        depth = wave.local.shape[1]
        active = x.active() if x.mask is not None else True
        bad = (address < 0) | (address + self.size > depth) | ((address & (self.size - 1)) != 0)
        if bad.any() and (bad & active).any():
            self.fail(
                x,
                address.view(np.uint64),
                bad,
                lambda a: (
                    self.misaligned(a) if a % self.size else f"outside the thread's {depth} bytes of local memory"
                ),
            )
        index = (x.thread * depth + address) >> self.shift
        return address, index if x.mask is None else np.where(active, index, 0)

    def _index(self, x: Group, base: Addresses) -> Index:
        address, index = self.locate(x, base)
        units = local_sectors(address, self.size, x.mask, x.shape) if x.tally.traffic else 0
        x.tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)
        return index

    def load(self, x: Group, base: Addresses) -> Loaded:
        """Lane arrays of the loaded elements."""
        index = self._index(x, base)
        rows = self.rows(x.wave.local.reshape(-1).view(self.dtype))
        return self.columns(rows.take(index.reshape(-1), axis=0), index.shape)

    def store(self, x: Group, base: Addresses, values: tuple[Lanes, ...]) -> None:
        """Write one row per lane."""
        index = self._index(x, base)
        data, unit = self.packed(x, values)
        local = x.wave.local.reshape(-1)
        rows = self.rows(local.view(self.dtype)) if unit is None else local.view(unit)
        if x.mask is None:
            rows[index] = data
        else:
            rows[index[x.mask]] = data[x.mask]
