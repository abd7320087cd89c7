"""Integer arithmetic. PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic Instructions"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.emulator.table import Form, alu

Lanes = Any
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
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


@alu("add.sat.s32")
def add_sat(a: Lanes, b: Lanes) -> Lanes:
    """Sum, clamped to the type's range."""
    return _clamp(a.astype(np.int64) + b)


@alu("sub.sat.s32")
def sub_sat(a: Lanes, b: Lanes) -> Lanes:
    """Difference, clamped to the type's range."""
    return _clamp(a.astype(np.int64) - b)


def _pairs(a: Lanes, b: Lanes, dtype: str, f: Callable[[Lanes, Lanes], Lanes]) -> Lanes:
    """``f`` on both 16-bit halves."""
    x, y = (np.ascontiguousarray(v).view(dtype).reshape(*v.shape, 2) for v in (a, b))
    return np.ascontiguousarray(f(x, y)).view(np.uint32)[..., 0]


@alu("add{.sat}.<t>", t="u16x2 s16x2")
def add_x2(a: Lanes, b: Lanes, *, t: str, sat: bool) -> Lanes:
    """Sums of both halves."""
    if not sat:
        return _pairs(a, b, "u2", np.add)
    d = np.dtype("u2" if t[0] == "u" else "i2")
    info = np.iinfo(d)
    return _pairs(a, b, d.str, lambda x, y: np.clip(x.astype(np.int32) + y, info.min, info.max).astype(d))


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
    if a.dtype.kind == "i":  # signed = unsigned less the other operand where one is negative
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
    x, y = ((v.astype(np.int64) << shift) for v in (a, b))
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
    return c + np.where(a > b, a - b, b - a)


def _truncating(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Quotient rounded towards zero, and remainder with the dividend's sign; b is nowhere 0."""
    q = a // b
    r = a - q * b
    if a.dtype.kind == "i":
        off = (r != 0) & ((a < 0) != (b < 0))
        q = q + off.astype(a.dtype)
        r = a - q * b
    return q, r


@alu("div.<t>", t=_ALL)
def div(a: Lanes, b: Lanes) -> Lanes:
    """Quotient towards zero. Division by zero, which PTX leaves open, gives all ones."""
    zero = b == 0
    q, _ = _truncating(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, ~np.zeros_like(q), q) if zero.any() else q


@alu("rem.<t>", t=_ALL)
def rem(a: Lanes, b: Lanes) -> Lanes:
    """Remainder with the dividend's sign. By zero, which PTX leaves open, it gives the dividend."""
    zero = b == 0
    _, r = _truncating(a, np.where(zero, b.dtype.type(1), b))
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


def _minmax_x2(form: Form) -> Callable[..., Lanes]:
    f = np.minimum if form.opcode.startswith("min") else np.maximum
    dtype = "i2" if form["t"] == "s16x2" else "u2"
    if form["relu"]:
        return lambda a, b: _pairs(a, b, dtype, lambda x, y: np.maximum(f(x, y), x.dtype.type(0)))
    return lambda a, b: _pairs(a, b, dtype, f)


alu("min{.relu}.<t>", t="s16x2", sig="t = t, t", bind=True)(_minmax_x2)
alu("max{.relu}.<t>", t="s16x2", sig="t = t, t", bind=True)(_minmax_x2)


@alu("min.u16x2")
def min_u16x2(a: Lanes, b: Lanes) -> Lanes:
    """The smaller of each half."""
    return _pairs(a, b, "u2", np.minimum)


@alu("max.u16x2")
def max_u16x2(a: Lanes, b: Lanes) -> Lanes:
    """The larger of each half."""
    return _pairs(a, b, "u2", np.maximum)


@alu("dp4a.<ta>.<tb>", ta="u32 s32", tb="u32 s32", bind=True, sig="s32 = ta, tb, s32")
def dp4a(form: Form) -> Callable[..., Lanes]:
    """Dot product of four bytes each, plus c."""
    da, db = ("i1" if form[k] == "s32" else "u1" for k in ("ta", "tb"))

    def run(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        x = np.ascontiguousarray(a).view(da).reshape(*a.shape, 4).astype(np.int32)
        y = np.ascontiguousarray(b).view(db).reshape(*b.shape, 4).astype(np.int32)
        return (x * y).sum(-1, dtype=np.int32) + c

    return run


@alu("dp2a.<half>.<ta>.<tb>", half="lo hi", ta="u32 s32", tb="u32 s32", bind=True, sig="s32 = ta, tb, s32")
def dp2a(form: Form) -> Callable[..., Lanes]:
    """Dot product of two 16-bit values with two bytes of b, plus c."""
    da, db = ("i2" if form["ta"] == "s32" else "u2"), ("i1" if form["tb"] == "s32" else "u1")
    at = 0 if form["half"] == "lo" else 2

    def run(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        x = np.ascontiguousarray(a).view(da).reshape(*a.shape, 2).astype(np.int32)
        y = np.ascontiguousarray(b).view(db).reshape(*b.shape, 4)[..., at : at + 2].astype(np.int32)
        return (x * y).sum(-1, dtype=np.int32) + c

    return run


# -- with carry. The flag is its own operand; subtraction keeps a borrow in it. ------------------------------------------------


@alu("add.cc.<t>", t="u32 s32 u64 s64", sig="t, cc = t, t")
def add_cc(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Sum and carry out."""
    return _add_carry(a, b, np.zeros((1, 1, 1), np.bool_))


def _add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    u = f"u{a.dtype.itemsize}"
    ua, ub = a.view(u), b.view(u)
    first = ua + ub
    total = first + carry.astype(u)
    return total.view(a.dtype), (first < ua) | (total < first)


@alu("addc.cc.<t>", t="u32 s32 u64 s64", sig="t, cc = t, t, cc")
def addc_cc(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Sum with carry in and carry out."""
    return _add_carry(a, b, carry)


@alu("addc.<t>", t="u32 s32 u64 s64", sig="t = t, t, cc")
def addc(a: Lanes, b: Lanes, carry: Lanes) -> Lanes:
    """Sum with carry in."""
    return a + b + carry.astype(a.dtype)


def _sub_borrow(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    u = f"u{a.dtype.itemsize}"
    ua, ub = a.view(u), b.view(u)
    first = ua - ub
    total = first - borrow.astype(u)
    return total.view(a.dtype), (ua < ub) | (first < total)


@alu("sub.cc.<t>", t="u32 s32 u64 s64", sig="t, cc = t, t")
def sub_cc(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Difference and borrow out."""
    return _sub_borrow(a, b, np.zeros((1, 1, 1), np.bool_))


@alu("subc.cc.<t>", t="u32 s32 u64 s64", sig="t, cc = t, t, cc")
def subc_cc(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    """Difference with borrow in and out."""
    return _sub_borrow(a, b, borrow)


@alu("subc.<t>", t="u32 s32 u64 s64", sig="t = t, t, cc")
def subc(a: Lanes, b: Lanes, borrow: Lanes) -> Lanes:
    """Difference with borrow in."""
    return a - b - borrow.astype(a.dtype)


def _part(half: str, a: Lanes, b: Lanes) -> Lanes:
    return high_product(a, b) if half == "hi" else a * b


@alu("mad.<half>.cc.<t>", half="hi lo", t="u32 s32 u64 s64", sig="t, cc = t, t, t")
def mad_cc(a: Lanes, b: Lanes, c: Lanes, *, half: str) -> tuple[Lanes, Lanes]:
    """mad with carry out."""
    return _add_carry(_part(half, a, b), c, np.zeros((1, 1, 1), np.bool_))


@alu("madc.<half>.cc.<t>", half="hi lo", t="u32 s32 u64 s64", sig="t, cc = t, t, t, cc")
def madc_cc(a: Lanes, b: Lanes, c: Lanes, carry: Lanes, *, half: str) -> tuple[Lanes, Lanes]:
    """mad with carry in and out."""
    return _add_carry(_part(half, a, b), c, carry)


@alu("madc.<half>.<t>", half="hi lo", t="u32 s32 u64 s64", sig="t = t, t, t, cc")
def madc(a: Lanes, b: Lanes, c: Lanes, carry: Lanes, *, half: str) -> Lanes:
    """mad with carry in."""
    return _add_carry(_part(half, a, b), c, carry)[0]
