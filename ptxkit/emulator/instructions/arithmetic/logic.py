"""Logic, shifts, bit fields, permutes. PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic Instructions", "prmt"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.table import alu

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


_TWO: tuple[Callable[[Lanes, Lanes], Lanes], ...] = (
    lambda b, c: b.dtype.type(0),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b,
    lambda b, c: b & ~c,
    lambda b, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c,
    lambda b, c: ~b | c,
    lambda b, c: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: ~b.dtype.type(0),
)
"""The 16 functions of two bits, indexed by truth table: bit 2b + c of the index is the result for b and c."""


@alu("lop3.b32", sig="b32 = b32, b32, b32, u32")
def lop3(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """The function of three bits with a given truth table: bit 4a + 2b + c is the result for a, b and c."""
    lut = int(table.flat[0])
    clear, different = lut & 15, (lut & 15) ^ (lut >> 4 & 15)
    # the function of b and c depends on a: where a is 1, flip the bits in which the two functions differ
    base = _TWO[clear](b, c)
    if different == 0:
        out = base
    elif different == 15:
        out = base ^ a
    else:
        out = base ^ (a & _TWO[different](b, c))
    return out if out.ndim else np.full((1, 1, 1), out)


@alu("lop3.<op>.b32", op="or and", sig="b32, pred = b32, b32, b32, u32, pred")
def lop3_pred(a: Lanes, b: Lanes, c: Lanes, table: Lanes, q: Lanes, *, op: str) -> tuple[Lanes, Lanes]:
    """lop3, and whether the result is not 0, combined with a predicate."""
    d = lop3(a, b, c, table)
    return d, ((d != 0) | q) if op == "or" else ((d != 0) & q)


def _amount(b: Lanes, dtype: np.dtype) -> Lanes:
    """Converts shift amounts to the shifted type. Like PTX, numpy gives 0 or the sign for amounts of at least the width."""
    if dtype.itemsize == 2:
        b = np.minimum(b, np.uint32(16))
    return b.view(dtype) if b.dtype.itemsize == dtype.itemsize else b.astype(dtype)


@alu("shl.<t>", t=_BITS, sig="t = t, u32")
def shl(a: Lanes, b: Lanes) -> Lanes:
    """Shift left; amounts beyond the width give 0."""
    return a << _amount(b, a.dtype)


@alu("shr.<t>", t="b16 b32 b64 u16 u32 u64 s16 s32 s64", sig="t = t, u32")
def shr(a: Lanes, b: Lanes) -> Lanes:
    """Shift right; amounts beyond the width give 0, or the sign."""
    return a >> _amount(b, a.dtype)


_32 = np.uint32(32)


@alu("shf.<side>.<mode>.b32", side="l r", mode="clamp wrap", sig="b32 = b32, b32, u32")
def shf(a: Lanes, b: Lanes, c: Lanes, *, side: str, mode: str) -> Lanes:
    """Funnel shift of b:a (b is the upper word): left gives the upper 32 bits, right the lower."""
    n = (c & np.uint32(31)) if mode == "wrap" else np.minimum(c, _32)
    return ((b << n) | (a >> (_32 - n))) if side == "l" else ((a >> n) | (b << (_32 - n)))


@alu("popc.<t>", t="b32 b64", sig="u32 = t")
def popc(a: Lanes) -> Lanes:
    """Number of ones."""
    return np.bitwise_count(a).astype(np.uint32)


def _top(a: Lanes) -> Lanes:
    """Position of the highest set bit as int32; -1 if no bit is set."""
    if a.dtype.itemsize == 4:  # an f64 holds the value exactly: take its exponent
        exponent = (a.astype(np.float64).view(np.uint64) >> np.uint64(52)).astype(np.int32)
        return np.maximum(exponent - np.int32(1023), np.int32(-1))
    high = (a >> np.uint64(32)).astype(np.uint32)
    return np.where(high != 0, _top(high) + np.int32(32), _top(a.astype(np.uint32)))


@alu("clz.<t>", t="b32 b64", sig="u32 = t")
def clz(a: Lanes) -> Lanes:
    """Number of leading zeros."""
    return (np.int32(a.dtype.itemsize * 8 - 1) - _top(a)).view(np.uint32)


@alu("bfind{.shiftamt}.<t>", t="u32 u64 s32 s64", sig="u32 = t")
def bfind(a: Lanes, *, shiftamt: bool) -> Lanes:
    """Position of the highest bit that is not the sign, or how far to shift it to the top; all ones where there is none."""
    bits = a.dtype.itemsize * 8
    u = a.view(f"u{bits // 8}")
    if a.dtype.kind == "i":
        u = u ^ (a >> a.dtype.type(bits - 1)).view(u.dtype)
    top = _top(u)
    if shiftamt:
        top = np.where(top < 0, np.int32(-1), np.int32(bits - 1) - top)
    return top.view(np.uint32)


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


def _byte(v: Lanes) -> Lanes:
    return (v & np.uint32(255)).astype(np.int64)


@alu("bfe.<t>", t="u32 u64 s32 s64", sig="t = t, u32, u32")
def bfe(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """Extracts a bit field. The signed form extends the top bit of the field, or of a if the field extends beyond it."""
    bits = a.dtype.itemsize * 8
    t = a.dtype.type
    p, n = _byte(position), _byte(length)
    unsigned = a.dtype.kind == "u"
    if p.size == 1 and n.size == 1 and n.flat[0] > 0 and p.flat[0] + n.flat[0] <= bits:
        p0, n0 = int(p.flat[0]), int(n.flat[0])
        if unsigned:
            return (a >> t(p0)) & t((1 << n0) - 1)
        return (a << t(bits - p0 - n0)) >> t(bits - n0)
    u = a.view(f"u{bits // 8}")
    w, one = u.dtype, u.dtype.type(1)
    mask = (one << np.minimum(n, bits).astype(w)) - one
    # in numpy a shift by at least the width gives 0
    field = (u >> p.astype(w)) & mask
    if unsigned:
        return field
    sign = ((u >> np.clip(p + n - 1, 0, bits - 1).astype(w)) & one == 1) & (n > 0)
    valid = (~w.type(0) >> p.astype(w)) & mask
    return np.where(sign, field | ~valid, field).view(a.dtype)


@alu("bfi.<t>", t="b32 b64", sig="t = t, t, u32, u32")
def bfi(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """Insert the low bits of a into b."""
    bits = a.dtype.itemsize * 8
    w, one = a.dtype, a.dtype.type(1)
    p, n = _byte(position).astype(w), np.minimum(_byte(length), bits).astype(w)
    mask = ((one << n) - one) << p
    return b ^ (((a << p) ^ b) & mask)


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


def _prmt_constant(a: Lanes, b: Lanes, selector: int) -> Lanes:
    """prmt with a constant selector: bytes that are shifted by the same amount are moved together."""
    masks: dict[tuple[int, int], int] = {}
    signs = []
    for k in range(4):
        n = selector >> 4 * k & 15
        if n & 8:
            signs.append((k, n & 7))
        else:
            place = n >> 2, 8 * (k - (n & 3))
            masks[place] = masks.get(place, 0) | 0xFF << 8 * k
    out: Lanes | None = None
    for (source, shift), mask in masks.items():
        v = b if source else a
        if shift:
            v = v << np.uint32(shift) if shift > 0 else v >> np.uint32(-shift)
        v = v if mask == 0xFFFFFFFF else v & np.uint32(mask)
        out = v if out is None else out | v
    for k, n in signs:
        v = b if n >> 2 else a
        v = ((v << np.uint32(24 - 8 * (n & 3))).view(np.int32) >> np.int32(31)).view(np.uint32) & np.uint32(
            0xFF << 8 * k
        )
        out = v if out is None else out | v
    assert out is not None
    return out


@alu("prmt.b32", sig="b32 = b32, b32, b32")
def prmt(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Pick four bytes of b:a by the selector's nibbles; its top bit repeats the byte's sign."""
    if c.size == 1:
        return _prmt_constant(a, b, int(c.flat[0]))
    word = (b.astype(np.uint64) << np.uint64(32)) | a
    signs = bool((c & np.uint32(0x8888)).any())
    out: Lanes | None = None
    for k in range(4):
        n = c >> np.uint32(4 * k) if k else c
        byte = (word >> ((n & np.uint32(7)) << np.uint32(3)).astype(np.uint64)).astype(np.uint8)
        if signs:
            byte = np.where(n & np.uint32(8), (byte.view(np.int8) >> np.int8(7)).view(np.uint8), byte)
        v = byte.astype(np.uint32) << np.uint32(8 * k)
        out = v if out is None else out | v
    assert out is not None
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
