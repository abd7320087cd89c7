"""Operations on the undefined bits of registers: combined, extended, viewed as another type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.simt.instrumented import unsigned
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.isa.types import PtxType


def shadow(bits: Lanes, origin: NDArray[np.int32]) -> Shadow | None:
    """A Shadow of these bits, or None where none is set."""
    if not bits.any():
        return None
    return Shadow(bits, np.where(bits != 0, origin, np.int32(0)))


def origins(shadows: list[Shadow | None]) -> NDArray[np.int32]:
    """Of each lane the first origin among ``shadows``."""
    out: NDArray[np.int32] = np.zeros((1, 1, 1), np.int32)
    for s in shadows:
        if s is not None:
            out = np.where(out != 0, out, s.origin)
    return out


def every(lanes: Mask, dtype: np.dtype) -> Lanes:
    """All bits of ``dtype`` in the ``lanes`` (bool), none in the others."""
    if dtype.kind == "b":
        return lanes
    return np.where(lanes, dtype.type(np.iinfo(dtype).max), dtype.type(0))


def resized(bits: Lanes, to: np.dtype, signed: bool = False) -> Lanes:
    """Bits of a register read or written as another type: truncated, or extended as the value is."""
    if bits.dtype == to:
        return bits
    if bits.dtype.kind == "b" or to.kind == "b":
        return every(bits != 0, to)
    if signed and to.itemsize > bits.dtype.itemsize:
        return bits.view(f"i{bits.dtype.itemsize}").astype(f"i{to.itemsize}").view(to)
    return bits.astype(to)


def as_data(s: Shadow | None, t: PtxType) -> Lanes:
    """Undefined bits as if they were a value of type ``t``, for an instruction that moves bits."""
    if s is None:
        return np.zeros((1, 1, 1), t.dtype)
    bits = resized(s.bits, unsigned(t))
    if t.dtype.itemsize == 16:
        return np.ascontiguousarray(np.stack([bits, bits], -1)).view("V16")[..., 0]
    return np.ascontiguousarray(bits).view(t.dtype)


def from_data(value: Lanes, t: PtxType) -> Lanes:
    """The reverse of :func:`as_data`: bits as :class:`Shadow` has them."""
    if t.dtype.itemsize == 16:
        halves = np.ascontiguousarray(value).view(np.uint64).reshape(*value.shape, 2)
        return every((halves != 0).any(-1), np.dtype(np.uint64))
    if value.dtype.kind == "b":
        return value
    return np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").astype(unsigned(t), copy=False)
