"""Finds a missing ``tcgen05.fence`` between tcgen05 operations of threads that have synchronised by other instructions.

PTX ISA, "Specialized Inter-thread Synchronization for tcgen05 instructions": a synchronisation of threads orders their
tcgen05 operations only with ``tcgen05.fence::before_thread_sync`` before it and ``tcgen05.fence::after_thread_sync`` after it;
``tcgen05.commit`` implies the former. alloc and dealloc are synchronous and need no fence: the operations before a dealloc have
been waited for. CUTLASS's kernels for sm_100 have neither fence, and run on hardware. Therefore only the race check looks for
missing fences, and only in kernels that contain one of the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.tcgen05.accesses import BANDS, COLUMNS, Region
from ptxkit.errors import RaceError

AFTER, BEFORE = "fence::after_thread_sync", "fence::before_thread_sync"

_OF_OTHERS = ("transfer", "issued write", "issued read")
"""Accesses that only those of other warps must be separated from, by both fences."""


class _Record:
    """The last accesses of one kind: their time, warp and instruction, by cell."""

    def __init__(self, sms: int) -> None:
        shape = (sms, BANDS, COLUMNS)
        self.time: NDArray[np.int64] = np.zeros(shape, np.int64)
        self.warp: NDArray[np.int32] = np.full(shape, -1, np.int32)
        self.site: NDArray[np.int32] = np.zeros(shape, np.int32)


class Fences:
    """The fences of a wave's warps, and the accesses to tensor memory that they must separate."""

    def __init__(self, wave: WaveState) -> None:
        compares = any(races.compares for races in wave.races)
        opcodes = {i.opcode for _, i in wave.launch.code.instructions} if compares else set()
        self.used = not opcodes.isdisjoint((f"tcgen05.{AFTER}", f"tcgen05.{BEFORE}"))
        warps = wave.shape[0] * wave.shape[1]
        self._fenced: dict[str, NDArray[np.int64]] = {k: np.zeros(warps, np.int64) for k in (AFTER, BEFORE)}
        self._now = 0
        self._sms = wave.shape[0]
        self._records: dict[str, _Record] = {}
        self._sites: list[tuple[Where, str]] = []

    def fence(self, x: Group, which: str) -> None:
        """The warps of ``x`` execute a fence."""
        self._now += 1
        threads = x.thread[x.active()]
        self._fenced[which][threads // 32] = self._now
        for races in x.wave.races:
            if races.tensor_memory is not None:
                races.tensor_memory.fence(threads, which == BEFORE)

    def complete(self, kind: str, warp: int, where: Where, who: str, regions: tuple[Region, ...]) -> None:
        """An access is complete.

        Args:
            kind: ``"operation"`` and ``"operand"`` for what mma, cp and shift write and read; ``"transfer"`` for ld and st.
        """
        self._record(kind, warp, where, who, regions)

    def issue(self, kind: str, warp: int, where: Where, who: str, regions: tuple[Region, ...]) -> int:
        """An operation of the tensor cores has been issued: ``kind`` is ``"issued write"`` or ``"issued read"``.

        Returns:
            Its time, for :meth:`retire`.
        """
        return self._record(kind, warp, where, who, regions)

    def retire(self, kind: str, time: int, regions: tuple[Region, ...]) -> None:
        """The operation that was issued at ``time`` is complete."""
        record = self._records.get(kind)
        if record is not None:
            for r in regions:
                times = record.time[r.sm, r.bands, r.low : r.high]
                record.time[r.sm, r.bands, r.low : r.high] = np.where(times == time, 0, times)

    def _record(self, kind: str, warp: int, where: Where, who: str, regions: tuple[Region, ...]) -> int:
        if not self.used:
            return 0
        self._now += 1
        record = self._records.setdefault(kind, _Record(self._sms))
        self._sites.append((where, who))
        for r in regions:
            cells = np.s_[r.sm, r.bands, r.low : r.high]
            record.time[cells], record.warp[cells], record.site[cells] = self._now, warp, len(self._sites) - 1
        return self._now

    def forget(self, regions: tuple[Region, ...]) -> None:
        """The cells have been deallocated."""
        for record in self._records.values():
            for r in regions:
                record.time[r.sm, r.bands, r.low : r.high] = 0

    def require(
        self, kind: str, warp: int, where: Where, who: str, regions: tuple[Region, ...], own: bool = True
    ) -> None:
        """``warp`` is about to access cells that accesses of ``kind`` by other warps, or by the tensor cores, have used.

        Args:
            own: operations of the tensor cores that ``warp`` itself has issued count, too.

        Raises:
            RaceError: a fence is missing.
        """
        record = self._records.get(kind)
        if record is None:
            return
        for r in regions:
            cells = np.s_[r.sm, r.bands, r.low : r.high]
            times, warps = record.time[cells], record.warp[cells]
            others = times > 0 if own and kind not in _OF_OTHERS else (times > 0) & (warps != warp)
            if not others.any():
                continue
            if (found := others & (times > self._fenced[AFTER][warp])).any():
                raise self._error(record.site[cells][found], where, who, AFTER)
            if kind in _OF_OTHERS:
                found = others & (times > self._fenced[BEFORE][warps])
                if found.any():
                    raise self._error(record.site[cells][found], where, who, BEFORE)

    def _error(self, sites: Lanes, where: Where, who: str, which: str) -> RaceError:
        earlier, its = self._sites[int(sites[0])]
        slow = who if which == AFTER else its
        return RaceError(
            f"{where}: {who} accesses tensor memory that {earlier} of {its} has accessed; {slow} has "
            f"executed no tcgen05.{which} since"
        )
