"""From coordinates to texels: fixed-point positions, weights, and the addressing modes.

CUDA C++ programming guide, "Texture Fetching". What the guide leaves open was measured on an H200 (docs/emulator.md, "Textures
and surfaces"):

- A subnormal coordinate is 0, and so is NaN.
- A normalised coordinate is rounded down to a multiple of 2^-21 before it is multiplied by the size.
- A position for linear filtering is rounded to the nearest multiple of 1/256, up in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WRAP, CLAMP, MIRROR, BORDER = range(4)
FRACTION = 256  # weights of linear filtering have 8 bits of fraction

_COORDINATE = 2.0**21
_LARGE = 2.0**31
_SMALLEST_NORMAL = np.float32(2.0**-126)

Positions = NDArray[np.float64]
Indices = NDArray[np.int64]


def position(coordinate: NDArray[np.floating], size: int, normalized: bool, mode: int) -> Positions:
    """Positions in texels, of float coordinates. With the modes wrap and mirror they begin again after two sizes."""
    x = np.where(np.isnan(coordinate) | (np.abs(coordinate) < _SMALLEST_NORMAL), 0.0, coordinate.astype(np.float64))
    if normalized:
        x = np.floor(np.clip(x, -_LARGE, _LARGE) * _COORDINATE) / _COORDINATE
        x = (x % 2.0 if mode in (WRAP, MIRROR) else x) * size
    return np.clip(x, -_LARGE, _LARGE)


@dataclass(frozen=True)
class Neighbours:
    """The two texels along one axis between which a linear filter computes.

    Attributes:
        low, high: their indices, before the addressing mode.
        weight: of ``high``, in units of 1/256.
    """

    low: Indices
    high: Indices
    weight: Indices


def nearest(positions: Positions) -> Indices:
    """The texel that a position lies in."""
    return np.floor(positions).astype(np.int64)


def neighbours(positions: Positions, size: int, mode: int) -> Neighbours:
    """The texels around a position. With the mode clamp a position beyond the last center is that center."""
    fixed = np.floor((positions - 0.5) * FRACTION + 0.5).astype(np.int64)
    if mode == CLAMP:
        fixed = np.clip(fixed, 0, (size - 1) * FRACTION)
    low = fixed >> 8
    return Neighbours(low, low + 1, fixed & 255)


def addressed(index: Indices, size: int, mode: int) -> tuple[Indices, NDArray[np.bool_]]:
    """Indices within the texture, and which of them are outside, where the mode is border."""
    outside = np.zeros(index.shape, np.bool_)
    if mode == WRAP:
        return index % size, outside
    if mode == MIRROR:
        around = index % (2 * size)
        return np.where(around < size, around, 2 * size - 1 - around), outside
    if mode == BORDER:
        outside = (index < 0) | (index >= size)
    return np.clip(index, 0, size - 1), outside
