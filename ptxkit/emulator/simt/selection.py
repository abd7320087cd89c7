"""Which lanes of a wave execute an instruction, and their indices.

A wave of C CTAs with W warps each has its lanes on three axes, (C, W, 32). A register is an array that broadcasts to that
shape: what is the same in the whole wave is (1, 1, 1), what depends on the CTA alone (C, 1, 1), and so on; numpy then computes
it once. A :class:`Selection` holds some of the lanes: all, all under a mask, or a list of warps (rows) with or without a mask.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Index, Lanes, Mask, Shape

EVERY_WARP: Index = np.empty(0, np.int64)
"""The CTA and warp indices of a selection that is not by rows."""


class Selection:
    """Some lanes of a wave.

    Attributes:
        wave_shape: (CTAs, warps a CTA, 32) of the whole wave.
        mask: which of the selected lanes take part, in the selection's shape; None when all do.
        c, w: CTA and warp index of each selected warp, for a selection by rows; empty where the whole wave is selected.
        rows: whether it is a selection by rows.
        shape: of a full lane array under this selection: (C, W, 32), or (rows, 1, 32).
        lanes, warps: how many lanes take part, and warps with at least one.
        memo: values that other modules have computed for these lanes, by name.
    """

    __slots__ = ("_cta", "_thread", "_warp", "c", "lanes", "mask", "memo", "rows", "shape", "w", "warps", "wave_shape")

    def __init__(self, wave_shape: Shape, c: Index | None, w: Index | None, mask: Mask | None) -> None:
        self.wave_shape = wave_shape
        self.c: Index = EVERY_WARP if c is None else c
        self.w: Index = EVERY_WARP if w is None else w
        self.rows = c is not None
        self.mask = mask
        self.shape: Shape = (len(c), 1, 32) if c is not None else wave_shape
        if mask is None:
            self.warps = self.shape[0] * self.shape[1]
            self.lanes = self.warps * 32
        else:
            self.lanes = int(np.count_nonzero(mask))
            self.warps = int(np.count_nonzero(mask.any(-1)))
        self.memo: dict[str, object] = {}
        self._cta: Index | None = None
        self._warp: Index | None = None
        self._thread: Index | None = None

    def select(self, value: Lanes) -> Lanes:
        """The values of a lane array of the wave for this selection."""
        if not self.rows or value.size == 1:
            return value
        s0, s1, _ = value.shape
        if s0 > 1:
            return (value[self.c, self.w] if s1 > 1 else value[self.c, 0])[:, None]
        if s1 > 1:
            return value[0, self.w][:, None]
        # a wave of one warp: a copy here, too, because registers are written in place, one after the other
        return value.copy() if value.shape == self.wave_shape else value

    def full_mask(self) -> Mask:
        """The lanes that take part, in the wave's shape."""
        if not self.rows:
            return np.ones(self.wave_shape, np.bool_) if self.mask is None else self.mask
        full = np.zeros(self.wave_shape, np.bool_)
        full[self.c, self.w] = True if self.mask is None else self.mask[:, 0]
        return full

    def active(self) -> Mask:
        """The mask as an array of the selection's shape."""
        return np.ones(self.shape, np.bool_) if self.mask is None else self.mask

    def covers(self, shape: tuple[int, ...]) -> Mask | None:
        """The mask reduced to a smaller broadcast shape: True where any lane that shares the element takes part."""
        mask = self.mask
        if mask is None or mask.shape == shape:
            return mask
        axes = tuple(i for i in range(3) if shape[i] == 1 and mask.shape[i] != 1)
        return np.asarray(mask.any(axes, keepdims=True)) if axes else mask

    # -- indices -----------------------------------------------------------------------------------------------------

    @property
    def cta(self) -> Index:
        """Index of each selected CTA within the wave, broadcastable to ``shape``."""
        value = self._cta
        if value is None:
            value = self._cta = (
                np.asarray(self.c, np.int64)[:, None, None]
                if self.rows
                else np.arange(self.shape[0], dtype=np.int64)[:, None, None]
            )
        return value

    @property
    def warp(self) -> Index:
        """Index of each selected warp within its CTA, broadcastable to ``shape``."""
        value = self._warp
        if value is None:
            value = self._warp = (
                np.asarray(self.w, np.int64)[:, None, None]
                if self.rows
                else np.arange(self.shape[1], dtype=np.int64)[None, :, None]
            )
        return value

    @property
    def thread(self) -> Index:
        """Index of each selected lane within the wave, in ``shape``."""
        value = self._thread
        if value is None:
            lane = np.arange(32, dtype=np.int64)
            value = self._thread = (self.cta * self.wave_shape[1] + self.warp) * 32 + lane
        return value
