"""Who accessed each cell of shared memory last: its last writer, and the last read of every agent.

A cell is as small as the smallest access so far; smaller ones split the cells. A record of an access is a number: the agent's
interval, whether the access was strong, and the number of its site (see :mod:`ptxkit.emulator.races.clocks`). Agents are named
by rank << 16 | number in their CTA.

Most cells need no look at clocks: a barrier of all warps of a CTA begins a new *generation*, and what they did in earlier
ones happened before whatever they do now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.races.clocks import Clocks

STRONG = 1 << 20
"""Set in records of volatile, relaxed and atomic accesses, which do not race with each other."""

SITES = STRONG - 1
"""Mask of a record's site."""

LARGEST = 16
"""Bytes of a cell at first."""

CHUNK = 1 << 19
"""Records that are compared at one time."""

ALWAYS = np.iinfo(np.int32).max
"""Generation of what no barrier of the CTA alone puts in order: accesses by other CTAs and by asynchronous agents."""


@dataclass
class Access:
    """What one instruction accesses, n cells.

    Attributes:
        cells: (n,) index of each cell.
        rows: (n,) row of ``view`` that holds the clock of who accesses it.
        view: clocks, (rows, agents of the cluster).
        rank, number: (n,) whom it is recorded as: an agent.
        record: (n,) see the module's text.
        generation: (n,) of the accessing CTA; None where the access is not by an actor to its own CTA's memory.
        strong: see :data:`STRONG`.
    """

    cells: NDArray[np.int64]
    rows: NDArray[np.int64]
    view: NDArray[np.int64]
    rank: NDArray[np.int64]
    number: NDArray[np.int64]
    record: NDArray[np.int64]
    generation: NDArray[np.int32] | None
    strong: bool = False


@dataclass
class Conflict:
    """Accesses with no synchronisation in between: positions in the later one, and records and names of the earlier."""

    what: str
    at: NDArray[np.int64]
    records: NDArray[np.int64]
    agents: NDArray[np.int64]


class Shadow:
    """The records of a wave's shared memory.

    Args:
        nbytes: of all CTAs' shared memory, a multiple of 16 each.
    """

    def __init__(self, clocks: Clocks, nbytes: int) -> None:
        self.clocks = clocks
        self.nbytes = nbytes
        self.unit = LARGEST
        cells = nbytes // LARGEST
        self.writes: NDArray[np.int64] = np.zeros(cells, np.int64)
        self.writer: NDArray[np.int32] = np.zeros(cells, np.int32)
        self.written: NDArray[np.int32] = np.full(cells, -1, np.int32)
        self.read: NDArray[np.int32] = np.full(cells, -1, np.int32)
        self.own: NDArray[np.int64] | None = None  # (cells, actors): last reads by actors of the cell's CTA
        self.others: dict[tuple[int, int], NDArray[np.int64]] = {}

    def split(self, size: int) -> None:
        """Have cells of at most ``size`` bytes."""
        if size < self.unit:
            parts = self.unit // size
            self.unit = size
            for name in ("writes", "writer", "written", "read"):
                setattr(self, name, np.repeat(getattr(self, name), parts))
            if self.own is not None:
                self.own = np.repeat(self.own, parts, axis=0)
            self.others = {key: np.repeat(records, parts) for key, records in self.others.items()}

    def spread(self, elements: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
        """Cells of elements of ``size`` bytes, and how many each has."""
        self.split(min(size, LARGEST))
        parts = size // self.unit
        if parts == 1:
            return elements, 1
        return (elements[:, None] * parts + np.arange(parts)).reshape(-1), parts

    # -- looking -----------------------------------------------------------------------------------------------------

    def earlier_writes(self, a: Access, what: str) -> list[Conflict]:
        """Conflicts with the last write of each cell."""
        touched = self.written[a.cells]
        at = np.flatnonzero(touched >= (0 if a.generation is None else a.generation))
        if not len(at):
            return []
        cells = a.cells[at]
        records, writer = self.writes[cells], self.writer[cells].astype(np.int64)
        known = a.view[a.rows[at], (writer >> 16) * self.clocks.width + (writer & 0xFFFF)]
        return self._conflicts(a, what, at, records, writer, known)

    def earlier_reads(self, a: Access) -> list[Conflict]:
        """Conflicts with reads of cells that are written now."""
        found: list[Conflict] = []
        actors, width = self.clocks.actors, self.clocks.width
        if self.own is not None:
            own = np.flatnonzero(self.read[a.cells] >= (0 if a.generation is None else a.generation))
            for at in np.split(own, range(CHUNK // actors, len(own), max(1, CHUNK // actors))):
                cells = a.cells[at]
                records = self.own[cells]
                rank = np.broadcast_to(self._rank(cells), len(at))
                known = a.view[a.rows[at][:, None], (rank * width)[:, None] + np.arange(actors)]
                k, actor = np.nonzero(records > known)
                if len(k):
                    agents = rank[k] << 16 | actor
                    found += self._conflicts(a, "write-after-read", at[k], records[k, actor], agents, known[k, actor])
        for (relative, number), column in self.others.items():
            records = column[a.cells]
            at = np.flatnonzero(records)
            if not len(at):
                continue
            rank = np.broadcast_to((self._rank(a.cells[at]) + relative) % self.clocks.size, len(at))
            known = a.view[a.rows[at], rank * width + number]
            found += self._conflicts(a, "write-after-read", at, records[at], rank << 16 | number, known)
        return found

    def _conflicts(self, a: Access, what: str, at: Any, records: Any, agents: Any, known: Any) -> list[Conflict]:
        bad = records > known
        if not bad.any():
            return []
        if a.strong:
            bad &= (records & STRONG) == 0
        bad = np.flatnonzero(bad)
        return [Conflict(what, at[bad], records[bad], agents[bad])] if len(bad) else []

    def _rank(self, cells: NDArray[np.int64]) -> Any:
        if self.clocks.size == 1:
            return 0
        return cells // (self.nbytes // self.clocks.ctas // self.unit) % self.clocks.size

    # -- recording ---------------------------------------------------------------------------------------------------

    def wrote(self, a: Access) -> Conflict | None:
        """Record a write. Agents that write one cell in the same instruction are a conflict."""
        code = a.rank << 16 | a.number
        self.writes[a.cells] = a.record
        self.writer[a.cells] = code
        self.written[a.cells] = ALWAYS if a.generation is None else a.generation
        if a.strong:
            return None
        last = self.writer[a.cells].astype(np.int64)
        lost = np.flatnonzero(last != code)
        if not len(lost):
            return None
        return Conflict("write-after-write", lost, self.writes[a.cells[lost]], last[lost])

    def was_read(self, a: Access) -> None:
        """Record a read."""
        if a.generation is not None:
            self._of_actors()[a.cells, a.number] = a.record
            self.read[a.cells] = a.generation
            return
        relative = (a.rank - self._rank(a.cells)) % self.clocks.size
        key = relative << 16 | a.number
        for k in np.unique(key):
            chosen = key == k
            cells = a.cells[chosen]
            number = int(k) & 0xFFFF
            if k >> 16 == 0 and number < self.clocks.actors:
                self._of_actors()[cells, number] = a.record[chosen]
                self.read[cells] = ALWAYS
                continue
            column = self.others.get((int(k) >> 16, number))
            if column is None:
                column = self.others[int(k) >> 16, number] = np.zeros(len(self.writes), np.int64)
            column[cells] = a.record[chosen]

    def _of_actors(self) -> NDArray[np.int64]:
        if self.own is None:
            self.own = np.zeros((len(self.writes), self.clocks.actors), np.int64)
        return self.own
