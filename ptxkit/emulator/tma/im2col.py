"""Boxes of tensor maps in im2col mode, and the choice between the modes."""

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


@lru_cache(maxsize=256)
def decode(record: bytes) -> Boxes:
    """Decode a map. The boxes and their tables are cached by the bytes of the map.

    Raises:
        ValueError: see :class:`Boxes`.
    """
    assert len(record) == BYTES
    fields = np.frombuffer(record, LAYOUT)[0]
    return Columns(fields) if fields["mode"] else Boxes(fields)
