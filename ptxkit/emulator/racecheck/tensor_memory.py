"""Races in tensor memory: accesses to the same lanes and columns that nothing puts in order, by vector clocks.

PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations". An agent of its own are the tcgen05.mma,
cp and shift of a thread, which is done where a thread has waited for the mbarrier of their tcgen05.commit. The
tcgen05.ld and st of a warp are done at its tcgen05.wait, and what the warp releases from then on lets others know of
them. Operations of the tensor cores are performed in the order in which they are issued, so that it suffices for them that
their threads have issued them in order. The accesses of one warp are in order, too. What is still in flight when it is used
is found elsewhere, as an error at once (:mod:`ptxkit.emulator.tensor_core.tcgen05.accesses`).

Release and acquire order them as they order accesses to shared memory; relaxed synchronisation orders them together with
tcgen05.fence (:mod:`ptxkit.emulator.racecheck.clocks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index
from ptxkit.emulator.racecheck.clocks import EXECUTED, TENSOR, Clocks
from ptxkit.emulator.racecheck.hazards import Hazard, Hazards
from ptxkit.emulator.simt.hooks import TensorCells
from ptxkit.emulator.simt.where import Where, named

CONFLICTS = {
    "load": ("store", "write", "allocate"),
    "store": ("load", "store", "write", "read", "allocate"),
    "write": ("load", "store", "write", "read", "allocate"),
    "read": ("store", "write", "allocate"),
    "deallocate": ("load", "store", "write", "read", "allocate"),
}
"""What each kind of access has to come after. Loads and stores are tcgen05.ld and st; mma, cp and shift read and write."""

_READING = ("load", "read")
_OPERATIONS = ("write", "read")
_EARLIER = {"load": "read", "read": "read", "store": "wrote", "write": "wrote", "allocate": "allocated"}
_LATER = {"load": "reads", "read": "reads", "store": "writes", "write": "writes", "deallocate": "deallocates"}
_FIX = {
    "load": "put an arrival at an mbarrier (or a barrier) after the tcgen05.wait::ld, and a wait for it, between them",
    "store": "put an arrival at an mbarrier (or a barrier) after the tcgen05.wait::st, and a wait for it, between them",
    "read": "wait for the mbarrier of its tcgen05.commit between them",
    "write": "wait for the mbarrier of its tcgen05.commit between them",
    "allocate": "put __syncthreads() (bar.sync) or barrier.cluster between them",
}
_ISSUE = (
    "issue both from one thread, or put tcgen05.fence::before_thread_sync, a synchronisation of the two threads and "
    "tcgen05.fence::after_thread_sync between them"
)
"""What puts operations of the tensor cores in order, which different threads issue."""


class Reporter(Protocol):
    """What holds the clocks and collects what is found."""

    hazards: Hazards
    clocks: Clocks


@dataclass(frozen=True, eq=False)
class _Record:
    """One access.

    Attributes:
        kind, where, who: see :meth:`TensorMemory.access`.
        warp: index in the wave of the warp that made it; -1 for an operation of the tensor cores.
        rank, number, interval: (n,) its agents and their intervals.
        issuer, issued: (n,) the actors that executed the instruction, and their intervals.
    """

    kind: str
    where: Where
    who: str
    warp: int
    rank: Index
    number: Index
    interval: Index
    issuer: Index
    issued: Index


class TensorMemory:
    """The last accesses to each cell of the tensor memory of a wave, by kind and warpgroup, or by the issuer of reads."""

    def __init__(self, races: Reporter) -> None:
        self.races = races
        self._records: list[_Record] = []
        self._cells: dict[tuple[str, int], dict[int, NDArray[np.int32]]] = {}

    def _rows(self, threads: Index) -> Index:
        return np.unique(threads >> self.races.clocks.shift)

    def compare(self, kind: str, where: Where, who: str, threads: Index, cells: Iterable[TensorCells]) -> None:
        """``threads``, by index in the wave, are about to access cells.

        Args:
            kind: of :data:`CONFLICTS`.
            who: the warp or thread in words.
        """
        clocks = self.races.clocks
        rows, warp = self._rows(threads), int(threads[0]) >> 5
        for r in cells:
            for (earlier, _), places in self._cells.items():
                if earlier not in CONFLICTS[kind] or r.sm not in places:
                    continue
                found = places[r.sm][list(r.bands), r.low : r.high]
                for number in np.unique(found[found > 0]).tolist():
                    record = self._records[number - 1]
                    # alloc and dealloc are synchronous: they need no tcgen05.fence
                    now = clocks.now.parts[EXECUTED if earlier == "allocate" or kind == "deallocate" else TENSOR]
                    known = now.data[rows[:, None], record.rank, record.number] >= record.interval
                    if earlier in _OPERATIONS and kind in _OPERATIONS:
                        known |= now.data[rows[:, None], record.rank, record.issuer] >= record.issued
                    if earlier == "allocate":  # the CTAs of a pair allocate together: to know of one of them is enough
                        known = known.any(1)
                    if record.warp != warp and not known.all():
                        columns = np.flatnonzero((found == number).any(0)) + r.low
                        self._tell(kind, where, who, record, columns)

    def record(
        self,
        kind: str,
        where: Where,
        who: str,
        threads: Index,
        cells: Iterable[TensorCells],
        operation: tuple[Index, Index] | None = None,
    ) -> None:
        """An access of ``threads``, which others know of when they know the present.

        Args:
            kind: of :data:`CONFLICTS`, or ``"allocate"``.
            operation: agent and interval of an operation of the tensor cores.
        """
        clocks = self.races.clocks
        rows = self._rows(threads)
        warp = int(threads[0]) >> 5 if operation is None else -1
        issuer, issued = clocks.actor[rows], clocks.interval[rows]
        number, interval = (issuer, issued) if operation is None else operation
        self._records.append(_Record(kind, where, who, warp, clocks.rank[rows], number, interval, issuer, issued))
        # warps that reach the same lanes are in different warpgroups; operations that write come one after the other
        reader = operation is not None and kind == "read"
        places = self._cells.setdefault((kind, -2 - int(rows[0]) if reader else warp >> 2), {})
        for r in cells:
            if r.sm not in places:
                places[r.sm] = np.zeros((8, 512), np.int32)
            places[r.sm][list(r.bands), r.low : r.high] = len(self._records)

    def fence(self, threads: Index, before: bool) -> None:
        """``threads`` have executed tcgen05.fence::before_thread_sync, or ::after_thread_sync if not ``before``."""
        self.races.clocks.fence_tensor(self._rows(threads), before)

    def forget(self, cells: Iterable[TensorCells]) -> None:
        """Cells have been deallocated: they begin anew."""
        for r in cells:
            for places in self._cells.values():
                if r.sm in places:
                    places[r.sm][list(r.bands), r.low : r.high] = 0

    def _tell(self, kind: str, where: Where, who: str, record: _Record, columns: Index) -> None:
        reads, read = kind in _READING, record.kind in _READING
        what = "read-after-write" if reads else "write-after-read" if read else "write-after-write"
        fix = _ISSUE if kind in _OPERATIONS and record.kind in _OPERATIONS else _FIX[record.kind]
        first, last = int(columns[0]), int(columns[-1])
        place = f"column {first} of tensor memory" if first == last else f"columns {first} to {last} of tensor memory"
        early, late = _EARLIER[record.kind], _LATER[kind]
        hazard = Hazard(what, named(where), who, named(record.where), record.who, first, place, fix, 1, (early, late))
        self.races.hazards.add(hazard, where, record.where)
