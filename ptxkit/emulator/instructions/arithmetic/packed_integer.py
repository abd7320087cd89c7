"""Integers packed in a 32-bit register: pairs of 16 bits, quads of 8 bits, and their dot products.

PTX ISA, "Integer Arithmetic Instructions"; which packed forms exist follows ptxas (PTX 9.2 brought the quads, for sm_120).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.lanes import elementwise
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import alu

_ELEMENT = {"u16x2": "u2", "s16x2": "i2", "u8x4": "u1", "s8x4": "i1"}

_PLAIN: dict[str, Callable[..., Lanes]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
}


def _packed(form: Form) -> Callable[..., Lanes]:
    name = form.opcode.split(".", 1)[0]
    element = np.dtype(_ELEMENT[form["t"]])
    info = np.iinfo(element)
    plain = _PLAIN[name]
    if form.get("sat"):

        def saturated(*lanes: Lanes) -> Lanes:
            wide = plain(*(v.astype(np.int32) for v in lanes))
            return np.clip(wide, np.int32(info.min), np.int32(info.max)).astype(element)

        return elementwise(saturated, element)
    if form.get("relu"):
        return elementwise(lambda a, b: np.maximum(plain(a, b), element.type(0)), element)
    return elementwise(plain, element)


alu("add{.sat}.<t>", t="u16x2 s16x2 u8x4 s8x4", sig="t = t, t", bind=True)(_packed)
alu("sub{.sat}.<t>", t="u8x4 s8x4", sig="t = t, t", bind=True)(_packed)
alu("neg.<t>", t="s8x4", sig="t = t", bind=True)(_packed)
for _name in ("min", "max"):
    alu(f"{_name}{{.relu}}.<t>", t="s16x2 s8x4", sig="t = t, t", bind=True)(_packed)
    alu(f"{_name}.<t>", t="u16x2 u8x4", sig="t = t, t", bind=True)(_packed)


def _field(a: Lanes, position: int, bits: int, signed: bool) -> Lanes:
    """A field of a 32-bit register as int32."""
    up, down = 32 - bits - position, 32 - bits
    if signed:
        return (a.view(np.int32) << np.int32(up)) >> np.int32(down)
    return ((a.view(np.uint32) << np.uint32(up)) >> np.uint32(down)).view(np.int32)


@alu("dp4a.<ta>.<tb>", ta="u32 s32", tb="u32 s32", bind=True, sig="s32 = ta, tb, s32")
def dp4a(form: Form) -> Callable[..., Lanes]:
    """Dot product of four bytes each, plus c."""
    sa, sb = form["ta"] == "s32", form["tb"] == "s32"

    def run(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        out = c
        for at in (0, 8, 16, 24):
            out = out + _field(a, at, 8, sa) * _field(b, at, 8, sb)
        return out

    return run


@alu("dp2a.<half>.<ta>.<tb>", half="lo hi", ta="u32 s32", tb="u32 s32", bind=True, sig="s32 = ta, tb, s32")
def dp2a(form: Form) -> Callable[..., Lanes]:
    """Dot product of two 16-bit values with two bytes of b, plus c."""
    sa, sb = form["ta"] == "s32", form["tb"] == "s32"
    first = 0 if form["half"] == "lo" else 16

    def run(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        out = c
        for k in (0, 1):
            out = out + _field(a, 16 * k, 16, sa) * _field(b, first + 8 * k, 8, sb)
        return out

    return run
