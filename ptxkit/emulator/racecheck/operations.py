"""Asynchronous operations and mbarriers in the race check.

An asynchronous operation accesses memory as a separate agent, from its issue until a thread has waited for it:

- Operations that complete on an mbarrier belong to the agent of that mbarrier. Its intervals are the phases of the mbarrier: a
  thread that has waited for a phase has synchronised with the operations that completed in it.
- Operations that complete in groups (``cp.async``, bulk stores, ``wgmma``) belong to an agent of the warp that issued them (of
  the first warp of a warpgroup). Its intervals are the groups.

In all completion modes, accesses are compared at their issue with the clock of the issuing warp.
PTX ISA, "Async Operations", "mbarrier".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index, Mask
from ptxkit.emulator.racecheck.clocks import INTERVAL
from ptxkit.emulator.racecheck.recorder import Recorder
from ptxkit.emulator.racecheck.shadow import STRONG, Access, Conflict
from ptxkit.emulator.simt.asynchronous import MBARRIER
from ptxkit.emulator.simt.hooks import Sources
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarriers import INVALIDATED, Mbarriers

RING = 64
"""The maximum number of groups in flight of a thread for which the ends are recorded."""


class _Groups:
    """The groups of one mechanism.

    Attributes:
        first: number of the agent of the first warp.
        current: (rows,) interval of the operations that are issued now.
        committed: (threads,) number of groups that each thread has committed.
        ends: (rows, RING) interval of the last group with each number, modulo RING.
    """

    def __init__(self, first: int, rows: int, threads: int) -> None:
        self.first = first
        self.current: Index = np.full(rows, INTERVAL, np.int64)
        self.committed: Index = np.zeros(threads, np.int64)
        self.ends: Index = np.zeros((rows, RING), np.int64)


@dataclass(frozen=True)
class _InFlight:
    """Operations of one instruction that complete on mbarriers: their accesses, agents, and the phases as intervals."""

    barriers: Index
    runs: list[tuple[bool, Index, Index]]
    numbers: Index
    intervals: Index


def spread_runs(starts: Index, lengths: Index) -> tuple[Index, Index]:
    """The cells of runs of cells, (n,) each, and the run of each cell."""
    element = np.repeat(np.arange(len(starts)), lengths)
    ends = np.cumsum(lengths)
    return np.arange(len(element)) + np.repeat(starts - (ends - lengths), lengths), element


class Operations:
    """The asynchronous agents and mbarriers of a wave. An mbarrier is identified by its index among the 8-byte words."""

    def __init__(self, races: Recorder) -> None:
        self.races = races
        self.clocks = races.clocks
        self.groups: dict[Mechanism[object], _Groups] = {}
        words = len(races.wave.shared) // 8
        self.words_each = words // races.wave.shape[0]
        self._key_of: NDArray[np.int32] = np.full(words, -1, np.int32)
        self._agent_of: NDArray[np.int32] = np.full(self.words_each, -1, np.int32)
        self._keys = 0
        self._arrived = self.clocks.table(8)
        self._done = self.clocks.table(8)
        # what a wait of the scope .cta acquires of the writes that are seen: not those that threads of other CTAs released
        self._near = (self.clocks.table(8), self.clocks.table(8)) if self.clocks.scoped else None
        self._phase: Index = np.zeros(words, np.int64)
        self._issued: _InFlight | None = None
        self._in_flight: dict[
            int, _InFlight
        ] = {}  # by the identity of the array of mbarriers, which the queue has, too

    # -- groups ------------------------------------------------------------------------------------------------------

    def _of(self, mechanism: Mechanism[object]) -> _Groups:
        g = self.groups.get(mechanism)
        if g is None:
            first = self.clocks.add_agents(self.clocks.actors)
            g = self.groups[mechanism] = _Groups(first, len(self.clocks.interval), int(np.prod(self.races.wave.shape)))
        return g

    def _leader(self, mechanism: Mechanism[object], rows: Index) -> Index:
        """The row to whose agent operations of the actors ``rows`` belong: the first one of a warpgroup."""
        return rows if mechanism.span <= 1 else rows - self.clocks.actor[rows] % self._actors(mechanism)

    def _actors(self, mechanism: Mechanism[object]) -> int:
        """The number of actors that share an agent of the mechanism."""
        return max(mechanism.span * 32 >> self.clocks.shift, 1)

    def commit(self, x: Selection, mechanism: Mechanism[object]) -> None:
        """The threads of ``x`` commit their group."""
        g = self._of(mechanism)
        threads = x.thread[x.active()]
        rows = self._leader(mechanism, threads >> self.clocks.shift)
        g.ends[rows, g.committed[threads] % RING] = g.current[rows]
        g.committed[threads] += 1
        g.current[np.unique(rows)] += INTERVAL

    def wait(self, x: Selection, mechanism: Mechanism[object], newest: int) -> None:
        """The threads of ``x`` have waited for all of their groups except the ``newest`` ones."""
        g = self.groups.get(mechanism)
        if g is None or newest >= RING:
            return
        threads = x.thread[x.active()]
        last = g.committed[threads] - newest
        threads, last = threads[last > 0], last[last > 0]
        rows = threads >> self.clocks.shift
        leaders = self._leader(mechanism, rows)
        self.clocks.learn(rows, g.first + self.clocks.actor[leaders], g.ends[leaders, (last - 1) % RING])

    def grouped(
        self,
        mechanism: Mechanism[object],
        where: Where,
        threads: Index,
        starts: Index,
        sizes: Index,
        write: bool,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads``, (E,), access runs of bytes (E,) of the wave's shared memory and belong to groups."""
        rows = threads >> self.clocks.shift
        g = self._of(mechanism)
        numbers = g.first + self.clocks.actor[rows]
        rank, intervals = self.clocks.rank[rows], g.current[rows]
        self.access(where, threads, starts, sizes, write, rank, numbers, intervals, sources=sources)

    def multiplied(self, mechanism: Mechanism[object], where: Where, owners: Index, chunks: Index) -> None:
        """Matrix products of warpgroups with the first threads ``owners``, (E,), read 16-byte units, (E, n)."""
        races, clocks = self.races, self.clocks
        rows = owners >> self.clocks.shift
        g = self._of(mechanism)
        # all four warps read the tile, so that each must be ordered after its writes
        views = clocks.now.flat[rows[:, None] + np.arange(self._actors(mechanism))].min(1)
        element = np.repeat(np.arange(len(owners)), chunks.shape[1])
        cells, parts = races.shadow.spread(chunks.reshape(-1), 16)
        element = np.repeat(element, parts)
        leaders = rows[element]
        record = g.current[leaders] | races.site(where)
        a = Access(cells, element, views, clocks.rank[leaders], g.first + clocks.actor[leaders], record, None)
        found = races.compare(a, False) + self._unseen(a)
        if found:
            races.report(where, a, found, owners[element])

    # -- mbarriers ---------------------------------------------------------------------------------------------------

    def initialised(self, x: Selection, where: Where, index: Index) -> None:
        """mbarrier.init, a plain write."""
        self.races.touch(x, where, np.broadcast_to(index, x.shape)[x.active()], 8, True, initialises=True)

    def invalidated(self, x: Selection, where: Where, index: Index) -> None:
        """mbarrier.inval, a plain write. All threads write the same value, so that several of them are no race."""
        words = np.broadcast_to(index, x.shape)[x.active()]
        values = np.full(len(words), INVALIDATED, np.uint64).view(np.uint8).reshape(-1, 8)
        self.races.touch(x, where, words, 8, True, values=lambda: values)

    def arrived(self, x: Selection, where: Where, index: Index, relaxed: bool, within_cta: bool) -> None:
        """The threads of ``x`` arrive; the scope is ``.cta`` if ``within_cta``."""
        rows, at = self.races.per_actor(x, index)
        self._used(where, rows, at, recorded=not relaxed)
        self.races.remote_barriers(where, rows, at)
        keys = self._keys_of(at)
        if not (relaxed or self._near):
            self.clocks.release(self._arrived, keys, rows)
            return
        near = at // self.words_each == rows // self.clocks.actors  # only threads of the mbarrier's CTA wait at it
        also = self._near[0] if self._near else None
        self.clocks.release(self._arrived, keys[near], rows[near], relaxed, True, also)
        far, its = rows[~near], keys[~near]
        if within_cta and not relaxed:
            self.clocks.release_order(self._arrived, its, far)
        else:
            self.clocks.release(self._arrived, its, far, relaxed, False)

    def used(self, x: Selection, where: Where, index: Index) -> None:
        """The threads of ``x`` change the tx-count, which puts nothing in order."""
        rows, at = self.races.per_actor(x, index)
        self._used(where, rows, at)
        self.races.remote_barriers(where, rows, at)

    def waited(self, x: Selection, where: Where, index: Index, done: Mask, relaxed: bool, within_cta: bool) -> None:
        """The lanes ``done`` have observed that a phase is complete; the scope is ``.cta`` if ``within_cta``."""
        self._used(where, *self.races.per_actor(x, index))
        if not done.any():
            return
        rows, at = self.races.per_actor(x, index, None if done.all() else done)
        keys = self._keys_of(at)
        if within_cta and self._near and not relaxed:
            self.clocks.acquire_order(self._done, self._near[1], keys, rows)
        else:
            self.clocks.acquire(self._done, keys, rows, relaxed)

    def phase_over(self, at: Index) -> None:
        """The current phase of the distinct mbarriers ``at`` is complete."""
        keys = self._keys_of(at)
        tables = [(self._arrived, self._done), *([self._near] if self._near else [])]
        for arrived, done in tables:
            done.merge(keys, arrived, keys)
            arrived.clear(keys)
        self._phase[at] += 1
        self._postpone(at)
        agents = self._agent_of[at % self.words_each]
        some = agents >= 0
        if some.any():
            at, keys, agents = at[some], keys[some], agents[some]
            for _, done in tables:
                done.raise_(keys, self._rank(at), agents.astype(np.int64), self._phase[at] * INTERVAL)

    def completing(
        self,
        where: Where,
        threads: Index,
        at: Index,
        runs: list[tuple[bool, Index, Index]],
        strong: bool = False,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads``, (E,), complete on the mbarriers ``at``.

        Args:
            runs: what they access: (written, starts, sizes), in bytes of the wave's shared memory.
            strong: they update their destination atomically.
            sources: see :data:`~ptxkit.emulator.simt.hooks.Sources`.
        """
        rows = threads >> self.clocks.shift
        numbers, intervals = self._agents(at), (self._phase[at] + 1) * INTERVAL
        self._require(where, rows, at, threads)
        self._record_use(where, rows, at, self._rank(at), numbers, intervals)
        if self.clocks.size > 1:  # the mbarrier, which may be in another CTA than the bytes
            self._note_remote(threads, at * 8, self._rank(at), numbers, intervals | self.races.site(where))
        for write, starts, sizes in runs:
            update, rank = strong and write, self._rank(at)
            self.access(where, threads, starts, sizes, write, rank, numbers, intervals, update, sources=sources)
        self._passed_on(at, rows)
        self._issued = _InFlight(at, [*runs, (False, at * 8, np.full(1, 8))], numbers, intervals)
        if not self.races.wave.queue.eager:
            self._in_flight[id(at)] = self._issued

    def _postpone(self, at: Index) -> None:
        """Move the operations that the complete phase of the mbarriers ``at`` did not require to the next phase.

        A phase completes without some of the copies that were issued in it if ``expect_tx`` has announced fewer bytes.
        """
        if not self._in_flight:
            return
        queue = self.races.wave.queue
        for barriers, elements in queue.of(MBARRIER).waiting_on(at):
            operation = self._in_flight.get(id(barriers))
            if operation is not None:
                self._move(operation, elements)
        left = {id(o.barrier) for o in queue.of(MBARRIER).operations}
        self._in_flight = {key: o for key, o in self._in_flight.items() if key in left}

    def left_over(self, at: Index, which: Index) -> None:
        """Of operations on the mbarriers ``at``, which complete now, those at ``which`` count for a later phase."""
        issued = self._issued
        if issued is not None and np.array_equal(issued.barriers, at):
            self._move(issued, which)

    def _move(self, operation: _InFlight, elements: Index) -> None:
        """Move elements of an operation to the current phases of their mbarriers."""
        moved = (self._phase[operation.barriers[elements]] + 1) * INTERVAL
        for write, starts, sizes in operation.runs:
            unit = self.races.shadow.unit
            cells, element = spread_runs(
                starts[elements] // unit, np.broadcast_to(sizes, starts.shape)[elements] // unit
            )
            k = elements[element]
            rank = self._rank(operation.barriers[k])
            self.races.shadow.postpone(cells, write, rank, operation.numbers[k], operation.intervals[k], moved[element])
        operation.intervals[elements] = moved

    def arrive_after(self, mechanism: Mechanism[object], x: Selection, where: Where, index: Index) -> None:
        """cp.async.mbarrier.arrive, tcgen05.commit: an arrival when all earlier operations of the thread are complete.

        The arrivals of a thread are regarded as in order: a later one that is observed shows that this one has been made.
        """
        rows, at = self.races.per_actor(x, index)
        self._require(where, rows, at)
        g = self._of(mechanism)
        keys, agents, current = self._keys_of(at), g.first + self.clocks.actor[rows], g.current[rows]
        self._record_use(where, rows, at, self.clocks.rank[rows], agents, current)
        for table in (self._arrived, *(self._near[:1] if self._near else ())):
            table.raise_(keys, self.clocks.rank[rows], agents, current)
        g.current[np.unique(rows)] += INTERVAL
        if self.clocks.size > 1:  # the arrival itself, which a CTA that has the mbarrier must not exit before
            record = current | self.races.site(where)
            self._note_remote(rows << self.clocks.shift, at * 8, self.clocks.rank[rows], agents, record)
        self._passed_on(at, rows)

    def issued(self, mechanism: Mechanism[object], threads: Index) -> tuple[Index, Index]:
        """Agents and intervals of operations that ``threads``, (E,), issue now."""
        rows = threads >> self.clocks.shift
        g = self._of(mechanism)
        return g.first + self.clocks.actor[rows], g.current[rows]

    def _passed_on(self, at: Index, rows: Index) -> None:
        """Order threads that wait for an operation after the earlier accesses of the thread that issued it."""
        self.clocks.release(self._arrived, self._keys_of(at), rows, also=self._near[0] if self._near else None)

    def _rank(self, at: Index) -> Index:
        return at // self.words_each % self.clocks.size

    def _keys_of(self, at: Index) -> Index:
        new = np.unique(at[self._key_of[at] < 0])
        if len(new):
            self._key_of[new] = self._keys + np.arange(len(new))
            self._keys += len(new)
            for table in (self._arrived, self._done, *(self._near or ())):
                table.lengthen(self._keys)
        return self._key_of[at].astype(np.int64)

    def _agents(self, at: Index) -> Index:
        """Number of each mbarrier's agent in its CTA; the same for mbarriers at the same address of several CTAs."""
        offsets = at % self.words_each
        new = np.unique(offsets[self._agent_of[offsets] < 0])
        if len(new):
            self._agent_of[new] = self.clocks.add_agents(len(new)) + np.arange(len(new))
        return self._agent_of[offsets].astype(np.int64)

    def _used(self, where: Where, rows: Index, at: Index, recorded: bool = True) -> None:
        """Threads use mbarriers: after their initialisation, and before they are invalidated or their bytes are used again.

        Args:
            recorded: what follows is checked. Relaxed arrivals are not recorded, because a thread that waits for their phase
                observes them, although it does not synchronise with them.
        """
        self._require(where, rows, at)
        if recorded:
            clocks = self.clocks
            self._record_use(where, rows, at, clocks.rank[rows], clocks.actor[rows], clocks.interval[rows], True)

    def _require(self, where: Where, rows: Index, at: Index, threads: Index | None = None) -> None:
        """A thread that uses an mbarrier must have synchronised with its initialisation."""
        races, clocks = self.races, self.clocks
        if races.hazards.copies_only:
            return
        cells, parts = races.shadow.spread(at, 8)
        rows = np.repeat(rows, parts)
        zero = np.zeros(len(cells), np.int64)
        generation = self._generation(np.repeat(at, parts), rows)
        a = Access(cells, rows, clocks.now.flat, zero, zero, zero, generation, True)
        found = races.shadow.earlier_writes(a, "read-after-write", visible=False)
        if found:
            races.report(where, a, found, rows << self.clocks.shift if threads is None else np.repeat(threads, parts))

    def _record_use(
        self, where: Where, rows: Index, at: Index, rank: Index, numbers: Index, intervals: Index, actors: bool = False
    ) -> None:
        """Record that agents (``rank``, ``numbers``) use mbarriers, as atomic accesses, which do not race with each other.

        Args:
            actors: the agents are the actors ``rows`` themselves.
        """
        races = self.races
        if races.hazards.copies_only or not len(at):
            return
        cells, parts = races.shadow.spread(at, 8)
        rank, numbers, intervals, rows, at = (np.repeat(v, parts) for v in (rank, numbers, intervals, rows, at))
        generation = self._generation(at, rows) if actors else None
        record = intervals | races.site(where) | STRONG
        races.shadow.was_read(Access(cells, rows, self.clocks.now.flat, rank, numbers, record, generation, True))

    def _generation(self, at: Index, rows: Index) -> NDArray[np.int32] | None:
        """The generation of accesses by actors to mbarriers; None if some are in other CTAs."""
        cta = rows // self.clocks.actors
        if self.clocks.size > 1 and (at // self.words_each != cta).any():
            return None
        return self.races.generation[cta]

    # -- both --------------------------------------------------------------------------------------------------------

    def access(
        self,
        where: Where,
        threads: Index,
        starts: Index,
        sizes: Index,
        write: bool,
        rank: Index,
        number: Index,
        interval: Index,
        strong: bool = False,
        generic: bool = False,
        sources: Sources | None = None,
    ) -> None:
        """Agents (``rank``, ``number``), started by ``threads``, access runs of bytes; all (E,), sizes also (1,).

        Args:
            generic: they are threads, or read through the generic proxy.
            sources: see :data:`~ptxkit.emulator.simt.hooks.Sources`.
        """
        races = self.races
        shadow = races.shadow
        sizes = np.broadcast_to(sizes, starts.shape)
        shadow.split(int(np.gcd.reduce(np.concatenate((sizes, starts, [16])))))
        cells, element = spread_runs(starts // shadow.unit, sizes // shadow.unit)
        low = races.site(where) | (STRONG if strong else 0)
        record = interval[element] | low
        if self.clocks.size > 1:
            self._note_remote(threads, starts, rank, number, interval | low)
        rows = threads[element] >> self.clocks.shift
        lanes = threads[element] & 31 if generic and write else None
        a = Access(cells, rows, self.clocks.now.flat, rank[element], number[element], record, None, strong, lanes)
        found = races.compare(a, write)
        if not (write or generic):
            found += self._unseen(a)
        if write and not (generic or strong or races.hazards.copies_only) and len(starts) > 1:
            lengths = sizes // shadow.unit
            found += self._together(a, starts, sizes, np.cumsum(lengths) - lengths, sources)
        if found:
            races.report(where, a, found, threads[element])

    def _together(
        self, a: Access, starts: Index, sizes: Index, first: Index, sources: Sources | None
    ) -> list[Conflict]:
        """Writes of the same bytes by operations of one agent and one instruction, as which ``a`` has been recorded.

        Those by different agents are found when ``a`` is recorded.

        Args:
            starts, sizes: (E,) the bytes of each operation.
            first: (E,) index in ``a`` of the first cell of each operation.
        """
        order = np.argsort(starts, kind="stable")
        order = order[sizes[order] > 0]
        reached = np.maximum.accumulate(starts[order] + sizes[order])
        later = np.flatnonzero(starts[order[1:]] < reached[:-1]) + 1
        if not len(later):
            return []
        ends = starts[order] + sizes[order]
        farthest = np.maximum.accumulate(np.where(ends == reached, np.arange(len(order)), 0))
        early, late = order[farthest[later - 1]], order[later]
        early, late = np.minimum(early, late), np.maximum(early, late)
        same = (a.number[first[early]] == a.number[first[late]]) & (a.rank[first[early]] == a.rank[first[late]])
        if sources is not None:
            given = sources()
            same &= (
                (starts[early] != starts[late]) | (sizes[early] != sizes[late]) | (given[early] != given[late]).any(1)
            )
        early, late = first[early[same]], first[late[same]]
        if not len(late):
            return []
        return [Conflict("write-after-write", late, a.record[early], a.rank[early] << 16 | a.number[early])]

    def _unseen(self, a: Access) -> list[Conflict]:
        """Writes that the operation reads through the async proxy and may not see."""
        visibility = self.races.visibility
        unseen = None if visibility is None else visibility.unseen(a)
        return [] if unseen is None else [unseen]

    def generic(self, numbers: Index) -> Mask:
        """Which agents, by their numbers in a CTA, access memory through the generic proxy: actors, and some mechanisms."""
        found: Mask = numbers < self.clocks.actors
        for mechanism, g in self.groups.items():
            if mechanism.generic_proxy:
                found |= (numbers >= g.first) & (numbers < g.first + self.clocks.actors)
        return found

    def _note_remote(
        self,
        threads: NDArray[np.int64],
        starts: NDArray[np.int64],
        rank: NDArray[np.int64],
        number: NDArray[np.int64],
        record: NDArray[np.int64],
    ) -> None:
        """Record accesses to a CTA by a thread of another CTA, or by operations that complete on an mbarrier of another CTA."""
        home, address = np.divmod(starts, self.races.wave.shared_stride)
        issuer = threads // (self.races.wave.shape[1] * 32)
        elsewhere = (home != issuer) | (home % self.clocks.size != rank)
        if elsewhere.any():
            rows = threads >> self.clocks.shift
            chosen = (v[elsewhere] for v in (rows, home, address, rank, number, record))
            self.races.lifetimes.accessed(*chosen)

    def describe(self, number: int) -> tuple[str, str]:
        """The text that names an asynchronous agent, and the one that states how to wait for it."""
        for mechanism, g in self.groups.items():
            if g.first <= number < g.first + self.clocks.actors:
                return mechanism.operation.format(self.races.name(number - g.first)), mechanism.wait
        offset = int(np.flatnonzero(self._agent_of == number)[0])
        name = self.races.wave.part(Mbarriers).name(offset)
        return f"a copy that completes on {name}", "wait for that phase of it (mbarrier.try_wait)"
