"""The operations of cp.reduce.async.bulk.tensor on one element. PTX ISA, "cp.reduce.async.bulk.tensor".

The treatment of NaNs, zeros and subnormal numbers is not documented; it is that of an H200.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ptxkit.emulator.arrays import Lanes

Reduction = Callable[[Lanes, Lanes], Lanes]
"""(elements in memory, elements of the box) -> new elements in memory. bfloat16 is represented by its bits."""

_INTEGERS: dict[str, tuple[Reduction, str]] = {
    "add": (np.add, "u32 s32 u64"),
    "min": (np.minimum, "u32 s32 u64 s64"),
    "max": (np.maximum, "u32 s32 u64 s64"),
    "and": (np.bitwise_and, "u32 s32 u64"),
    "or": (np.bitwise_or, "u32 s32 u64"),
    "xor": (np.bitwise_xor, "u32 s32 u64"),
    "inc": (lambda old, bound: np.where(old >= bound, old.dtype.type(0), old + old.dtype.type(1)), "u32"),
    "dec": (lambda old, bound: np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1)), "u32"),
}
"""Operation -> function and element types."""

_FLOATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f32.ftz": np.dtype(np.float32),
    "tf32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_NANS = {2: 0x7FFF, 4: 0x7FFF_FFFF}
"""Size -> bits of every NaN result. NaNs of float64 keep their payload."""


def floats(cells: Lanes, name: str) -> Lanes | None:
    """Elements of the type ``name`` as numbers; None for integers."""
    return np.ascontiguousarray(cells).view(_FLOATS[name]) if name in _FLOATS else None


def reduction(op: str, name: str) -> Reduction | None:
    """The reduction ``op`` of elements of the type ``name``; None if there is none.

    The manual's tables lack add of f64 and tf32, which an H200 supports.
    """
    function, types = _INTEGERS[op]
    if name in types.split():
        return function
    if name not in _FLOATS:
        return None
    dtype = _FLOATS[name]
    bits = np.dtype(f"u{dtype.itemsize}")
    nan = bits.type(_NANS.get(dtype.itemsize, 0))

    def add(old: Lanes, new: Lanes) -> Lanes:
        a, b = (np.ascontiguousarray(v).view(dtype) for v in (old, new))
        if name == "f32.ftz":
            a, b = flushed(a), flushed(b)
        with np.errstate(all="ignore"):
            if dtype.itemsize == 2:
                total = (a.astype(np.float32) + b.astype(np.float32)).astype(dtype)
            else:
                total = a + b
        if name == "f32.ftz":
            total = flushed(total)
        return np.where(_is_nan(total) & (nan > 0), nan, total.view(bits)).view(old.dtype)

    def extreme(old: Lanes, new: Lanes) -> Lanes:
        a, b = (np.ascontiguousarray(v).view(dtype) for v in (old, new))
        x, y = a.view(bits), b.view(bits)
        with np.errstate(all="ignore"):
            first = (a < b) if op == "min" else (a > b)
            # -0 is less than 0
            same = np.where(a == b, (x | y) if op == "min" else (x & y), y)
        result = np.where(first, x, same)
        result = np.where(_is_nan(a), y, np.where(_is_nan(b), x, result))
        return np.where(_is_nan(a) & _is_nan(b), nan, result).view(old.dtype)

    if op == "add":
        return add
    return extreme if op in ("min", "max") and dtype.itemsize == 2 else None


def _is_nan(values: Lanes) -> Lanes:
    return values != values


def flushed(values: Lanes) -> Lanes:
    """Replaces subnormal float32 numbers by zeros of the same sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)
