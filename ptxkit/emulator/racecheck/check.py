"""The race check of one wave: the hooks that its instructions call.

Accesses are passed to :class:`~ptxkit.emulator.racecheck.shadow.Shadow`, which compares them with earlier ones.
Synchronisation is passed to :class:`~ptxkit.emulator.racecheck.clocks.Clocks`: barriers, mbarriers, cluster barriers, and
accesses with fences. An asynchronous operation is an agent of its own (:mod:`ptxkit.emulator.racecheck.operations`).

An actor is usually a warp: its lanes never race with each other, and synchronisation by one of them holds for all. With
``--racecheck lanes`` an actor is a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Addresses, Bytes, Index, Lanes, Mask, Words
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.racecheck.clocks import Clocks, Table
from ptxkit.emulator.racecheck.cluster import ClusterOrder
from ptxkit.emulator.racecheck.flags import Flags
from ptxkit.emulator.racecheck.hazards import Hazards
from ptxkit.emulator.racecheck.lifetimes import Lifetimes
from ptxkit.emulator.racecheck.operations import Operations
from ptxkit.emulator.racecheck.reports import RaceReports
from ptxkit.emulator.racecheck.shadow import NARROW, STRONG, Access, Conflict, Shadow
from ptxkit.emulator.racecheck.tensor_memory import TensorMemory
from ptxkit.emulator.racecheck.visibility import Visibility
from ptxkit.emulator.simt.hooks import AccessSite
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where

ADDRESS_BITS = 48
"""Number of bits of a global address; the bits above it distinguish clusters."""


class Races(RaceReports):
    """Receives every access and every synchronisation of a wave.

    Attributes:
        generation: (CTAs,) number of barriers that all warps of each CTA have completed together.
    """

    compares = True

    def __init__(self, wave: WaveState, hazards: Hazards) -> None:
        super().__init__()
        self.wave = wave
        self.hazards = hazards
        self.clocks = Clocks(
            wave, hazards.lanes, hazards.tensor_memory, hazards.initialisations, hazards.proxied, hazards.scoped
        )
        self.shadow = Shadow(self.clocks, len(wave.shared))
        self.actors = self.clocks.actors
        self.generation: NDArray[np.int32] = np.zeros(wave.shape[0], np.int32)
        self.operations = Operations(self)
        self.ordered = hazards.ordered
        self._arrived: dict[int, Table] = {}
        self._cluster = ClusterOrder(self.clocks)
        self._flags = Flags(self.clocks)  # a word is ~index in shared memory, or the address in global memory
        self.lifetimes = Lifetimes(self)
        self.visibility = Visibility(self) if hazards.proxied else None
        self.tensor_memory = TensorMemory(self) if hazards.tensor_memory else None

    # -- actors ------------------------------------------------------------------------------------------------------

    def rows(self, x: Selection) -> Index:
        """The rows (numbers in the wave) of the actors of ``x``, without repetition."""
        if self.clocks.shift == 0:
            return self.lanes(x)
        found = x.memo.get("race rows")
        if not isinstance(found, np.ndarray):
            here: Mask = np.ones(x.shape[:2], np.bool_) if x.mask is None else np.any(x.mask, -1)
            if x.rows:
                found = (np.asarray(x.c, np.int64) * self.actors + x.w)[here[:, 0]]
            else:
                found = np.flatnonzero(here.reshape(-1))
            x.memo["race rows"] = found
        return found

    def lanes(self, x: Selection) -> Index:
        """The row of the actor of each active lane."""
        found = x.memo.get("race lanes")
        if not isinstance(found, np.ndarray):
            threads = x.thread.reshape(-1) if x.mask is None else x.thread[x.mask]
            found = x.memo["race lanes"] = threads >> self.clocks.shift
        return found

    def per_actor(self, x: Selection, index: Index, lanes: Mask | None = None) -> tuple[Index, Index]:
        """Distinct pairs of a row and the value of ``index`` (lanes, int64) in one of its active lanes."""
        if lanes is None and index.shape[2] == 1 and self.clocks.shift:
            values = np.broadcast_to(index, (*x.shape[:2], 1)).reshape(-1)
            if x.mask is not None:
                values = values[x.mask.any(-1).reshape(-1)]
            return self.rows(x), values
        active = x.active() if lanes is None else np.broadcast_to(lanes, x.shape) & x.active()
        span = len(self.wave.shared)
        pairs = np.unique((x.thread[active] >> self.clocks.shift) * span + np.broadcast_to(index, x.shape)[active])
        return pairs // span, pairs % span

    # -- accesses of threads -----------------------------------------------------------------------------------------

    def read(self, x: Selection, site: AccessSite, index: Index, start: int) -> None:
        """Lanes of ``x`` read the elements ``index + start``, of the site's size."""
        self.touch(x, site.where, self._elements(x, index) + start, site.size, False, site.ordering, site.cluster)

    def write(self, x: Selection, site: AccessSite, index: Index, start: int, data: Lanes) -> None:
        """Lanes of ``x`` are about to write ``data``, a row for each lane."""

        def values() -> Bytes:
            rows = data if x.mask is None else data[x.mask]
            return np.ascontiguousarray(rows).view(np.uint8).reshape(-1, site.size)

        elements = self._elements(x, index) + start
        self.touch(x, site.where, elements, site.size, True, site.ordering, site.cluster, values)

    def _elements(self, x: Selection, index: Index) -> Index:
        whole = np.broadcast_to(index, x.shape)
        return whole.reshape(-1) if x.mask is None else whole[x.mask]

    def touch(
        self,
        x: Selection,
        where: Where,
        elements: Index,
        size: int,
        write: bool,
        ordering: str = "",
        remote: bool = False,
        values: Callable[[], Bytes] | None = None,
        initialises: bool = False,
    ) -> None:
        """The active lanes of ``x`` access one element each.

        Args:
            ordering: ``""`` for weak accesses, else relaxed, acquire, release or acq_rel; with ``.cta`` if this is the scope.
            remote: elements may be in other CTAs.
            values: returns the written values, (lanes, size) bytes; None if equal values need not be recognised.
            initialises: the access is an mbarrier.init.
        """
        rows, clocks = self.lanes(x), self.clocks
        cells, parts = self.shadow.spread(elements, size)
        lanes: Index | None = None
        if write and len(self.shadow.lane):
            lanes = np.repeat((x.thread.reshape(-1) if x.mask is None else x.thread[x.mask]) & 31, parts)
        if parts > 1:
            rows = np.repeat(rows, parts)
        cta = rows // self.actors
        generation: NDArray[np.int32] | None = self.generation[cta]
        strong = ordering != ""
        narrow = clocks.size > 1 and ordering.endswith(".cta")
        low = self.site(where) | (STRONG if strong else 0) | (NARROW if narrow else 0)
        if remote and clocks.size > 1:
            home = cells // (len(self.shadow.writes) // clocks.ctas)
            elsewhere = home != cta
            if elsewhere.any():
                generation = None
                self._note_remote(rows[elsewhere], cells[elsewhere] * self.shadow.unit, low)
        a = Access(
            cells,
            rows,
            clocks.now.flat,
            clocks.rank[rows],
            (clocks.initialiser if initialises else clocks.actor)[rows],
            clocks.interval[rows] | low,
            generation,
            strong,
            lanes,
            narrow,
        )
        found = self.compare(a, write, values)
        if found:
            threads = x.thread.reshape(-1) if x.mask is None else x.thread[x.mask]
            self.report(where, a, found, np.repeat(threads, parts))
        if strong and self.ordered:
            self._flags.accessed(~(elements * size >> 2), self.lanes(x), ordering, write)

    def _note_remote(self, rows: NDArray[np.int64], places: NDArray[np.int64], low: int) -> None:
        """Record that actors access shared memory of other CTAs, at these bytes of the wave's shared memory."""
        clocks = self.clocks
        home, address = np.divmod(places, self.wave.shared_stride)
        self.lifetimes.accessed(rows, home, address, clocks.rank[rows], clocks.actor[rows], clocks.interval[rows] | low)

    def remote_barriers(self, where: Where, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Record that actors use mbarriers, of which some may be in other CTAs."""
        if self.clocks.size > 1:
            elsewhere = at * 8 // self.wave.shared_stride != rows // self.actors
            if elsewhere.any():
                self._note_remote(rows[elsewhere], at[elsewhere] * 8, self.site(where))

    def ended(self, ctas: NDArray[np.bool_]) -> None:
        """The last threads of ``ctas`` have exited."""
        self.lifetimes.ended(ctas)

    def runs(self, x: Selection, where: Where, starts: Index, sizes: Index, write: bool) -> None:
        """The active lanes of ``x`` access runs of bytes of their own CTA, as ld and st do."""
        rows, clocks = self.lanes(x), self.clocks
        numbers, ranks, intervals = clocks.actor[rows], clocks.rank[rows], clocks.interval[rows]
        threads = x.thread.reshape(-1) if x.mask is None else x.thread[x.mask]
        self.operations.access(where, threads, starts, sizes, write, ranks, numbers, intervals, generic=True)

    def compare(self, a: Access, write: bool, values: Callable[[], Bytes] | None = None) -> list[Conflict]:
        """Compare an access with earlier ones and record it."""
        if not len(a.cells):
            return []
        if self.hazards.copies_only:
            return self._read_of_copies(a, write)
        if not write:
            found = self.shadow.earlier_writes(a, "read-after-write")
            self.shadow.was_read(a)
            return found
        earlier = self.shadow.earlier_writes(a, "write-after-write", visible=False)
        found = [self._differing(a, c, values, False) for c in earlier]
        found += self.shadow.earlier_reads(a)
        lost = self.shadow.wrote(a)
        if lost is not None:
            found.append(self._differing(a, lost, values, True))
        return [c for c in found if len(c.at)]

    def _read_of_copies(self, a: Access, write: bool) -> list[Conflict]:
        """Conflicts of reads with writes by asynchronous operations; other conflicts are not reported in this mode.

        Until an operation is complete its destination holds the poison value. A read of this value is not reported: if the
        kernel uses it, the result is wrong. Reductions are not covered, because their destination does not hold the poison
        value before they are performed.
        """
        if write:
            self.shadow.wrote(a)
            return []
        found = []
        for c in self.shadow.earlier_writes(a, "read-after-write"):
            there = self.wave.shared.reshape(-1, self.shadow.unit)[a.cells[c.at]]
            keep = ((c.agents & 0xFFFF) >= self.actors) & ((c.records & STRONG) == 0) & (there != POISON).any(1)
            if keep.any():
                found.append(Conflict(c.what, c.at[keep], c.records[keep], c.agents[keep]))
        return found

    def _differing(self, a: Access, c: Conflict, values: Callable[[], Bytes] | None, together: bool) -> Conflict:
        """The conflict without writes that do not change memory; if ``together``, without equal writes of one instruction."""
        if values is None:
            return c
        unit = self.shadow.unit
        given = values().reshape(-1, unit)
        if together:
            last = np.zeros(len(self.shadow.writes), np.int64)
            last[a.cells] = np.arange(len(a.cells))
            other = given[last[a.cells[c.at]]]
        else:
            other = self.wave.shared.reshape(-1, unit)[a.cells[c.at]]
        keep = (given[c.at] != other).any(1)
        return Conflict(c.what, c.at[keep], c.records[keep], c.agents[keep])

    def flagged(self, x: Selection, addresses: Addresses, ordering: str, write: bool) -> None:
        """Lanes of ``x`` make strong accesses to global memory (addresses, uint64), which may put others in order."""
        if self.ordered:
            rows = self.lanes(x)
            found = np.broadcast_to(addresses, x.shape)
            found = found.reshape(-1) if x.mask is None else found[x.mask]
            clusters = rows // (self.actors * self.clocks.size)
            self._flags.accessed(found.view(np.int64) + (clusters << ADDRESS_BITS), rows, ordering, write)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def fence(self, x: Selection, within_cta: bool = False) -> None:
        """The threads of ``x`` have executed a memory fence, whose scope is ``.cta`` if ``within_cta``."""
        self.clocks.fence(self.rows(x), within_cta)

    def fence_initialisations(self, x: Selection) -> None:
        """The threads of ``x`` have executed fence.mbarrier_init."""
        self.clocks.fence_initialisations(self.rows(x))

    def proxy_fence(self, x: Selection) -> None:
        """The threads of ``x`` have executed fence.proxy.async for shared memory."""
        if self.visibility is not None:
            self.visibility.fence(x, self.rows(x))

    def warps_met(self, groups: Sequence[Selection], masks: Words | None) -> None:
        """Threads of these selections have synchronised at bar.warp.sync, those of one warp with the same member mask.

        Args:
            masks: the member mask of each lane, wave shape; None if all are full.
        """
        if self.clocks.shift == 0:
            rows = np.concatenate([self.rows(x) for x in groups])
            self.clocks.meet_in_warps(rows, None if masks is None else masks.reshape(-1)[rows])
        elif self.visibility is not None:
            self.clocks.joined(np.unique(np.concatenate([self.rows(x) for x in groups])))

    def met(self, x: Selection) -> None:
        """In each CTA, all threads that have not exited have synchronised at a barrier."""
        self.generation += self.clocks.meet(self.rows(x))

    def arrived(self, number: int, x: Selection) -> None:
        """The threads of ``x`` arrive at barrier ``number`` of their CTA."""
        table = self._arrived.get(number)
        if table is None:
            table = self._arrived[number] = self.clocks.table(self.wave.shape[0])
        rows = self.rows(x)
        self.clocks.release(table, rows // self.actors, rows)

    def complete(self, number: int, ctas: Mask, waiting: Mask) -> None:
        """Barrier ``number`` of ``ctas`` has completed; the lanes ``waiting`` (wave shape) continue."""
        table = self._arrived[number]
        actors = waiting.any(-1) if self.clocks.shift else waiting.reshape(len(ctas), -1)
        actors = actors & ctas[:, None]
        rows = np.flatnonzero(actors.reshape(-1))
        self.clocks.acquire(table, rows // self.actors, rows)
        table.clear(ctas)
        self.generation += actors.all(1)

    def cluster_arrived(self, x: Selection, relaxed: bool) -> None:
        """The threads of ``x`` have executed barrier.cluster.arrive."""
        self._cluster.arrived(self.rows(x), relaxed)

    def cluster_complete(self, clusters: Mask) -> None:
        """A phase of barrier.cluster has completed."""
        self._cluster.complete(clusters)

    def cluster_waited(self, x: Selection) -> None:
        """The threads of ``x`` have completed barrier.cluster.wait."""
        rows = self.rows(x)
        self._cluster.waited(rows)
        self.lifetimes.waited(rows)
