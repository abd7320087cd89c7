"""What the driver asks of tensor maps, as tables and checks.

CUDA driver API, "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "CUtensorMapDataType" and its relatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.targets import SM_LIMITS

if TYPE_CHECKING:
    from ptxkit.runtime.tensor_map.description import Im2col, TensorMap

BYTES = 128
"""Size of an encoded tensor map."""
ALIGNMENT = 64
"""Of an encoded tensor map in memory, in bytes."""

MAX_RANK = 5
MAX_BOX = 256
MAX_ELEMENT_STRIDE = 8
MAX_DIMENSION = 1 << 32
MAX_STRIDE = 1 << 40
MAX_PIXELS = 1024
MAX_BOX_BYTES = SM_LIMITS[90].shared_bytes
"""What the driver takes at most, tried on an H200: the shared memory of a multiprocessor."""

CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""Rank -> numbers that an im2col corner may have, -n to n - 1."""


@dataclass(frozen=True)
class ElementType:
    """A member of CUtensorMapDataType: its number, bits of an element in global memory, and whether it is a float."""

    name: str
    number: int
    bits: int
    floating: bool = False

    @property
    def packed(self) -> bool:
        """Whether elements are smaller than a byte."""
        return self.bits < 8


ELEMENT_TYPES = {
    t.name: t
    for t in (
        ElementType("uint8", 0, 8),
        ElementType("uint16", 1, 16),
        ElementType("uint32", 2, 32),
        ElementType("int32", 3, 32),
        ElementType("uint64", 4, 64),
        ElementType("int64", 5, 64),
        ElementType("float16", 6, 16, True),
        ElementType("float32", 7, 32, True),
        ElementType("float64", 8, 64, True),
        ElementType("bfloat16", 9, 16, True),
        ElementType("float32_ftz", 10, 32, True),
        ElementType("tfloat32", 11, 32, True),
        ElementType("tfloat32_ftz", 12, 32, True),
        ElementType("16u4_align8b", 13, 4),
        ElementType("16u4_align16b", 14, 4),
        ElementType("16u6_align16b", 15, 6),
    )
}
"""Element types by the names that a TensorMap takes: numpy's, where numpy has them, else the driver's in lower case."""

# 1-byte floats and signed types that the driver has no name for: the copy only moves their bits
_SAME_BITS = {"int8": "uint8", "bool": "uint8", "int16": "uint16"}

SWIZZLES = ("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")
"""CUtensorMapSwizzle, in the order of its numbers. A plain mode swaps atoms of 16 bytes."""
SPANS = {"32B": 32, "64B": 64}
"""Bytes within which a swizzle moves atoms; 128 for those that are not here."""
L2_PROMOTIONS = ("none", "64B", "128B", "256B")
"""CUtensorMapL2promotion, in the order of its numbers: bytes that a miss fetches into L2."""
OOB_FILLS = ("zeros", "nan")
"""CUtensorMapFloatOOBfill, in the order of its numbers: what a box reads outside the array."""


@dataclass(frozen=True)
class Encoding:
    """A tensor map as cuTensorMapEncodeTiled takes it: numbers, innermost dimension first.

    Attributes:
        element: number of the element type.
        address: of the first element, in global memory.
        dimensions: elements of each dimension.
        strides: bytes from one element to the next in each dimension but the innermost.
        box: elements that a box spans in each dimension; empty in im2col mode.
        element_strides: every how many of them it takes one.
        swizzle, l2_promotion, oob_fill: numbers of the driver's enumerations.
        im2col: lower and upper corner, channels and pixels, for cuTensorMapEncodeIm2col; None for tiles.
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


def element_type(array: Any, dtype: Any = None) -> ElementType:
    """The element type of an array, or the one asked for.

    Raises:
        UsageError: the driver has none, or nobody says which.
    """
    if isinstance(dtype, str) and dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype]
    if dtype is None:
        dtype = getattr(array, "dtype", None)
        if dtype is None or isinstance(array, np.generic):
            raise UsageError("the array does not tell its element type; give dtype")
    try:
        found = np.dtype(dtype)
    except TypeError:
        name = str(dtype).removeprefix("torch.")  # another library's dtype, or a name that numpy does not know
        known = {"float8_e4m3fn": "uint8", "float8_e5m2": "uint8", **_SAME_BITS}
        if name not in ELEMENT_TYPES and name not in known:
            near = get_close_matches(name, ELEMENT_TYPES, n=3) or list(ELEMENT_TYPES)
            raise UsageError(
                f"there is no element type {name!r} for tensor maps; did you mean {', '.join(near)}"
            ) from None
        return ELEMENT_TYPES[known.get(name, name)]
    name = _SAME_BITS.get(found.name, found.name)
    if found.kind == "V" and found.itemsize == 1:
        name = "uint8"
    if name not in ELEMENT_TYPES:
        raise UsageError(f"tensor maps have no element type for {found}; give dtype, one of {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[name]


def contiguous_strides(shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Bytes from one element to the next of a C-contiguous array; the last one, below a byte, counts as 1."""
    strides, row = [max(1, bits // 8)], shape[-1] * bits // 8
    for n in shape[-2::-1]:
        strides.append(row)
        row *= n
    return tuple(strides[::-1])


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


def shape_in(array: Any, element: ElementType) -> tuple[int, ...]:
    """An array's shape in elements: a row of bytes seen as 4-bit numbers has twice as many."""
    shape = getattr(array, "shape", None)
    if shape is None or isinstance(array, np.generic):
        raise UsageError("the array does not tell its shape; give shape")
    shape = tuple(int(n) for n in shape)
    if not shape:
        raise UsageError("the array has no dimension; give shape")
    bits = 8 * int(getattr(array, "itemsize", 0) or array.dtype.itemsize)
    if bits == element.bits:
        return shape
    row = shape[-1] * bits
    if row % element.bits:
        raise UsageError(f"rows of {row // 8} bytes do not hold a whole number of {element.name}; give shape")
    return (*shape[:-1], row // element.bits)


def check_array(address: int, shape: tuple[int, ...], strides: tuple[int, ...], element: ElementType) -> None:
    """Raise UsageError unless a tensor map can be of this array."""
    wide = element.name in ("16u4_align16b", "16u6_align16b")
    unit = 32 if wide else 16
    if address % unit:
        raise UsageError(f"the array starts at {address:#x}; a tensor map's address is a multiple of {unit} bytes")
    if not all(1 <= n <= MAX_DIMENSION for n in shape):
        raise UsageError(f"shape {shape}: each dimension of a tensor map has 1 to 2^32 elements")
    least = 128 if wide else 2
    if element.packed and shape[-1] % least:
        raise UsageError(f"shape {shape}: the last dimension of {element.name} must be a multiple of {least}")
    if strides[-1] != max(1, element.bits // 8):
        raise UsageError(
            f"strides {strides}: the last dimension of a tensor map is contiguous, {max(1, element.bits // 8)} bytes apart"
        )
    for n in strides[:-1]:
        if n % unit or not 0 <= n < MAX_STRIDE:
            raise UsageError(
                f"strides {strides}: {n} bytes is not a multiple of {unit} below 2^40; pad the rows of the array, "
                "which a map of it can leave out"
            )


def check_columns(i: Im2col, shape: tuple[int, ...]) -> None:
    """Raise UsageError where the corners leave no place for a filter."""
    for low, high, n in zip(i.lower, i.upper, shape[1:-1], strict=True):
        if low > n - 1 + high:
            raise UsageError(
                f"im2col corners {i.lower} and {i.upper} leave nothing of {shape}: {low} to {n - 1 + high} is empty"
            )


def check_box(m: TensorMap, element: ElementType) -> None:
    """Raise UsageError unless boxes of these elements can be copied."""
    last = m.box[-1] if m.im2col is None else m.im2col.channels
    what = f"box {m.box}" if m.im2col is None else f"im2col channels {last}"
    row = last * element.bits // 8
    if element.name in ("16u4_align16b", "16u6_align16b"):
        if last != 128:
            raise UsageError(f"{what}: the last dimension of {element.name} must be 128")
        row = 128  # in shared memory, with its gaps
    elif row % 16:
        raise UsageError(
            f"{what}: rows of {row} bytes; the last dimension must be a multiple of 16 bytes, "
            f"{128 // element.bits} elements of {element.name}"
        )
    steps = m.element_strides or (1,) * m.rank
    rows = m.im2col.pixels if m.im2col else prod(-(-b // s) for b, s in zip(m.box[:-1], steps, strict=False))
    if rows * row > MAX_BOX_BYTES:
        raise UsageError(
            f"{what}: {rows * row:,} bytes; a box fits into shared memory, {MAX_BOX_BYTES:,} bytes: copy several"
        )
    span = 128 if m.swizzle.startswith("128B") else SPANS.get(m.swizzle, 0)
    if span and row > span:
        raise UsageError(
            f"{what}: rows of {row} bytes; swizzle {m.swizzle!r} takes {span} at most, {8 * span // element.bits} "
            f"elements of {element.name}: cut the box into several, or leave the swizzle out"
        )
    if m.oob_fill == "nan" and not element.floating:
        raise UsageError(f"oob_fill 'nan' is for floating-point types; {element.name} takes 'zeros'")
    offered = {
        "16u6_align16b": ("none", "128B", "128B_atom_32B", "128B_atom_64B"),
        "16u4_align16b": ("none", "128B", "128B_atom_32B"),
    }
    if m.swizzle not in offered.get(element.name, SWIZZLES):
        raise UsageError(f"{element.name} takes swizzle {', '.join(offered[element.name])}, not {m.swizzle!r}")
