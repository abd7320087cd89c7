"""Integer arithmetic, bit fields, shifts, permutes, carries, packed forms: the manual's pseudo-code over Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import alu_oracle as oracle
import numpy as np
import pytest

from ptxkit.isa.types import TYPES

COUNT = 900


def value(bits: int, t: str) -> int:
    width = TYPES[t].bits
    bits &= (1 << width) - 1
    return bits - (1 << width) if t[0] == "s" and bits >> (width - 1) else bits


def clamp(v: int, t: str) -> int:
    width = TYPES[t].bits
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if t[0] == "s" else (0, (1 << width) - 1)
    return min(max(v, low), high)


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def check(opcode: str, types: list[str], d: str, want: Callable[..., int | None], count: int = COUNT) -> None:
    """``want`` receives the operands as integers of their types; its result None means that PTX does not define the result."""
    rows = [[value(int(v), t) for v in row] for row, t in zip(oracle.operands(opcode, count), types, strict=True)]
    masks = [(1 << TYPES[t].bits) - 1 for t in types]
    lanes = [np.array([v & m for v in row], np.uint64) for row, m in zip(rows, masks, strict=True)]
    got = oracle.bits_of(oracle.apply(opcode, *lanes), count)
    out = (1 << TYPES[d].bits) - 1
    for n, lane in enumerate(zip(*rows, strict=True)):
        expected = want(*lane)
        assert expected is None or got[n] == expected & out, (
            opcode,
            [hex(v) for v in lane],
            hex(got[n]),
            hex(expected & out),
        )


ALL = ("u16", "s16", "u32", "s32", "u64", "s64")
WORDS = ("u32", "s32", "u64", "s64")


@pytest.mark.parametrize("t", ALL)
def test_arithmetic(t):
    bits = TYPES[t].bits
    check(f"add.{t}", [t, t], t, lambda a, b: a + b)
    check(f"sub.{t}", [t, t], t, lambda a, b: a - b)
    check(f"mul.lo.{t}", [t, t], t, lambda a, b: a * b)
    check(f"mul.hi.{t}", [t, t], t, lambda a, b: a * b >> bits)
    check(f"mad.lo.{t}", [t] * 3, t, lambda a, b, c: a * b + c)
    check(f"mad.hi.{t}", [t] * 3, t, lambda a, b, c: (a * b >> bits) + c)
    check(f"sad.{t}", [t] * 3, t, lambda a, b, c: c + abs(a - b))
    check(f"div.{t}", [t, t], t, lambda a, b: quotient(a, b) if b else None)
    check(f"rem.{t}", [t, t], t, lambda a, b: a - quotient(a, b) * b if b else None)
    check(f"min.{t}", [t, t], t, min)
    check(f"max.{t}", [t, t], t, max)
    if t[0] == "s":
        check(f"abs.{t}", [t], t, abs)
        check(f"neg.{t}", [t], t, lambda a: -a)


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
def test_wide_products(t):
    wide = f"{t[0]}{2 * TYPES[t].bits}"
    check(f"mul.wide.{t}", [t, t], wide, lambda a, b: a * b)
    check(f"mad.wide.{t}", [t, t, wide], wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_products_of_24_bits(t):
    def product(a: int, b: int) -> int:
        x, y = ((v & 0xFFFFFF) - (1 << 24 if t == "s32" and v >> 23 & 1 else 0) for v in (a, b))
        return x * y

    check(f"mul24.lo.{t}", [t, t], t, product)
    check(f"mul24.hi.{t}", [t, t], t, lambda a, b: product(a, b) >> 16)
    check(f"mad24.lo.{t}", [t] * 3, t, lambda a, b, c: product(a, b) + c)
    check(f"mad24.hi.{t}", [t] * 3, t, lambda a, b, c: (product(a, b) >> 16) + c)
    if t == "s32":
        check("mad24.hi.sat.s32", [t] * 3, t, lambda a, b, c: clamp(clamp((product(a, b) >> 16), t) + c, t))


def test_saturation():
    s = "s32"
    check("add.sat.s32", [s, s], s, lambda a, b: clamp(a + b, s))
    check("sub.sat.s32", [s, s], s, lambda a, b: clamp(a - b, s))
    check("add.sat.u32", ["u32", "u32"], "u32", lambda a, b: clamp(a + b, "u32"))
    check("mad.hi.sat.s32", [s] * 3, s, lambda a, b, c: clamp((a * b >> 32) + c, s))
    check("min.relu.s32", [s, s], s, lambda a, b: max(min(a, b), 0))
    check("max.relu.s32", [s, s], s, lambda a, b: max(a, b, 0))


def packed(f: Callable[..., int], t: str) -> Callable[..., int]:
    element, count = (t.split("x")[0], int(t[-1]))
    width = 32 // count

    def run(*words: int) -> int:
        out = 0
        for k in range(count):
            parts = [(w >> k * width) & (1 << width) - 1 for w in words]
            out |= (f(*(value(p, element) for p in parts)) & (1 << width) - 1) << k * width
        return out

    return run


@pytest.mark.parametrize("t", ["u16x2", "s16x2", "u8x4", "s8x4"])
def test_packed(t):
    element = t.split("x")[0]
    u = ["u32", "u32"]
    check(f"add.{t}", u, "u32", packed(lambda a, b: a + b, t))
    check(f"add.sat.{t}", u, "u32", packed(lambda a, b: clamp(a + b, element), t))
    check(f"min.{t}", u, "u32", packed(min, t))
    check(f"max.{t}", u, "u32", packed(max, t))
    if t[0] == "s":
        check(f"max.relu.{t}", u, "u32", packed(lambda a, b: max(a, b, 0), t))
        check(f"min.relu.{t}", u, "u32", packed(lambda a, b: max(min(a, b), 0), t))
    if "8" in t:
        check(f"sub.{t}", u, "u32", packed(lambda a, b: a - b, t))
        check(f"sub.sat.{t}", u, "u32", packed(lambda a, b: clamp(a - b, element), t))


@pytest.mark.parametrize(("ta", "tb"), list(itertools.product(("u32", "s32"), repeat=2)))
def test_dot_products(ta, tb):
    def pick(v: int, t: str, at: int, bits: int) -> int:
        v = v >> at & (1 << bits) - 1
        return v - (1 << bits) if t == "s32" and v >> (bits - 1) else v

    types = [ta, tb, "s32"]
    check(
        f"dp4a.{ta}.{tb}",
        types,
        "s32",
        lambda a, b, c: c + sum(pick(a, ta, k, 8) * pick(b, tb, k, 8) for k in (0, 8, 16, 24)),
    )
    for half, base in (("lo", 0), ("hi", 16)):
        check(
            f"dp2a.{half}.{ta}.{tb}", types, "s32",
            lambda a, b, c, base=base: c + sum(pick(a, ta, 16 * k, 16) * pick(b, tb, base + 8 * k, 8) for k in (0, 1)),
        )  # fmt: skip


# -- bits
# ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", ["b16", "b32", "b64"])
def test_logic(t):
    check(f"and.{t}", [t, t], t, lambda a, b: a & b)
    check(f"or.{t}", [t, t], t, lambda a, b: a | b)
    check(f"xor.{t}", [t, t], t, lambda a, b: a ^ b)
    check(f"not.{t}", [t], t, lambda a: ~a)
    check(f"cnot.{t}", [t], t, lambda a: int(a == 0))
    check(f"shl.{t}", [t, "u32"], t, lambda a, n: a << min(n, 64))


@pytest.mark.parametrize("t", ["b16", "b32", "b64", *ALL])
def test_shift_right(t):
    check(f"shr.{t}", [t, "u32"], t, lambda a, n: a >> min(n, 64))


def test_shifts_by_a_constant():
    a = np.arange(-5, 6, dtype=np.int32).reshape(1, 1, -1)
    for n in (0, 1, 31, 32, 40, 0xFFFFFFFF):
        amount = np.full((1, 1, 1), n, np.uint32)
        for opcode, want in (("shl.b32", lambda v: v << min(n, 32)), ("shr.u32", lambda v: (v & 0xFFFFFFFF) >> min(n, 32)),
                             ("shr.s32", lambda v: v >> min(n, 31))):  # fmt: skip
            entry, form = oracle.lookup(opcode)
            lanes = a.view(np.int32 if "s" in opcode.split(".")[1] else np.uint32)
            got = entry.lane_function(form)(lanes, amount)
            assert [int(v) & 0xFFFFFFFF for v in got.flat] == [want(int(v)) & 0xFFFFFFFF for v in a.flat], (opcode, n)


@pytest.mark.parametrize(("side", "mode"), list(itertools.product("lr", ("clamp", "wrap"))))
def test_funnel_shift(side, mode):
    def want(a: int, b: int, c: int) -> int:
        n = min(c, 32) if mode == "clamp" else c & 31
        return ((b << n) | (a >> (32 - n))) if side == "l" else ((b << (32 - n)) | (a >> n))

    check(f"shf.{side}.{mode}.b32", ["b32", "b32", "u32"], "b32", want)


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bit_fields(t):
    bits = TYPES[t].bits

    def extract(a: int, p: int, n: int) -> int:
        p, n = p & 255, n & 255
        word = a & (1 << bits) - 1
        sign = 0 if t[0] == "u" or n == 0 else word >> min(p + n - 1, bits - 1) & 1
        return sum((word >> p + i & 1 if i < n and p + i < bits else sign) << i for i in range(bits))

    check(f"bfe.{t}", [t, "u32", "u32"], t, extract, 500)
    position = bits - 1

    def find(a: int) -> int:
        return (a if a >= 0 else ~a).bit_length() - 1

    check(f"bfind.{t}", [t], "u32", find)
    check(f"bfind.shiftamt.{t}", [t], "u32", lambda a: position - find(a) if find(a) >= 0 else -1)


@pytest.mark.parametrize("t", ["b32", "b64"])
def test_counting_and_inserting(t):
    bits = TYPES[t].bits

    def insert(a: int, b: int, p: int, n: int) -> int:
        p, n = p & 255, n & 255
        for i in range(min(n, bits - p)):
            b = b & ~(1 << p + i) | (a >> i & 1) << p + i
        return b

    check(f"bfi.{t}", [t, t, "u32", "u32"], t, insert, 500)
    check(f"popc.{t}", [t], "u32", int.bit_count)
    check(f"clz.{t}", [t], "u32", lambda a: bits - a.bit_length())
    check(f"brev.{t}", [t], t, lambda a: int(f"{a:0{bits}b}"[::-1], 2))


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64", "b32", "b64"])
def test_fields_by_constants(t):
    name = "bfi" if t[0] == "b" else "bfe"
    entry, form = oracle.lookup(f"{name}.{t}")
    dtype = TYPES[t].dtype
    a = (
        np.random.default_rng(1)
        .integers(0, 1 << 63, 40)
        .astype(np.uint64)
        .astype(f"u{dtype.itemsize}")
        .view(dtype)
        .reshape(1, 1, -1)
    )
    for p, n in itertools.product((0, 1, 5, 31, 32, 63, 64, 200), (0, 1, 8, 31, 32, 33, 64, 255)):
        constants = [np.full((1, 1, 1), v, np.uint32) for v in (p, n)]
        lanes = [np.broadcast_to(c, a.shape).copy() for c in constants]
        sources = (a, a[..., ::-1].copy()) if name == "bfi" else (a,)
        run = entry.lane_function(form)
        assert np.array_equal(np.broadcast_to(run(*sources, *constants), a.shape), run(*sources, *lanes)), (p, n)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks_and_extension(mode):
    def mask(a: int, b: int) -> int:
        a1, b1 = a & 31, b & 31
        mask0, mask1 = -1 << a1, -1 << a1 + b1
        over = a1 + b1 >= 32
        if mode == "clamp":
            mask0 = 0 if a >= 32 else mask0
            over = over or a >= 32 or b >= 32
        mask1 = 0 if over else -1 if b1 == 0 else mask1
        return mask0 & ~mask1

    check(f"bmsk.{mode}.b32", ["u32", "u32"], "b32", mask)
    for t in ("u32", "s32"):

        def extend(a: int, b: int, t: str = t) -> int:
            b1, large = b & 31, b >= 32 and mode == "clamp"
            m = 0 if large else -1 << b1
            sign = 0 if b1 == 0 or large or t == "u32" else a >> ((b1 - 1) & 31) & 1
            return a & ~m | (m if sign else 0)

        check(f"szext.{mode}.{t}", [t, "u32"], t, extend)


def test_nth_set_bit():
    def want(mask: int, base: int, offset: int) -> int | None:
        if base > 31:
            return None
        if offset == 0:
            return base if mask >> base & 1 else -1
        count, step = abs(offset) - 1, 1 if offset > 0 else -1
        while 0 <= base < 32:
            if mask >> base & 1:
                if count == 0:
                    return base
                count -= 1
            base += step
        return -1

    rng = np.random.default_rng(2)
    masks, bases = rng.integers(0, 1 << 32, 600), rng.integers(0, 32, 600)
    offsets = rng.integers(-12, 13, 600)
    got = oracle.bits_of(oracle.apply("fns.b32", masks, bases, offsets & 0xFFFFFFFF), 600)
    for n in range(600):
        assert got[n] == want(int(masks[n]), int(bases[n]), int(offsets[n])) & 0xFFFFFFFF


def permuted(a: int, b: int, selectors: list[int]) -> int:
    word = b << 32 | a
    out = 0
    for k, n in enumerate(selectors):
        byte = word >> 8 * (n & 7) & 255
        out |= (255 * (byte >> 7) if n & 8 else byte) << 8 * k
    return out


def test_permutes():
    check("prmt.b32", ["b32"] * 3, "b32", lambda a, b, c: permuted(a, b, [c >> 4 * k & 15 for k in range(4)]))
    modes = {
        "f4e": lambda s: [s, s + 1, s + 2, s + 3],
        "b4e": lambda s: [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8],
        "rc8": lambda s: [s] * 4,
        "ecl": lambda s: [max(k, s) for k in range(4)],
        "ecr": lambda s: [min(k, s) for k in range(4)],
        "rc16": lambda s: [s % 2 * 2, s % 2 * 2 + 1] * 2,
    }
    for mode, selectors in modes.items():
        check(f"prmt.b32.{mode}", ["b32"] * 3, "b32", lambda a, b, c, f=selectors: permuted(a, b, f(c & 3)))


def test_permute_by_a_constant():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 32, (1, 1, 16)).astype(np.uint32) for _ in range(2))
    entry, form = oracle.lookup("prmt.b32")
    run = entry.lane_function(form)
    for selector in (
        0x3210,
        0x5410,
        0x7632,
        0x0123,
        0xBA98,
        0x4440,
        0x8F07,
        0xFFFF,
        *rng.integers(0, 1 << 16, 60).tolist(),
    ):
        got = run(a, b, np.full((1, 1, 1), selector, np.uint32))
        want = [
            permuted(int(x), int(y), [selector >> 4 * k & 15 for k in range(4)])
            for x, y in zip(a.flat, b.flat, strict=True)
        ]
        assert got.reshape(-1).tolist() == want, hex(selector)


def test_lop3_all_tables():
    a, b, c = (np.full((1, 1, 1), v, np.uint32) for v in (0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA))
    entry, form = oracle.lookup("lop3.b32")
    both, both_form = oracle.lookup("lop3.and.b32")
    yes = np.ones((1, 1, 1), bool)
    for lut in range(256):
        table = np.full((1, 1, 1), lut, np.uint32)
        assert int(entry.lane_function(form)(a, b, c, table).flat[0]) == lut * 0x01010101
        d, p = both.lane_function(both_form)(a, b, c, table, yes)
        assert int(d.flat[0]) == lut * 0x01010101 and bool(p.flat[0]) == (lut != 0)


# -- carries
# -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", WORDS)
def test_carries(t):
    bits = TYPES[t].bits
    u = f"u{bits}"
    rows = [r & np.uint64((1 << bits) - 1) for r in oracle.operands(f"mad.lo.cc.{t}", 600)]
    carry = np.arange(600) % 2 == 0
    mask = (1 << bits) - 1
    ints = list(zip(*(r.tolist() for r in rows), carry.tolist(), strict=True))

    def run(opcode: str, sources: int, uses: bool) -> list[tuple[int, int | None]]:
        result = oracle.apply(opcode, *rows[:sources], *([carry] if uses else []))
        d, flag = result if isinstance(result, tuple) else (result, None)
        flags = [None] * 600 if flag is None else np.broadcast_to(flag, (1, 1, 600)).reshape(-1).tolist()
        return list(zip(oracle.bits_of(d, 600), flags, strict=True))

    for opcode, uses in (
        ("add.cc", False),
        ("addc.cc", True),
        ("addc", True),
        ("sub.cc", False),
        ("subc.cc", True),
        ("subc", True),
    ):
        for got, (a, b, _, c) in zip(run(f"{opcode}.{t}", 2, uses), ints, strict=True):
            # a subtraction adds the complement; its carry out is 1 if there is no borrow
            total = a + b + (c and uses) if opcode.startswith("add") else a + (mask - b) + (c if uses else 1)
            assert got[0] == total & mask
            assert got[1] in (None, total > mask), opcode
    for half, name in itertools.product(("lo", "hi"), ("mad", "madc.cc", "madc")):
        opcode = {"mad": f"mad.{half}.cc.{t}", "madc.cc": f"madc.{half}.cc.{t}", "madc": f"madc.{half}.{t}"}[name]
        for got, (a, b, c, k) in zip(run(opcode, 3, name != "mad"), ints, strict=True):
            product = value(a, t) * value(b, t)
            part = (product >> bits if half == "hi" else product) & mask
            total = part + c + (k and name != "mad")
            assert got[0] == total & mask, opcode
            assert got[1] in (None, total > mask), (opcode, u)
