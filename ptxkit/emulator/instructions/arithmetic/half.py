"""f16, bf16 and their packed pairs. PTX ISA, "Half Precision Floating Point Instructions".

Elements are converted to f32, combined, and rounded to 16 bits. The f32 sum of two f16 values rounds to the same f16 value as
the exact sum, because 24 bits of precision are at least 2 * 11 + 2; their product is exact. The sum of a fused multiply-add
is rounded to odd first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.floating import saturate
from ptxkit.emulator.instructions.arithmetic.lanes import choose, elementwise, recompute
from ptxkit.emulator.instructions.arithmetic.rounding import add_f32, fma_f32, fma_f32_mode, step, to_odd, two_sum
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import alu

DTYPE = {"f16": np.dtype("f2"), "bf16": np.dtype("u2")}
"""Type -> numpy type of an element."""

# astype between f16 and f32 takes 15 to 30 ns for each subnormal or overflowing element, 0.5 ns for others
_F16_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
_F16_NORMAL, _F16_OVER = np.float32(2.0**-14), np.float32(65520)

_NAN = np.uint16(0x7FFF)
_INFINITE = {"f16": np.int16(0x7C00), "bf16": np.int16(0x7F80)}


def widen(a: Lanes, t: str) -> Lanes:
    """Converts elements to f32, from float16 lanes or from bf16 bits."""
    if t == "bf16":
        return (a.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.take(_F16_VALUES, a.view(np.uint16))


def narrow(odd: Lanes, t: str, mode: str = "rn") -> Lanes:
    """Rounds f32 or f64 values, which are exact or rounded to odd, to float16 lanes or bf16 bits; NaN becomes 0x7fff."""
    out = _narrow_f16(odd, mode).view(np.uint16) if t == "f16" else _narrow_bf16(odd_f32(odd), mode)
    nan = np.isnan(odd)
    if nan.any():
        out = np.where(nan, _NAN, out)
    return out.view(DTYPE[t])


def _narrow_f16(odd: Lanes, mode: str) -> Lanes:
    if mode == "rn":
        return _nearest_f16(odd_f32(odd))
    r = odd.astype(np.float16)
    back = r.astype(odd.dtype)
    none = np.zeros_like(r, np.bool_)
    over, under = back > odd, back < odd
    if mode == "rz":
        return step(r, under & (odd < 0), over & (odd > 0))
    return step(r, none, over) if mode == "rm" else step(r, under, none)


def _nearest_f16(x: Lanes) -> Lanes:
    """f32 to f16; NaN becomes infinity."""
    size = np.abs(x)
    small = size < _F16_NORMAL
    if size.max() < _F16_OVER and not (small & (size != 0)).any():
        return x.astype(np.float16)
    m = size.view(np.uint32)
    # round off 13 bits to nearest even, and change the exponent bias
    code = (m >> np.uint32(13)) & np.uint32(1)
    code += m
    code -= np.uint32((112 << 23) - 0xFFF)
    code >>= np.uint32(13)
    code = np.minimum(code, np.uint32(0x7C00))
    if small.any():
        # the sum with 0.5 is rounded to a multiple of 2^-24, the spacing of subnormal f16 numbers
        code = choose(small, (size + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000), code)
    code |= (x.view(np.uint32) >> np.uint32(16)) & np.uint32(0x8000)
    return code.astype(np.uint16).view(np.float16)


def _narrow_bf16(odd: Lanes, mode: str) -> Lanes:
    bits = np.ascontiguousarray(odd).view(np.uint32)
    sixteen = np.uint32(16)
    if mode == "rn":
        up = (bits >> sixteen) & np.uint32(1)
        up += np.uint32(0x7FFF)
        up += bits
        up >>= sixteen
        return up.astype(np.uint16)
    out = (bits >> sixteen).astype(np.uint16)
    if mode == "rz":
        return out
    negative = bits >= np.uint32(1 << 31)
    cut = (bits & np.uint32(0xFFFF)) != 0
    return out + (cut & (negative if mode == "rm" else ~negative)).astype(np.uint16)


def odd_f32(x: Lanes) -> Lanes:
    """Rounds f64 (exact or rounded to odd) to f32, to odd, so that a further rounding is correct."""
    if x.dtype == np.float32:
        return x
    r = x.astype(np.float32)
    return to_odd(r, x - r)


# -- add, sub, mul, fma --------------------------------------------------------------------------------------------------------


def _mul_bf16(a: Lanes, b: Lanes) -> Lanes:
    p = a * b
    small = np.abs(p) <= np.float32(2.0**-126)  # products that may be inexact in f32
    if small.any():
        small &= (a != 0) & (b != 0)
        return recompute(p, small, lambda x, y: odd_f32(x.astype(np.float64) * y.astype(np.float64)), a, b)
    return p


def _odd_sum(p: Lanes, c: Lanes) -> Lanes:
    return to_odd(*two_sum(p, c))


def _fma_f16(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    p = a * b  # exact
    s = p + c
    # rounding s to f16 can be wrong only if s lies exactly between two f16 values or in the subnormal range
    doubtful = (s.view(np.uint32) & np.uint32(0x1FFF)) == np.uint32(0x1000)
    doubtful |= (np.abs(s) <= _F16_NORMAL) & (s != 0)
    return recompute(s, doubtful, _odd_sum, p, c) if doubtful.any() else s


def _fma_bf16(a: Lanes, b: Lanes, c: Lanes, directed: bool = False) -> Lanes:
    p = a * b
    if directed:
        s = _odd_sum(p, c)
    else:
        s = p + c
        doubtful = (s.view(np.uint32) & np.uint32(0xFFFF)) == np.uint32(0x8000)
        s = recompute(s, doubtful, _odd_sum, p, c) if doubtful.any() else s
    size = np.abs(p)
    if size.min() > np.float32(2.0**-100) and np.maximum(size.max(), np.abs(s).max()) < np.inf:
        return s
    hard = ((size <= np.float32(2.0**-100)) & (a != 0) & (b != 0)) | np.isinf(size) | np.isinf(s)
    return recompute(s, hard, _fma_bf16_f64, a, b, c)


def _fma_bf16_f64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return odd_f32(to_odd(*two_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))))


_WIDE: dict[tuple[str, str], Callable[..., Lanes]] = {
    ("add", "f16"): np.add,
    ("sub", "f16"): np.subtract,
    ("mul", "f16"): np.multiply,
    ("fma", "f16"): _fma_f16,
    ("add", "bf16"): np.add,
    ("sub", "bf16"): np.subtract,
    ("mul", "bf16"): _mul_bf16,
    ("fma", "bf16"): _fma_bf16,
}


def flush_f16(a: Lanes) -> Lanes:
    """Replaces subnormal float16 values by zeros of the same sign."""
    bits = a.view(np.uint16)
    tiny = (bits & np.uint16(0x7C00)) == 0
    return np.where(tiny, bits & np.uint16(0x8000), bits).view(np.float16) if tiny.any() else a


def relu(a: Lanes) -> Lanes:
    """Replaces negative values and -0 by +0; NaN is unchanged."""
    return np.maximum(a, a.dtype.type(0)) + a.dtype.type(0)


def over_halves(one: Callable[..., Lanes], t: str) -> Callable[..., Lanes]:
    """Applies ``one`` to lanes of type ``t``; for f16x2 and bf16x2, to both elements."""
    return elementwise(one, DTYPE[t.removesuffix("x2")]) if t.endswith("x2") else one


def _arithmetic(form: Form) -> Callable[..., Lanes]:
    t = form["t"]
    element = t.removesuffix("x2")
    f = _WIDE[form.opcode.split(".", 1)[0], element]
    ftz, sat, clamp = (form.has(k) for k in ("ftz", "sat", "relu"))
    mode = form.get("rnd") or "rn"
    if mode != "rn":
        f = partial(_fma_bf16, directed=True)

    def one(*lanes: Lanes) -> Lanes:
        wide = f(*(widen(flush_f16(v) if ftz else v, element) for v in lanes))
        wide = relu(wide) if clamp else saturate(wide) if sat else wide
        out = narrow(wide, element, mode)
        if ftz:  # a result is flushed if its value before rounding is subnormal, as on an H200
            below = np.abs(wide) < _F16_NORMAL
            out = flush_f16(np.where(below, np.copysign(np.float16(0), out), out) if below.any() else out)
        return out

    return over_halves(one, t)


for _name in ("add", "sub", "mul"):
    alu(f"{_name}{{.rn}}{{.ftz}}{{.sat}}.<t>", t="f16 f16x2", sig="t = t, t", bind=True)(_arithmetic)
    alu(f"{_name}{{.rn}}.<t>", t="bf16 bf16x2", sig="t = t, t", bind=True)(_arithmetic)
alu("fma.rn{.ftz}{.sat}.<t>", t="f16 f16x2", sig="t = t, t, t", bind=True)(_arithmetic)
alu("fma.rn{.ftz}.<relu>.<t>", relu="relu", t="f16 f16x2", sig="t = t, t, t", bind=True)(_arithmetic)
alu("fma.<rnd>{.relu}.<t>", rnd="rn rz rm rp", t="bf16 bf16x2", sig="t = t, t, t", bind=True)(_arithmetic)

_SIGN = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}


def _sign(form: Form) -> Callable[..., Lanes]:
    t, negate = form["t"], form.opcode.startswith("neg")
    unsigned = np.dtype("u4" if t.endswith("x2") else "u2")
    sign = unsigned.type(_SIGN[t])
    flushed = over_halves(flush_f16, t) if form.get("ftz") else None

    def run(a: Lanes) -> Lanes:
        bits = (flushed(a) if flushed else a).view(unsigned)
        return ((bits ^ sign) if negate else (bits & ~sign)).view(a.dtype)

    return run


for _name in ("neg", "abs"):
    alu(f"{_name}{{.ftz}}.<t>", t="f16 f16x2", sig="t = t", bind=True)(_sign)
    alu(f"{_name}.<t>", t="bf16 bf16x2", sig="t = t", bind=True)(_sign)


# -- minimum and maximum -------------------------------------------------------------------------------------------------------

_MAGNITUDE = np.int16(0x7FFF)


def _ordered(bits: Lanes) -> Lanes:
    """Maps the bits of floats to int16 values of the same order, with -0 below +0; the map is its own inverse."""
    return bits ^ ((bits >> np.int16(15)) & _MAGNITUDE)


def _minmax(form: Form) -> Callable[..., Lanes]:
    t = form["t"]
    element = t.removesuffix("x2")
    pick = np.minimum if form.opcode.startswith("min") else np.maximum
    infinite = _INFINITE[element]
    keep_nan, xorsign, ftz = form.has("NaN"), form.has("how"), form.has("ftz")

    def one(a: Lanes, b: Lanes) -> Lanes:
        x, y = ((flush_f16(v) if ftz else v).view(np.int16) for v in (a, b))
        p, q = x & _MAGNITUDE, y & _MAGNITUDE
        sign = (x ^ y) & ~_MAGNITUDE
        if xorsign:
            x, y = p, q
        out = _ordered(pick(_ordered(x), _ordered(y)))
        if xorsign:
            out = out | sign
        if p.max() > infinite or q.max() > infinite:
            na, nb = p > infinite, q > infinite
            other = np.where(na, y, x)
            out = np.where(na | nb, other | sign if xorsign else other, out)
            out = np.where((na | nb) if keep_nan else (na & nb), _MAGNITUDE, out)
        return out.view(a.dtype)

    return over_halves(one, t)


for _name in ("min", "max"):
    alu(f"{_name}{{.ftz}}{{.NaN}}{{.<how>}}.<t>", how="xorsign.abs", t="f16 f16x2", sig="t = t, t", bind=True)(_minmax)
    alu(f"{_name}{{.NaN}}{{.<how>}}.<t>", how="xorsign.abs", t="bf16 bf16x2", sig="t = t, t", bind=True)(_minmax)


# -- approximations: the f32 functions are far inside the documented error of the half ones
# ----------------------------------------


def _function(form: Form) -> Callable[..., Lanes]:
    f: Callable[..., Lanes] = np.exp2 if form.opcode.startswith("ex2") else np.tanh
    element = form["t"].removesuffix("x2")

    def one(a: Lanes) -> Lanes:
        return narrow(f(widen(a, element)), element)

    return over_halves(one, form["t"])


alu("ex2.approx.<t>", t="f16 f16x2", sig="t = t", bind=True)(_function)
alu("ex2.approx.ftz.<t>", t="bf16 bf16x2", sig="t = t", bind=True)(_function)
alu("tanh.approx.<t>", t="f16 f16x2 bf16 bf16x2", sig="t = t", bind=True)(_function)


# -- mixed precision (sm_100): halves with f32. PTX ISA, "Mixed Precision Floating-Point Instructions"
# ------------------------------


def _mixed(form: Form) -> Callable[..., Lanes]:
    mode, s, sat = form["rnd"] or "rn", form["s"], form.has("sat")
    name = form.opcode.split(".", 1)[0]

    def run(a: Lanes, *rest: Lanes) -> Lanes:
        x = widen(a, s)
        if name == "fma":
            y, z = widen(rest[0], s), rest[1]
            out = fma_f32(x, y, z) if mode == "rn" else fma_f32_mode(x, y, z, mode)
        else:
            y = rest[0] if name == "add" else -rest[0]
            out = x + y if mode == "rn" else add_f32(x, y, mode)
        return saturate(out) if sat else out

    return run


for _name in ("add", "sub"):
    alu(f"{_name}{{.<rnd>}}{{.sat}}.f32.<s>", rnd="rn rz rm rp", s="f16 bf16", sig="f32 = s, f32", bind=True)(_mixed)
alu("fma.<rnd>{.sat}.f32.<s>", rnd="rn rz rm rp", s="f16 bf16", sig="f32 = s, s, f32", bind=True)(_mixed)
