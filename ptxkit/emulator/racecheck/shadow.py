"""The last accesses to each cell of shared memory: its last write, and the last read of every agent.

The size of a cell is that of the smallest access so far; a smaller access splits all cells. A record of an access is a number
that contains the agent's interval, whether the access was strong, and the number of the instruction (see
:mod:`ptxkit.emulator.racecheck.clocks`). An agent is identified by rank << 16 | number in its CTA.

For most cells no clocks are compared: a barrier of all warps of a CTA begins a new *generation*, and accesses of earlier
generations happened before those of the current one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index
from ptxkit.emulator.memory.host import available_bytes
from ptxkit.emulator.racecheck.clocks import LOW, Clocks
from ptxkit.errors import UsageError

STRONG = 1 << 20
"""Set in records of volatile, relaxed and atomic accesses, which do not race with each other."""

NARROW = 1 << 19
"""Set in records of strong accesses of the scope ``.cta`` in clusters, which race with strong accesses of other CTAs."""

SITES = NARROW - 1
"""The bits of a record that contain the number of the instruction."""

LARGEST = 16
"""Size of a cell in bytes before it is split."""

CHUNK = 1 << 19
"""Number of records that are compared in one numpy operation."""

SHARE = 2
"""The last reads of actors may take one part in this of the memory that the host can provide."""

ALWAYS = np.iinfo(np.int32).max
"""The generation of accesses that a barrier of the CTA does not order: those by other CTAs and asynchronous agents."""


@dataclass
class Access:
    """The accesses of one instruction to n cells.

    Attributes:
        cells: (n,) index of each cell.
        rows: (n,) row of ``view`` with the clock of the accessing actor.
        view: clocks, (rows, agents of the cluster).
        rank, number: (n,) the agent as which the access is recorded.
        record: (n,) see the module's text.
        generation: (n,) of the accessing CTA; None where the access is not by an actor to its own CTA's memory.
        strong, narrow: see :data:`STRONG` and :data:`NARROW`.
        lanes: (n,) the lane of each access in its warp; None for asynchronous agents, and where it is not needed.
    """

    cells: Index
    rows: Index
    view: Index
    rank: Index
    number: Index
    record: Index
    generation: NDArray[np.int32] | None
    strong: bool = False
    lanes: Index | None = None
    narrow: bool = False


@dataclass
class Conflict:
    """Accesses without synchronisation in between: positions in the later access, and records and agents of the earlier."""

    what: str
    at: Index
    records: Index
    agents: Index


class Shadow:
    """The records of a wave's shared memory.

    Args:
        nbytes: of all CTAs' shared memory, a multiple of 16 each.

    Attributes:
        lane: (cells,) the lane of the last write by a warp; () unless proxy fences are checked and actors are warps.
        fenced: (cells,) interval of the writing warp in which that lane has executed a proxy fence, 0 for none; or ().
    """

    def __init__(self, clocks: Clocks, nbytes: int) -> None:
        self.clocks = clocks
        self.nbytes = nbytes
        self.unit = LARGEST
        cells = nbytes // LARGEST
        self.writes: Index = np.zeros(cells, np.int64)
        self.writer: NDArray[np.int32] = np.zeros(cells, np.int32)
        self.written: NDArray[np.int32] = np.full(cells, -1, np.int32)
        self.read: NDArray[np.int32] = np.full(cells, -1, np.int32)
        by_lane = cells if clocks.proxied and clocks.shift else 0
        self.lane: NDArray[np.int8] = np.zeros(by_lane, np.int8)
        self.fenced: Index = np.zeros(by_lane, np.int64)
        # last reads: by actors of the cell's CTA, (cells, actors); by those of the cluster's other CTAs, counted from the
        # cell's, (cells so read, CTAs * actors), with the row of each cell; and by other agents, (cells,) each
        self.own: Index | None = None
        self.remote: Index | None = None
        self.remote_row: NDArray[np.int32] = np.zeros(0, np.int32)
        self.remote_rows = 0
        self.others: dict[tuple[int, int], Index] = {}

    def split(self, size: int) -> None:
        """Split cells to at most ``size`` bytes."""
        if size < self.unit:
            parts = self.unit // size
            self.unit = size
            for name in ("writes", "writer", "written", "read", "lane", "fenced"):
                setattr(self, name, np.repeat(getattr(self, name), parts))
            if self.own is not None:
                self._refuse_more_than_the_host_has(len(self.writes))
                self.own = np.repeat(self.own, parts, axis=0)
            if self.remote is not None:
                rows = self.remote_row
                known = np.flatnonzero(rows >= 0)
                self.remote_row = np.full(len(rows) * parts, -1, np.int32)
                at = (known[:, None] * parts + np.arange(parts)).reshape(-1)
                self.remote = np.repeat(self.remote[rows[known]], parts, axis=0)
                self.remote_rows = len(at)
                self.remote_row[at] = np.arange(len(at))
            self.others = {key: np.repeat(records, parts) for key, records in self.others.items()}

    def spread(self, elements: Index, size: int) -> tuple[Index, int]:
        """The cells of elements of ``size`` bytes, and the number of cells of each element."""
        self.split(min(size, LARGEST))
        parts = size // self.unit
        if parts == 1:
            return elements, 1
        return (elements[:, None] * parts + np.arange(parts)).reshape(-1), parts

    # -- comparing ---------------------------------------------------------------------------------------------------

    def earlier_writes(self, a: Access, what: str, visible: bool = True) -> list[Conflict]:
        """Conflicts with the last write of each cell.

        Args:
            visible: a read must see the write, which then must not only come before it.
        """
        touched = self.written[a.cells]
        at = np.flatnonzero(touched >= (0 if a.generation is None else a.generation))
        if not len(at):
            return []
        cells = a.cells[at]
        records, writer = self.writes[cells], self.writer[cells].astype(np.int64)
        column = (writer >> 16) * self.clocks.width + (writer & 0xFFFF)
        known = a.view[a.rows[at], column + (self.clocks.seen if visible else 0)]
        return self._conflicts(a, what, at, records, writer, known)

    def earlier_reads(self, a: Access) -> list[Conflict]:
        """Conflicts with reads of cells that are written now."""
        found: list[Conflict] = []
        width = self.clocks.width
        if self.own is not None:
            at = np.flatnonzero(self.read[a.cells] >= (0 if a.generation is None else a.generation))
            found += self._reads_by_actors(a, at, self.own, a.cells[at])
        if self.remote is not None:
            rows = self.remote_row[a.cells]
            at = np.flatnonzero(rows >= 0)
            found += self._reads_by_actors(a, at, self.remote, rows[at])
        for (relative, number), column in self.others.items():
            records = column[a.cells]
            at = np.flatnonzero(records)
            if not len(at):
                continue
            rank = np.broadcast_to((self._rank(a.cells[at]) + relative) % self.clocks.size, len(at))
            known = a.view[a.rows[at], rank * width + number]
            found += self._conflicts(a, "write-after-read", at, records[at], rank << 16 | number, known)
        return found

    def _reads_by_actors(
        self, a: Access, some: Index, table: Index, rows: NDArray[np.int64 | np.int32]
    ) -> list[Conflict]:
        """Conflicts of the cells at ``some`` with the reads in ``rows`` of ``table``, (..., CTAs * actors)."""
        found: list[Conflict] = []
        columns = table.shape[1]
        relative, number = np.divmod(np.arange(columns), self.clocks.actors)
        step = max(1, CHUNK // columns)
        for first in range(0, len(some), step):
            at = some[first : first + step]
            cells = a.cells[at]
            records = table[rows[first : first + step]]
            rank = (np.broadcast_to(self._rank(cells), len(at))[:, None] + relative) % self.clocks.size
            known = a.view[a.rows[at][:, None], rank * self.clocks.width + number]
            k, column = np.nonzero(records > known)
            if len(k):
                agents = rank[k, column] << 16 | number[column]
                found += self._conflicts(a, "write-after-read", at[k], records[k, column], agents, known[k, column])
        return found

    def _conflicts(
        self, a: Access, what: str, at: Index, records: Index, agents: Index, known: Index
    ) -> list[Conflict]:
        unordered = records > known
        if not unordered.any():
            return []
        if a.strong:
            apart = (agents >> 16 != a.rank[at]) & ((records & NARROW) != 0 if not a.narrow else True)
            unordered &= ((records & STRONG) == 0) | apart
        bad = np.flatnonzero(unordered)
        return [Conflict(what, at[bad], records[bad], agents[bad])] if len(bad) else []

    def _rank(self, cells: Index) -> Index | int:
        if self.clocks.size == 1:
            return 0
        return cells // (self.nbytes // self.clocks.ctas // self.unit) % self.clocks.size

    # -- recording ---------------------------------------------------------------------------------------------------

    def wrote(self, a: Access) -> Conflict | None:
        """Record a write. Returns the conflict of agents that write the same cell in one instruction, or None."""
        code = a.rank << 16 | a.number
        self.writes[a.cells] = a.record
        self.writer[a.cells] = code
        self.written[a.cells] = ALWAYS if a.generation is None else a.generation
        if len(self.lane):
            self.lane[a.cells] = 0 if a.lanes is None else a.lanes
            self.fenced[a.cells] = 0
        if a.strong and not a.narrow:
            return None
        last = self.writer[a.cells].astype(np.int64)
        lost = np.flatnonzero(last >> 16 != a.rank if a.strong else last != code)
        if not len(lost):
            return None
        return Conflict("write-after-write", lost, self.writes[a.cells[lost]], last[lost])

    def postpone(self, cells: Index, write: bool, rank: Index, number: Index, old: Index, new: Index) -> None:
        """Move accesses by asynchronous agents from their intervals ``old`` to ``new``, where they are still recorded; (n,)."""
        if write:
            mine = (self.writer[cells] == (rank << 16 | number)) & (self.writes[cells] & ~LOW == old)
            self.writes[cells[mine]] += (new - old)[mine]
            return
        relative = (rank - self._rank(cells)) % self.clocks.size
        for key, column in self.others.items():
            mine = (relative << 16 | number) == (key[0] << 16 | key[1])
            mine &= column[cells] & ~LOW == old
            column[cells[mine]] += (new - old)[mine]

    def was_read(self, a: Access) -> None:
        """Record a read."""
        if a.generation is not None:
            self._of_actors()[a.cells, a.number] = a.record
            self.read[a.cells] = a.generation
            return
        relative = (a.rank - self._rank(a.cells)) % self.clocks.size
        if int(a.number[0]) < self.clocks.actors:
            self._read_anywhere(a, relative)
            return
        key = relative << 16 | a.number
        for k in np.unique(key):
            chosen = key == k
            column = self.others.get((int(k) >> 16, int(k) & 0xFFFF))
            if column is None:
                column = self.others[int(k) >> 16, int(k) & 0xFFFF] = np.zeros(len(self.writes), np.int64)
            column[a.cells[chosen]] = a.record[chosen]

    def _read_anywhere(self, a: Access, relative: Index) -> None:
        """Record reads by actors whose CTA has the rank of the cell's CTA plus ``relative``."""
        near = relative == 0
        cells = a.cells[near]
        self._of_actors()[cells, a.number[near]] = a.record[near]
        self.read[cells] = ALWAYS
        if near.all():
            return
        if self.remote is None:
            self.remote = np.zeros((16, self.clocks.size * self.clocks.actors), np.int64)
            self.remote_row = np.full(len(self.writes), -1, np.int32)
        cells = a.cells[~near]
        new = np.unique(cells[self.remote_row[cells] < 0])
        if len(new):
            self.remote_row[new] = self.remote_rows + np.arange(len(new))
            self.remote_rows += len(new)
            room = len(self.remote)
            if self.remote_rows > room:
                more = np.zeros((max(self.remote_rows, 2 * room) - room, self.remote.shape[1]), np.int64)
                self.remote = np.concatenate((self.remote, more))
        columns = relative[~near] * self.clocks.actors + a.number[~near]
        self.remote[self.remote_row[cells], columns] = a.record[~near]

    def _of_actors(self) -> Index:
        if self.own is None:
            self._refuse_more_than_the_host_has(len(self.writes))
            self.own = np.zeros((len(self.writes), self.clocks.actors), np.int64)
        return self.own

    def _refuse_more_than_the_host_has(self, cells: int) -> None:
        needed, clocks = cells * self.clocks.actors * np.dtype(np.int64).itemsize, self.clocks
        if needed > available_bytes() // SHARE:
            of_lanes = clocks.shift == 0
            actors = "threads" if of_lanes else "warps"
            raise UsageError(
                f"the race check needs {needed / 1e9:.2g} GB for the reads of {clocks.actors} {actors} in cells of"
                f" {self.unit} bytes of the shared memory of {clocks.ctas} CTAs, more than 1/{SHARE} of the free memory:"
                f" take smaller sizes{', or --racecheck instead of --racecheck-lanes' if of_lanes else ''}"
            )
