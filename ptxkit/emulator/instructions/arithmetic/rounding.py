"""Rounding modes that numpy lacks, and fused multiply-add, by error-free transformations.

``two_sum`` and ``two_product`` are Knuth's (TAOCP 4.2.2) and Dekker's (1971). If a sum is rounded to odd, its last
bit shows whether it is inexact, so that a second rounding to a narrower format gives the correctly rounded result (Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Lanes that are too close to overflow or underflow for this
are computed with rational numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.lanes import recompute

CANONICAL_F32 = np.uint32(0x7FFFFFFF).view(np.float32)
CANONICAL_F64 = np.uint64(0x7FFFFFFFFFFFFFFF).view(np.float64)
_SPLIT = 134217729.0  # 2^27 + 1


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Rounded sum and its exact error; the error of a sum that is not finite is NaN."""
    s = a + b
    bb = s - a
    rest = s - bb
    np.subtract(a, rest, out=rest)
    np.subtract(b, bb, out=bb)
    rest += bb
    return s, rest


def two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Rounded f64 product and its exact error, for operands far from overflow and underflow."""
    p = a * b
    ah, al = _halves(a)
    bh, bl = _halves(b)
    error = ah * bh
    error -= p
    error += ah * bl
    error += al * bh
    error += al * bl
    return p, error


def _halves(a: Lanes) -> tuple[Lanes, Lanes]:
    c = a * _SPLIT
    high = c - a
    np.subtract(c, high, out=high)
    return high, np.subtract(a, high, out=c)


def step(r: Lanes, up: Lanes, down: Lanes) -> Lanes:
    """The next larger float of each lane in ``up``, the next smaller one of each lane in ``down``.

    A zero must have the sign of the direction in which it is changed.
    """
    bits = r.dtype.itemsize * 8
    integer = np.dtype(f"i{bits // 8}")
    i = np.ascontiguousarray(r).view(integer)
    # the next float away from zero has the bits plus one, the next one toward zero the bits minus one
    move = (up.view(np.int8) - down.view(np.int8)).astype(integer)
    move *= (i >> integer.type(bits - 1)) | integer.type(1)
    move += i
    return move.view(r.dtype)


def to_odd(s: Lanes, error: Lanes) -> Lanes:
    """``s + error`` rounded to odd: if inexact, the one of the two neighbours whose last bit is 1.

    ``s`` is the sum rounded to nearest and ``error`` the difference to the exact sum; an error of NaN counts as 0.
    """
    up, down = error > 0, error < 0
    if not (up.any() or down.any()):
        return s
    even = (s.view(f"i{s.dtype.itemsize}") & 1) == 0
    return step(s, up & even, down & even)


def round_f32(odd: Lanes, mode: str) -> Lanes:
    """Rounds an f64, which is exact or was rounded to odd, to f32 in one of the four modes."""
    r = odd.astype(np.float32)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    if mode == "rz":
        wrong = np.abs(back) > np.abs(odd)
        return (r.view(np.int32) - wrong.astype(np.int32)).view(np.float32) if wrong.any() else r
    none = np.zeros_like(r, np.bool_)
    return step(r, none, back > odd) if mode == "rm" else step(r, back < odd, none)


def zero_sign(result: Lanes, x: Lanes, y: Lanes, mode: str) -> Lanes:
    """Corrects the sign of zero sums x + y of operands with different signs: +0, but -0 if rounding down."""
    if mode != "rm":
        return result
    zero = (result == 0) & (x == -y) & ((x != 0) | (np.signbit(x) != np.signbit(y)))
    return np.where(zero, result.dtype.type(-0.0), result) if zero.any() else result


# -- f32 by way of f64 ------------------------------------------------------------------------------------------------------


def add_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Sum in any rounding mode."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return zero_sign(round_f32(to_odd(*two_sum(x, y)), mode), x, y, mode)


def mul_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Product in any rounding mode; it is exact in f64."""
    return round_f32(a.astype(np.float64) * b.astype(np.float64), mode)


_TIE = np.uint32(0x10000000)
_LOW29 = np.uint32(0x1FFFFFFF)
_TINY = np.float32(2.0**-126)


def fma_f32(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c rounded once, to nearest.

    The product is exact in f64. The sum is rounded to f64 and then to f32. The second rounding can only be wrong if the f64 sum
    lies exactly between two f32 values, or is close to the subnormal range, whose spacing differs. Only those lanes are
    recomputed with :func:`to_odd`.
    """
    s = np.multiply(a, b, dtype=np.float64)
    if s.shape == c.shape:
        np.add(s, c, out=s)
    else:
        s = s + c
    r = s.astype(np.float32)
    doubtful = (s.view(np.uint32)[..., ::2] & _LOW29) == _TIE
    small = np.abs(r) <= _TINY
    if np.count_nonzero(small):
        doubtful |= small & (s != 0)
    return recompute(r, doubtful, _fma_f32_odd, a, b, c) if np.count_nonzero(doubtful) else r


def _fma_f32_odd(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return fma_f32_mode(a, b, c, "rn")


def fma_f32_mode(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """a * b + c rounded once, in any mode."""
    x, z = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    return zero_sign(round_f32(to_odd(*two_sum(x, z)), mode), x, z, mode)


def div_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Quotient in any rounding mode; the exact quotient is above or below the f64 quotient by the sign of the residual."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    q = x / y
    h, low = two_product(q, y)  # NaN if an operand is infinite, which counts as no error
    return round_f32(to_odd(q, ((x - h) - low) * np.copysign(1.0, y)), mode)


def sqrt_f32(a: Lanes, mode: str) -> Lanes:
    """Square root in any rounding mode."""
    x = a.astype(np.float64)
    q = np.sqrt(x)
    h, low = two_product(q, q)
    return round_f32(to_odd(q, (x - h) - low), mode)


# -- f64 ---------------------------------------------------------------------------------------------------------------------


def round_exact(exact: Fraction, mode: str) -> float:
    """Rounds a rational number other than 0 to f64 in one of the four modes."""
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    if mode == "rn":
        return nearest
    over = nearest > 0 if math.isinf(nearest) else Fraction(nearest) > exact
    under = nearest < 0 if math.isinf(nearest) else Fraction(nearest) < exact
    if over and (mode == "rm" or (mode == "rz" and exact > 0)):
        return math.nextafter(nearest, -math.inf)
    if under and (mode == "rp" or (mode == "rz" and exact < 0)):
        return math.nextafter(nearest, math.inf)
    return math.copysign(nearest, 1 if exact > 0 else -1)


def _fma_exact(a: float, b: float, c: float, mode: str) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return round_exact(exact, mode)
    signs = (math.copysign(1, a) * math.copysign(1, b) < 0, math.copysign(1, c) < 0)
    return -0.0 if all(signs) or (mode == "rm" and any(signs)) else 0.0


def _each(f: Callable[..., float], mode: str) -> Callable[..., Lanes]:
    """Applies ``f`` lane by lane, for :func:`recompute`; callers leave lanes that are not finite to numpy."""

    def run(*lanes: Lanes) -> Lanes:
        count = max(v.size for v in lanes)
        rows = zip(*(np.broadcast_to(v, (count,)).tolist() for v in lanes), strict=True)
        return np.array([f(*row, mode) for row in rows], np.float64)

    return run


def _directed(s: Lanes, error: Lanes, mode: str) -> Lanes:
    """Changes a result rounded to nearest to a directed mode; ``error`` is the difference to the exact result."""
    none = np.zeros_like(s, np.bool_)
    if mode == "rm":
        return step(s, none, error < 0)
    if mode == "rp":
        return step(s, error > 0, none)
    return step(s, (error > 0) & (s < 0), (error < 0) & (s > 0))


def add_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Sum in a directed mode."""
    s, e = two_sum(a, b)
    r = zero_sign(_directed(s, e, mode), a, b, mode)
    hard = (np.abs(s) > 1e307) & np.isfinite(a) & np.isfinite(b)
    return recompute(r, hard, _each(lambda x, y, m: _fma_exact(x, 1.0, y, m), mode), a, b) if hard.any() else r


def fma_f64(a: Lanes, b: Lanes, c: Lanes, mode: str = "rn") -> Lanes:
    """a * b + c rounded once.

    Let (p, pe) be the product and its error, (s, se) the sum of p and c and its error. The exact result is s + se + pe: se +
    pe is rounded to odd and added to s. Lanes close to overflow or underflow are computed with rational numbers.
    """
    p, pe = two_product(a, b)
    s, se = two_sum(p, c)
    lack = to_odd(*two_sum(se, pe))
    if mode == "rn":
        r = s + lack
    else:
        left, lost = two_sum(s, lack)
        r = zero_sign(_directed(left, lost, mode), p, c, mode)
    size, sizes = np.abs(p), [np.abs(v) for v in (a, b, s)]
    # below 2^-960 the error of the product may underflow. With a NaN these comparisons are false
    if size.min() > 2.0**-960 and all(v.max() < 2.0**990 for v in (size, *sizes)):
        return r
    hard = ~((size > 2.0**-960) & (np.maximum(size, sizes[2]) < 2.0**990) & (np.maximum(*sizes[:2]) < 2.0**990))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    plain = hard & (
        ~finite | (a == 0) | (b == 0)
    )  # the product is not finite or an exact zero: numpy's result is right
    if plain.any():
        # with an infinite c the result is c, even if the finite product overflows in f64
        total = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, p + c)
        r = np.where(plain, zero_sign(total, p, c, mode), r)
    hard &= ~plain
    return recompute(r, hard, _each(_fma_exact, mode), a, b, c)


def mul_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Product in a directed mode."""
    return fma_f64(a, b, np.where(np.signbit(a) != np.signbit(b), -0.0, 0.0), mode)


def _div_exact(a: float, b: float, mode: str) -> float:
    return round_exact(Fraction(a) / Fraction(b), mode)


def div_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Quotient in a directed mode."""
    q = a / b
    h, low = two_product(q, b)
    residual = (a - h) - low
    size, divisor = np.abs(q), np.abs(b)
    inside = (size > 2.0**-900) & (size < 2.0**900) & (divisor > 2.0**-900) & (divisor < 2.0**900)
    inside &= (np.abs(a) > 2.0**-900) & (np.abs(a) < 2.0**900)
    r = np.where(inside, _directed(q, residual * np.copysign(1.0, b), mode), q)
    hard = ~inside & np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    return recompute(r, hard, _each(_div_exact, mode), a, b)


def _sqrt_exact(a: float, mode: str) -> float:
    root = math.sqrt(a)
    off = Fraction(root) ** 2 - Fraction(a)
    if off > 0 and mode in ("rm", "rz"):
        return math.nextafter(root, 0)
    if off < 0 and mode == "rp":
        return math.nextafter(root, math.inf)
    return root


def sqrt_f64(a: Lanes, mode: str) -> Lanes:
    """Square root in a directed mode."""
    r = np.sqrt(a)
    h, low = two_product(r, r)
    inside = (a > 2.0**-900) & (a < 2.0**900)
    out = np.where(inside, _directed(r, (a - h) - low, mode), r)
    return recompute(out, ~inside & (a > 0) & np.isfinite(a), _each(_sqrt_exact, mode), a)
