"""Vector clocks: which accesses of other warps happened before the next access of each warp.

An *agent* accesses shared memory: it is an actor, or asynchronous operations that an actor has issued. An *actor* is a warp,
or a thread with ``--racecheck-lanes``. The time of an agent is divided into intervals, each of which ends at a release, where
others can synchronise with the agent. The clock of an actor contains, for every agent of its cluster, the last interval whose
accesses happened before the actor's next access (Flanagan and Freund, "FastTrack", 2009; PTX ISA, "Memory Consistency Model",
causality order).

Kernels that use tensor memory have further clocks for each actor, because ``.relaxed`` arrivals and waits order tcgen05
instructions together with tcgen05.fence (PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations"):

- :data:`TENSOR`: the tcgen05 instructions that are ordered before the actor's next one. It contains the order of memory.
- :data:`FENCED`: those after which a tcgen05.fence::before_thread_sync was executed, if any synchronisation leads from there to
  the actor. A tcgen05.fence::after_thread_sync of the actor adds them to its TENSOR clock.
- :data:`EXECUTED`: all that any synchronisation puts before the actor, with or without fences.

In clusters whose threads arrive at mbarriers of other CTAs, the order of memory accesses has a further plane, with the writes
that the actor sees. It contains less than the order where CTAs have synchronised by arrivals or waits of the scope ``.cta``
(:meth:`Clocks.release_order`).

Intervals are multiples of :data:`INTERVAL`, so that their low bits are 0. A record of an access has the number of the
instruction in these bits, and a clock has all :data:`LOW` bits set. A record is therefore ordered before an actor if it is at
most the actor's clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index, Mask, Words
from ptxkit.emulator.simt.threads import WaveState

INTERVAL = 1 << 21
"""The difference between consecutive intervals of an agent."""
LOW = INTERVAL - 1

TENSOR, FENCED, EXECUTED = 1, 2, 3
"""The parts of a table after the order of memory accesses, which is part 0."""

ALL = slice(None)
WITH_FENCES, WITHOUT_FENCES = slice(0, FENCED), slice(FENCED, None)
"""The parts for which a relaxed operation synchronises only together with a memory fence, and the others."""

Rows = NDArray[np.int64]
"""(n,): actors of the wave, each as index of its CTA * actors of a CTA + index of the actor in the CTA."""


class Table:
    """An array of clocks, one in each row: (rows, CTAs of a cluster, agents of a CTA).

    Attributes:
        parts: the table itself, and in kernels that use tensor memory those of :data:`TENSOR`, :data:`FENCED` and
            :data:`EXECUTED`.
        data: with ``proxied``, the order of memory accesses has a second plane, whose CTAs follow those of the first one; with
            ``scoped``, the last plane has the writes that are seen.
        seen: number of CTAs before those of that last plane; 0 without it.
    """

    def __init__(
        self, rows: int, size: int, width: int, tensor: bool = False, proxied: bool = False, scoped: bool = False
    ) -> None:
        self.data: NDArray[np.int64] = np.zeros((rows, size * (1 + proxied + scoped), width), np.int64)
        self.seen = size * (1 + proxied) if scoped else 0
        self.parts: tuple[Table, ...] = (self,)
        if tensor:
            self.parts += tuple(Table(rows, size, width) for _ in (TENSOR, FENCED, EXECUTED))

    @property
    def flat(self) -> NDArray[np.int64]:
        """(rows, agents of the cluster), as a view."""
        return self.data.reshape(len(self.data), -1)

    def widen(self, width: int) -> None:
        """Extend the clocks for more agents of a CTA."""
        for t in self.parts:
            t.data = np.pad(t.data, ((0, 0), (0, 0), (0, width - t.data.shape[2])))

    def lengthen(self, rows: int) -> None:
        """Extend the table to at least this number of rows."""
        if rows > len(self.data):
            more = max(rows, 2 * len(self.data)) - len(self.data)
            for t in self.parts:
                t.data = np.pad(t.data, ((0, more), (0, 0), (0, 0)))

    def clear(self, keys: Index | Mask) -> None:
        """Set the clocks ``keys``, (n,) or (rows,) bool, to those in which no access is ordered."""
        for t in self.parts:
            t.data[keys] = 0

    def copy(self, keys: Index | Mask, other: Table) -> None:
        """Set the clocks ``keys``, (n,) or (rows,) bool, to the clocks in the same rows of ``other``."""
        for mine, its in zip(self.parts, other.parts, strict=True):
            mine.data[keys] = its.data[keys]

    def raise_(self, keys: Index, rank: Index, agents: Index, intervals: Index) -> None:
        """Order the accesses of agents up to ``intervals`` before the clocks ``keys``; (n,) each, keys may repeat."""
        for t in self.parts:
            np.maximum.at(t.data, (keys, rank, agents), intervals | LOW)
        if self.seen:
            np.maximum.at(self.data, (keys, rank + self.seen, agents), intervals | LOW)

    def merge(
        self, keys: NDArray[np.int64], known: Table, rows: Rows, parts: slice = ALL, unseen: bool = False
    ) -> None:
        """Merge the clocks ``rows``, (n,), of ``known`` into the clocks ``keys``, (n,), of this table; keys may repeat.

        Args:
            unseen: without the plane of the writes that are seen.
        """
        for mine, its in zip(self.parts[parts], known.parts[parts], strict=True):
            mine._merge(keys, its, rows, slice(mine.seen * mine.data.shape[2] if unseen and mine.seen else None))

    def merge_seen(self, keys: NDArray[np.int64], known: Table, rows: Rows) -> None:
        """As :meth:`merge`, but for the plane of the writes that are seen alone."""
        self._merge(keys, known, rows, slice(self.seen * self.data.shape[2], None))

    def _merge(self, keys: NDArray[np.int64], other: Table, rows: Rows, columns: slice) -> None:
        flat, known = self.flat[:, columns], other.flat[:, columns]
        runs = _runs(keys, rows)
        if runs is not None:  # in place, because the clocks of thousands of threads are too large for copies
            for first, last in runs:
                target, source = flat[keys[first] : keys[last] + 1], known[rows[first] : rows[last] + 1]
                if len(target) < len(source):
                    source = source.max(0, keepdims=True)
                np.maximum(target, source, out=target)
            return
        order = np.argsort(keys, kind="stable")
        sorted_ = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], sorted_[1:] != sorted_[:-1])))
        best = np.maximum.reduceat(known[rows[order]], starts, axis=0)
        at = sorted_[starts]
        flat[at] = np.maximum(flat[at], best)


def _runs(keys: NDArray[np.int64], rows: Rows) -> list[tuple[int, int]] | None:
    """First and last index of the runs in which each of ``keys`` and ``rows`` is constant or ascends by 1.

    All runs are of the same kind: one key for ascending rows, ascending keys for one row, or both ascending. None if they are
    too short for a loop to be faster.
    """
    n = len(keys)
    if n < 2:
        return [(0, 0)] * n
    by_key, by_row = np.diff(keys), np.diff(rows)
    kinds = np.where((by_key >> 1 | by_row >> 1) == 0, by_key << 1 | by_row, 4)  # steps of 0 and 1 have no higher bits
    kind = int(np.bincount(kinds, minlength=5)[:4].argmax())
    ends = np.flatnonzero(kinds != kind)
    if len(ends) * 8 > n:
        return None
    return list(zip([0, *(ends + 1).tolist()], [*ends.tolist(), n - 1], strict=True))


class Clocks:
    """The clocks of a wave's actors.

    Args:
        lanes: an actor is a thread, not a warp.
        tensor: the order of tcgen05 instructions is followed, too.
        proxied: the order of memory accesses has a second plane, for proxy fences
            (:mod:`ptxkit.emulator.racecheck.visibility`).
        scoped: in clusters, the order of memory accesses has a plane of the writes that actors see.
        initialisers: mbarrier.init is an access of an agent of its own for each actor, so that fence.mbarrier_init can be
            distinguished from other fences.

    Attributes:
        actors: of a CTA; ``shift``: bits from a thread's index to its actor's.
        actors_and_initialisers: number of a CTA's agents that are threads or warps, not asynchronous operations.
        now: the clock of each actor.
        interval: (rows,) the current interval of each actor.
        rank, actor: (rows,) the CTA's rank in its cluster, and the actor in its CTA.
        initialiser: (rows,) the agent of each actor's mbarrier.init; the actor itself if they are not distinguished.
    """

    def __init__(
        self,
        wave: WaveState,
        lanes: bool = False,
        tensor: bool = False,
        initialisers: bool = False,
        proxied: bool = False,
        scoped: bool = False,
    ) -> None:
        self.ctas, warps, _ = wave.shape
        self.shift = 0 if lanes else 5
        self.actors = warps * 32 >> self.shift
        self.size = wave.launch.cluster_size
        rows = self.ctas * self.actors
        self.agents = self.width = self.actors_and_initialisers = self.actors * (1 + initialisers)
        self.tensor = tensor
        self.proxied = proxied
        self.scoped = scoped and self.size > 1
        self.tables: list[Table] = []
        self.now = self.table(rows)
        self.rank: Rows = np.repeat(wave.cluster_rank, self.actors)
        self.actor: Rows = np.tile(np.arange(self.actors, dtype=np.int64), self.ctas)
        self.initialiser: Rows = self.actor + self.actors if initialisers else self.actor
        self._own = (self.actor, self.initialiser) if initialisers else (self.actor,)
        self.interval: NDArray[np.int64] = np.zeros(rows, np.int64)
        # for each warp, what of its own accesses happened before its last synchronisation: see proxy_fence
        self._joined: NDArray[np.int64] = np.zeros(rows if proxied and not lanes else 0, np.int64)
        self._fenced: dict[bool, Table] = {}
        self._held: dict[bool, Table] = {}  # by whether a fence of the scope .cta suffices
        self.tick(np.arange(rows))

    def table(self, rows: int) -> Table:
        """A new table of clocks, in which no access is ordered."""
        made = self._gathering(rows)
        self.tables.append(made)
        return made

    def _gathering(self, rows: int) -> Table:
        """A table that is used before any agent is added."""
        return Table(rows, self.size, self.width, self.tensor, self.proxied, self.scoped)

    def add_agents(self, count: int) -> int:
        """``count`` more agents in every CTA; returns the number of the first."""
        first = self.agents
        self.agents += count
        if self.agents > self.width:
            self.width = max(self.agents, self.width * 3 // 2)
            for t in self.tables:
                t.widen(self.width)
        return first

    # -- actors ------------------------------------------------------------------------------------------------------

    @property
    def has_fenced(self) -> bool:
        """Whether any thread has executed a fence, so that relaxed accesses can synchronise."""
        return bool(self._fenced)

    @property
    def seen(self) -> int:
        """The number of columns of a clock before those of the writes that the actor sees; 0 if it sees all in its order."""
        return self.now.seen * self.width

    def tick(self, rows: Rows) -> None:
        """Begin a new interval for ``rows``, (n,) distinct: no other actor has synchronised with it."""
        self.interval[rows] += INTERVAL
        if self.scoped:
            for agent in self._own:
                self.now.data[rows, self.rank[rows] + self.now.seen, agent[rows]] = self.interval[rows] | LOW
        for t in self.now.parts[WITH_FENCES] + self.now.parts[EXECUTED:]:
            for agent in self._own:
                t.data[rows, self.rank[rows], agent[rows]] = self.interval[rows] | LOW

    def release(
        self,
        into: Table,
        keys: NDArray[np.int64],
        rows: Rows,
        relaxed: bool = False,
        within_cta: bool = True,
        also: Table | None = None,
    ) -> None:
        """Release: merge the clocks of ``rows`` into the rows ``keys`` of ``into``.

        Args:
            relaxed: take the clocks at the last fence of each actor.
            within_cta: a fence of the scope ``.cta`` counts, because only threads of the same CTA acquire the clocks.
            also: a second table into which they are merged.
        """
        targets = (into,) if also is None else (into, also)
        if relaxed:
            if within_cta in self._fenced:
                for target in targets:
                    target.merge(keys, self._fenced[within_cta], rows, WITH_FENCES)
            if self.tensor:
                for target in targets:
                    target.merge(keys, self.now, rows, WITHOUT_FENCES)
                self.tick(np.unique(rows))
            return
        for target in targets:
            target.merge(keys, self.now, rows)
        self.tick(np.unique(rows))

    def release_order(self, into: Table, keys: NDArray[np.int64], rows: Rows) -> None:
        """A release of the scope ``.cta`` for threads of other CTAs.

        It shows that the earlier accesses of the actors have been performed, so that their places may be written again. It
        makes no writes visible, except those before the last fence of the scope ``.cluster`` of each actor.
        """
        into.merge(keys, self.now, rows, unseen=True)
        if False in self._fenced:
            into.merge_seen(keys, self._fenced[False], rows)
        self.tick(np.unique(rows))

    def acquire(
        self, source: Table, keys: NDArray[np.int64], rows: Rows, relaxed: bool = False, within_cta: bool = True
    ) -> None:
        """Acquire: merge the rows ``keys`` of ``source`` into the clocks of ``rows``; if ``relaxed``, at their next fence.

        Args:
            within_cta: threads of the same CTA have released them, so that a fence of the scope ``.cta`` suffices.
        """
        if relaxed:
            if within_cta not in self._held:
                self._held[within_cta] = self.table(len(self.interval))
            self._held[within_cta].merge(rows, source, keys, WITH_FENCES)
            self.now.merge(rows, source, keys, WITHOUT_FENCES)
            return
        if len(self._joined):
            self._join(rows, source.flat[keys, self._columns(rows)])
        self.now.merge(rows, source, keys)

    def acquire_order(self, source: Table, near: Table, keys: NDArray[np.int64], rows: Rows) -> None:
        """An acquire of the scope ``.cta``: what other CTAs have written is seen from the next fence of a wider scope on.

        Args:
            source, near: what all threads have released, and what those of the own CTA have.
        """
        if len(self._joined):
            self._join(rows, source.flat[keys, self._columns(rows)])
        self.now.merge(rows, source, keys, unseen=True)
        self.now.merge_seen(rows, near, keys)
        if False not in self._held:
            self._held[False] = self.table(len(self.interval))
        self._held[False].merge_seen(rows, source, keys)

    def fence(self, rows: Rows, within_cta: bool = False) -> None:
        """A fence by the actors ``rows``, (n,) distinct, by which relaxed accesses synchronise. PTX ISA, "membar, fence".

        Args:
            within_cta: its scope is ``.cta``.
        """
        for narrow, held in self._held.items():
            if narrow or not within_cta:
                if len(self._joined):
                    self._join(rows, held.flat[rows, self._columns(rows)])
                self.now.merge(rows, held, rows, WITH_FENCES)
        for fenced in self._fences(within_cta):
            fenced.copy(rows, self.now)
        self.tick(rows)

    def fence_initialisations(self, rows: Rows) -> None:
        """fence.mbarrier_init by ``rows``, (n,) distinct: a release of the mbarrier.init of the same threads only."""
        for fenced in self._fences(False):
            fenced.raise_(rows, self.rank[rows], self.initialiser[rows], self.interval[rows])
        self.tick(rows)

    def fence_tensor(self, rows: Rows, before: bool) -> None:
        """tcgen05.fence::before_thread_sync by ``rows``, (n,) distinct, or ::after_thread_sync if not ``before``."""
        _, ordered, fenced, _ = self.now.parts
        target, source = (fenced, ordered) if before else (ordered, fenced)
        target.merge(rows, source, rows)
        if before:
            self.tick(rows)

    def _fences(self, within_cta: bool) -> list[Table]:
        """The clocks at the last fence of each actor: for threads of its CTA, and if the scope is wider, for all."""
        if not self._fenced:
            self._fenced = {narrow: self.table(len(self.interval)) for narrow in (True, False)}
        return [self._fenced[True]] if within_cta else list(self._fenced.values())

    def meet(self, rows: Rows) -> NDArray[np.bool_]:
        """Synchronise the actors ``rows``, (n,) distinct, within each CTA. Returns (CTAs,) bool: all actors took part."""
        if len(rows) == len(self.interval):
            for t in self.now.parts:
                together = t.data.reshape(self.ctas, self.actors, -1)
                together[:] = together.max(1, keepdims=True)
            whole = np.ones(self.ctas, np.bool_)
        else:
            cta = rows // self.actors
            gathered = self._gathering(self.ctas)
            gathered.merge(cta, self.now, rows)
            self.now.merge(rows, gathered, cta)
            whole = np.bincount(cta, minlength=self.ctas) == self.actors
        self.joined(rows)
        return whole

    def meet_in_warps(self, rows: Rows, masks: Words | None = None) -> None:
        """Synchronise threads within each warp, or those with the same member mask within each warp.

        Args:
            masks: (n,) the member mask of each thread; None if all are full.
        """
        warps = rows >> 5
        _, which = np.unique(warps if masks is None else warps << 32 | masks, return_inverse=True)
        gathered = self._gathering(int(which.max(initial=0)) + 1)
        gathered.merge(which, self.now, rows)
        self.now.merge(rows, gathered, which)
        self.tick(rows)

    def joined(self, rows: Rows) -> None:
        """The lanes of the actors ``rows``, (n,) distinct, have synchronised with each other."""
        if len(self._joined):
            self._join(rows, self.interval[rows] | LOW)
        self.tick(rows)

    def _columns(self, rows: Rows) -> NDArray[np.int64]:
        """The columns of the actors ``rows``."""
        return self.rank[rows] * self.width + self.actor[rows]

    def _join(self, rows: Rows, known: NDArray[np.int64]) -> None:
        """All lanes of the warps ``rows``, (n,), are ordered after what these wrote up to ``known``."""
        np.maximum.at(self._joined, rows, known)

    def proxy_fence(self, rows: Rows, whole: Mask | None = None) -> None:
        """A proxy fence by the actors ``rows``, (n,) distinct.

        Args:
            whole: (n,) whether all lanes of the warp execute it; None if all do, or actors are threads.
        """
        now = self.now.flat
        half = self.size * self.width
        known = now[rows, :half]
        if whole is not None and not whole.all():
            own = self._columns(rows)
            some = np.flatnonzero(~whole)
            known[some, own[some]] = np.maximum(self._joined[rows[some]], now[rows[some], half + own[some]])
        now[rows, half : 2 * half] = known
        self.tick(rows)

    def learn(self, rows: Rows, agents: NDArray[np.int64], intervals: NDArray[np.int64]) -> None:
        """Order the accesses of agents of an actor's own CTA, up to ``intervals``, before ``rows``; (n,) each."""
        self.now.raise_(rows, self.rank[rows], agents, intervals)
