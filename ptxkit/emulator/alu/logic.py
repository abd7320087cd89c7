"""Logic, shifts, bit fields, permutes. PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic Instructions", "prmt"."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit.emulator.table import alu

Lanes = Any
_BITS = "b16 b32 b64"


@alu("and.<t>", t="pred b16 b32 b64")
def and_(a: Lanes, b: Lanes) -> Lanes:
    """Bitwise and."""
    return a & b


@alu("or.<t>", t="pred b16 b32 b64")
def or_(a: Lanes, b: Lanes) -> Lanes:
    """Bitwise or."""
    return a | b


@alu("xor.<t>", t="pred b16 b32 b64")
def xor(a: Lanes, b: Lanes) -> Lanes:
    """Bitwise exclusive or."""
    return a ^ b


@alu("not.<t>", t="pred b16 b32 b64")
def not_(a: Lanes) -> Lanes:
    """Bitwise complement."""
    return ~a


@alu("cnot.<t>", t=_BITS)
def cnot(a: Lanes) -> Lanes:
    """1 where a is 0, else 0."""
    return (a == 0).astype(a.dtype)


@alu("lop3.b32", sig="b32 = b32, b32, b32, u32")
def lop3(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """Any function of three bits, by its truth table."""
    lut = int(table.flat[0])
    out = None
    for k in range(8):
        if lut >> k & 1:
            term = (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
            out = term if out is None else out | term
    return a & ~a if out is None else out


@alu("lop3.<op>.b32", op="or and", sig="b32, pred = b32, b32, b32, u32, pred")
def lop3_pred(a: Lanes, b: Lanes, c: Lanes, table: Lanes, q: Lanes, *, op: str) -> tuple[Lanes, Lanes]:
    """lop3, and whether the result is not 0, combined with a predicate."""
    d = lop3(a, b, c, table)
    return d, ((d != 0) | q) if op == "or" else ((d != 0) & q)


def _amount(b: Lanes, dtype: np.dtype) -> tuple[Lanes, Lanes]:
    """Shift amounts in range, and where they were beyond."""
    bits = dtype.itemsize * 8
    over = b >= bits
    return np.minimum(b, bits - 1).astype(dtype), over


@alu("shl.<t>", t=_BITS, sig="t = t, u32")
def shl(a: Lanes, b: Lanes) -> Lanes:
    """Shift left; amounts beyond the width give 0."""
    n, over = _amount(b, a.dtype)
    out = a << n
    return np.where(over, a.dtype.type(0), out) if over.any() else out


@alu("shr.<t>", t="b16 b32 b64 u16 u32 u64 s16 s32 s64", sig="t = t, u32")
def shr(a: Lanes, b: Lanes) -> Lanes:
    """Shift right; amounts beyond the width give 0, or the sign."""
    n, over = _amount(b, a.dtype)
    out = a >> n
    if a.dtype.kind == "i" or not over.any():
        return out
    return np.where(over, a.dtype.type(0), out)


@alu("shf.<side>.<mode>.b32", side="l r", mode="clamp wrap", sig="b32 = b32, b32, u32")
def shf(a: Lanes, b: Lanes, c: Lanes, *, side: str, mode: str) -> Lanes:
    """Funnel shift of b:a (b is the upper word): left gives the upper 32 bits, right the lower."""
    n = ((c & np.uint32(31)) if mode == "wrap" else np.minimum(c, np.uint32(32))).astype(np.uint64)
    word = (b.astype(np.uint64) << np.uint64(32)) | a
    if side == "r":
        return (word >> n).astype(np.uint32)
    return ((word << n) >> np.uint64(32)).astype(np.uint32)


@alu("popc.<t>", t="b32 b64", sig="u32 = t")
def popc(a: Lanes) -> Lanes:
    """Number of ones."""
    return np.bitwise_count(a).astype(np.uint32)


def _smear(a: Lanes) -> Lanes:
    for k in (1, 2, 4, 8, 16, 32)[: 5 if a.dtype.itemsize == 4 else 6]:
        a = a | (a >> a.dtype.type(k))
    return a


@alu("clz.<t>", t="b32 b64", sig="u32 = t")
def clz(a: Lanes) -> Lanes:
    """Number of leading zeros."""
    return np.uint32(a.dtype.itemsize * 8) - np.bitwise_count(_smear(a)).astype(np.uint32)


@alu("bfind{.shiftamt}.<t>", t="u32 u64 s32 s64", sig="u32 = t")
def bfind(a: Lanes, *, shiftamt: bool) -> Lanes:
    """Position of the highest bit that is not the sign; all ones where there is none."""
    u = a.view(f"u{a.dtype.itemsize}")
    if a.dtype.kind == "i":
        u = np.where(a < 0, ~u, u)
    bits = a.dtype.itemsize * 8
    position = np.bitwise_count(_smear(u)).astype(np.uint32) - np.uint32(1)
    return np.where(u == 0, np.uint32(0xFFFFFFFF), np.uint32(bits - 1) - position) if shiftamt else position


@alu("brev.<t>", t="b32 b64")
def brev(a: Lanes) -> Lanes:
    """Bits in reverse order."""
    t = a.dtype.type
    for k, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        m = t(mask & ((1 << a.dtype.itemsize * 8) - 1))
        a = ((a >> t(k)) & m) | ((a & m) << t(k))
    return a.byteswap()


@alu("fns.b32", sig="b32 = b32, u32, s32")
def fns(a: Lanes, base: Lanes, offset: Lanes) -> Lanes:
    """The n-th set bit from a base position, up or down."""
    shape = np.broadcast_shapes(a.shape, base.shape, offset.shape)
    a, base, offset = (np.broadcast_to(v, shape) for v in (a, base, offset))
    out = np.full(shape, 0xFFFFFFFF, np.uint32)
    k = np.arange(32)
    ones = (a[..., None] >> k.astype(np.uint32)) & np.uint32(1) == 1
    up = np.cumsum(ones & (k >= base[..., None]), -1)
    down = np.cumsum((ones & (k <= base[..., None]))[..., ::-1], -1)[..., ::-1]
    for direction, count in ((1, up), (-1, down)):
        want = np.abs(offset)[..., None]
        hit = ones & (count == want) & ((k >= base[..., None]) if direction > 0 else (k <= base[..., None]))
        use = (np.sign(offset) == direction) & hit.any(-1)
        out = np.where(use, hit.argmax(-1).astype(np.uint32), out)
    at_base = (np.take_along_axis(ones, (base[..., None] & np.uint32(31)).astype(np.int64), -1)[..., 0]) & (base < 32)
    return np.where((offset == 0) & at_base, base, out).astype(np.uint32)


@alu("bfe.<t>", t="u32 u64 s32 s64", sig="t = t, u32, u32")
def bfe(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """Extract a bit field; the signed form extends the field's top bit, or a's where the field runs beyond it."""
    bits = a.dtype.itemsize * 8
    p = (position & np.uint32(255)).astype(np.int64)
    n = (length & np.uint32(255)).astype(np.int64)
    u = a.view(f"u{a.dtype.itemsize}")
    t = u.dtype.type
    shifted = np.where(p >= bits, t(0), u >> np.minimum(p, bits - 1).astype(u.dtype))
    mask = np.where(n >= bits, ~t(0), (t(1) << np.minimum(n, bits - 1).astype(u.dtype)) - t(1))
    field = shifted & mask
    if a.dtype.kind == "u":
        return field
    top = np.minimum(p + n - 1, bits - 1)
    sign = ((u >> np.maximum(top, 0).astype(u.dtype)) & t(1) == 1) & (n > 0)
    valid = np.where(p >= bits, t(0), ~t(0) >> np.minimum(p, bits - 1).astype(u.dtype)) & mask
    return np.where(sign, field | ~valid, field).astype(u.dtype).view(a.dtype)


@alu("bfi.<t>", t="b32 b64", sig="t = t, t, u32, u32")
def bfi(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """Insert the low bits of a into b."""
    bits = a.dtype.itemsize * 8
    t = a.dtype.type
    p = (position & np.uint32(255)).astype(np.int64)
    n = (length & np.uint32(255)).astype(np.int64)
    ones = np.where(n >= bits, ~t(0), (t(1) << np.minimum(n, bits - 1).astype(a.dtype)) - t(1))
    shift = np.minimum(p, bits - 1).astype(a.dtype)
    mask = np.where(p >= bits, t(0), ones << shift)
    return (b & ~mask) | ((a << shift) & mask)


@alu("bmsk.<mode>.b32", mode="clamp wrap", sig="b32 = u32, u32")
def bmsk(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """A mask of b ones from position a."""
    if mode == "wrap":
        a, b = a & np.uint32(31), b & np.uint32(31)
    p, n = np.minimum(a, np.uint32(32)).astype(np.uint64), np.minimum(b, np.uint32(32)).astype(np.uint64)
    one = np.uint64(1)
    return ((((one << n) - one) << p) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


@alu("szext.<mode>.<t>", mode="clamp wrap", t="u32 s32", sig="t = t, u32")
def szext(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """Extend the low b bits by sign or with zeros."""
    n = ((b & np.uint32(31)) if mode == "wrap" else np.minimum(b, np.uint32(32))).astype(np.uint64)
    one = np.uint64(1)
    mask = ((one << n) - one).astype(np.uint32)
    low = a.view(np.uint32) & mask
    if a.dtype.kind == "u":
        return low
    sign = (low >> np.maximum(n, one).astype(np.uint32) - np.uint32(1)) & np.uint32(1) == 1
    return np.where(sign & (n > 0), low | ~mask, low).astype(np.uint32).view(np.int32)


_NIBBLE = np.uint32(0xF)


@alu("prmt.b32", sig="b32 = b32, b32, b32")
def prmt(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Pick four bytes of b:a by the selector's nibbles; its top bit repeats the byte's sign."""
    word = (b.astype(np.uint64) << np.uint64(32)) | a
    out: Lanes = np.uint32(0)
    for k in range(4):
        n = (c >> np.uint32(4 * k)) & _NIBBLE
        byte = ((word >> ((n & np.uint32(7)) * np.uint32(8)).astype(np.uint64)) & np.uint64(0xFF)).astype(np.uint32)
        sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
        out = out | (np.where(n & np.uint32(8), sign, byte) << np.uint32(8 * k))
    return out


_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@alu("prmt.b32.<mode>", mode="f4e b4e rc8 ecl ecr rc16", sig="b32 = b32, b32, u32")
def prmt_mode(a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """prmt by one of six fixed patterns, chosen by the low bits of c. PTX ISA, "prmt", mode table."""
    return prmt(a, b, np.array(_MODES[mode], np.uint32)[c & np.uint32(3)])
