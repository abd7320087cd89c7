"""Integer arithmetic with the carry flag. PTX ISA, "Extended-Precision Arithmetic Instructions".

The flag is a separate operand. A subtraction sets it to the carry out of adding the complement: 1 if there is no borrow. The
manual calls the flag a borrow, but ptxas generates IADD3 with a carry, and NVIDIA's division of 128-bit integers reads the
flag with addc.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.integer import high_product
from ptxkit.emulator.simt.table import alu

_WORDS = "u32 s32 u64 s64"
_NONE = np.zeros((1, 1, 1), np.bool_)


def _unsigned(a: Lanes) -> Lanes:
    return a.view(f"u{a.dtype.itemsize}")


def add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Sum with carry in, and carry out."""
    ua, ub = _unsigned(a), _unsigned(b)
    first = ua + ub
    out = first < ua
    if carry is not _NONE:
        total = first + carry.astype(first.dtype)
        out = out | (total < first)
        first = total
    return first.view(a.dtype), out


def sub_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """a + ~b with carry in, and carry out; without a carry in, a - b."""
    ua, ub = _unsigned(a), _unsigned(b)
    first = ua - ub
    out = ua >= ub
    if carry is not _NONE:
        total = first - (~carry).astype(first.dtype)
        out = out & (first >= total)
        first = total
    return first.view(a.dtype), out


@alu("add.cc.<t>", t=_WORDS, sig="t, cc = t, t")
def add_cc(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Sum and carry out."""
    return add_carry(a, b, _NONE)


@alu("addc.cc.<t>", t=_WORDS, sig="t, cc = t, t, cc")
def addc_cc(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Sum with carry in and carry out."""
    return add_carry(a, b, carry)


@alu("addc.<t>", t=_WORDS, sig="t = t, t, cc")
def addc(a: Lanes, b: Lanes, carry: Lanes) -> Lanes:
    """Sum with carry in."""
    return a + b + carry.astype(a.dtype)


@alu("sub.cc.<t>", t=_WORDS, sig="t, cc = t, t")
def sub_cc(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Difference and carry out."""
    return sub_carry(a, b, _NONE)


@alu("subc.cc.<t>", t=_WORDS, sig="t, cc = t, t, cc")
def subc_cc(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Difference with carry in and carry out."""
    return sub_carry(a, b, carry)


@alu("subc.<t>", t=_WORDS, sig="t = t, t, cc")
def subc(a: Lanes, b: Lanes, carry: Lanes) -> Lanes:
    """Difference with carry in."""
    return a - b - (~carry).astype(a.dtype)


def _part(half: str, a: Lanes, b: Lanes) -> Lanes:
    return high_product(a, b) if half == "hi" else a * b


@alu("mad.<half>.cc.<t>", half="hi lo", t=_WORDS, sig="t, cc = t, t, t")
def mad_cc(a: Lanes, b: Lanes, c: Lanes, *, half: str) -> tuple[Lanes, Lanes]:
    """mad with carry out."""
    return add_carry(_part(half, a, b), c, _NONE)


@alu("madc.<half>.cc.<t>", half="hi lo", t=_WORDS, sig="t, cc = t, t, t, cc")
def madc_cc(a: Lanes, b: Lanes, c: Lanes, carry: Lanes, *, half: str) -> tuple[Lanes, Lanes]:
    """mad with carry in and carry out."""
    return add_carry(_part(half, a, b), c, carry)


@alu("madc.<half>.<t>", half="hi lo", t=_WORDS, sig="t = t, t, t, cc")
def madc(a: Lanes, b: Lanes, c: Lanes, carry: Lanes, *, half: str) -> Lanes:
    """mad with carry in."""
    return _part(half, a, b) + c + carry.astype(c.dtype)
