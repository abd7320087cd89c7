"""f32 and f64 arithmetic, IEEE 754 with PTX's modifiers. PTX ISA, "Floating-Point Instructions".

The common forms are numpy's ufuncs. What numpy does not have, directed rounding and fused multiply-add, is built from
error-free transformations (Dekker 1971, Knuth TAOCP 4.2.2) and rounding to odd (Boldo and Melquiond 2008): a sum that keeps
in its last bit whether something was cut off rounds once more without harm.

NaN results are whatever the host's arithmetic gives, except where noted: PTX leaves the payload open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.emulator.alu.compare import flush
from ptxkit.emulator.table import Form, alu

Lanes = Any
_RND = "rn rz rm rp"
CANONICAL_F32 = np.uint32(0x7FFFFFFF).view(np.float32)
CANONICAL_F64 = np.uint64(0x7FFFFFFFFFFFFFFF).view(np.float64)


def saturate(a: Lanes) -> Lanes:
    """Clamped to [0, 1]; NaN and -0 become +0."""
    one = a.dtype.type(1)
    return np.where(a > 0, np.minimum(a, one), a.dtype.type(0))


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Rounded sum and its exact error."""
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


def two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Rounded f64 product and its exact error, for operands far from overflow and underflow."""
    p = a * b
    split = 134217729.0  # 2^27 + 1
    ca, cb = a * split, b * split
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Lanes, error: Lanes) -> Lanes:
    """``s + error`` rounded to odd: where something was cut off, the neighbour of the two whose last bit is 1."""
    bits = np.ascontiguousarray(s).view(np.int64)
    inexact = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
    # towards the error: away from zero where it has the sign of s
    step = np.where((error > 0) == (s > 0), 1, -1)
    zero = s == 0
    moved = np.where(inexact & ~zero, bits + step, bits).view(np.float64)
    return np.where(inexact & zero, error, moved)


def round_f32(odd: Lanes, mode: str) -> Lanes:
    """An f64 that was rounded to odd (or is exact) as f32 in one of the four modes."""
    r = odd.astype(np.float32)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    if mode == "rz":
        wrong = np.abs(back) > np.abs(odd)
        toward = np.float32(0)
    elif mode == "rm":
        wrong, toward = back > odd, np.float32(-np.inf)
    else:
        wrong, toward = back < odd, np.float32(np.inf)
    return np.where(wrong, np.nextafter(r, toward), r).astype(np.float32)


def _zero_sign(result: Lanes, exact_zero: Lanes, both_negative: Lanes, mode: str) -> Lanes:
    """An exact zero sum of unlike signs is +0, and -0 when rounding down."""
    if mode != "rm":
        return result
    return np.where(exact_zero & ~both_negative, result.dtype.type(-0.0), result)


def add_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Sum in any rounding mode."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    s, e = two_sum(x, y)
    e = np.where(np.isfinite(s), e, 0)
    r = round_f32(to_odd(s, e), mode)
    return _zero_sign(r, (s == 0) & ((x != 0) | (np.signbit(x) != np.signbit(y))), np.signbit(x) & np.signbit(y), mode)


def mul_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Product in any rounding mode; exact in f64."""
    return round_f32(a.astype(np.float64) * b.astype(np.float64), mode)


_HALF = np.uint32(0x10000000)
_LOW29 = np.uint32(0x1FFFFFFF)
_TINY = np.float64(2.0**-126)


def fma_f32(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c rounded once, to nearest.

    The product is exact in f64. The f64 sum rounds, and rounding it again to f32 goes wrong only where the f64 sum lies exactly
    between two f32 values, or in the subnormal range, where they stand at other places; just those lanes are done by way of
    to_odd.
    """
    s = np.multiply(a, b, dtype=np.float64)
    if s.shape == np.broadcast_shapes(s.shape, c.shape):
        np.add(s, c, out=s)
    else:
        s = s + c
    r = s.astype(np.float32)
    doubtful = (s.view(np.uint32)[..., ::2] & _LOW29) == _HALF
    small = np.abs(r) < np.float32(_TINY)
    if small.any():
        doubtful |= small & (s != 0)
    if doubtful.any():
        shape = s.shape
        lanes = np.nonzero(doubtful)
        x, y, z = (np.broadcast_to(v, shape)[lanes].astype(np.float64) for v in (a, b, c))
        total, error = two_sum(x * y, z)
        r[lanes] = to_odd(total, error).astype(np.float32)
    return r


def fma_f32_mode(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """a * b + c rounded once, in any mode."""
    x, z = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s, e = two_sum(x, z)
    e = np.where(np.isfinite(s), e, 0)
    r = round_f32(to_odd(s, e), mode)
    return _zero_sign(r, (s == 0) & ((x != 0) | (np.signbit(x) != np.signbit(z))), np.signbit(x) & np.signbit(z), mode)


def _wrap(f: Callable[..., Lanes], form: Form) -> Callable[..., Lanes]:
    """Adds .ftz and .sat to a lane function."""
    ftz, sat = bool(form.get("ftz")), bool(form.get("sat"))
    if not ftz and not sat:
        return f

    def run(*lanes: Lanes) -> Lanes:
        out = f(*(flush(v) for v in lanes)) if ftz else f(*lanes)
        if ftz:
            out = flush(out)
        return saturate(out) if sat else out

    return run


def _f32(name: str, fast: Any, slow: Callable[..., Lanes], arity: int) -> None:
    def bind(form: Form) -> Callable[..., Lanes]:
        mode = form["rnd"] or "rn"
        return _wrap(fast if mode == "rn" else lambda *v: slow(*v, mode), form)

    alu(f"{name}{{.<rnd>}}{{.ftz}}{{.sat}}.f32", rnd=_RND, sig="f32 = " + ", ".join(["f32"] * arity), bind=True)(bind)


_f32("add", np.add, add_f32, 2)
_f32("sub", np.subtract, lambda a, b, mode: add_f32(a, -b, mode), 2)
_f32("mul", np.multiply, mul_f32, 2)


@alu("fma.<rnd>{.ftz}{.sat}.f32", rnd=_RND, sig="f32 = f32, f32, f32", bind=True)
@alu("mad.<rnd>{.ftz}{.sat}.f32", rnd=_RND, sig="f32 = f32, f32, f32", bind=True)
def _fma(form: Form) -> Callable[..., Lanes]:
    mode = form["rnd"]
    return _wrap(fma_f32 if mode == "rn" else lambda a, b, c: fma_f32_mode(a, b, c, mode), form)


def _div_mode(a: Lanes, b: Lanes, mode: str) -> Lanes:
    x, y = a.astype(np.float64), b.astype(np.float64)
    q = x / y
    # the residual tells on which side of the exact quotient q lies
    h, low = two_product(np.where(np.isfinite(q), q, 0), np.where(np.isfinite(y), y, 1))
    residual = (x - h) - low
    error = np.where(np.isfinite(q) & np.isfinite(y), residual * np.copysign(1.0, y), 0)
    return round_f32(to_odd(q, error), mode)


def _sqrt_mode(a: Lanes, mode: str) -> Lanes:
    x = a.astype(np.float64)
    q = np.sqrt(x)
    h, low = two_product(np.where(np.isfinite(q), q, 0), np.where(np.isfinite(q), q, 0))
    error = np.where(np.isfinite(q), (np.where(np.isfinite(x), x, 0) - h) - low, 0)
    return round_f32(to_odd(q, error), mode)


@alu("div.<rnd>{.ftz}.f32", rnd=_RND, sig="f32 = f32, f32", bind=True)
def _div(form: Form) -> Callable[..., Lanes]:
    mode = form["rnd"]
    return _wrap(np.divide if mode == "rn" else lambda a, b: _div_mode(a, b, mode), form)


@alu("rcp.<rnd>{.ftz}.f32", rnd=_RND, sig="f32 = f32", bind=True)
def _rcp(form: Form) -> Callable[..., Lanes]:
    mode = form["rnd"]
    one = np.ones((1, 1, 1), np.float32)
    return _wrap((lambda a: one / a) if mode == "rn" else lambda a: _div_mode(one, a, mode), form)


@alu("sqrt.<rnd>{.ftz}.f32", rnd=_RND, sig="f32 = f32", bind=True)
def _sqrt(form: Form) -> Callable[..., Lanes]:
    mode = form["rnd"]
    return _wrap(np.sqrt if mode == "rn" else lambda a: _sqrt_mode(a, mode), form)


# -- f64 ---------------------------------------------------------------------------------------------------------------


def _round_f64(s: Lanes, error: Lanes, mode: str) -> Lanes:
    """The rounded sum ``s`` moved to the neighbour that a directed mode wants; ``error`` is what it lacks."""
    if mode == "rz":
        wrong, toward = (error != 0) & ((error > 0) != (s > 0)), np.zeros_like(s)
    elif mode == "rm":
        wrong, toward = error < 0, np.full_like(s, -np.inf)
    else:
        wrong, toward = error > 0, np.full_like(s, np.inf)
    return np.where(wrong & np.isfinite(s), np.nextafter(s, toward), s)


def _overflow_f64(s: Lanes, finite: Lanes, mode: str) -> Lanes:
    """Directed modes overflow to the largest finite value where they round towards zero."""
    big = np.finfo(np.float64).max
    over = np.isinf(s) & finite
    back = over & ((mode == "rz") | ((s > 0) if mode == "rm" else (s < 0)))
    return np.where(back, np.copysign(big, s), s)


def add_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Sum in a directed mode."""
    s, e = two_sum(a, b)
    r = _overflow_f64(_round_f64(s, np.where(np.isfinite(s), e, 0), mode), np.isfinite(a) & np.isfinite(b), mode)
    return _zero_sign(r, (s == 0) & ((a != 0) | (np.signbit(a) != np.signbit(b))), np.signbit(a) & np.signbit(b), mode)


def _exact(a: float, b: float, c: float, mode: str) -> float:
    """One f64 fma through exact rational arithmetic; for lanes where scaling tricks would be needed."""
    import math
    from fractions import Fraction

    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        negative = (math.copysign(1, a) * math.copysign(1, b) < 0, math.copysign(1, c) < 0)
        if all(negative) or (mode == "rm" and any(negative)):
            return -0.0
        return 0.0
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.copysign(math.inf, exact)
    if mode == "rn":
        return nearest
    up = nearest == math.inf or (math.isfinite(nearest) and Fraction(nearest) > exact)
    down = nearest == -math.inf or (math.isfinite(nearest) and Fraction(nearest) < exact)
    if up and (mode == "rm" or (mode == "rz" and exact > 0)):
        return math.nextafter(nearest, -math.inf)
    if down and (mode == "rp" or (mode == "rz" and exact < 0)):
        return math.nextafter(nearest, math.inf)
    if nearest == 0 and mode != "rn":
        return -0.0 if exact < 0 else 0.0
    return nearest


def fma_f64(a: Lanes, b: Lanes, c: Lanes, mode: str = "rn") -> Lanes:
    """a * b + c rounded once.

    Error-free transformations decide nearly all lanes; where magnitudes come near overflow or underflow, or the errors could
    tie, the lane is computed exactly.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    p, pe = two_product(a, b)
    s, se = two_sum(p, c)
    # s + (se + pe): fold the two errors with rounding to odd, then add once
    t, te = two_sum(se, pe)
    error = to_odd(t, te)
    r = s + error
    left, lost = two_sum(s, error)
    magnitude = np.maximum(np.maximum(np.abs(p), np.abs(c)), np.abs(s))
    big = np.maximum(np.abs(a), np.abs(b))
    hard = (
        ~(magnitude < 1e300) | (big > 1e150) | ((np.abs(p) < 1e-250) & (a != 0) & (b != 0)) | ((s == 0) & (error == 0))
    )
    # two_sum(s, error) is exact, yet ties of the true sum may hide below `error`'s last bit when it is far smaller than s
    if mode != "rn":
        r = _round_f64(left, lost, mode)
        hard |= lost == 0
    else:
        hard |= (lost != 0) & (np.abs(lost) * 4 > np.spacing(np.abs(left)) * 1.99999)
    if hard.any():
        r = np.array(r)
        lanes = np.nonzero(hard)
        r[lanes] = [
            _exact(float(x), float(y), float(z), mode) for x, y, z in zip(a[lanes], b[lanes], c[lanes], strict=True)
        ]
    return r


def _mul_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    return fma_f64(a, b, np.where(np.signbit(a) != np.signbit(b), -0.0, 0.0), mode)


def _f64(name: str, fast: Any, slow: Callable[..., Lanes]) -> None:
    def bind(form: Form) -> Callable[..., Lanes]:
        mode = form["rnd"] or "rn"
        return fast if mode == "rn" else lambda a, b: slow(a, b, mode)

    alu(f"{name}{{.<rnd>}}.f64", rnd=_RND, sig="f64 = f64, f64", bind=True)(bind)


_f64("add", np.add, add_f64)
_f64("sub", np.subtract, lambda a, b, mode: add_f64(a, -b, mode))
_f64("mul", np.multiply, _mul_f64)


@alu("fma.<rnd>.f64", rnd=_RND)
@alu("mad.<rnd>.f64", rnd=_RND)
def fma_double(a: Lanes, b: Lanes, c: Lanes, *, rnd: str) -> Lanes:
    """a * b + c rounded once."""
    return fma_f64(a, b, c, rnd)


def _div_exact(a: float, b: float, mode: str) -> float:
    import math
    from fractions import Fraction

    if b == 0 or not math.isfinite(a) or not math.isfinite(b) or a == 0:
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    exact = Fraction(a) / Fraction(b)
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.copysign(math.inf, exact)
    if (nearest == math.inf or (math.isfinite(nearest) and Fraction(nearest) > exact)) and (
        mode == "rm" or (mode == "rz" and exact > 0)
    ):
        return math.nextafter(nearest, -math.inf)
    if (nearest == -math.inf or (math.isfinite(nearest) and Fraction(nearest) < exact)) and (
        mode == "rp" or (mode == "rz" and exact < 0)
    ):
        return math.nextafter(nearest, math.inf)
    return nearest


def _each(f: Callable[..., float], *lanes: Lanes) -> Lanes:
    lanes = np.broadcast_arrays(*lanes)
    flat = [f(*(float(v) for v in row)) for row in zip(*(v.reshape(-1) for v in lanes), strict=True)]
    return np.array(flat, np.float64).reshape(lanes[0].shape)


@alu("div.<rnd>.f64", rnd=_RND)
def div_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """Quotient; the directed modes are computed lane by lane."""
    return a / b if rnd == "rn" else _each(lambda x, y: _div_exact(x, y, rnd), a, b)


@alu("rcp.<rnd>.f64", rnd=_RND)
def rcp_f64(a: Lanes, *, rnd: str) -> Lanes:
    """Reciprocal."""
    return div_f64(np.ones((1, 1, 1)), a, rnd=rnd)


@alu("sqrt.<rnd>.f64", rnd=_RND)
def sqrt_f64(a: Lanes, *, rnd: str) -> Lanes:
    """Square root."""
    r = np.sqrt(a)
    if rnd == "rn":
        return r
    error = -fma_f64(r, r, -a)  # exact: the residual of a rounded root fits
    return _round_f64(r, np.where(np.isfinite(r), error, 0), rnd)


# -- signs, minima -------------------------------------------------------------------------------------------------------


@alu("abs{.ftz}.f32")
def abs_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """Magnitude."""
    return np.abs(flush(a) if ftz else a)


@alu("neg{.ftz}.f32")
def neg_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """Negated; -0 too."""
    return -(flush(a) if ftz else a)


@alu("abs.f64")
def abs_f64(a: Lanes) -> Lanes:
    """Magnitude."""
    return np.abs(a)


@alu("neg.f64")
def neg_f64(a: Lanes) -> Lanes:
    """Negated; -0 too."""
    return -a


def extremum(a: Lanes, b: Lanes, sign: int, nan: bool = False, xorsign: bool = False) -> Lanes:
    """Smaller (sign > 0) or larger of two: NaN gives way to a number unless ``nan``; -0 is below +0."""
    negative = np.signbit(a) ^ np.signbit(b) if xorsign else None
    if xorsign:
        a, b = np.abs(a), np.abs(b)
    out = (np.fmin if sign > 0 else np.fmax)(a, b)
    zeros = (out == 0) & (a == b)
    if zeros.any():
        flag = (np.signbit(a) | np.signbit(b)) if sign > 0 else (np.signbit(a) & np.signbit(b))
        out = np.where(zeros, np.where(flag, out.dtype.type(-0.0), out.dtype.type(0.0)), out)
    na, nb = np.isnan(a), np.isnan(b)
    lost = (na | nb) if nan else (na & nb)
    if lost.any():
        canonical: Any = {4: CANONICAL_F32, 8: CANONICAL_F64}.get(out.dtype.itemsize, out.dtype.type(np.nan))
        out = np.where(lost, canonical, out)
    if negative is not None:
        out = np.where(negative & ~np.isnan(out), -np.abs(out), out)
    return out


def _extremum_f32(form: Form) -> Callable[..., Lanes]:
    sign = 1 if form.opcode.startswith("min") else -1
    nan, xorsign, ftz = bool(form["NaN"]), bool(form["xorsign"]), bool(form["ftz"])

    def run(*lanes: Lanes) -> Lanes:
        values = [flush(v) for v in lanes] if ftz else list(lanes)
        out = extremum(values[0], values[1], sign, nan, xorsign)
        return out if len(values) == 2 else extremum(out, values[2], sign, nan, xorsign)

    return run


for _name in ("min", "max"):
    alu(f"{_name}{{.ftz}}{{.NaN}}{{.<xorsign>}}.f32", xorsign="xorsign.abs", sig="f32 = f32, f32, f32?", bind=True)(
        _extremum_f32
    )


@alu("min.f64")
def min_f64(a: Lanes, b: Lanes) -> Lanes:
    """The smaller; a number before NaN."""
    return extremum(a, b, 1)


@alu("max.f64")
def max_f64(a: Lanes, b: Lanes) -> Lanes:
    """The larger; a number before NaN."""
    return extremum(a, b, -1)


# -- packed f32 (sm_100) ---------------------------------------------------------------------------------------------------


def _split(a: Lanes) -> tuple[Lanes, Lanes]:
    v = np.ascontiguousarray(a).view(np.float32).reshape(*a.shape, 2)
    return v[..., 0], v[..., 1]


def _packed(f: Callable[..., Lanes]) -> Callable[..., Lanes]:
    def run(*lanes: Lanes) -> Lanes:
        parts = [_split(v) for v in lanes]
        low, high = (f(*(p[k] for p in parts)) for k in (0, 1))
        return np.ascontiguousarray(np.stack(np.broadcast_arrays(low, high), -1)).view(np.uint64)[..., 0]

    return run


def _x2(form: Form) -> Callable[..., Lanes]:
    mode = form["rnd"] or "rn"
    name = form.opcode.split(".")[0]
    fast: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fma_f32}[name]
    slow: Any = {"add": add_f32, "sub": lambda a, b, m: add_f32(a, -b, m), "mul": mul_f32, "fma": fma_f32_mode}[name]
    return _packed(_wrap(fast if mode == "rn" else lambda *v: slow(*v, mode), form))


for _name in ("add", "sub", "mul"):
    alu(f"{_name}{{.<rnd>}}{{.ftz}}.f32x2", rnd=_RND, sig="f32x2 = f32x2, f32x2", bind=True)(_x2)
alu("fma.<rnd>{.ftz}.f32x2", rnd=_RND, sig="f32x2 = f32x2, f32x2, f32x2", bind=True)(_x2)
