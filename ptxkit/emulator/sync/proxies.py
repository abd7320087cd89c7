"""Tracks writes to shared memory that are not yet visible to the async proxy. PTX ISA, "Async proxy", "fence.proxy".

Bulk copies, tensor copies and wgmma access memory through the async proxy; ld, st, atomics, cp.async and stmatrix through the
generic proxy. A write through the generic proxy becomes visible to the async proxy by ``fence.proxy.async``. The emulator has
one copy of memory, so that a missing fence would have no effect; in latest-legal mode it is an error instead.

Here a fence by any thread counts for all earlier writes of its CTA, or its cluster, so that an operation without any fence is
an error at the operation. In PTX a fence covers only the writes that happen before it: this is checked with vector clocks, at
the end of the launch (:mod:`ptxkit.emulator.racecheck.visibility`). A correct program is reported by neither.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where, named

ROW = 16
"""Bytes of shared memory that are tracked together: what bulk operations and matrix descriptors are aligned to."""


class GenericWrites:
    """The rows of 16 bytes of a wave's shared memory that were written without a later proxy fence.

    Attributes:
        rows: (shared bytes / 16,) number of the instruction that has written a row last; 0 where a fence followed.
    """

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.rows: NDArray[np.int32] = np.zeros(len(wave.shared) // ROW, np.int32)
        self._places: list[Where] = []
        self._numbers: dict[int, int] = {}

    def wrote(self, cells: Lanes, size: int, where: Where) -> None:
        """The generic proxy has written the elements ``cells`` (int64) of ``size`` bytes each by the instruction ``where``."""
        number = self._numbers.get(id(where))
        if number is None:
            self._places.append(where)
            number = self._numbers[id(where)] = len(self._places)
        if size <= ROW:
            self.rows[cells * size >> 4] = number
        else:
            for k in range(size // ROW):
                self.rows[cells * (size // ROW) + k] = number

    def fence(self, x: Selection, space: str) -> None:
        """fence.proxy.async by the threads of ``x``; ``space`` is ``""``, ``"shared::cta"`` or ``"shared::cluster"``."""
        ctas = np.unique(np.broadcast_to(x.cta, x.shape)[x.active()])
        size = self.wave.launch.cluster_size
        if space != "shared::cta" and size > 1:
            ctas = (np.unique(ctas // size)[:, None] * size + np.arange(size)).reshape(-1)
        self.rows.reshape(self.wave.shape[0], -1)[ctas] = 0

    def replaced(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """The async proxy has overwritten these runs of bytes, so that they need no fence."""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            self.rows[start >> 4 : start + size + ROW - 1 >> 4] = 0

    def unseen(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these runs of bytes contain a write that is not visible to the async proxy."""
        runs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.array([self.rows[start >> 4 : start + size + ROW - 1 >> 4].any() for start, size in runs], np.bool_)

    def unseen_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which elements, of (E, n) rows of 16 bytes, contain a write that is not visible to the async proxy."""
        return np.asarray(self.rows[rows].any(1), np.bool_)

    def reason(self, rows: NDArray[np.int64]) -> str:
        """Why the async proxy may not see rows of 16 bytes, (n,), with the instruction that wrote the first such row."""
        numbers = self.rows[rows]
        writer = named(self._places[int(numbers[numbers > 0][0]) - 1])
        return f"{writer} has written there with no fence.proxy.async after it, so the async proxy may not see it"
