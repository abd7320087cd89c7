"""cvt between integers, f16, bf16, f32 and f64. PTX ISA, "cvt".

Conversions to floating-point types round once; conversions to integers saturate. The accepted combinations of modifiers and
types are those of ptxas.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.floating import flush, saturate
from ptxkit.emulator.instructions.arithmetic.half import narrow, relu, widen
from ptxkit.emulator.instructions.arithmetic.lanes import recompute
from ptxkit.emulator.instructions.arithmetic.rounding import (
    CANONICAL_F32,
    CANONICAL_F64,
    round_f32,
    step,
    to_odd,
    two_sum,
)
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import alu
from ptxkit.isa.types import TYPES

_INT = "u8 u16 u32 u64 s8 s16 s32 s64"
_MODES = "rn rz rm rp"
_INTEGRAL = "rni rzi rmi rpi"


# -- integers ----------------------------------------------------------------------------------------------------------------


@alu("cvt.<d>.<s>", d=_INT, s=_INT, sig="d = s", bind=True)
def cvt_integer(form: Form) -> Callable[..., Lanes]:
    """Truncates, or extends according to the signedness of the source type."""
    want = TYPES[form["d"]].dtype
    return lambda a: a if a.dtype == want else a.astype(want)


def _clamp(form: Form) -> Callable[..., Lanes]:
    want, have = (TYPES[form[k]].dtype for k in ("d", "s"))
    low = max(np.iinfo(want).min, np.iinfo(have).min)
    high = min(np.iinfo(want).max, np.iinfo(have).max)
    return lambda a: np.clip(a, have.type(low), have.type(high)).astype(want)


def _exceeds(s: str, d: str) -> bool:
    have, want = np.iinfo(TYPES[s].dtype), np.iinfo(TYPES[d].dtype)
    return have.min < want.min or have.max > want.max


for _d in _INT.split():  # .sat is not allowed where it would have no effect
    _sources = " ".join(s for s in _INT.split() if _exceeds(s, _d))
    alu("cvt.sat.<d>.<s>", d=_d, s=_sources, sig="d = s", bind=True)(_clamp)


# -- float to integer --------------------------------------------------------------------------------------------------------

_ROUND: dict[str, Callable[[Lanes], Lanes]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _clamped(want: np.dtype, nan: int) -> Callable[[Lanes], Lanes]:
    """Converts rounded floats to integers, with saturation."""
    info = np.iinfo(want)
    low, high = float(info.min), float(info.max)  # for 64 bits, high is 2^63 or 2^64, since the bound is not an f64

    def run(x: Lanes) -> Lanes:
        top, bottom, missing = x >= x.dtype.type(high), x <= x.dtype.type(low), np.isnan(x)
        out = np.where(top | bottom | missing, x.dtype.type(0), x).astype(want)
        out = np.where(top, want.type(info.max), np.where(bottom, want.type(info.min), out))
        return np.where(missing, np.uint64(nan).astype(want), out)

    return run


def _to_integer(form: Form) -> Callable[..., Lanes]:
    s, want = form["s"], TYPES[form["d"]].dtype
    ftz, rounding = form.has("ftz"), _ROUND[form["rnd"]]
    exact = form["rnd"] == "rzi"  # astype truncates
    # PTX ISA, "cvt": NaN becomes 0, but only the top bit is set if source or destination has 64 bits
    nan = 1 << (want.itemsize * 8 - 1) if s == "f64" or want.itemsize == 8 else 0
    slow = _clamped(want, nan)
    # the conversion of a float that is out of range depends on the host: these lanes are recomputed
    first = np.dtype("i8" if want.itemsize == 8 or want == np.uint32 else "i4")
    low = np.iinfo(want).min if want.itemsize < 4 else np.iinfo(first).min + 1
    high = np.iinfo(want).max if want.itemsize < 4 else np.iinfo(first).max
    if want.kind == "u":
        low, high = 0, min(np.iinfo(want).max, high)

    def run(a: Lanes) -> Lanes:
        x = widen(a, s) if s in ("f16", "bf16") else flush(a) if ftz else a
        r = x if exact else rounding(x)
        out = r.astype(first)
        if out.min() >= low and out.max() <= high:
            return out if first == want else out.astype(want)
        return recompute(out.astype(want), (out < low) | (out > high), slow, np.trunc(r) if exact else r)

    return run


for _s in ("f16", "f64"):
    alu("cvt.<rnd>{.sat}.<d>.<s>", rnd=_INTEGRAL, d=_INT, s=_s, sig="d = s", bind=True)(_to_integer)
alu("cvt.<rnd>{.ftz}{.sat}.<d>.<s>", rnd=_INTEGRAL, d=_INT, s="f32", sig="d = s", bind=True)(_to_integer)
alu("cvt.<rnd>.<d>.<s>", rnd=_INTEGRAL, d=_INT, s="bf16", sig="d = s", bind=True)(_to_integer)


# -- integer to float --------------------------------------------------------------------------------------------------------


def _as_sum(a: Lanes) -> tuple[Lanes, Lanes]:
    """64-bit integers as the nearest f64 and the exact remainder."""
    s = a.dtype.type(32)
    high = (a >> s).astype(np.float64) * 2.0**32
    return two_sum(high, (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64))


def _f64_in_mode(a: Lanes, mode: str) -> Lanes:
    if a.dtype.itemsize < 8:
        return a.astype(np.float64)
    r, lack = _as_sum(a)
    none = np.zeros_like(r, np.bool_)
    down, up = lack < 0, lack > 0
    if mode == "rz":
        return step(r, up & (r < 0), down & (r > 0))
    return step(r, none, down) if mode == "rm" else step(r, up, none)


def _from_integer(form: Form) -> Callable[..., Lanes]:
    d, mode, sat = form["d"], form["rnd"], form.has("sat")

    def run(a: Lanes) -> Lanes:
        if mode == "rn" and d in ("f32", "f64"):
            out = a.astype(TYPES[d].dtype)
        elif d == "f64":
            out = _f64_in_mode(a, mode)
        else:
            odd = a.astype(np.float64) if a.dtype.itemsize < 8 else to_odd(*_as_sum(a))
            out = round_f32(odd, mode) if d == "f32" else narrow(saturate(odd) if sat else odd, d, mode)
        return saturate(out) if sat and d[0] == "f" and d != "f16" else out

    return run


alu("cvt.<rnd>{.sat}.<d>.<s>", rnd=_MODES, d="f16 f64", s=_INT, sig="d = s", bind=True)(_from_integer)
alu("cvt.<rnd>{.ftz}{.sat}.<d>.<s>", rnd=_MODES, d="f32", s=_INT, sig="d = s", bind=True)(_from_integer)
alu("cvt.<rnd>.<d>.<s>", rnd=_MODES, d="bf16", s=_INT, sig="d = s", bind=True)(_from_integer)


# -- float to float ----------------------------------------------------------------------------------------------------------


@alu("cvt{.ftz}{.sat}.f32.f32", sig="f32 = f32")
def cvt_same_f32(a: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """f32 to f32: flushes subnormal numbers or saturates, if requested."""
    a = flush(a) if ftz else a
    return saturate(a) if sat else a


@alu("cvt{.sat}.<t>.<t2>", t="f64", t2="f64", sig="t = t")
@alu("cvt{.sat}.<t>.<t2>", t="f16", t2="f16", sig="t = t")
def cvt_same(a: Lanes, *, sat: bool) -> Lanes:
    """A conversion to the same type, which saturates if requested."""
    return saturate(a) if sat else a


@alu("cvt.bf16.bf16", sig="bf16 = bf16")
def cvt_same_bf16(a: Lanes) -> Lanes:
    """bf16 to bf16: no change."""
    return a


@alu("cvt.<rnd>{.ftz}{.sat}.f32.f32", rnd=_INTEGRAL, sig="f32 = f32")
def cvt_integral_f32(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](flush(a) if ftz else a)
    return saturate(r) if sat else r


@alu("cvt.<rnd>{.sat}.f64.f64", rnd=_INTEGRAL, sig="f64 = f64")
def cvt_integral_f64(a: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](a)
    return saturate(r) if sat else r


@alu("cvt.<rnd>{.sat}.f16.f16", rnd=_INTEGRAL, sig="f16 = f16")
def cvt_integral_f16(a: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """Rounded to an integral value."""
    r = _ROUND[rnd](widen(a, "f16"))
    return narrow(saturate(r) if sat else r, "f16")


@alu("cvt.<rnd>.bf16.bf16", rnd=_INTEGRAL, sig="bf16 = bf16")
def cvt_integral_bf16(a: Lanes, *, rnd: str) -> Lanes:
    """Rounded to an integral value."""
    return narrow(_ROUND[rnd](widen(a, "bf16")), "bf16")


def _wider(form: Form) -> Callable[..., Lanes]:
    d, s, ftz, sat = form["d"], form["s"], form.has("ftz"), form.has("sat")
    want = TYPES[d].dtype
    canonical = CANONICAL_F32 if d == "f32" else CANONICAL_F64

    def run(a: Lanes) -> Lanes:
        x = widen(a, s) if s in ("f16", "bf16") else a
        x = (flush(x) if ftz else x).astype(want, copy=False)
        nan = np.isnan(x)
        if nan.any():
            x = np.where(nan, canonical, x)
        return saturate(x) if sat else x

    return run


alu("cvt{.ftz}{.sat}.<d>.<s>", d="f32", s="f16", sig="d = s", bind=True)(_wider)
alu("cvt{.ftz}{.sat}.<d>.<s>", d="f64", s="f32", sig="d = s", bind=True)(_wider)
alu("cvt{.sat}.<d>.<s>", d="f64", s="f16", sig="d = s", bind=True)(_wider)
alu("cvt{.<rnd>}{.ftz}.<d>.<s>", rnd=_MODES, d="f32", s="bf16", sig="d = s", bind=True)(_wider)
alu("cvt{.<rnd>}.<d>.<s>", rnd=_MODES, d="f64", s="bf16", sig="d = s", bind=True)(_wider)


@alu("cvt.<rnd>{.ftz}{.sat}.f32.f64", rnd=_MODES, sig="f32 = f64", bind=True)
def cvt_f32_f64(form: Form) -> Callable[..., Lanes]:
    """Rounded once."""
    mode, ftz, sat = form["rnd"], form.has("ftz"), form.has("sat")

    def run(a: Lanes) -> Lanes:
        r = round_f32(a, mode)
        r = flush(r) if ftz else r
        return saturate(r) if sat else r

    return run


_LARGEST = {"f16": (np.uint16(0x7C00), np.uint16(0x7BFF)), "bf16": (np.uint16(0x7F80), np.uint16(0x7F7F))}
"""Type -> bits of infinity and of the largest finite value."""


def to_half(x: Lanes, t: str, mode: str, clamp: bool, satfinite: bool) -> Lanes:
    """f32 or f64 as float16 lanes or bf16 bits, with .relu and .satfinite."""
    out = narrow(relu(x) if clamp else x, t, mode)
    if not satfinite:
        return out
    bits = out.view(np.uint16)
    infinite, largest = _LARGEST[t]
    over = (bits & np.uint16(0x7FFF)) == infinite
    return np.where(over, (bits & np.uint16(0x8000)) | largest, bits).view(out.dtype)


def _to_half(form: Form) -> Callable[..., Lanes]:
    d, s, mode = form["d"], form["s"], form.get("rnd") or "rn"
    # on an H200, .rm and .rp to f16 do not flush a subnormal f32 before they round it
    ftz = form.has("ftz") and not (d == "f16" and mode in ("rm", "rp"))
    sat = form.has("sat")
    clamp, satfinite = form.has("relu"), form.has("satfinite")

    def run(a: Lanes) -> Lanes:
        x = widen(a, s) if s in ("f16", "bf16") else flush(a) if ftz else a
        return to_half(saturate(x) if sat else x, d, mode, clamp, satfinite)

    return run


alu("cvt.<rnd>{.ftz}{.sat}.<d>.<s>", rnd=_MODES, d="f16", s="f32", sig="d = s", bind=True)(_to_half)
alu("cvt.<rnd>{.sat}.<d>.<s>", rnd=_MODES, d="f16", s="f64", sig="d = s", bind=True)(_to_half)
alu("cvt.<rnd>{.ftz}.<d>.<s>", rnd=_MODES, d="bf16", s="f32", sig="d = s", bind=True)(_to_half)
alu("cvt.<rnd>.<d>.<s>", rnd=_MODES, d="bf16", s="f64", sig="d = s", bind=True)(_to_half)
alu("cvt{.<rnd>}.<d>.<s>", rnd=_MODES, d="bf16", s="f16", sig="d = s", bind=True)(_to_half)
alu("cvt{.<rnd>}.<d>.<s>", rnd=_MODES, d="f16", s="bf16", sig="d = s", bind=True)(_to_half)
alu("cvt.<rnd>.<relu>{.satfinite}.<d>.<s>", rnd="rn rz", relu="relu", d="f16 bf16", s="f32", sig="d = s", bind=True)(
    _to_half
)
alu("cvt.<rnd>.<satfinite>.<d>.<s>", rnd="rn rz", satfinite="satfinite", d="f16 bf16", s="f32", sig="d = s", bind=True)(
    _to_half
)
