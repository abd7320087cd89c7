"""Vector clocks: which accesses of other warps happened before the next access of each warp.

An *agent* accesses shared memory: it is an actor, or asynchronous operations that an actor has issued. An *actor* is a warp,
or a thread with ``--racecheck-lanes``. The time of an agent is divided into intervals, each of which ends at a release, where
others can synchronise with the agent. The clock of an actor contains, for every agent of its cluster, the last interval whose
accesses happened before the actor's next access (Flanagan and Freund, "FastTrack", 2009; PTX ISA, "Memory Consistency Model",
causality order).

Intervals are multiples of :data:`INTERVAL`, so that their low bits are 0. A record of an access has the number of the
instruction in these bits, and a clock has all :data:`LOW` bits set. A record is therefore ordered before an actor if it is at
most the actor's clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Words
from ptxkit.emulator.simt.threads import WaveState

INTERVAL = 1 << 21
"""The difference between consecutive intervals of an agent."""
LOW = INTERVAL - 1

Rows = NDArray[np.int64]
"""(n,): actors of the wave, each as index of its CTA * actors of a CTA + index of the actor in the CTA."""


class Table:
    """An array of clocks, one in each row: (rows, CTAs of a cluster, agents of a CTA)."""

    def __init__(self, rows: int, size: int, width: int) -> None:
        self.data: NDArray[np.int64] = np.zeros((rows, size, width), np.int64)

    @property
    def flat(self) -> NDArray[np.int64]:
        """(rows, agents of the cluster), as a view."""
        return self.data.reshape(len(self.data), -1)

    def widen(self, width: int) -> None:
        """Extend the clocks for more agents of a CTA."""
        self.data = np.pad(self.data, ((0, 0), (0, 0), (0, width - self.data.shape[2])))

    def lengthen(self, rows: int) -> None:
        """Extend the table to at least this number of rows."""
        if rows > len(self.data):
            self.data = np.pad(self.data, ((0, max(rows, 2 * len(self.data)) - len(self.data)), (0, 0), (0, 0)))

    def merge(self, keys: NDArray[np.int64], known: NDArray[np.int64], rows: Rows) -> None:
        """Merge the clocks ``rows``, (n,), of ``known`` into the clocks ``keys``, (n,), of this table; keys may repeat.

        Args:
            known: (..., agents), no view of this table.
        """
        flat = self.flat
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

    Attributes:
        actors: of a CTA; ``shift``: bits from a thread's index to its actor's.
        now: the clock of each actor.
        interval: (rows,) the current interval of each actor.
        rank, actor: (rows,) the CTA's rank in its cluster, and the actor in its CTA.
    """

    def __init__(self, wave: WaveState, lanes: bool = False) -> None:
        self.ctas, warps, _ = wave.shape
        self.shift = 0 if lanes else 5
        self.actors = warps * 32 >> self.shift
        self.size = wave.launch.cluster_size
        rows = self.ctas * self.actors
        self.agents = self.actors
        self.width = self.actors
        self.tables: list[Table] = []
        self.now = self.table(rows)
        self.rank: Rows = np.repeat(wave.cluster_rank, self.actors)
        self.actor: Rows = np.tile(np.arange(self.actors, dtype=np.int64), self.ctas)
        self.interval: NDArray[np.int64] = np.full(rows, INTERVAL, np.int64)
        self.now.data[np.arange(rows), self.rank, self.actor] = INTERVAL | LOW
        self._fenced: Table | None = None
        self._held: Table | None = None

    def table(self, rows: int) -> Table:
        """A new table of clocks, in which no access is ordered."""
        made = Table(rows, self.size, self.width)
        self.tables.append(made)
        return made

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
        return self._fenced is not None

    def tick(self, rows: Rows) -> None:
        """Begin a new interval for ``rows``, (n,) distinct: no other actor has synchronised with it."""
        self.interval[rows] += INTERVAL
        self.now.data[rows, self.rank[rows], self.actor[rows]] = self.interval[rows] | LOW

    def release(self, into: Table, keys: NDArray[np.int64], rows: Rows, relaxed: bool = False) -> None:
        """Release: merge the clocks of ``rows`` into the rows ``keys`` of ``into``.

        Args:
            relaxed: take the clocks at the last fence of each actor.
        """
        if relaxed:
            if self._fenced is not None:
                into.merge(keys, self._fenced.flat, rows)
            return
        into.merge(keys, self.now.flat, rows)
        self.tick(np.unique(rows))

    def acquire(self, source: Table, keys: NDArray[np.int64], rows: Rows, relaxed: bool = False) -> None:
        """Acquire: merge the rows ``keys`` of ``source`` into the clocks of ``rows``; if ``relaxed``, at their next fence."""
        if relaxed:
            if self._held is None:
                self._held = self.table(len(self.interval))
            self._held.merge(rows, source.flat, keys)
            return
        self.now.merge(rows, source.flat, keys)

    def fence(self, rows: Rows) -> None:
        """A fence by the actors ``rows``, (n,) distinct, by which relaxed accesses synchronise. PTX ISA, "membar, fence"."""
        now = self.now.flat
        if self._held is not None:
            now[rows] = np.maximum(now[rows], self._held.flat[rows])
        if self._fenced is None:
            self._fenced = self.table(len(self.interval))
        self._fenced.flat[rows] = now[rows]
        self.tick(rows)

    def meet(self, rows: Rows) -> NDArray[np.bool_]:
        """Synchronise the actors ``rows``, (n,) distinct, within each CTA. Returns (CTAs,) bool: all actors took part."""
        now = self.now.flat
        if len(rows) == len(self.interval):
            together = now.reshape(self.ctas, self.actors, -1)
            together[:] = together.max(1, keepdims=True)
            whole = np.ones(self.ctas, np.bool_)
        else:
            cta = rows // self.actors
            gathered = Table(self.ctas, self.size, self.width)
            gathered.merge(cta, now, rows)
            self.now.merge(rows, gathered.flat, cta)
            whole = np.bincount(cta, minlength=self.ctas) == self.actors
        self.tick(rows)
        return whole

    def meet_in_warps(self, rows: Rows, masks: Words | None = None) -> None:
        """Synchronise threads within each warp, or those with the same member mask within each warp.

        Args:
            masks: (n,) the member mask of each thread; None if all are full.
        """
        warps = rows >> 5
        _, which = np.unique(warps if masks is None else warps << 32 | masks, return_inverse=True)
        gathered = Table(int(which.max(initial=0)) + 1, self.size, self.width)
        gathered.merge(which, self.now.flat, rows)
        self.now.merge(rows, gathered.flat, which)
        self.tick(rows)

    def learn(self, rows: Rows, agents: NDArray[np.int64], intervals: NDArray[np.int64]) -> None:
        """Order the accesses of agents of an actor's own CTA, up to ``intervals``, before ``rows``; (n,) each."""
        flat = self.now.flat
        np.maximum.at(flat, (rows, self.rank[rows] * self.width + agents), intervals | LOW)
