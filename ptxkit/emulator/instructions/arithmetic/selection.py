"""selp, slct, testp, copysign. PTX ISA, "Comparison and Selection Instructions" and "Floating Point Instructions"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.floating import flush
from ptxkit.emulator.instructions.arithmetic.lanes import choose
from ptxkit.emulator.simt.table import alu

_TYPES = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"


@alu("selp.<t>", t=_TYPES, sig="t = t, t, pred")
def selp(a: Lanes, b: Lanes, p: Lanes) -> Lanes:
    """a where the predicate holds, else b."""
    return choose(p, a, b)


@alu("slct.<t>.s32", t=_TYPES, sig="t = t, t, s32")
def slct(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a where c is at least 0, else b."""
    return choose(c >= 0, a, b)


@alu("slct{.ftz}.<t>.f32", t=_TYPES, sig="t = t, t, f32")
def slct_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool) -> Lanes:
    """a where c is at least 0, else b; NaN picks b."""
    return choose((flush(c) if ftz else c) >= 0, a, b)


@alu("testp.<what>.<t>", what="finite infinite number notanumber normal subnormal", t="f32 f64", sig="pred = t")
def testp(a: Lanes, *, what: str) -> Lanes:
    """Class of a floating-point number."""
    tiny = np.finfo(a.dtype).tiny
    match what:
        case "finite":
            return np.isfinite(a)
        case "infinite":
            return np.isinf(a)
        case "number":
            return ~np.isnan(a)
        case "notanumber":
            return np.isnan(a)
        case "normal":
            return np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0))  # PTX ISA, "testp": zeros count as normal
        case _:
            return (np.abs(a) < tiny) & (a != 0)


@alu("copysign.<t>", t="f32 f64")
def copysign(a: Lanes, b: Lanes) -> Lanes:
    """b with the sign of a."""
    return np.copysign(b, a)
