"""setp, set, selp, slct, testp, copysign, minima and maxima, signs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import alu_forms
import alu_oracle as oracle
import numpy as np
import pytest

from ptxkit.isa.types import TYPES

FLOATS = ("f16", "bf16", "f32", "f64")
COUNT = 600


def order(a: Any, b: Any) -> int | None:
    """-1, 0, 1, or None when unordered."""
    if oracle.NAN in (a, b):
        return None
    return (a > b) - (a < b)


def holds(op: str, a: Any, b: Any) -> bool:
    o = order(a, b)
    if op in ("num", "nan"):
        return (o is None) == (op == "nan")
    if o is None:
        return len(op) == 3
    return {
        "eq": o == 0,
        "ne": o != 0,
        "lt": o < 0,
        "le": o <= 0,
        "gt": o > 0,
        "ge": o >= 0,
        "lo": o < 0,
        "ls": o <= 0,
        "hi": o > 0,
        "hs": o >= 0,
    }[op[:2]]


def decode(bits: int, t: str, ftz: bool) -> Any:
    if t in FLOATS:
        v = oracle.FORMATS[t].decode(bits & (1 << oracle.FORMATS[t].bits) - 1)
        return oracle.flushed(v, t) if ftz else v
    width = TYPES[t].bits
    bits &= (1 << width) - 1
    return bits - (1 << width) if t[0] == "s" and bits >> (width - 1) else bits


def combine(name: str, p: bool, c: bool) -> bool:
    return {"and": p and c, "or": p or c, "xor": p != c, "": p}[name]


def halves(bits: int, t: str) -> tuple[int, ...]:
    return (bits & 0xFFFF, bits >> 16 & 0xFFFF) if t.endswith("x2") else (bits,)


def compared(form: alu_forms.Form, lane: tuple[int, ...]) -> list[bool]:
    """The comparison of each half, before it is combined with the predicate."""
    parts = form.opcode.split(".")
    t = parts[-1]
    op = parts[1]
    element = t.removesuffix("x2")
    ftz = "ftz" in parts
    pairs = zip(halves(lane[0], t), halves(lane[1], t), strict=True)
    return [holds(op, decode(a, element, ftz), decode(b, element, ftz)) for a, b in pairs]


SETP = [f for f in alu_forms.forms("setp") if f.pair or len(f.types()[0]) == 1]
SET = list(alu_forms.forms("set."))


def groups(forms: list[alu_forms.Form]) -> list[list[alu_forms.Form]]:
    key = lambda f: (f.opcode.split(".")[-1], f.pair)  # noqa: E731
    return [list(g) for _, g in itertools.groupby(sorted(forms, key=key), key)]


@pytest.mark.parametrize("group", groups(SETP), ids=lambda g: f"{g[0].opcode.split('.')[-1]}{'|q' * g[0].pair}")
def test_setp(group):
    for form in group:
        parts = form.opcode.split(".")
        boolean = next((p for p in parts if p in ("and", "or", "xor")), "")
        rows = oracle.operands(form.opcode, 150)
        result = oracle.apply(form.opcode, *rows, pair=form.pair)
        outs = result if isinstance(result, tuple) else (result,)
        got = [oracle.bits_of(o, 150) for o in outs]
        for n, lane in enumerate(zip(*(r.tolist() for r in rows), strict=True)):
            p = compared(form, lane)
            c = bool(lane[2] & 1) if boolean else True
            both = p if len(p) == 2 else [p[0], not p[0]]
            want = [combine(boolean, v, c) for v in both][: len(got)]
            assert [bool(g[n]) for g in got] == want, (form.opcode, [hex(v) for v in lane])


@pytest.mark.parametrize("group", groups(SET), ids=lambda g: g[0].opcode.split(".")[-1])
def test_set(group):
    true = {
        "u32": 0xFFFFFFFF,
        "s32": 0xFFFFFFFF,
        "u16": 0xFFFF,
        "s16": 0xFFFF,
        "f32": 0x3F800000,
        "f16": 0x3C00,
        "bf16": 0x3F80,
    }
    for form in group:
        parts = form.opcode.split(".")
        boolean, d, t = next((p for p in parts if p in ("and", "or", "xor")), ""), parts[-2], parts[-1]
        rows = oracle.operands(form.opcode, 60)
        got = oracle.bits_of(oracle.apply(form.opcode, *rows), 60)
        one = true[d] if not t.endswith("x2") else true[d.removesuffix("x2")] if d.endswith("x2") else 0xFFFF
        for n, lane in enumerate(zip(*(r.tolist() for r in rows), strict=True)):
            p = [combine(boolean, v, bool(lane[2] & 1) if boolean else True) for v in compared(form, lane)]
            want = sum((one if v else 0) << 16 * k for k, v in enumerate(p))
            assert got[n] == want, (form.opcode, [hex(v) for v in lane], hex(got[n]), hex(want))


@pytest.mark.parametrize("t", ["b16", "b32", "b64", "s32", "f32", "f64"])
@pytest.mark.parametrize("count", [40, 5000])
def test_selp_and_slct(t, count):
    a, b, p = oracle.operands(f"selp.{t}", count)
    mask = np.uint64((1 << TYPES[t].bits) - 1)
    p = p & np.uint64(1)
    assert oracle.bits_of(oracle.apply(f"selp.{t}", a, b, p), count) == np.where(p, a & mask, b & mask).tolist()
    c = oracle.operands(f"slct.{t}.s32", count)[2] & np.uint64(0xFFFFFFFF)
    want = np.where(c < np.uint64(1 << 31), a & mask, b & mask)
    assert oracle.bits_of(oracle.apply(f"slct.{t}.s32", a, b, c), count) == want.tolist()
    x = np.array([0.0, -0.0, 1, -1, np.nan, -1e-45, 1e-45, np.inf], np.float32)
    a, b = np.arange(8), np.arange(10, 18)
    picked = [True, True, True, False, False, False, True, True]
    assert oracle.bits_of(oracle.apply(f"slct.{t}.f32", a, b, x), 8) == [
        n if p else n + 10 for n, p in enumerate(picked)
    ]
    picked[5] = True
    assert oracle.bits_of(oracle.apply(f"slct.ftz.{t}.f32", a, b, x), 8) == [
        n if p else n + 10 for n, p in enumerate(picked)
    ]


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 1, 1), (4, 8, 1), (1, 1, 1)),
        ((4, 8, 32), (1, 1, 1), (1, 8, 1)),
        ((8, 8, 64), (1, 1, 64), (8, 8, 64)),
        ((8, 8, 64), (1, 1, 1), (1, 1, 1)),
        ((8, 8, 64), (8, 1, 1), (1, 8, 64)),
    ],
)
def test_selp_broadcasts(shapes):
    rng = np.random.default_rng(0)
    p = rng.integers(0, 2, shapes[0]).astype(bool)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes[1:])
    entry, form = oracle.lookup("selp.f32")
    got = entry.lane_function(form)(a, b, p)
    want = np.where(p, a, b)
    assert np.array_equal(np.broadcast_to(got, want.shape), want)


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_testp_and_copysign(t):
    f = oracle.FORMATS[t]
    a, b = (r & np.uint64((1 << f.bits) - 1) for r in oracle.operands(f"copysign.{t}", COUNT))
    magnitude = np.uint64((1 << f.bits - 1) - 1)
    got = oracle.bits_of(oracle.apply(f"copysign.{t}", a, b), COUNT)
    assert got == ((a & ~magnitude & np.uint64((1 << f.bits) - 1)) | (b & magnitude)).tolist()
    for what in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        got = oracle.bits_of(oracle.apply(f"testp.{what}.{t}", a), COUNT)
        for bits, result in zip(a.tolist(), got, strict=True):
            v = f.decode(bits)
            infinite = isinstance(v, float) and math.isinf(v)
            normal = v != oracle.NAN and not infinite and (v == 0 or oracle.flushed(v, t) != 0)
            want = {
                "finite": v != oracle.NAN and not infinite,
                "infinite": infinite,
                "number": v != oracle.NAN,
                "notanumber": v == oracle.NAN,
                "normal": normal,
                "subnormal": v != oracle.NAN and not infinite and not normal,
            }[what]
            assert bool(result) == want, (what, hex(bits))


# -- minima and maxima ----------------------------------------------------------------------------------------


def extremum(name: str, a: Any, b: Any, nan: bool) -> Any:
    """PTX ISA, "min": -0 is below +0."""
    if nan and oracle.NAN in (a, b):
        return oracle.NAN
    if a == oracle.NAN or b == oracle.NAN:
        return b if a == oracle.NAN else a
    if a == b == 0:
        negative = (
            (oracle.negative(a) or oracle.negative(b)) if name == "min" else (oracle.negative(a) and oracle.negative(b))
        )
        return -0.0 if negative else Fraction(0)
    return min(a, b) if name == "min" else max(a, b)


def magnitude(v: Any) -> Any:
    return oracle.negate(v) if oracle.negative(v) else v


def expected(form: alu_forms.Form, lane: tuple[int, ...], t: str) -> int | str:
    name, *modifiers = form.opcode.split(".")
    f = oracle.FORMATS[t]
    values = [f.decode(v) for v in lane]
    if "ftz" in modifiers:
        values = [oracle.flushed(v, t) for v in values]
    # the signs are combined by xor, that of a NaN as well
    sign = (lane[0] ^ lane[1]) >> (f.bits - 1) & 1
    if "abs" in modifiers:
        values = [magnitude(v) for v in values]
    out = values[0]
    for v in values[1:]:
        out = extremum(name, out, v, "NaN" in modifiers)
    if "xorsign" in modifiers and out != oracle.NAN:
        out = oracle.negate(out) if sign else out
    return f.encode(out)


MINMAX = [
    f
    for name in ("min", "max")
    for f in alu_forms.forms(name)
    if f.opcode.rsplit(".", 1)[1].removesuffix("x2") in FLOATS
]
CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}


@pytest.mark.parametrize("form", MINMAX, ids=str)
def test_minmax(form):
    t = form.opcode.rsplit(".", 1)[1]
    element = t.removesuffix("x2")
    count = 2000
    sources = len(form.types()[1])
    mask = np.uint64((1 << TYPES[t].bits) - 1)
    rows = [r & mask for r in oracle.operands(form.opcode, count)[:sources]]
    got = oracle.bits_of(oracle.apply(form.opcode, *rows), count)
    for n, lane in enumerate(zip(*(r.tolist() for r in rows), strict=True)):
        parts = list(zip(*(halves(v, t) for v in lane), strict=True))
        for half, part in enumerate(parts):
            want = expected(form, part, element)
            want = CANONICAL[element] if want == oracle.NAN else want
            have = got[n] >> 16 * half & (1 << oracle.FORMATS[element].bits) - 1
            assert have == want, (form.opcode, [hex(v) for v in part], hex(have), hex(want))


def test_maximum_with_zero_is_positive():
    x = np.array([-1, -0.0, 0.0, 2, np.nan, -np.inf], np.float32).reshape(1, 1, -1)
    entry, form = oracle.lookup("max.f32")
    for zero in (np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 6), np.float32)):
        assert entry.lane_function(form)(x, zero).view(np.uint32).reshape(-1).tolist() == [0, 0, 0, 0x40000000, 0, 0]


@pytest.mark.parametrize("t", ["f16", "bf16", "f16x2", "bf16x2", "f32", "f64"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_signs(t, ftz):
    if ftz and t not in ("f16", "f16x2", "f32"):
        pytest.skip("no such form")
    element = t.removesuffix("x2")
    f = oracle.FORMATS[element]
    width = TYPES[t].bits
    rows = oracle.operands(f"neg{ftz}.{t}", COUNT)[0] & np.uint64((1 << width) - 1)
    for name in ("neg", "abs"):
        got = oracle.bits_of(oracle.apply(f"{name}{ftz}.{t}", rows), COUNT)
        for bits, result in zip(rows.tolist(), got, strict=True):
            want = 0
            for k, part in enumerate(halves(bits, t)):
                part = part & (1 << f.bits) - 1
                top = 1 << (f.bits - 1)
                if ftz and f.decode(part) != oracle.NAN:
                    part = f.encode(oracle.flushed(f.decode(part), element))
                want |= ((part ^ top) if name == "neg" else part & ~top) << 16 * k
            assert result == want, (name, hex(bits))
