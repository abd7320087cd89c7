"""f16, bf16 and their packed pairs. PTX ISA, "Half Precision Floating-Point Instructions".

Elements are widened, combined, and rounded once: products of two halves are exact in f32 and sums of two in f64, so a fused
multiply-add needs f64 with rounding to odd before it is narrowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.emulator.alu.compare import flush
from ptxkit.emulator.alu.floating import extremum, round_f32, saturate, to_odd, two_sum
from ptxkit.emulator.table import Form, alu

Lanes = Any


def widen(bits: Lanes, t: str) -> Lanes:
    """Elements as f32: from float16 lanes, or from bf16 bits."""
    if t == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def narrow(odd: Lanes, t: str, mode: str = "rn") -> Lanes:
    """f64 values, exact or rounded to odd, as float16 lanes or bf16 bits; NaN becomes 0x7fff."""
    if t == "f16":
        r = odd.astype(np.float16)
        if mode == "rz":
            wrong = np.abs(r.astype(np.float64)) > np.abs(odd)
            r = np.where(wrong, np.nextafter(r, np.float16(0)), r).astype(np.float16)
        nan = np.isnan(r)
        return np.where(nan, np.uint16(0x7FFF).view(np.float16), r) if nan.any() else r
    wide = _to_odd_f32(odd)
    bits = np.ascontiguousarray(wide).view(np.uint32)
    if mode == "rn":
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    out = (bits >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(odd)
    return np.where(nan, np.uint16(0x7FFF), out) if nan.any() else out


def _to_odd_f32(x: Lanes) -> Lanes:
    """f64 to f32, rounded to odd, so that it can be rounded once more."""
    if x.dtype == np.float32:
        return x
    down = round_f32(x, "rz")
    inexact = down.astype(np.float64) != x
    bits = np.ascontiguousarray(down).view(np.uint32)
    return np.where(inexact & np.isfinite(x), bits | np.uint32(1), bits).view(np.float32)


def fma_wide(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c of widened halves, in f64 rounded to odd."""
    x, z = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s, e = two_sum(x, z)
    return to_odd(s, np.where(np.isfinite(s), e, 0))


def _add(a: Lanes, b: Lanes) -> Lanes:
    s, e = two_sum(a.astype(np.float64), b.astype(np.float64))
    return to_odd(s, np.where(np.isfinite(s), e, 0))


_WIDE: dict[str, Callable[..., Lanes]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, -b),
    "mul": lambda a, b: a.astype(np.float64) * b.astype(np.float64),
    "fma": fma_wide,
}


def elementwise(form: Form) -> Callable[..., Lanes]:
    """The lane function for one packed or scalar half form."""
    name = form.opcode.split(".", 1)[0]
    t = form["t"]
    element = t.removesuffix("x2")
    f, ftz, sat, relu, mode = (
        _WIDE[name],
        bool(form.get("ftz")),
        bool(form.get("sat")),
        bool(form.get("relu")),
        form.get("rnd") or "rn",
    )

    def one(*lanes: Lanes) -> Lanes:
        wide = [widen(v, element) for v in lanes]
        if ftz and element == "f16":
            wide = [np.where(np.abs(v) < np.float32(2**-14), np.copysign(np.float32(0), v), v) for v in wide]
        odd = f(*wide)
        if relu:
            odd = np.where(odd > 0, odd, np.where(np.isnan(odd), odd, 0.0))
        if sat:
            odd = saturate(odd)
        out = narrow(odd, element, mode)
        if ftz and element == "f16":
            out = np.where(np.abs(out) < np.float16(2**-14), np.copysign(np.float16(0), out), out)
        return out

    return packed(one, element) if t.endswith("x2") else one


def packed(one: Callable[..., Lanes], element: str) -> Callable[..., Lanes]:
    """``one`` over both elements of packed registers."""
    dtype = np.float16 if element == "f16" else np.uint16

    def run(*lanes: Lanes) -> Lanes:
        parts = [np.ascontiguousarray(v).view(dtype).reshape(*v.shape, 2) for v in lanes]
        return np.ascontiguousarray(one(*parts)).view(np.uint32)[..., 0]

    return run


for _t in ("f16", "f16x2"):
    for _name in ("add", "sub", "mul"):
        alu(f"{_name}{{.rn}}{{.ftz}}{{.sat}}.<t>", t=_t, sig="t = t, t", bind=True)(elementwise)
    alu("fma.rn{.ftz}{.sat}.<t>", t=_t, sig="t = t, t, t", bind=True)(elementwise)
    alu("fma.rn{.ftz}.relu.<t>", t=_t, sig="t = t, t, t", bind=True)(
        lambda form: elementwise(Form(form.opcode, {**form.parts, "relu": True}))
    )
for _t in ("bf16", "bf16x2"):
    for _name in ("add", "sub", "mul"):
        alu(f"{_name}{{.rn}}.<t>", t=_t, sig="t = t, t", bind=True)(elementwise)
    alu("fma.rn{.relu}.<t>", t=_t, sig="t = t, t, t", bind=True)(elementwise)

_SIGN = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}


@alu("neg{.ftz}.<t>", t="f16 f16x2 bf16 bf16x2")
def neg(a: Lanes, *, t: str, ftz: bool) -> Lanes:
    """Sign flipped."""
    unsigned = f"u{a.dtype.itemsize}"
    return (a.view(unsigned) ^ np.dtype(unsigned).type(_SIGN[t])).view(a.dtype)


@alu("abs{.ftz}.<t>", t="f16 f16x2 bf16 bf16x2")
def abs_(a: Lanes, *, t: str, ftz: bool) -> Lanes:
    """Sign cleared."""
    unsigned = f"u{a.dtype.itemsize}"
    keep = ~np.dtype(unsigned).type(_SIGN[t])
    return (a.view(unsigned) & keep).view(a.dtype)


def _extremum(form: Form) -> Callable[..., Lanes]:
    sign = 1 if form.opcode.startswith("min") else -1
    t = form["t"]
    element = t.removesuffix("x2")
    nan, xorsign = bool(form["NaN"]), bool(form["xorsign"])

    def one(a: Lanes, b: Lanes) -> Lanes:
        out = extremum(widen(a, element), widen(b, element), sign, nan, xorsign)
        return narrow(out.astype(np.float64), element)

    return packed(one, element) if t.endswith("x2") else one


for _name in ("min", "max"):
    alu(f"{_name}{{.ftz}}{{.NaN}}{{.<xorsign>}}.<t>", xorsign="xorsign.abs", t="f16 f16x2", sig="t = t, t", bind=True)(
        _extremum
    )
    alu(f"{_name}{{.NaN}}{{.<xorsign>}}.<t>", xorsign="xorsign.abs", t="bf16 bf16x2", sig="t = t, t", bind=True)(
        _extremum
    )


def _function(form: Form) -> Callable[..., Lanes]:
    f = np.exp2 if form.opcode.startswith("ex2") else np.tanh
    t = form["t"]
    element = t.removesuffix("x2")

    def one(a: Lanes) -> Lanes:
        x = widen(a, element)
        if form.get("ftz"):
            x = flush(x)
        return narrow(f(x.astype(np.float64)), element)

    return packed(one, element) if t.endswith("x2") else one


alu("ex2.approx.<t>", t="f16 f16x2", sig="t = t", bind=True)(_function)
alu("ex2.approx.ftz.<t>", t="bf16 bf16x2", sig="t = t", bind=True)(_function)
alu("tanh.approx.<t>", t="f16 f16x2 bf16 bf16x2", sig="t = t", bind=True)(_function)

# -- mixed precision (sm_100) ---------------------------------------------------------------------------------------------


def _mixed(form: Form) -> Callable[..., Lanes]:
    from ptxkit.emulator.alu.floating import add_f32, fma_f32_mode

    mode, s, sat = form["rnd"] or "rn", form["s"], bool(form["sat"])
    name = form.opcode.split(".", 1)[0]

    def run(a: Lanes, *rest: Lanes) -> Lanes:
        if name == "fma":
            out = fma_f32_mode(widen(a, s), widen(rest[0], s), rest[1], mode)
        else:
            out = add_f32(widen(a, s), rest[0] if name == "add" else -rest[0], mode)
        return saturate(out) if sat else out

    return run


for _name in ("add", "sub"):
    alu(f"{_name}{{.<rnd>}}{{.sat}}.f32.<s>", rnd="rn rz rm rp", s="f16 bf16", sig="f32 = s, f32", bind=True)(_mixed)
alu("fma.<rnd>{.sat}.f32.<s>", rnd="rn rz rm rp", s="f16 bf16", sig="f32 = s, s, f32", bind=True)(_mixed)
