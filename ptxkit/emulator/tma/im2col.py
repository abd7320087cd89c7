"""Boxes of tensor maps in the modes im2col, im2col::w and im2col::w::128, and the choice between the modes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.tma.boxes import Boxes
from ptxkit.emulator.tma.listed_rows import ListedRows
from ptxkit.emulator.tma.tensor_map import BYTES, LAYOUT


class Columns(ListedRows):
    """Boxes of a map in im2col mode: R pixels of the dimensions N, D, H, W in the order of a convolution, C channels of each.

    Coordinates are (E, D + D - 2): the position of the filter's corner, followed by the offsets in the filter. The pixels are
    consecutive within the bounding box, W first, and continue in the next image; then the offsets are added (PTX ISA, "im2col
    mode").
    """

    def _counts(self, record: Lanes) -> tuple[NDArray[np.int64], int]:
        spatial = self.rank - 2
        if spatial < 1:
            raise ValueError(f"a tensor map of {self.rank} dimensions has no im2col mode; it takes 3 to 5")
        self.low = record["lower_corner"][:spatial].astype(np.int64)
        self.high = self.dims[1:-1] - 1 + record["upper_corner"][:spatial]
        self.positions = (self.high - self.low) // np.maximum(self.steps[1:-1], 1) + 1
        if (self.positions < 1).any():
            raise ValueError(f"the bounding box of the tensor map is empty: {self.positions} positions")
        counts = np.ones(self.rank, np.int64)
        counts[0] = record["channels"]
        return counts, int(record["pixels"])

    def rows_at(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`Boxes`."""
        rank = self.rank
        corner, offsets = coordinates[:, :rank], coordinates[:, rank:]
        moves = np.broadcast_to(np.arange(self.rows, dtype=np.int64), (len(coordinates), self.rows))
        rows = np.empty((len(coordinates), self.rows, rank - 1), np.int64)
        for k, count in enumerate(self.positions.tolist()):
            step, start = int(self.steps[1 + k]), corner[:, 1 + k, None]
            # the first row begins at the position of the filter, the others at the lower corner
            first = np.maximum((self.high[k] - start) // step + 1, 0)
            later = moves - first
            place = np.where(later < 0, start + moves * step, self.low[k] + later % count * step)
            rows[:, :, k] = place + offsets[:, k, None]
            moves = np.where(later < 0, 0, 1 + later // count)  # the carry into the next dimension
        rows[:, :, -1] = corner[:, -1, None] + moves
        return rows

    @property
    def distinct(self) -> bool:
        """Whether no pixel occurs twice."""
        return True


class ColumnsAlongW(ListedRows):
    """Boxes of a map in the modes im2col::w and im2col::w::128: pixels of one D and H, in the order W, N.

    Coordinates are (E, D + 2): the first pixel, followed by wHalo and wOffset. The pixels follow each other within the bounding
    box of W, which wOffset shifts, and continue in the next image. The pixels of the halo are those that follow next: after
    the last pixel, or with im2col::w::128 after each 32 pixels, and then the next 32 pixels begin with them again (PTX ISA,
    "im2col::w and im2col::w::128 modes"; its figures, which show the halo, were not available).

    Args:
        halo: number of pixels of the halo.
    """

    def __init__(self, record: Lanes, halo: int) -> None:
        self.halo = halo
        super().__init__(record)

    def _counts(self, record: Lanes) -> tuple[NDArray[np.int64], int]:
        if self.rank < 3:
            raise ValueError(f"a tensor map of {self.rank} dimensions has no im2col mode; it takes 3 to 5")
        self.low = int(record["lower_corner"][0])
        self.high = int(self.dims[1]) - 1 + int(record["upper_corner"][0])
        if self.high < self.low:
            raise ValueError(f"the bounding box of the tensor map is empty: W from {self.low} to {self.high}")
        counts = np.ones(self.rank, np.int64)
        counts[0] = record["channels"]
        if int(record["mode"]) == 2:
            self.walk = np.arange(int(record["pixels"]) + self.halo)
        else:
            self.walk = (32 * np.arange(4)[:, None] + np.arange(32 + self.halo)).reshape(-1)
        return counts, len(self.walk)

    def misplaced(self, coordinates: NDArray[np.int64]) -> tuple[NDArray[np.bool_], str]:
        """See :class:`Boxes`."""
        bad, why = super().misplaced(coordinates)
        right = coordinates[:, 1] > self.high
        if right.any() and not bad.any():
            return right, f"at W = {int(coordinates[np.argmax(right), 1])}; the bounding box ends at {self.high}"
        return bad, why

    def rows_at(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`Boxes`."""
        step = int(self.steps[1])
        each = (self.high - self.low) // step + 1
        start, offset = coordinates[:, 1, None], coordinates[:, -1, None]
        later = self.walk - ((self.high - start) // step + 1)  # in the images after the first
        rows = np.repeat(coordinates[:, None, 1 : self.rank], len(self.walk), axis=1)
        rows[:, :, 0] = np.where(later < 0, start + self.walk * step, self.low + later % each * step) + offset
        rows[:, :, -1] += np.where(later < 0, 0, 1 + later // each)
        return rows

    @property
    def distinct(self) -> bool:
        """Whether no pixel occurs twice."""
        return not self.halo


@lru_cache(maxsize=256)
def decode(record: bytes, halo: int = 0) -> Boxes:
    """Decode a map. The boxes and their tables are cached by the bytes of the map.

    Args:
        halo: pixels of the halo that an instruction in the modes im2col::w and im2col::w::128 adds.

    Raises:
        ValueError: see :class:`Boxes`.
    """
    assert len(record) == BYTES
    fields = np.frombuffer(record, LAYOUT)[0]
    match int(fields["mode"]):
        case 0:
            return Boxes(fields)
        case 1:
            return Columns(fields)
        case _:
            return ColumnsAlongW(fields, halo)
