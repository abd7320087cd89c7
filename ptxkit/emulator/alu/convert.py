"""cvt. PTX ISA, "cvt" and "cvt.pack".

Integer to float conversions in a rounding mode, float to integer with saturation, float to float with one rounding, and the
packed narrow formats, whose values are few enough to be rounded through a table of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxkit.emulator.alu.compare import flush
from ptxkit.emulator.alu.floating import CANONICAL_F32, CANONICAL_F64, round_f32, saturate
from ptxkit.emulator.alu.half import narrow, widen
from ptxkit.emulator.table import Form, alu
from ptxkit.isa.types import TYPES

Lanes = Any
_INT = "u8 u16 u32 u64 s8 s16 s32 s64"
_FLOAT = "f16 bf16 f32 f64"


# -- integers ------------------------------------------------------------------------------------------------------------


@alu("cvt{.sat}.<d>.<s>", d=_INT, s=_INT, sig="d = s", bind=True)
def cvt_integer(form: Form) -> Callable[..., Lanes]:
    """Truncated or extended by the source's sign; .sat clamps to the destination's range."""
    want = TYPES[form["d"]].dtype
    if not form["sat"]:
        return lambda a: a.astype(want)
    info = np.iinfo(want)

    def clamp(a: Lanes) -> Lanes:
        have = np.iinfo(a.dtype)
        return np.clip(a, max(info.min, have.min), min(info.max, have.max)).astype(want)

    return clamp


# -- float to integer --------------------------------------------------------------------------------------------------------

_ROUND: dict[str, Callable[[Lanes], Lanes]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_f64(a: Lanes, t: str) -> Lanes:
    """Lanes of any float type as f64, exactly."""
    return a if t == "f64" else widen(a, t).astype(np.float64) if t in ("f16", "bf16") else a.astype(np.float64)


@alu("cvt.<rnd>{.ftz}{.sat}.<d>.<s>", rnd="rni rzi rmi rpi", d=_INT, s=_FLOAT, sig="d = s", bind=True)
def cvt_to_integer(form: Form) -> Callable[..., Lanes]:
    """Rounded, then clamped to the destination's range; NaN gives 0, or the top bit alone where 64 bits are involved."""
    name, s = form["d"], form["s"]
    want = TYPES[name].dtype
    info = np.iinfo(want)
    rounding, ftz = _ROUND[form["rnd"]], form["ftz"] and s == "f32"
    # 2^63 and 2^64 are not below the bound in f64, so the bound itself is compared
    low, high = float(info.min), float(info.max)
    nan = 0 if want.itemsize < 8 and s != "f64" else (info.min if want.kind == "i" else 1 << (want.itemsize * 8 - 1))
    if want.itemsize < 4:
        nan = 0

    def run(a: Lanes) -> Lanes:
        x = flush(a) if ftz else a
        x = rounding(x if s in ("f32", "f64") else widen(x, s))
        missing = np.isnan(x)
        top = x >= x.dtype.type(high)
        bottom = x <= x.dtype.type(low)
        special = missing | top | bottom
        if not special.any():
            return x.astype(want)
        out = np.where(special, x.dtype.type(0), x).astype(want)
        out = np.where(top, want.type(info.max), np.where(bottom, want.type(info.min), out))
        return np.where(missing, want.type(nan), out)

    return run


# -- integer to float
# ------------------------------------------------------------------------------------------------------------


def _integer_odd(a: Lanes) -> Lanes:
    """Integers as f64, rounded to odd where they have more than 53 bits."""
    if a.dtype.itemsize < 8:
        return a.astype(np.float64)
    negative = a < 0
    u = np.where(negative, -a, a).view(np.uint64) if a.dtype.kind == "i" else a
    high, low = u >> np.uint64(11), u & np.uint64(0x7FF)
    # u < 2^53: exact as it is. Otherwise keep 53 bits and whether the rest was 0.
    odd = ((high | (low != 0)).astype(np.float64)) * 2048.0
    x = np.where(u < np.uint64(1 << 53), u.astype(np.float64), odd)
    return np.where(negative, -x, x) if a.dtype.kind == "i" else x


def _round_f64_integer(a: Lanes, mode: str) -> Lanes:
    if a.dtype.itemsize < 8:
        return a.astype(np.float64)
    r = a.astype(np.float64)
    if mode == "rn":
        return r
    two63 = 2.0**63 if a.dtype.kind == "i" else 2.0**64
    over = np.abs(r) >= two63
    back = np.where(over, 0, r).astype(a.dtype)
    above = np.where(over, r > 0, back > a)
    below = np.where(over, False, back < a)
    if mode == "rz":
        wrong_down, wrong_up = above & (r > 0), below & (r < 0)
    elif mode == "rm":
        wrong_down, wrong_up = above, np.zeros_like(above)
    else:
        wrong_down, wrong_up = np.zeros_like(above), below
    r = np.where(wrong_down, np.nextafter(r, -np.inf), r)
    return np.where(wrong_up, np.nextafter(r, np.inf), r)


@alu("cvt.<rnd>{.ftz}{.sat}.<d>.<s>", rnd="rn rz rm rp", d=_FLOAT, s=_INT, sig="d = s", bind=True)
def cvt_from_integer(form: Form) -> Callable[..., Lanes]:
    """Rounded once to the destination."""
    d, mode, sat = form["d"], form["rnd"], form["sat"]
    if d == "f32" and mode == "rn" and not sat:
        return lambda a: a.astype(np.float32)

    def run(a: Lanes) -> Lanes:
        if d == "f64":
            out = _round_f64_integer(a, mode)
        elif d == "f32":
            out = round_f32(_integer_odd(a), mode)
        else:
            return _narrow_mode(saturate(_integer_odd(a)) if sat else _integer_odd(a), d, mode)
        return saturate(out) if sat else out

    return run


def _narrow_mode(odd: Lanes, t: str, mode: str) -> Lanes:
    """narrow() in any of the four modes."""
    if mode in ("rn", "rz"):
        return narrow(odd, t, mode)
    towards_zero = narrow(odd, t, "rz")
    back = widen(towards_zero, t).astype(np.float64)
    bits = np.ascontiguousarray(towards_zero).view(np.uint16)
    away = (odd < back) if mode == "rm" else (odd > back)
    zero_down = (back == 0) & away
    stepped = np.where(zero_down, np.uint16(0x8001 if mode == "rm" else 0x0001), bits + np.uint16(1))
    out = np.where(away & np.isfinite(odd), stepped, bits).astype(np.uint16)
    return out.view(np.float16) if t == "f16" else out


# -- float to float
# --------------------------------------------------------------------------------------------------------------


@alu("cvt{.ftz}{.sat}.f32.f32", sig="f32 = f32")
def cvt_same_f32(a: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """A move that can flush and saturate."""
    a = flush(a) if ftz else a
    return saturate(a) if sat else a


@alu("cvt{.sat}.f64.f64", sig="f64 = f64")
def cvt_same_f64(a: Lanes, *, sat: bool) -> Lanes:
    """A move that can saturate."""
    return saturate(a) if sat else a


@alu("cvt.<rnd>{.ftz}{.sat}.f32.f32", rnd="rni rzi rmi rpi", sig="f32 = f32")
def cvt_integral_f32(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](flush(a) if ftz else a)
    return saturate(r) if sat else r


@alu("cvt.<rnd>{.sat}.f64.f64", rnd="rni rzi rmi rpi", sig="f64 = f64")
def cvt_integral_f64(a: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](a)
    return saturate(r) if sat else r


@alu("cvt.<rnd>{.sat}.f16.f16", rnd="rni rzi rmi rpi", sig="f16 = f16")
def cvt_integral_f16(a: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](a.astype(np.float32)).astype(np.float16)
    return saturate(r) if sat else r


@alu("cvt{.<rnd>}{.ftz}{.sat}.<d>.<s>", rnd="rn", d="f32 f64", s="f16 bf16", sig="d = s", bind=True)
@alu("cvt{.<rnd>}{.ftz}{.sat}.<d>.<s>", rnd="rn", d="f64", s="f32", sig="d = s", bind=True)
def cvt_wider(form: Form) -> Callable[..., Lanes]:
    """Exact."""
    d, s, ftz, sat = form["d"], form["s"], form["ftz"], form["sat"]
    want = TYPES[d].dtype

    def run(a: Lanes) -> Lanes:
        x = widen(a, s) if s in ("f16", "bf16") else flush(a) if ftz else a
        x = x.astype(want)
        nan = np.isnan(x)
        if nan.any():
            x = np.where(nan, CANONICAL_F32 if d == "f32" else CANONICAL_F64, x)
        return saturate(x) if sat else x

    return run


@alu("cvt.<rnd>{.ftz}{.sat}.f32.f64", rnd="rn rz rm rp", sig="f32 = f64", bind=True)
def cvt_f32_f64(form: Form) -> Callable[..., Lanes]:
    """Rounded once."""
    mode, ftz, sat = form["rnd"], form["ftz"], form["sat"]

    def run(a: Lanes) -> Lanes:
        r = a.astype(np.float32) if mode == "rn" else round_f32(a, mode)
        r = flush(r) if ftz else r
        return saturate(r) if sat else r

    return run


@alu("cvt.<rnd>{.ftz}{.sat}{.relu}.<d>.<s>", rnd="rn rz rm rp", d="f16 bf16", s="f32 f64", sig="d = s", bind=True)
def cvt_narrower(form: Form) -> Callable[..., Lanes]:
    """Rounded once; NaN becomes 0x7fff."""
    d, s, mode, ftz, sat, relu = (form[k] for k in ("d", "s", "rnd", "ftz", "sat", "relu"))

    def run(a: Lanes) -> Lanes:
        x = flush(a) if ftz and s == "f32" else a
        if relu:
            x = np.where((x > 0) | np.isnan(x), x, x.dtype.type(0))
        if sat:
            x = saturate(x)
        return _narrow_mode(x.astype(np.float64) if d == "f16" or s == "f64" or mode != "rn" else x, d, mode)

    return run


@alu("cvt{.rn}{.sat}.<d>.<s>", d="f16 bf16", s="f16 bf16", sig="d = s", bind=True)
def cvt_half(form: Form) -> Callable[..., Lanes]:
    """Between the two half formats, or a move that can saturate."""
    d, s, sat = form["d"], form["s"], form["sat"]

    def run(a: Lanes) -> Lanes:
        if d == s and not sat:
            return a
        x = widen(a, s).astype(np.float64)
        return narrow(saturate(x) if sat else x, d)

    return run


@alu("cvt.<rnd>{.relu}{.satfinite}.tf32.f32", rnd="rn rna rz", sig="tf32 = f32")
def cvt_tf32(a: Lanes, *, rnd: str, relu: bool, satfinite: bool) -> Lanes:
    """19 bits: a 10-bit significand in an f32 word."""
    if relu:
        a = np.where((a > 0) | np.isnan(a), a, np.float32(0))
    bits = np.ascontiguousarray(a).view(np.uint32)
    low = np.uint32(0x1FFF)
    add: Lanes = {
        "rn": np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1)),
        "rna": np.uint32(0x1000),
        "rz": np.uint32(0),
    }[rnd]
    out = (bits + add) & ~low
    if satfinite:
        out = np.where(
            (out & np.uint32(0x7FFFFFFF)) >= np.uint32(0x7F800000),
            (bits & np.uint32(1 << 31)) | np.uint32(0x7F7FE000),
            out,
        )
    elif rnd == "rna" or rnd == "rn":
        out = np.where(np.isinf(a), bits, out)
    return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), out)


# -- packed halves
# ----------------------------------------------------------------------------------------------------------------


@alu("cvt.<rnd>{.ftz}{.relu}{.satfinite}.<d>.f32", rnd="rn rz", d="f16x2 bf16x2", sig="d = f32, f32", bind=True)
def cvt_x2(form: Form) -> Callable[..., Lanes]:
    """Two f32 in one register: a in the upper half, b in the lower."""
    mode, relu, satfinite = form["rnd"], form["relu"], form["satfinite"]
    element = form["d"].removesuffix("x2")
    biggest = np.uint16(0x7BFF if element == "f16" else 0x7F7F)
    infinite = np.uint16(0x7C00 if element == "f16" else 0x7F80)

    def one(x: Lanes) -> Lanes:
        if relu:
            x = np.where((x > 0) | np.isnan(x), x, np.float32(0))
        bits = np.ascontiguousarray(_narrow_mode(x.astype(np.float64), element, mode)).view(np.uint16)
        if satfinite:
            magnitude = bits & np.uint16(0x7FFF)
            bits = np.where(magnitude == infinite, (bits & np.uint16(0x8000)) | biggest, bits)
        return bits.astype(np.uint32)

    return lambda a, b: (one(a) << np.uint32(16)) | one(b)


# -- fp8, fp6, fp4
# ----------------------------------------------------------------------------------------------------------------

_NARROW: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@lru_cache
def _values(t: str) -> tuple[Lanes, Lanes]:
    """Non-negative finite values of a narrow format in order, and their bits."""
    count = {"e4m3": 127, "e5m2": 124, "e2m3": 32, "e3m2": 32, "e2m1": 8}[t]
    bits = np.arange(count, dtype=np.uint8)
    return bits.view(_NARROW[t]).astype(np.float64), bits


def narrow_bits(x: Lanes, t: str, relu: bool = False) -> Lanes:
    """f64 values as bits of a narrow format: to nearest even, magnitudes beyond the largest become the largest (.satfinite).

    NaN becomes the format's canonical NaN, or the largest positive value where it has none.
    """
    if relu:
        x = np.where((x > 0) | np.isnan(x), x, 0.0)
    values, bits = _values(t)
    m = np.abs(x)
    i = np.searchsorted(values, m, "right") - 1
    i = np.clip(i, 0, len(values) - 1)
    j = np.minimum(i + 1, len(values) - 1)
    below, above = values[i], values[j]
    up = (m - below > above - m) | ((m - below == above - m) & (bits[i] & 1 == 1) & (i != j))
    out = bits[np.where(up, j, i)]
    sign_bit = {"e4m3": 7, "e5m2": 7, "e2m3": 5, "e3m2": 5, "e2m1": 3}[t]
    out = out | (np.signbit(x).astype(np.uint8) << np.uint8(sign_bit))
    nan = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}[t]
    return np.where(np.isnan(x), np.uint8(nan), out)


def wide_values(bits: Lanes, t: str) -> Lanes:
    """Bits of a narrow format as f32."""
    return np.ascontiguousarray(bits).view(_NARROW[t]).astype(np.float32)


@alu("cvt.rn.satfinite{.relu}.<d>.f32", d="e4m3x2 e5m2x2 e2m3x2 e3m2x2", sig="d = f32, f32")
def cvt_narrow_pair(a: Lanes, b: Lanes, *, d: str, relu: bool) -> Lanes:
    """Two f32: a in the upper byte, b in the lower."""
    t = d.removesuffix("x2")
    high, low = (narrow_bits(v.astype(np.float64), t, relu).astype(np.uint16) for v in (a, b))
    return (high << np.uint16(8)) | low


@alu("cvt.rn.satfinite{.relu}.<d>.<s>", d="e4m3x2 e5m2x2", s="f16x2 bf16x2", sig="d = s")
def cvt_narrow_halves(a: Lanes, *, d: str, s: str, relu: bool) -> Lanes:
    """Two halves in one register."""
    t, element = d.removesuffix("x2"), s.removesuffix("x2")
    v = np.ascontiguousarray(a).view(np.uint16).reshape(*a.shape, 2)
    x = widen(v if element == "bf16" else v.view(np.float16), element).astype(np.float64)
    return np.ascontiguousarray(narrow_bits(x, t, relu)).view(np.uint16)[..., 0]


@alu("cvt.rn.satfinite{.relu}.e2m1x2.f32", sig="e2m1x2 = f32, f32")
def cvt_e2m1(a: Lanes, b: Lanes, *, relu: bool) -> Lanes:
    """Two f32 in one byte: a in the upper nibble."""
    high, low = (narrow_bits(v.astype(np.float64), "e2m1", relu) for v in (a, b))
    return (high << np.uint8(4)) | low


def _pair_to_f16(x: Lanes, relu: bool) -> Lanes:
    if relu:
        x = np.where((x > 0) | np.isnan(x), x, np.float32(0))
    return np.ascontiguousarray(narrow(x.astype(np.float64), "f16")).view(np.uint32)[..., 0]


@alu("cvt.rn{.relu}.f16x2.<s>", s="e4m3x2 e5m2x2 e2m3x2 e3m2x2", sig="f16x2 = s")
def cvt_from_narrow(a: Lanes, *, s: str, relu: bool) -> Lanes:
    """Two narrow values as f16, exactly."""
    v = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 2)
    return _pair_to_f16(wide_values(v, s.removesuffix("x2")), relu)


@alu("cvt.rn{.relu}.f16x2.e2m1x2", sig="f16x2 = e2m1x2")
def cvt_from_e2m1(a: Lanes, *, relu: bool) -> Lanes:
    """Two 4-bit values as f16, exactly."""
    v = np.stack([a & np.uint8(0xF), a >> np.uint8(4)], -1)
    return _pair_to_f16(wide_values(v, "e2m1"), relu)


@alu("cvt.<rnd>.satfinite.ue8m0x2.f32", rnd="rz rp", sig="ue8m0x2 = f32, f32")
def cvt_ue8m0(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """Powers of two: the exponent of the magnitude, biased by 127. NaN is 255."""

    def one(x: Lanes) -> Lanes:
        bits = np.ascontiguousarray(np.abs(x)).view(np.uint32)
        e = bits >> np.uint32(23)
        if rnd == "rp":
            e = e + ((bits & np.uint32(0x7FFFFF)) != 0)
        e = np.minimum(e, np.uint32(254))
        return np.where(np.isnan(x), np.uint32(255), e).astype(np.uint16)

    return (one(a) << np.uint16(8)) | one(b)


@alu("cvt.rn.bf16x2.ue8m0x2", sig="bf16x2 = ue8m0x2")
def cvt_from_ue8m0(a: Lanes) -> Lanes:
    """Powers of two as bf16."""
    v = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 2).astype(np.uint16)
    bits = np.where(v == 255, np.uint16(0x7FFF), np.where(v == 0, np.uint16(0x0040), v << np.uint16(7)))
    return np.ascontiguousarray(bits.astype(np.uint16)).view(np.uint32)[..., 0]


# -- cvt.pack ------------------------------------------------------------------------------------------------------------------


def _clamped(a: Lanes, bits: int, signed: bool) -> Lanes:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return (np.clip(a, low, high).astype(np.int64) & ((1 << bits) - 1)).astype(np.uint32)


@alu("cvt.pack.sat.<d>.s32", d="u16 s16", sig="b32 = s32, s32")
def cvt_pack16(a: Lanes, b: Lanes, *, d: str) -> Lanes:
    """Two clamped to 16 bits: a above b."""
    signed = d[0] == "s"
    return (_clamped(a, 16, signed) << np.uint32(16)) | _clamped(b, 16, signed)


@alu("cvt.pack.sat.<d>.s32.b32", d="u8 s8 u4 s4 u2 s2", sig="b32 = s32, s32, b32")
def cvt_pack_small(a: Lanes, b: Lanes, c: Lanes, *, d: str) -> Lanes:
    """Two clamped to few bits below the shifted c."""
    bits, signed = int(d[1:]), d[0] == "s"
    pair = (_clamped(a, bits, signed) << np.uint32(bits)) | _clamped(b, bits, signed)
    return (c << np.uint32(2 * bits)) | pair
