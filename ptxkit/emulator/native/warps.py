"""The warps that machine code executes: where their lanes stand, and which are active."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.native.context import NOWHERE, Field
from ptxkit.emulator.native.host import HostWave
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.simt.threads import Frame, Group

_BITS = np.arange(32, dtype=np.uint32)


class Warps:
    """The warps of one wave that take part in a run of machine code.

    Attributes:
        row: by warp that takes part, its row in the wave. cta: its CTA. standing: the next block of each of its lanes.
        live, live_of_cta: by warp that takes part, its lanes that have not exited, and by CTA of the wave their number.
        yields: as :attr:`Group.yielded`, of each of their lanes; only the order of these numbers has a meaning.
        active_row, active_mask: the warps with active lanes, as positions in ``row``, and these lanes.
    """

    def __init__(self, wave: HostWave, c: NDArray[np.int64]) -> None:
        rows = wave.shape[0] * wave.shape[1]
        self.wave = wave
        self.c = c
        self.row = np.zeros(rows, np.int32)
        self.cta = np.zeros(rows, np.int32)
        self.standing = np.zeros((rows, LANES), np.uint32)
        self.yields = np.zeros((rows, LANES), np.uint32)
        self.active_row = np.zeros(rows, np.int32)
        self.active_mask = np.zeros(rows, np.uint32)
        self.taken = np.zeros(rows, np.uint32)
        self.live = np.zeros(rows, np.uint32)
        self.live_of_cta = np.zeros(wave.shape[0], np.int32)
        self._numbers: list[int] = []  # Group.yielded of the groups that take part
        self._groups: dict[tuple[int, bytes, bytes], Group] = {}

    def fields(self) -> Iterable[tuple[Field, NDArray[np.generic]]]:
        """The arrays, each with the field of the context that holds its address."""
        return (
            (Field.ROW, self.row),
            (Field.CTA, self.cta),
            (Field.BLOCKS, self.standing),
            (Field.YIELDS, self.yields),
            (Field.ACTIVE_ROW, self.active_row),
            (Field.ACTIVE_MASK, self.active_mask),
            (Field.TAKEN, self.taken),
            (Field.LIVE, self.live),
            (Field.LIVE_OF_CTA, self.live_of_cta),
        )

    @property
    def count(self) -> int:
        """How many warps take part."""
        return int(self.c[Field.ROWS])

    def select(self, groups: Sequence[tuple[Group, int]]) -> None:
        """Let the warps of these groups take part, each group before its block; groups of the run before are forgotten."""
        self._groups.clear()
        c, warps = self.c, self.wave.shape[1]
        if len(groups) == 1 and not groups[0][0].rows and groups[0][0].mask is None:
            rows = self.wave.shape[0] * warps
            self.row[:rows] = np.arange(rows, dtype=np.int32)
            self.standing[:rows] = groups[0][1]
        elif len(groups) == 1 and groups[0][0].rows:
            group, index = groups[0]
            rows = len(group.c)
            self.row[:rows] = group.c * warps + group.w
            self.standing[:rows] = index
            if group.mask is not None:
                self.standing[:rows][~group.mask[:, 0]] = NOWHERE
        else:
            standing = np.full((self.wave.shape[0] * warps, LANES), NOWHERE, np.uint32)
            for group, index in groups:
                standing[group.full_mask().reshape(-1, LANES)] = index
            chosen = np.flatnonzero((standing != NOWHERE).any(1))
            rows = len(chosen)
            self.row[:rows] = chosen
            self.standing[:rows] = standing[chosen]
        self.cta[:rows] = self.row[:rows] // warps
        c[Field.ROWS] = rows
        self._select_live(rows)
        self._select_yields(groups)

    def _select_live(self, rows: int) -> None:
        live = self.wave.live
        if live is None:
            self.live[:rows] = NOWHERE
            self.live_of_cta[:] = self.wave.shape[1] * LANES
        else:
            bits = np.packbits(live.reshape(-1, LANES), axis=1, bitorder="little").view(np.uint32)[:, 0]
            self.live[:rows] = bits[self.row[:rows]]
            self.live_of_cta[:] = live.sum((1, 2))

    def _select_yields(self, groups: Sequence[tuple[Group, int]]) -> None:
        """Number the lanes of groups that have yielded to others, in the order of their numbers."""
        c, rows = self.c, self.count
        if c[Field.YIELDING] or c[Field.YIELD_COUNT]:
            self.yields[...] = 0
        self._numbers = sorted({group.yielded for group, _ in groups if group.yielded})
        c[Field.YIELDED] = 0
        c[Field.YIELD_COUNT] = c[Field.YIELDING] = len(self._numbers)
        for group, _ in groups:
            if group.yielded:
                lanes = group.full_mask().reshape(-1, LANES)[self.row[:rows]]
                self.yields[:rows][lanes] = self._numbers.index(group.yielded) + 1

    def yielded(self, lanes: Mask, base: int) -> int:
        """What :attr:`Group.yielded` is for a group of these lanes, after machine code has executed.

        Args:
            lanes: of the warps that take part. base: the highest number before.
        """
        if not self.c[Field.YIELDING]:
            return 0
        least, known = int(self.yields[: len(lanes)][lanes].min()), len(self._numbers)
        return 0 if not least else self._numbers[least - 1] if least <= known else base + least - known

    @property
    def new_yields(self) -> int:
        """How many numbers machine code has given."""
        return int(self.c[Field.YIELD_COUNT]) - len(self._numbers)

    def active(self, first: int) -> Mask:
        """The active lanes of the active warps from number ``first`` on, (warps, 32)."""
        count = int(self.c[Field.ACTIVE_ROWS])
        bits = self.active_mask[first:count, None] >> _BITS
        return (bits & np.uint32(1)).astype(np.bool_)

    def threads(self) -> NDArray[np.int64]:
        """The numbers of the active threads, within the wave."""
        rows, lanes = np.nonzero(self.active(0))
        found: NDArray[np.int64] = self.row[self.active_row[rows]].astype(np.int64) * LANES + lanes
        return found

    def mask(self, chosen: Mask) -> Mask:
        """Lanes of the warps that take part, in the wave's shape."""
        full = np.zeros((self.wave.shape[0] * self.wave.shape[1], LANES), np.bool_)
        full[self.row[: len(chosen)]] = chosen
        return full.reshape(self.wave.shape)

    def group(self, frame: Frame, first: int) -> Group:
        """The active lanes of the active warps from number ``first`` on; the group of a loop is kept."""
        count = int(self.c[Field.ACTIVE_ROWS])
        key = frame.serial, self.active_row[first:count].tobytes(), self.active_mask[first:count].tobytes()
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._new_group(frame, first)
        return found

    def _new_group(self, frame: Frame, first: int) -> Group:
        mask = self.active(first)
        rows = self.row[self.active_row[first : first + len(mask)]].astype(np.int64)
        warps = self.wave.shape[1]
        part = None if mask.all() else mask[:, None]
        return Group(self.wave, frame, rows // warps, rows % warps, part, self.wave.tally)
