"""Accesses to global and constant memory, and to kernel parameters by address."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.access.site import Loaded, Site
from ptxkit.emulator.arrays import Addresses, Lanes, Mask, Shape
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.footprint import ATOMIC, READ, WRITE, Footprint
from ptxkit.emulator.memory.pattern import Pattern
from ptxkit.emulator.memory.traffic import sectors
from ptxkit.emulator.simt.state import MemoryState
from ptxkit.emulator.simt.threads import Group


class GlobalSite(Site):
    """Global and constant memory, and kernel parameters by address."""

    space = "global"
    atomic = False  # set for the sites of atomics

    def locate(self, x: Group, base: Addresses, mask: Mask | None) -> tuple[Allocation, int, Pattern]:
        """The allocation that holds every address, the element index of the lowest, and the pattern.

        Raises:
            MemoryFault: out of bounds, misaligned, null or freed.
        """
        p = self.remember(x, base, mask)
        origin = int(base.reshape(-1)[p.first]) + self.offset
        memory = x.wave.launch.machine.memory
        low = origin + p.low
        a = memory.find(low)
        if a is None or origin + p.high + self.size > a.base + a.nbytes or (p.bits | origin) & (self.size - 1):
            self._explain(x, base, memory)
            raise LookupError  # the addresses are valid, but lie in several allocations
        start = (low - a.base) >> self.shift
        if (footprint := x.wave.launch.footprint) is not None:
            self._mark(footprint, a, start, p, mask)
        return a, start, p

    @property
    def kind(self) -> str:
        """What an access does to memory, for the comparison of launches: strong accesses are like atomics."""
        return ATOMIC if self.atomic or self.ordering else WRITE if self.write else READ

    def _mark(self, footprint: Footprint, a: Allocation, start: int, p: Pattern, mask: Mask | None) -> None:
        if p.contiguous:
            footprint.span(a, start << self.shift, p.indices.size << self.shift, self.kind)
        else:
            indices = p.indices if mask is None else p.indices[np.broadcast_to(mask, p.indices.shape)]
            footprint.elements(a, (indices + start) << self.shift, self.size, self.kind)

    def _explain(self, x: Group, base: Addresses, memory: MemoryState) -> None:
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.uint64)
        active = np.broadcast_to(addresses, x.shape)
        bad = (active & np.uint64(self.size - 1)) != 0
        if (bad & x.active()).any():
            self.fail(x, addresses, bad, self.misaligned)
        outside = ~memory.inside(active, self.size) & x.active()
        if outside.any():
            self.fail(x, addresses, outside, lambda address: memory.explain(address, self.size))

    def sectors(self, addresses: Addresses, mask: Mask | None, shape: Shape) -> int:
        """Sectors of one execution."""
        return sectors(addresses, self.size, mask, shape)

    def count_traffic(self, x: Group, p: Pattern, origin: int) -> None:
        """Add this execution to the counters."""
        tally = x.tally
        units = 0
        if tally.traffic:
            key = origin & 31
            memo = p.sectors.get(key)
            if memo is None or x.mask is not memo[1] or x.shape != memo[2]:
                addresses = p.offsets + np.uint64(origin)
                memo = (self.sectors(addresses, x.mask, x.shape), x.mask, x.shape)
                p.sectors[key] = memo
            units = memo[0]
        tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)

    def load(self, x: Group, base: Addresses) -> Loaded:
        """Lane arrays of the loaded elements, in the shape of ``base``."""
        mask = x.covers(base.shape)
        for races in x.wave.races if self.ordering else ():
            races.flagged(x, base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF), self.ordering, False)
        if mask is not None and not x.lanes:
            return self.columns(np.zeros((base.size, self.count), self.dtype), base.shape)
        try:
            a, start, p = self.locate(x, base, mask)
        except LookupError:
            return self._load_scattered(x, base, mask)
        rows = self.rows(a.typed(self.dtype))
        if p.contiguous:
            got = rows[start : start + p.indices.size].copy()
        else:
            got = rows[start:].take(p.indices.reshape(-1), axis=0)
        self.count_traffic(x, p, int(base.reshape(-1)[p.first]) + self.offset)
        if a.sentinel is not None:
            self.notice_unwritten(x, a, got)
        return self.columns(got, base.shape)

    def notice_unwritten(self, x: Group, a: Allocation, values: Lanes) -> None:
        """Count the elements of ``values``, read from ``a``, that still have the sentinel value of uninitialised memory."""
        found = a.unwritten(values)
        if found:
            x.tally.add(self.number, UNWRITTEN, found)

    def store(self, x: Group, base: Addresses, values: tuple[Lanes, ...]) -> None:
        """Write one row per lane; of lanes that address the same element the highest wins."""
        if base.shape != x.shape:
            base = np.broadcast_to(base, x.shape)
        for races in x.wave.races if self.ordering else ():
            races.flagged(x, base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF), self.ordering, True)
        machine = x.wave.launch.machine
        machine.version += 1
        try:
            a, start, p = self.locate(x, base, x.mask)
        except LookupError:
            self._store_scattered(x, base, values)
            return
        data, unit = self.packed(x, values)
        rows = self.rows(a.typed(self.dtype)) if unit is None else a.typed(unit)
        if p.contiguous:
            rows[start : start + p.indices.size] = data.reshape(-1, *data.shape[3:])
        elif x.mask is None:
            rows[start:][p.indices] = data
        else:
            rows[start:][p.indices[x.mask]] = data[x.mask]
        if a.undefined_stores is not None:
            indices = p.indices if x.mask is None else p.indices[x.mask]
            a.undefined_stores.clear_elements((indices.reshape(-1) + start) << self.shift, self.size)
        self.count_traffic(x, p, int(base.reshape(-1)[p.first]) + self.offset)

    def _load_scattered(self, x: Group, base: Addresses, mask: Mask | None) -> Loaded:
        """Loads by lanes whose addresses lie in several allocations."""
        out = np.zeros((base.size, self.count), self.dtype)
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).reshape(-1)
        chosen = np.arange(base.size) if mask is None else np.flatnonzero(np.broadcast_to(mask, base.shape))
        for a, lanes in x.wave.launch.machine.memory.partition(addresses[chosen]):
            at = chosen[lanes]
            rows = a.typed(self.dtype)
            rows = rows[: len(rows) // self.count * self.count].reshape(-1, self.count)
            got = out[at] = rows[((addresses[at] - np.uint64(a.base)) >> np.uint64(self.shift)).view(np.int64)]
            if a.sentinel is not None:
                self.notice_unwritten(x, a, got)
        self._count_scattered(x, base)
        return self.columns(out if self.count > 1 else out[:, 0], base.shape)

    def _store_scattered(self, x: Group, base: Addresses, values: tuple[Lanes, ...]) -> None:
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).reshape(-1)
        chosen = np.flatnonzero(x.active())
        data = self.stack(x, values).reshape(-1, self.count)
        for a, lanes in x.wave.launch.machine.memory.partition(addresses[chosen]):
            at = chosen[lanes]
            rows = a.typed(self.dtype)
            rows = rows[: len(rows) // self.count * self.count].reshape(-1, self.count)
            offsets = (addresses[at] - np.uint64(a.base)).view(np.int64)
            rows[offsets >> self.shift] = data[at]
            if a.undefined_stores is not None:
                a.undefined_stores.clear_elements(offsets, self.size)
        self._count_scattered(x, base)

    def _count_scattered(self, x: Group, base: Addresses) -> None:
        addresses = base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        if (footprint := x.wave.launch.footprint) is not None:
            chosen = np.broadcast_to(addresses, x.shape)[x.active()]
            footprint.runs(x.wave.launch.machine.memory, chosen, self.size, self.kind)
        units = self.sectors(addresses, x.mask, x.shape) if x.tally.traffic else 0
        x.tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)
