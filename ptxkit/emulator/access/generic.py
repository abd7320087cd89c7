"""Accesses by generic address: the window in which an address lies determines its state space."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.access.global_memory import GlobalSite
from ptxkit.emulator.access.local_memory import LocalSite
from ptxkit.emulator.access.shared_memory import ClusterSite
from ptxkit.emulator.access.site import Loaded, Site
from ptxkit.emulator.arrays import Addresses, Lanes, Mask
from ptxkit.emulator.memory.allocations import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import MemoryFault


class GenericSite:
    """Accesses by generic address.

    First, all lanes are accessed in the state space of the first lane. If that faults, each state space is accessed separately.
    """

    def __init__(self, where: Where, number: int, offset: int, dtype: DTypeLike, count: int, write: bool) -> None:
        self.sites: dict[str, Site] = {
            "global": GlobalSite(where, number, offset, dtype, count, write),
            "shared": ClusterSite(where, number, offset, dtype, count, write),
            "local": LocalSite(where, number, offset, dtype, count, write),
        }
        self.offset = offset

    @property
    def ordering(self) -> str:
        """See :attr:`Site.ordering`."""
        return self.sites["shared"].ordering

    @ordering.setter
    def ordering(self, value: str) -> None:
        for site in self.sites.values():
            site.ordering = value

    def load(self, x: Group, base: Addresses) -> Loaded:
        """See :class:`Site`."""
        try:
            return self.sites[self._space(x, base)].load(x, base)
        except MemoryFault:
            parts = self._parts(x, base)
            if len(parts) < 2:
                raise
        base = np.broadcast_to(base, x.shape)
        out: tuple[Lanes, ...] = ()
        for name, part, lanes in parts:
            got = self.sites[name].load(part, base)
            columns = got if isinstance(got, tuple) else (got,)
            out = columns if not out else tuple(np.where(lanes, c, o) for c, o in zip(columns, out, strict=True))
        return out if len(out) > 1 else out[0]

    def store(self, x: Group, base: Addresses, values: tuple[Lanes, ...]) -> None:
        """See :class:`Site`."""
        parts = self._parts(x, base)
        for name, part, _ in parts:
            self.sites[name].store(part, base, values)

    def _space(self, x: Group, base: Addresses) -> str:
        if x.mask is None:
            first = int(base.flat[0])
        else:
            first = int(np.broadcast_to(base, x.shape)[x.mask][0])
        return space_of(first + self.offset)

    def _parts(self, x: Group, base: Addresses) -> list[tuple[str, Group, Mask]]:
        return [(name, part, lanes) for name, part, lanes in by_space(x, base, self.offset)]


def space_of(address: int) -> str:
    """The state space of a generic address."""
    if address >= GLOBAL_BASE:
        return "global"
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        return "shared"
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        return "local"
    return "global"


def by_space(x: Group, base: Addresses, offset: int = 0) -> list[tuple[str, Group, Mask]]:
    """Divides the group by the state space of its generic addresses: (space, part of the group, lanes)."""
    address = base + np.uint64(offset & 0xFFFF_FFFF_FFFF_FFFF)
    window = np.uint64(WINDOW_BYTES)
    shared = (address - np.uint64(SHARED_WINDOW)) < window
    local = (address - np.uint64(LOCAL_WINDOW)) < window
    out = []
    for name, lanes in (("global", ~(shared | local)), ("shared", shared), ("local", local)):
        if lanes.any():
            part = x.narrow(lanes)
            if part is not None:
                out.append((name, part, lanes))
    return out
