"""Limits and enumerations of tensor maps, a description in the form that the driver takes, and checks of single values.

CUDA driver API, "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col" and "CUtensorMapSwizzle" with its relatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.targets import SM_LIMITS

BYTES = 128
"""Size of an encoded tensor map."""
ALIGNMENT = 64
"""Alignment of an encoded tensor map in memory, in bytes."""

MAX_RANK = 5
MAX_BOX = 256
MAX_ELEMENT_STRIDE = 8
MAX_DIMENSION = 1 << 32
MAX_STRIDE = 1 << 40
MAX_PIXELS = 1024
MAX_BOX_BYTES = SM_LIMITS[90].shared_bytes
"""The maximum that the driver accepts, found by trial on an H200: the shared memory of an SM."""

CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""Rank -> numbers that an im2col corner may have, -n to n - 1."""
ALONG_W = ("w", "w128")
"""CUtensorMapIm2ColWideMode, in the order of its numbers: im2col::w and im2col::w::128."""
ALONG_W_SWIZZLES = ("64B", "128B", "128B_atom_32B")
"""The swizzles that cuTensorMapEncodeIm2colWide takes."""

SWIZZLES = ("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")
"""CUtensorMapSwizzle, in the order of its numbers. A plain mode swaps atoms of 16 bytes."""
SPANS = {"32B": 32, "64B": 64}
"""Span of each swizzle in bytes; 128 for swizzles that are not listed."""
L2_PROMOTIONS = ("none", "64B", "128B", "256B")
"""CUtensorMapL2promotion, in the order of its numbers: bytes that a miss fetches into L2."""
OOB_FILLS = ("zeros", "nan")
"""CUtensorMapFloatOOBfill, in the order of its values: the fill value outside the array."""


@dataclass(frozen=True)
class Encoding:
    """The arguments of cuTensorMapEncodeTiled, innermost dimension first.

    Attributes:
        element: number of the element type.
        address: of the first element, in global memory.
        dimensions: elements of each dimension.
        strides: bytes from one element to the next in each dimension but the innermost.
        box: elements that a box spans in each dimension; empty in im2col mode.
        element_strides: distance between copied elements in each dimension.
        swizzle, l2_promotion, oob_fill: numbers of the driver's enumerations.
        im2col: lower and upper corner, channels and pixels, for cuTensorMapEncodeIm2col; None for tiles.
        along_w: number of the driver's CUtensorMapIm2ColWideMode, for cuTensorMapEncodeIm2colWide; None for the other modes.
    """

    element: int
    address: int
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    im2col: tuple[tuple[int, ...], tuple[int, ...], int, int] | None = None
    along_w: int | None = None


def whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    """One or several whole numbers as a tuple; UsageError for anything else."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(p, (int, np.integer)) and not isinstance(p, bool) for p in parts):
        raise UsageError(f"TensorMap: {name} must be whole numbers, one a dimension, not {value!r}")
    return tuple(int(p) for p in parts)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise UsageError unless ``value`` is one of them."""
    if value not in choices:
        raise UsageError(f"TensorMap: {name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def plural(count: int, what: str) -> str:
    """``2 dimensions``."""
    return f"{count} {what}{'s' * (count != 1)}"
