"""Element formats of tensor cores, and the arithmetic on them.

How f16 and narrower floating-point products are added up is in :mod:`~ptxkit.emulator.tensor_core.accumulation`. f64 is one
fused multiply-add after the other along K, and integers are exact: they wrap, or are limited with ``.satfinite``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic import rounding
from ptxkit.emulator.instructions.arithmetic.narrow_formats import FORMATS
from ptxkit.emulator.simt.step import Binding
from ptxkit.emulator.tensor_core.accumulation import Accumulation, accumulation

BITS = {
    "f64": 64,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}
"""Bits of an element in registers and memory."""

INTEGERS = frozenset(("s8", "u8", "s4", "u4", "b1"))


def per_word(t: str) -> int:
    """Elements in a register word; f64 words have 64 bits."""
    return 1 if t == "f64" else 32 // BITS[t]


@lru_cache
def _narrow(t: str) -> NDArray[np.float32]:
    """The value of each byte as float32, for a format of up to 8 bits; bits above the sign are ignored."""
    known = FORMATS[t]
    codes = np.arange(256, dtype=np.uint8) & np.uint8((2 << known.sign) - 1)
    table = codes.view(known.values).astype(np.float32)
    table.setflags(write=False)
    return table


@lru_cache
def _float16() -> NDArray[np.float32]:
    """All values of f16 as float32: a look-up is four times as fast as numpy's conversion."""
    table = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    table.setflags(write=False)
    return table


def decode(words: Lanes, t: str) -> Lanes:
    """Elements along the last axis of ``words`` (contiguous uint32, or uint64 for f64), low bits first, as float32 or float64.

    Every value of every format is exact in the result.
    """
    match t:
        case "f64":
            return words.view(np.float64)
        case "f16":
            return _float16().take(words.view(np.uint16))
        case "bf16":
            wide = words.view(np.uint16).astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        case "tf32":
            # the lower 13 bits are ignored
            return (words & np.uint32(0xFFFFE000)).view(np.float32)
        case "e4m3" | "e5m2":
            return _narrow(t).take(words.view(np.uint8))
        case "s8":
            return words.view(np.int8).astype(np.float32)
        case "u8":
            return words.view(np.uint8).astype(np.float32)
        case "s4" | "u4":
            pairs = words.view(np.uint8)
            nibbles = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*words.shape[:-1], -1)
            values = nibbles.astype(np.float32)
            return np.where(nibbles > 7, values - 16, values) if t == "s4" else values
        case "b1":
            return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").astype(np.float32)
    raise AssertionError(t)


def values(bits: Lanes, t: str) -> NDArray[np.float32]:
    """Elements, one bit pattern each in an unsigned array, as float32; bits above the format's are ignored."""
    match t:
        case "f16" | "bf16":
            return decode(np.ascontiguousarray(bits, np.uint16), t)
        case "tf32":
            return decode(np.ascontiguousarray(bits, np.uint32), t)
        case "s8" | "u8":
            return decode(np.ascontiguousarray(bits, np.uint8), t)
    return _narrow(t).take(np.ascontiguousarray(bits, np.uint8))


def double(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """``c + a @ b`` in float64, fused multiply-adds in the order of k, each rounded by ``mode``."""
    total = c
    for k in range(a.shape[-1]):
        total = rounding.fma_f64(a[..., :, k, None], b[..., None, k, :], total, mode)
    return total


@dataclass(frozen=True)
class Arithmetic:
    """The computation of an instruction on decoded elements.

    Attributes:
        ta, tb: element types of A and B.
        accumulate: the model of accumulation for floating-point types other than f64.
        op: rounding of f64 (``"rn"``, ...); ``"and"`` or ``"xor"`` of b1; ``"mul"`` otherwise.
        limit: ``.satfinite``.
    """

    ta: str
    tb: str
    accumulate: Accumulation
    op: str = "mul"
    limit: bool = False

    def __call__(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """``c + a @ b``: (U, m, k) and (U, k, n) as :func:`decode` gives them, (U, m, n) in the accumulator's type."""
        if self.ta == "f64":
            return double(a, b, c, self.op)
        if self.ta in INTEGERS:
            return integer(a, b, c, self.op, self.limit)
        return self.accumulate.dot(a, b, c, self.ta, self.tb)


def arithmetic(b: Binding, instruction: str, ta: str, tb: str, op: str, limit: bool) -> Arithmetic:
    """The arithmetic of an instruction, ``"mma"`` or ``"wgmma"``, on the target of the program."""
    return Arithmetic(ta, tb, accumulation(instruction, ta, b.target), op, limit)


def integer(a: Lanes, b: Lanes, c: Lanes, op: str, limit: bool) -> Lanes:
    """``c + a @ b`` of integers held in float32, as int32.

    Args:
        op: ``"mul"``; for b1 ``"and"`` or ``"xor"``, whose result bits are counted.
        limit: clamp to the range of int32 instead of wrapping (``.satfinite``).
    """
    # at most 256 terms below 2**16: exact in float32
    products = a @ b
    if op == "xor":
        products = a.sum(-1)[..., :, None] + b.sum(-2)[..., None, :] - 2 * products
    total = products.astype(np.int64) + c
    if limit:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.int32)
