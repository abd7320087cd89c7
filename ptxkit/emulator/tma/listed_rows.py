"""Boxes whose rows are not adjacent in the array: im2col, and the four rows of gather4 and scatter4."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.tma.boxes import Boxes
from ptxkit.emulator.tma.tensor_map import BYTES, LAYOUT


class ListedRows(Boxes):
    """Boxes whose rows have the positions that :meth:`rows_at` returns; they are copied element by element."""

    def inside(self, coordinates: NDArray[np.int64]) -> NDArray[np.bool_]:
        """False for all boxes, so that the bounds of every element are checked."""
        return np.zeros(len(coordinates), np.bool_)

    def extent(self, coordinates: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """See :class:`Boxes`."""
        rows = self.rows_at(coordinates)
        valid = ((rows >= 0) & (rows < self.dims[1:])).all(2)
        first = np.maximum(coordinates[:, 0], 0)
        taken = np.maximum(np.minimum(coordinates[:, 0] + self.counts[0], self.dims[0]) - first, 0)
        starts = self.address + rows @ self.strides[1:] + (first * self.element.nbytes)[:, None]
        low = np.where(valid, starts, np.iinfo(np.int64).max).min(1)
        high = np.where(valid, starts, 0).max(1) + taken * self.element.nbytes
        return low, high, valid.sum(1) * taken * self.element.nbytes


class FourRows(ListedRows):
    """Boxes of tile::gather4 and tile::scatter4: four rows of a matrix, (E, 5) coordinates: the column, and each row.

    PTX ISA, "tile::scatter4 and tile::gather4 modes".
    """

    def _counts(self, record: Lanes) -> tuple[NDArray[np.int64], int]:
        counts, rows = super()._counts(record)
        if self.rank != 2 or rows != 1:
            raise ValueError(
                f"tile::gather4 and tile::scatter4 take a tensor map of 2 dimensions with boxes of one row; this one has "
                f"{self.rank} dimensions and boxes of {rows} rows"
            )
        return counts, 4

    def rows_at(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`Boxes`."""
        return coordinates[:, 1:, None]

    @property
    def distinct(self) -> bool:
        """False, because the coordinates may name the same row twice."""
        return False


@lru_cache(maxsize=256)
def four_rows(record: bytes) -> FourRows:
    """Decode a map for gather4 or scatter4. The boxes are cached by the bytes of the map.

    Raises:
        ValueError: see :class:`Boxes` and :class:`FourRows`.
    """
    assert len(record) == BYTES
    return FourRows(np.frombuffer(record, LAYOUT)[0])
