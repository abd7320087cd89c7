"""Which bytes of shared memory the async proxy may not see yet. PTX ISA, "Async proxy", "fence.proxy".

Bulk copies, tensor copies and wgmma access memory through the async proxy; ld, st, atomics, cp.async and stmatrix through the
generic one. What a program writes through the generic proxy has to be made visible by ``fence.proxy.async`` before the async
proxy reads it. Here all memory is one, so a missing fence would not show; in latest-legal mode it is an error instead.

A fence by any thread counts for whatever has been written in its CTA, or its cluster, up to then: a thread's fence covers
what it has observed of the others by a barrier, and which barrier that was is not followed. So a fence that is there but ahead
of a barrier where it has to be behind can go unnoticed, and a correct program is never blamed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import WaveState

NOT_FENCED = "threads have written there with no fence.proxy.async behind, so the async proxy may not see it"

ROW = 16
"""Bytes of shared memory that are tracked together: what bulk operations and matrix descriptors are aligned to."""


class GenericWrites:
    """Rows of 16 bytes of a wave's shared memory that were written with no proxy fence behind.

    Attributes:
        rows: (shared bytes / 16,) bool.
    """

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.rows: NDArray[np.bool_] = np.zeros(len(wave.shared) // ROW, np.bool_)

    def wrote(self, cells: Lanes, size: int) -> None:
        """The generic proxy has written the elements ``cells`` (int64) of ``size`` bytes each."""
        if size <= ROW:
            self.rows[cells * size >> 4] = True
        else:
            for k in range(size // ROW):
                self.rows[cells * (size // ROW) + k] = True

    def fence(self, x: Selection, space: str) -> None:
        """fence.proxy.async by the threads of ``x``; ``space`` is ``""``, ``"shared::cta"`` or ``"shared::cluster"``."""
        ctas = np.unique(np.broadcast_to(x.cta, x.shape)[x.active()])
        size = self.wave.launch.cluster_size
        if space != "shared::cta" and size > 1:
            ctas = (np.unique(ctas // size)[:, None] * size + np.arange(size)).reshape(-1)
        self.rows.reshape(self.wave.shape[0], -1)[ctas] = False

    def replaced(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """The async proxy writes these runs of bytes itself."""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            self.rows[start >> 4 : start + size + ROW - 1 >> 4] = False

    def unseen(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these runs of bytes hold something that the async proxy may not see."""
        runs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.array([self.rows[start >> 4 : start + size + ROW - 1 >> 4].any() for start, size in runs], np.bool_)

    def unseen_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which elements, of (E, n) units of 16 bytes, hold something that the async proxy may not see."""
        return np.asarray(self.rows[rows].any(1), np.bool_)
