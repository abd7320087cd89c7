"""setp, set, selp, slct, testp. PTX ISA, "Comparison and Selection Instructions"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ptxkit.emulator.table import Form, alu

Lanes = Any
_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_BOOLEAN: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
_INTEGERS = "b16 b32 b64 u16 u32 u64 s16 s32 s64"
_FLOAT_OPS = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan"


def flush(a: Lanes) -> Lanes:
    """Subnormal f32 as zero of the same sign."""
    tiny = np.abs(a) < np.float32(2**-126)
    return np.where(tiny, np.copysign(np.float32(0), a), a) if tiny.any() else a


def compare(op: str, a: Lanes, b: Lanes) -> Lanes:
    """The comparison; NaN makes ordered ones false and unordered ones true."""
    if op in _ORDERED and op != "ne":
        return _ORDERED[op](a, b)
    if a.dtype.kind != "f":
        return np.not_equal(a, b)
    nan = np.isnan(a) | np.isnan(b)
    match op:
        case "ne":
            return (a != b) & ~nan
        case "num":
            return ~nan
        case "nan":
            return nan
        case _:
            return _ORDERED[op[:2]](a, b) | nan


def _value(t: str, a: Lanes, ftz: bool) -> Lanes:
    if t == "bf16":
        return a.view(ml_dtypes.bfloat16).astype(np.float32)
    return flush(a) if ftz and t == "f32" else a


def _setp(form: Form) -> Callable[..., Any]:
    op, t, ftz, combine = form["cmp"], form["t"], bool(form.get("ftz")), form.get("bool") or ""
    if not combine:
        if (
            op in _ORDERED
            and (op != "ne" or t[0] not in "fb" or t in ("b16", "b32", "b64"))
            and not ftz
            and t != "bf16"
        ):
            return _ORDERED[op]

        def plain(a: Lanes, b: Lanes) -> Lanes:
            return compare(op, _value(t, a, ftz), _value(t, b, ftz))

        return plain
    function = _BOOLEAN[combine]

    def combined(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
        p = compare(op, _value(t, a, ftz), _value(t, b, ftz))
        return function(p, c), function(~p, c)

    return combined


def _pair(form: Form) -> Callable[..., Any]:
    single = _setp(form)
    if not form.get("pair", True):
        return single

    def both(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
        p = single(a, b)
        return p, ~p

    return both


alu("setp.<cmp>.<t>", cmp="eq ne lt le gt ge lo ls hi hs", t=_INTEGERS, sig="pred, pred = t, t", bind=True)(_pair)
alu("setp.<cmp>{.ftz}.<t>", cmp=_FLOAT_OPS, t="f16 bf16 f32 f64", sig="pred, pred = t, t", bind=True)(_pair)
alu(
    "setp.<cmp>.<bool>.<t>",
    cmp="eq ne lt le gt ge lo ls hi hs",
    bool="and or xor",
    t=_INTEGERS,
    sig="pred, pred = t, t, pred",
    bind=True,
)(_setp)
alu(
    "setp.<cmp>.<bool>{.ftz}.<t>",
    cmp=_FLOAT_OPS,
    bool="and or xor",
    t="f16 bf16 f32 f64",
    sig="pred, pred = t, t, pred",
    bind=True,
)(_setp)


def halves(a: Lanes, t: str) -> tuple[Lanes, Lanes]:
    """Both elements of a packed half register as float32: (low, high)."""
    kind: Any = np.float16 if t == "f16x2" else ml_dtypes.bfloat16
    v = np.ascontiguousarray(a).view(kind).reshape(*a.shape, 2).astype(np.float32)
    return v[..., 0], v[..., 1]


@alu("setp.<cmp>{.ftz}.<t>", cmp=_FLOAT_OPS, t="f16x2 bf16x2", sig="pred, pred = t, t")
def setp_x2(a: Lanes, b: Lanes, *, cmp: str, t: str) -> tuple[Lanes, Lanes]:
    """One predicate for each half."""
    (al, ah), (bl, bh) = halves(a, t), halves(b, t)
    return compare(cmp, al, bl), compare(cmp, ah, bh)


@alu("setp.<cmp>.<bool>{.ftz}.<t>", cmp=_FLOAT_OPS, bool="and or xor", t="f16x2 bf16x2", sig="pred, pred = t, t, pred")
def setp_x2_bool(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, t: str, bool: str) -> tuple[Lanes, Lanes]:
    """One predicate for each half, combined with a third."""
    low, high = setp_x2(a, b, cmp=cmp, t=t)
    return _BOOLEAN[bool](low, c), _BOOLEAN[bool](high, c)


def _set(form: Form) -> Callable[..., Lanes]:
    op, t, d, ftz, combine = form["cmp"], form["t"], form["d"], bool(form.get("ftz")), form.get("bool") or ""

    def run(a: Lanes, b: Lanes, *rest: Lanes) -> Lanes:
        p = compare(op, _value(t, a, ftz), _value(t, b, ftz))
        if combine:
            p = _BOOLEAN[combine](p, rest[0])
        if d == "f32":
            return p.astype(np.float32)
        return np.where(p, np.uint32(0xFFFFFFFF), np.uint32(0)).view(np.int32 if d == "s32" else np.uint32)

    return run


alu(
    "set.<cmp>{.ftz}.<d>.<t>",
    cmp="eq ne lt le gt ge equ neu ltu leu gtu geu num nan",
    d="u32 s32 f32",
    t="f16 bf16 f32 f64",
    sig="d = t, t",
    bind=True,
)(_set)
alu("set.<cmp>.<d>.<t>", cmp="eq ne lt le gt ge lo ls hi hs", d="u32 s32 f32", t=_INTEGERS, sig="d = t, t", bind=True)(
    _set
)
alu(
    "set.<cmp>.<bool>{.ftz}.<d>.<t>",
    cmp=_FLOAT_OPS,
    bool="and or xor",
    d="u32 s32 f32",
    t="f16 bf16 f32 f64",
    sig="d = t, t, pred",
    bind=True,
)(_set)
alu(
    "set.<cmp>.<bool>.<d>.<t>",
    cmp="eq ne lt le gt ge lo ls hi hs",
    bool="and or xor",
    d="u32 s32 f32",
    t=_INTEGERS,
    sig="d = t, t, pred",
    bind=True,
)(_set)


@alu("set.<cmp>{.ftz}.<t>.<s>", cmp=_FLOAT_OPS, t="f16x2 bf16x2", s="f16x2 bf16x2", sig="t = s, s")
def set_x2(a: Lanes, b: Lanes, *, cmp: str, t: str, s: str) -> Lanes:
    """1.0 or 0.0 in each half."""
    (al, ah), (bl, bh) = halves(a, s), halves(b, s)
    one = np.uint32(0x3C00 if t == "f16x2" else 0x3F80)
    low, high = compare(cmp, al, bl), compare(cmp, ah, bh)
    return np.where(low, one, np.uint32(0)) | (np.where(high, one, np.uint32(0)) << np.uint32(16))


@alu("selp.<t>", t="b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", sig="t = t, t, pred")
def selp(a: Lanes, b: Lanes, p: Lanes) -> Lanes:
    """a where the predicate holds, else b."""
    return np.where(p, a, b)


@alu("slct.<t>.s32", t="b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", sig="t = t, t, s32")
def slct(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a where c is at least 0, else b."""
    return np.where(c >= 0, a, b)


@alu("slct{.ftz}.<t>.f32", t="b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", sig="t = t, t, f32")
def slct_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool) -> Lanes:
    """a where c is at least 0, else b; NaN picks b."""
    return np.where((flush(c) if ftz else c) >= 0, a, b)


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
            return np.isfinite(a) & (np.abs(a) >= tiny)
        case _:
            return (np.abs(a) < tiny) & (a != 0)


@alu("copysign.<t>", t="f32 f64")
def copysign(a: Lanes, b: Lanes) -> Lanes:
    """b with the sign of a."""
    return np.copysign(b, a)
