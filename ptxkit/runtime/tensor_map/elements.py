"""Element types of tensor maps (CUDA driver API, "CUtensorMapDataType"), and the shape of an array counted in them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from ptxkit.errors import UsageError


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


def element_type(array: Any, dtype: Any = None) -> ElementType:
    """The element type of an array, or the requested one.

    Raises:
        UsageError: the driver does not support the type, or it is not specified.
    """
    if isinstance(dtype, str) and dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype]
    if dtype is None:
        dtype = getattr(array, "dtype", None)
        if dtype is None or isinstance(array, np.generic):
            raise UsageError("the element type of the array is not known; give dtype")
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
    """Bytes from one element to the next in each dimension of a C-contiguous array; 1 in the last for elements below a
    byte."""
    strides, row = [max(1, bits // 8)], shape[-1] * bits // 8
    for n in shape[-2::-1]:
        strides.append(row)
        row *= n
    return tuple(strides[::-1])


def shape_in(array: Any, element: ElementType) -> tuple[int, ...]:
    """The shape of an array in elements; a row of bytes has twice as many 4-bit elements."""
    shape = getattr(array, "shape", None)
    if shape is None or isinstance(array, np.generic):
        raise UsageError("the shape of the array is not known; give shape")
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
