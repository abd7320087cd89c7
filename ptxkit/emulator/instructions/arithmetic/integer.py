"""Integer arithmetic. PTX ISA, "Integer Arithmetic Instructions"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.lanes import choose
from ptxkit.emulator.simt.table import alu

_ALL = "u16 u32 u64 s16 s32 s64"
_WIDE = {np.dtype("u2"): "u4", np.dtype("i2"): "i4", np.dtype("u4"): "u8", np.dtype("i4"): "i8"}


@alu("add.<t>", t=_ALL)
def add(a: Lanes, b: Lanes) -> Lanes:
    """Sum, wrapping."""
    return a + b


@alu("sub.<t>", t=_ALL)
def sub(a: Lanes, b: Lanes) -> Lanes:
    """Difference, wrapping."""
    return a - b


def _clamp(wide: Lanes) -> Lanes:
    return np.clip(wide, np.int64(-(2**31)), np.int64(2**31 - 1)).astype(np.int32)


@alu("add.sat.s32")
def add_sat(a: Lanes, b: Lanes) -> Lanes:
    """Sum, clamped to the type's range."""
    return _clamp(a.astype(np.int64) + b)


@alu("add.sat.u32")
def add_sat_unsigned(a: Lanes, b: Lanes) -> Lanes:
    """Sum, at most the largest value (PTX 9.2, sm_120)."""
    out = a + b
    return choose(out < a, np.full((1, 1, 1), 0xFFFFFFFF, np.uint32), out)


@alu("sub.sat.s32")
def sub_sat(a: Lanes, b: Lanes) -> Lanes:
    """Difference, clamped to the type's range."""
    return _clamp(a.astype(np.int64) - b)


def high_product(a: Lanes, b: Lanes) -> Lanes:
    """Upper half of the product, in the operands' type."""
    if a.dtype in _WIDE:
        wide = _WIDE[a.dtype]
        return ((a.astype(wide) * b.astype(wide)) >> np.dtype(wide).type(a.dtype.itemsize * 8)).astype(a.dtype)
    ua, ub = a.view(np.uint64), b.view(np.uint64)
    low, s = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = ua & low, ua >> s, ub & low, ub >> s
    mid = a1 * b0 + ((a0 * b0) >> s)
    mid2 = a0 * b1 + (mid & low)
    high = a1 * b1 + (mid >> s) + (mid2 >> s)
    if a.dtype.kind == "i":  # signed product = unsigned product - the other operand for each negative operand
        high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return high.view(a.dtype)


@alu("mul.lo.<t>", t=_ALL)
def mul_lo(a: Lanes, b: Lanes) -> Lanes:
    """Lower half of the product."""
    return a * b


@alu("mul.hi.<t>", t=_ALL)
def mul_hi(a: Lanes, b: Lanes) -> Lanes:
    """Upper half of the product."""
    return high_product(a, b)


@alu("mul.wide.<t>", t="u16 s16 u32 s32", sig="wide(t) = t, t")
def mul_wide(a: Lanes, b: Lanes) -> Lanes:
    """The whole product, in twice the width."""
    wide = _WIDE[a.dtype]
    return a.astype(wide) * b.astype(wide)


@alu("mad.lo.<t>", t=_ALL)
def mad_lo(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Lower half of the product, plus c."""
    return a * b + c


@alu("mad.hi.<t>", t=_ALL)
def mad_hi(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Upper half of the product, plus c."""
    return high_product(a, b) + c


@alu("mad.hi.sat.s32")
def mad_hi_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Upper half of the product, plus c, clamped."""
    return _clamp(high_product(a, b).astype(np.int64) + c)


@alu("mad.wide.<t>", t="u16 s16 u32 s32", sig="wide(t) = t, t, wide(t)")
def mad_wide(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The whole product, plus c in twice the width."""
    return a.astype(c.dtype) * b.astype(c.dtype) + c


def _product24(a: Lanes, b: Lanes, high: bool) -> Lanes:
    shift = np.int64(40)
    x: Lanes
    y: Lanes
    x, y = (v.astype(np.int64) << shift for v in (a, b))
    if a.dtype.kind == "u":
        x, y = x.view(np.uint64) >> np.uint64(40), y.view(np.uint64) >> np.uint64(40)
    else:
        x, y = x >> shift, y >> shift
    product = x * y
    return ((product >> product.dtype.type(16)) if high else product).astype(a.dtype)


@alu("mul24.<half>.<t>", half="hi lo", t="u32 s32")
def mul24(a: Lanes, b: Lanes, *, half: str) -> Lanes:
    """Product of the low 24 bits: its upper 32 of 48 bits, or its lower 32."""
    return _product24(a, b, half == "hi")


@alu("mad24.<half>.<t>", half="hi lo", t="u32 s32")
def mad24(a: Lanes, b: Lanes, c: Lanes, *, half: str) -> Lanes:
    """mul24, plus c."""
    return _product24(a, b, half == "hi") + c


@alu("mad24.hi.sat.s32")
def mad24_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """mul24.hi, plus c, clamped."""
    return _clamp(_product24(a, b, True).astype(np.int64) + c)


@alu("sad.<t>", t=_ALL)
def sad(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """c plus the absolute difference."""
    return c + (np.maximum(a, b) - np.minimum(a, b))


def _quotient(a: Lanes, b: Lanes) -> Lanes:
    """The quotient, rounded toward zero; undefined if b is 0."""
    if a.dtype.itemsize < 8:
        # exact for 32-bit integers: a quotient that is not an integer is never rounded to one in f64
        return np.trunc(a.astype(np.float64) / b).astype(np.int64).astype(a.dtype)
    q = a // b
    if a.dtype.kind == "u":
        return q
    return q + ((q * b != a) & ((a < 0) != (b < 0)))


@alu("div.<t>", t=_ALL)
def div(a: Lanes, b: Lanes) -> Lanes:
    """Quotient, rounded toward zero. Division by zero, whose result PTX does not define, gives all ones."""
    q = _quotient(a, b)
    zero = b == 0
    return np.where(zero, ~a.dtype.type(0), q) if zero.any() else q


@alu("rem.<t>", t=_ALL)
def rem(a: Lanes, b: Lanes) -> Lanes:
    """Remainder, with the sign of the dividend. Division by zero, whose result PTX does not define, gives the dividend."""
    r = a - _quotient(a, b) * b
    zero = b == 0
    return np.where(zero, a, r) if zero.any() else r


@alu("abs.<t>", t="s16 s32 s64")
def abs_(a: Lanes) -> Lanes:
    """Magnitude; the most negative value stays."""
    return np.abs(a)


@alu("neg.<t>", t="s16 s32 s64")
def neg(a: Lanes) -> Lanes:
    """Negated, wrapping."""
    return -a


@alu("min.<t>", t=_ALL)
def min_(a: Lanes, b: Lanes) -> Lanes:
    """The smaller."""
    return np.minimum(a, b)


@alu("max.<t>", t=_ALL)
def max_(a: Lanes, b: Lanes) -> Lanes:
    """The larger."""
    return np.maximum(a, b)


@alu("min.relu.s32")
def min_relu(a: Lanes, b: Lanes) -> Lanes:
    """The smaller, but at least 0."""
    return np.maximum(np.minimum(a, b), np.int32(0))


@alu("max.relu.s32")
def max_relu(a: Lanes, b: Lanes) -> Lanes:
    """The larger, but at least 0."""
    return np.maximum(np.maximum(a, b), np.int32(0))
