"""What the driver requires of the array and the boxes of a tensor map, as checks.

CUDA driver API, "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col" and "cuTensorMapEncodeIm2colWide".
"""

from __future__ import annotations

from math import prod
from typing import Protocol

from ptxkit.errors import UsageError
from ptxkit.runtime.tensor_map.elements import ElementType
from ptxkit.runtime.tensor_map.im2col import Im2col
from ptxkit.runtime.tensor_map.limits import ALONG_W_SWIZZLES, MAX_BOX_BYTES, MAX_DIMENSION, MAX_STRIDE, SPANS, SWIZZLES


class Boxes(Protocol):
    """How a :class:`~ptxkit.runtime.tensor_map.description.TensorMap`, which has these attributes, cuts an array into boxes."""

    @property
    def rank(self) -> int: ...
    @property
    def box(self) -> tuple[int, ...]: ...
    @property
    def element_strides(self) -> tuple[int, ...] | None: ...
    @property
    def im2col(self) -> Im2col | None: ...
    @property
    def swizzle(self) -> str: ...
    @property
    def oob_fill(self) -> str: ...


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
    """Raise UsageError if the corners leave no position for a filter."""
    for low, high, n in zip(i.lower, i.upper, shape[1:-1], strict=True):
        if low > n - 1 + high:
            raise UsageError(
                f"im2col corners {i.lower} and {i.upper} leave nothing of {shape}: {low} to {n - 1 + high} is empty"
            )


def check_box(m: Boxes, element: ElementType) -> None:
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
    if m.im2col is not None and m.im2col.along_w and m.swizzle not in ALONG_W_SWIZZLES:
        raise UsageError(
            f"im2col with along_w takes swizzle {', '.join(map(repr, ALONG_W_SWIZZLES))}, not {m.swizzle!r}"
        )
    if m.oob_fill == "nan" and not element.floating:
        raise UsageError(f"oob_fill 'nan' is for floating-point types; {element.name} takes 'zeros'")
    offered = {
        "16u6_align16b": ("none", "128B", "128B_atom_32B", "128B_atom_64B"),
        "16u4_align16b": ("none", "128B", "128B_atom_32B"),
    }
    if m.swizzle not in offered.get(element.name, SWIZZLES):
        raise UsageError(f"{element.name} takes swizzle {', '.join(offered[element.name])}, not {m.swizzle!r}")
