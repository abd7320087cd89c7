"""Whether writes through the generic proxy are visible to operations of the async proxy that read them.

Bulk and tensor copies, wgmma and tcgen05 read shared memory through the async proxy. They see a write of a thread if a
``fence.proxy.async`` is on the path of synchronisation from the write to the operation: the write happens before the fence, and
the fence happens before the operation (PTX ISA, "Proxies", "fence.proxy", "Causality order"; Lustig et al., "Mixed-proxy
extensions for the NVIDIA PTX memory consistency model", 2022). Two arrangements are therefore right: each writing thread
executes the fence and then the barrier, or a thread executes the fence after the barrier, before it or others issue the
operation. A fence before the barrier by a thread other than the writer orders nothing.

The clocks have a second plane for this (:class:`~ptxkit.emulator.racecheck.clocks.Table`): the accesses that happened
before a proxy fence which happened before the actor's next access. A fence copies the first plane to the second one, and every
synchronisation passes both on.

If actors are warps, a fence by some lanes only covers the writes of these lanes, and what the warp wrote before its last
synchronisation. The lane of each write, and the fence of that lane after it, are recorded with the cells.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Index, Mask
from ptxkit.emulator.racecheck.clocks import LOW
from ptxkit.emulator.racecheck.hazards import UNFENCED
from ptxkit.emulator.racecheck.recorder import Recorder
from ptxkit.emulator.racecheck.shadow import Access, Conflict
from ptxkit.emulator.simt.selection import Selection


class Visibility:
    """The proxy fences of a wave, and the check of what the async proxy reads."""

    def __init__(self, races: Recorder) -> None:
        self.races = races
        self.clocks = races.clocks

    def fence(self, x: Selection, rows: Index) -> None:
        """fence.proxy.async by the threads of ``x``, which belong to the actors ``rows``, (n,) distinct."""
        clocks = self.clocks
        if clocks.shift == 0:
            clocks.proxy_fence(rows)
            return
        live = self.races.wave.live
        here = x.full_mask().reshape(-1, 32)[rows]
        needed = here if live is None else here | ~live.reshape(-1, 32)[rows]
        whole = np.all(needed, axis=1)
        if not whole.all():
            self._lanes_fenced(rows[~whole], here[~whole])
        clocks.proxy_fence(rows, whole)

    def _lanes_fenced(self, rows: Index, lanes: Mask) -> None:
        """Lanes, (n, 32), of the warps ``rows`` have executed a fence: it covers what they have written themselves."""
        clocks, shadow = self.clocks, self.races.shadow
        each = clocks.actors * clocks.size
        writers = shadow.writer.reshape(clocks.ctas // clocks.size, -1)
        for row, mask in zip(rows.tolist(), lanes, strict=True):
            cluster = row // each
            cells = np.flatnonzero(writers[cluster] == (int(clocks.rank[row]) << 16 | int(clocks.actor[row])))
            cells += cluster * writers.shape[1]
            cells = cells[mask[shadow.lane[cells]] & (shadow.fenced[cells] == 0)]
            shadow.fenced[cells] = clocks.interval[row]

    def unseen(self, a: Access) -> Conflict | None:
        """Writes through the generic proxy that happened before ``a``, a read through the async proxy that may not see them.

        Writes that are not ordered before ``a`` are races, which are reported as such.
        """
        clocks, shadow = self.clocks, self.races.shadow
        records, writer = shadow.writes[a.cells], shadow.writer[a.cells].astype(np.int64)
        column = (writer >> 16) * clocks.width + (writer & 0xFFFF)
        hidden = records > a.view[a.rows, column + clocks.size * clocks.width]
        hidden &= self.races.operations.generic(writer & 0xFFFF)
        if not hidden.any():
            return None
        at = np.flatnonzero(hidden)
        known = a.view[a.rows[at], column[at] + clocks.seen]
        at = at[records[at] <= known]
        if clocks.shift and len(at):
            fenced = shadow.fenced[a.cells[at]]
            at = at[(fenced == 0) | ((fenced | LOW) > a.view[a.rows[at], column[at]])]
        if not len(at):
            return None
        return Conflict(UNFENCED, at, records[at], writer[at])
