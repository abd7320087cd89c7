"""cvt to and from packed and narrow formats: f16x2, bf16x2, tf32, fp8, fp6, fp4, ue8m0, s2f6; and cvt.pack. PTX ISA, "cvt".

A narrow format consists of sign, exponent and a few fraction bits. An f32 is converted by integer operations on its bits: the
low fraction bits are rounded off, and the exponent gets another bias. A subnormal result is the magnitude in units of the
smallest subnormal number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.convert import to_half
from ptxkit.emulator.instructions.arithmetic.half import DTYPE, relu, widen
from ptxkit.emulator.instructions.arithmetic.lanes import joined, parts
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.step import Binding, Step
from ptxkit.emulator.simt.table import alu, effect
from ptxkit.isa.types import TYPES

U8, U16, U32 = np.uint8, np.uint16, np.uint32


# -- packed halves -----------------------------------------------------------------------------------------------------------


def _two_halves(form: Form) -> Callable[..., Lanes]:
    element, mode = form["d"].removesuffix("x2"), form["rnd"]
    clamp, satfinite = form.has("relu"), form.has("satfinite")

    def one(x: Lanes) -> Lanes:
        return to_half(x, element, mode, clamp, satfinite).view(U16).astype(U32)

    return lambda a, b: (one(a) << U32(16)) | one(b)


alu("cvt.<rnd>{.relu}{.satfinite}.<d>.f32", rnd="rn rz", d="f16x2 bf16x2", sig="d = f32, f32", bind=True)(_two_halves)


_CUT = {"f16": 13, "bf16": 16}
"""Number of fraction bits of an f32 that the 16-bit format lacks."""


def _stochastic(x: Lanes, random: Lanes, t: str) -> Lanes:
    """Rounds f32 stochastically to the bits of a 16-bit format.

    The result is truncated, and increased in magnitude where the sum of the truncated bits and ``random`` carries. A subnormal
    f16 loses more than 13 bits; the random bits are aligned with the highest of them.
    """
    word = np.ascontiguousarray(x).view(U32)
    exponent = ((word >> U32(23)) & U32(255)).astype(np.int64)
    more = np.clip(113 - exponent, 0, 30).astype(np.uint64) if t == "f16" else np.uint64(0)
    fraction = (word & U32(0x7FFFFF)).astype(np.uint64) | (exponent > 0).astype(np.uint64) << np.uint64(23)
    limit = np.uint64(1) << (more + np.uint64(_CUT[t]))
    carry = (fraction & (limit - np.uint64(1))) + (random.astype(np.uint64) << more) >= limit
    return to_half(x, t, "rz", False, False).view(U16) + (carry & np.isfinite(x)).astype(U16)


@alu("cvt.rs{.relu}{.satfinite}.<d>.f32", d="f16x2 bf16x2", sig="d = f32, f32, b32", bind=True)
def cvt_stochastic(form: Form) -> Callable[..., Lanes]:
    """Two f32 with random bits: a in the upper half, with the upper half's. PTX ISA, "cvt", .rs."""
    t, clamp, satfinite = form["d"].removesuffix("x2"), form.has("relu"), form.has("satfinite")
    mask, infinite = U32((1 << _CUT[t]) - 1), U16(0x7C00 if t == "f16" else 0x7F80)

    def one(x: Lanes, random: Lanes) -> Lanes:
        out = _stochastic(relu(x) if clamp else x, random & mask, t)
        if satfinite:
            out = np.where((out & U16(0x7FFF)) == infinite, out - U16(1), out)
        return out.astype(U32)

    return lambda a, b, random: (one(a, random >> U32(16)) << U32(16)) | one(b, random)


def _tf32(form: Form) -> Callable[..., Lanes]:
    """Rounds f32 to tf32: an f32 word with a fraction of 10 bits."""
    mode, clamp, satfinite = form["rnd"], form.has("relu"), form.has("satfinite")
    sign, infinite = U32(1 << 31), U32(0x7F800000)

    def run(a: Lanes) -> Lanes:
        bits = np.ascontiguousarray(relu(a) if clamp else a).view(U32)
        rounded = bits
        if mode == "rn":
            rounded = bits + (U32(0xFFF) + ((bits >> U32(13)) & U32(1)))
        elif mode == "rna":
            rounded = bits + U32(0x1000)
        out = rounded & U32(0xFFFFE000)
        if satfinite:
            out = np.where((out & ~sign) >= infinite, (bits & sign) | U32(0x7F7FE000), out)
        nan = np.isnan(a)
        return np.where(nan, U32(0x7FFFFFFF), out) if nan.any() else out

    return run


alu("cvt.<rnd>{.relu}{.satfinite}.tf32.f32", rnd="rn rz", sig="tf32 = f32", bind=True)(_tf32)
alu("cvt.<rnd>{.satfinite}.tf32.f32", rnd="rna", sig="tf32 = f32", bind=True)(_tf32)


# -- fp8, fp6, fp4 -----------------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """A narrow format: the widths of its fields, and the codes of NaN and of the largest magnitude."""

    exponent: int
    fraction: int
    largest: int
    nan: int
    values: Lanes

    @property
    def sign(self) -> int:
        """Position of the sign bit."""
        return self.exponent + self.fraction

    @property
    def bias(self) -> int:
        """The exponent bias."""
        return (1 << (self.exponent - 1)) - 1


FORMATS = {
    "e4m3": Format(4, 3, 0x7E, 0x7F, ml_dtypes.float8_e4m3fn),
    "e5m2": Format(5, 2, 0x7B, 0x7F, ml_dtypes.float8_e5m2),
    # formats without NaN: PTX defines the largest value as the result
    "e2m3": Format(2, 3, 0x1F, 0x1F, ml_dtypes.float6_e2m3fn),
    "e3m2": Format(3, 2, 0x1F, 0x1F, ml_dtypes.float6_e3m2fn),
    "e2m1": Format(2, 1, 0x7, 0x7, ml_dtypes.float4_e2m1fn),
}


def encode(x: Lanes, t: str, mode: str = "rn", clamp: bool = False) -> Lanes:
    """f32 values as bits of a narrow format, one byte each; magnitudes beyond the largest become the largest (.satfinite).

    NaN becomes the format's canonical NaN, or the largest positive value where it has none.
    """
    f = FORMATS[t]
    if clamp:
        x = relu(x)
    magnitude = np.abs(x)
    word = magnitude.view(U32)
    cut = U32(23 - f.fraction)
    if mode == "rn":
        word = word + (((word >> cut) & U32(1)) + U32((1 << (22 - f.fraction)) - 1))
    code = (word >> cut).astype(np.int32) - np.int32((127 - f.bias) << f.fraction)
    smallest = np.float32(2.0 ** (1 - f.bias))
    small = magnitude < smallest
    if small.any():
        steps = magnitude * np.float32(2.0 ** (f.bias - 1 + f.fraction))
        code = np.where(small, (np.rint(steps) if mode == "rn" else np.trunc(steps)).astype(np.int32), code)
    out = np.minimum(code, np.int32(f.largest)).astype(U8) | (np.signbit(x).astype(U8) << U8(f.sign))
    nan = np.isnan(x)
    return np.where(nan, U8(f.nan), out) if nan.any() else out


def _encode_two(form: Form) -> Callable[..., Lanes]:
    t, mode, clamp = form["d"].removesuffix("x2"), form["rnd"], form.has("relu")
    width, dtype = (U8(4), np.dtype(U8)) if t == "e2m1" else (U16(8), np.dtype(U16))

    def run(a: Lanes, b: Lanes) -> Lanes:
        high: Lanes = encode(a, t, mode, clamp).astype(dtype)
        low: Lanes = encode(b, t, mode, clamp).astype(dtype)
        return (high << width) | low

    return run


def _encode_halves(form: Form) -> Callable[..., Lanes]:
    t, mode, clamp = form["d"].removesuffix("x2"), form["rnd"], form.has("relu")
    element = form["s"].removesuffix("x2")

    def run(a: Lanes) -> Lanes:
        pair = encode(widen(parts(a, DTYPE[element]), element), t, mode, clamp)
        if t == "e2m1":
            return pair[..., 0] | (pair[..., 1] << U8(4))
        return joined(pair, U16)

    return run


_NARROW2 = "e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2"
alu("cvt.<rnd>.satfinite{.relu}.<d>.f32", rnd="rn rz", d=_NARROW2, sig="d = f32, f32", bind=True)(_encode_two)
alu("cvt.<rnd>.satfinite{.relu}.<d>.<s>", rnd="rn rz", d=_NARROW2, s="f16x2 bf16x2", sig="d = s", bind=True)(
    _encode_halves
)


@lru_cache
def _decoded(s: str, d: str, clamp: bool, satfinite: bool) -> Lanes:
    """Table: a pair of narrow values -> the pair of f16 values; [65536] or, for fp4, [256] uint32."""
    t, element = s.removesuffix("x2"), d.removesuffix("x2")
    f = FORMATS[t]
    if t == "e2m1":
        codes = np.arange(256, dtype=np.uint8)
        pair = np.stack([codes & 0xF, codes >> 4], -1)
    else:
        pair = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    # bits above the sign are ignored
    values = (pair & np.uint8((2 << f.sign) - 1)).view(f.values).astype(np.float32)
    return joined(to_half(values, element, "rn", clamp, satfinite), U32)


@alu("cvt.rn{.relu}.<d>.<s>", d="f16x2", s=_NARROW2, sig="d = s", bind=True)
@alu("cvt.rn{.satfinite}{.relu}.<d>.<s>", d="bf16x2", s=_NARROW2, sig="d = s", bind=True)
def cvt_from_narrow(form: Form) -> Callable[..., Lanes]:
    """Two narrow values as halves, exactly."""
    table = _decoded(form["s"], form["d"], form.has("relu"), form.has("satfinite"))
    return lambda a: table[a]


# -- ue8m0: powers of two
# --------------------------------------------------------------------------------------------------------


def _exponent(x: Lanes, mode: str, satfinite: bool) -> Lanes:
    """The exponent of the magnitude, biased by 127, as uint16; it is 255 for NaN, and 0 for magnitudes below 2^-127."""
    bits = np.ascontiguousarray(np.abs(x)).view(U32)
    e = bits >> U32(23)
    if mode == "rp":
        e = e + ((bits & U32(0x7FFFFF) != 0) & (bits > U32(0x400000)) & np.isfinite(x))
    if satfinite:
        e = np.minimum(e, U32(254))
    return np.where(np.isnan(x), U32(255), e).astype(U16)


@alu("cvt.<rnd>{.satfinite}.ue8m0x2.f32", rnd="rz rp", sig="ue8m0x2 = f32, f32")
def cvt_ue8m0(a: Lanes, b: Lanes, *, rnd: str, satfinite: bool) -> Lanes:
    """Two f32 as powers of two: a in the upper byte."""
    return (_exponent(a, rnd, satfinite) << U16(8)) | _exponent(b, rnd, satfinite)


@alu("cvt.<rnd>{.satfinite}.ue8m0x2.bf16x2", rnd="rz rp", sig="ue8m0x2 = bf16x2")
def cvt_ue8m0_bf16(a: Lanes, *, rnd: str, satfinite: bool) -> Lanes:
    """Two bf16 as powers of two."""
    return joined(_exponent(widen(parts(a, U16), "bf16"), rnd, satfinite).astype(U8), U16)


@alu("cvt.rn.bf16x2.ue8m0x2", sig="bf16x2 = ue8m0x2")
def cvt_from_ue8m0(a: Lanes) -> Lanes:
    """Powers of two as bf16; 2^-127 is subnormal."""
    v = parts(a, U8).astype(U16)
    return joined(np.where(v == 255, U16(0x7FFF), np.where(v == 0, U16(0x0040), v << U16(7))), U32)


# -- s2f6: fixed point, six fraction bits
# ----------------------------------------------------------------------------------------


def _scale(exponents: Lanes) -> Lanes:
    """Converts ue8m0 scale factors to f32."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)


def _fixed(x: Lanes, exponents: Lanes, clamp: bool) -> Lanes:
    """Divides f32 by the scale and converts to s2f6 bytes: round to nearest even, clamped; NaN becomes the largest value."""
    steps = np.rint(np.ldexp((relu(x) if clamp else x).astype(np.float64), 133 - exponents.astype(np.int32)))
    nan = np.isnan(x) | (exponents == 255)
    return np.clip(np.where(nan, 127, steps), -128, 127).astype(np.int8).view(U8)


_SCALED = "scaled::n2::ue8m0"
_NO_SCALE = np.full((1, 1, 1), 0x7F7F, U16)


@alu("cvt.rn.satfinite{.relu}.s2f6x2.f32", sig="s2f6x2 = f32, f32")
@alu("cvt.rn.satfinite{.relu}.<scaled>.s2f6x2.f32", scaled=_SCALED, sig="s2f6x2 = f32, f32, b16")
def cvt_s2f6(a: Lanes, b: Lanes, scale: Lanes = _NO_SCALE, *, relu: bool) -> Lanes:
    """Two f32 over their scales: a in the upper byte."""
    high = _fixed(a, scale >> U16(8), relu).astype(U16)
    return (high << U16(8)) | _fixed(b, scale & U16(0xFF), relu)


@alu("cvt.rn.satfinite{.relu}.s2f6x2.bf16x2", sig="s2f6x2 = bf16x2")
@alu("cvt.rn.satfinite{.relu}.<scaled>.s2f6x2.bf16x2", scaled=_SCALED, sig="s2f6x2 = bf16x2, b16")
def cvt_s2f6_bf16(a: Lanes, scale: Lanes = _NO_SCALE, *, relu: bool) -> Lanes:
    """Two bf16 over their scales."""
    return joined(_fixed(widen(parts(a, U16), "bf16"), parts(scale, U8), relu), U16)


@alu("cvt.rn{.satfinite}{.relu}.bf16x2.s2f6x2", sig="bf16x2 = s2f6x2")
@alu("cvt.rn{.satfinite}{.relu}.<scaled>.bf16x2.s2f6x2", scaled=_SCALED, sig="bf16x2 = s2f6x2, b16")
def cvt_from_s2f6(a: Lanes, scale: Lanes = _NO_SCALE, *, relu: bool, satfinite: bool) -> Lanes:
    """Two fixed-point values times their scales, as bf16."""
    exponents = parts(scale, U8).astype(np.int32)
    x = np.ldexp(parts(a, np.int8).astype(np.float64), exponents - 133)
    x = np.where(exponents == 255, np.nan, x)
    return joined(to_half(x, "bf16", "rn", relu, satfinite), U32)


# -- cvt.pack ------------------------------------------------------------------------------------------------------------------


def _clamped(a: Lanes, bits: int, signed: bool) -> Lanes:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return np.clip(a, np.int32(low), np.int32(high)).view(U32) & U32((1 << bits) - 1)


@alu("cvt.pack.sat.<d>.s32", d="u16 s16", sig="b32 = s32, s32")
def cvt_pack16(a: Lanes, b: Lanes, *, d: str) -> Lanes:
    """Two clamped to 16 bits: a above b."""
    signed = d[0] == "s"
    return (_clamped(a, 16, signed) << U32(16)) | _clamped(b, 16, signed)


@alu("cvt.pack.sat.<d>.s32.b32", d="u8 s8 u4 s4 u2 s2", sig="b32 = s32, s32, b32")
def cvt_pack_small(a: Lanes, b: Lanes, c: Lanes, *, d: str) -> Lanes:
    """Two clamped to few bits below the shifted c."""
    bits, signed = int(d[1:]), d[0] == "s"
    pair = (_clamped(a, bits, signed) << U32(bits)) | _clamped(b, bits, signed)
    return (c << U32(2 * bits)) | pair


# -- stochastic rounding of four numbers ---------------------------------------------------------------------------------------


def _encode_stochastic(x: Lanes, random: Lanes, t: str, clamp: bool) -> Lanes:
    """f32 values as bits of a narrow format, with 16 random bits each that are added to the highest of the fraction bits that
    are cut off; magnitudes beyond the largest become the largest.
    """
    f = FORMATS[t]
    word = np.ascontiguousarray(relu(x) if clamp else x).view(U32)
    fraction = (word & U32(0x7FFFFF)).astype(np.int64)
    biased = ((word >> U32(23)) & U32(255)).astype(np.int64)
    exponent = biased - 127 + f.bias
    cut = np.where(exponent > 0, 23 - f.fraction, np.minimum(24 - f.fraction - exponent, 45))
    whole = np.where(exponent > 0, fraction, fraction | 0x800000) + (random.astype(np.int64) << (cut - 16))
    code = (np.maximum(exponent, 0) << f.fraction) + (whole >> cut)
    code = np.where(biased == 0, 0, np.where(biased == 255, f.largest, np.minimum(code, f.largest)))
    signed = code | ((word >> U32(31)).astype(np.int64) << f.sign)
    return np.where(np.isnan(x), f.nan, signed).astype(U32)


def _reversed_bits(half: Lanes) -> Lanes:
    """The 16 bits of a number in the opposite order."""
    for step, mask in ((1, 0x5555), (2, 0x3333), (4, 0x0F0F), (8, 0x00FF)):
        half = ((half >> U32(step)) & U32(mask)) | ((half & U32(mask)) << U32(step))
    return half


@effect("cvt.rs{.relu}.satfinite.<d>.f32", d="e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4")
def _four(b: Binding) -> Step:
    """Four f32 with 32 random bits: a in the highest bits.

    The manual has the assignment of the random bits in a figure only. Results on a B200, published with an emulator
    (pantheonsim), give: a and b share one half of them and e and f the other, a and e with the bits in the opposite order. The
    halves are the upper and the lower one, for e2m1x4 the odd and the even bytes.
    """
    if b.target < 100:
        raise b.fail("needs sm_100a or sm_103a")
    destination, values, random = b.operands
    t, clamp = b.form["d"].removesuffix("x4"), b.form.has("relu")
    items = b.elements(values)
    if len(items) != 4:
        raise b.fail("needs a vector of four .f32 registers")
    width = 4 if t == "e2m1" else 8

    def convert(a: Lanes, c: Lanes, e: Lanes, f: Lanes, bits: Lanes) -> Lanes:
        first, second = bits >> U32(16), bits & U32(0xFFFF)
        if width == 4:
            odd, even = bits >> U32(8), bits
            first = ((odd >> U32(8)) & U32(0xFF00)) | (odd & U32(0xFF))
            second = ((even >> U32(8)) & U32(0xFF00)) | (even & U32(0xFF))
        pairs = ((a, _reversed_bits(first)), (c, first), (e, _reversed_bits(second)), (f, second))
        out: Lanes = np.zeros((1, 1, 1), U32)
        for x, own in pairs:
            out = (out << U32(width)) | _encode_stochastic(x, own, t, clamp)
        return out if width == 8 else out.astype(U16)

    sources = (*((o, TYPES["f32"]) for o in items), (random, TYPES["u32"]))
    return Step(convert, sources, ((destination, TYPES["b32" if width == 8 else "b16"]),), pure=True)
