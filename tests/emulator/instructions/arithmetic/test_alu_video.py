"""Video instructions: the manual's pseudo-code on Python integers, in whole programs because selectors are part of the
operands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import ptxas_oracle
from programs import THREAD, Run, kernel

N = 64
MASK = 0xFFFFFFFF


def run(instruction: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[int]:
    """``instruction`` on %r10, %r11 and %r12, into %r13, which holds c before."""
    body = f"""{THREAD}
    ld.global.u32 %r10, [%rd21]; ld.global.u32 %r11, [%rd21+{4 * N}]; ld.global.u32 %r12, [%rd21+{8 * N}]; mov.u32 %r13, %r12;
    {instruction}
    st.global.u32 [%rd22], %r13;"""
    out = Run(kernel(body))(np.concatenate([a, b, c]), np.zeros(N, np.uint32), block=N)[1]
    return [int(v) for v in out]


def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    edge = np.array([0, 1, 0x7FFFFFFF, 0x80000000, MASK, 0x80808080, 0x7F7F7F7F, 0xFF00FF00], np.uint32)
    rows = [rng.integers(0, 1 << 32, N).astype(np.uint32) for _ in range(3)]
    for k, row in enumerate(rows):
        row[:24] = edge[rng.integers(0, 8, 24)]
        row[24:32] >>= np.uint32(27 if k == 1 else 5)
    return rows[0], rows[1], rows[2]


def pick(word: int, part: str, t: str) -> int:
    width = 32 if not part else 8 if part[1] == "b" else 16
    v = word >> (int(part[2]) * width if part else 0) & (1 << width) - 1
    return v - (1 << width) if t == "s32" and v >> (width - 1) else v


def clamp(v: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(v, low), high)


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda a, b: (a + b + 1) >> 1 if a + b >= 0 else (a + b) >> 1,
}
PARTS = ("", ".b0", ".b3", ".h0", ".h1")


def test_scalar():
    rng = random.Random(1)
    a, b, c = inputs()
    statements = []
    for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax"):
        for d, ta, tb in itertools.product(("u32", "s32"), repeat=3):
            sat, pa, pb = rng.choice(("", ".sat")), rng.choice(PARTS), rng.choice(PARTS)
            second = rng.choice(("", ".add", ".min", ".max"))
            part = rng.choice(PARTS) if not second else ""
            third = ", %r12" if second or part else ""
            text = f"{name}.{d}.{ta}.{tb}{sat}{second} %r13{part}, %r10{pa}, %r11{pb}{third};"
            statements.append(text)
            for got, x, y, z in zip(run(text, a, b, c), a.tolist(), b.tolist(), c.tolist(), strict=True):
                t = OPERATIONS[name](pick(x, pa, ta), pick(y, pb, tb))
                bits = 32 if not part else 8 if part[1] == "b" else 16
                if sat:
                    t = clamp(t, bits, d == "s32")
                if second:
                    other = z - (1 << 32) if d == "s32" and z >> 31 else z
                    t = t + other if second == ".add" else min(t, other) if second == ".min" else max(t, other)
                if part:
                    at = int(part[2]) * bits
                    field = (1 << bits) - 1 << at
                    t = z & ~field | t << at & field
                assert got == t & MASK, (text, hex(x), hex(y), hex(z))
    assert not ptxas_oracle.refused(
        [
            s.replace("%r13", "%r4").replace("%r12", "%r2").replace("%r11", "%r1").replace("%r10", "%r0")
            for s in statements
        ],
        "sm_90a",
    )


def test_shift_and_set():
    a, b, c = inputs()
    for name, t, mode in itertools.product(("vshl", "vshr"), ("u32", "s32"), ("clamp", "wrap")):
        for got, x, y in zip(
            run(f"{name}.{t}.{t}.u32.{mode} %r13, %r10, %r11.b0;", a, b, c), a.tolist(), b.tolist(), strict=True
        ):
            n = min(y & 255, 32) if mode == "clamp" else y & 31
            v = pick(x, "", t)
            assert got == (v << n if name == "vshl" else v >> n) & MASK, (name, t, mode)
    for cmp, f in (("lt", int.__lt__), ("ge", int.__ge__), ("eq", int.__eq__), ("ne", int.__ne__)):
        for got, x, y, z in zip(
            run(f"vset.s32.u32.{cmp}.add %r13, %r10.b1, %r11.b2, %r12;", a, b, c),
            a.tolist(),
            b.tolist(),
            c.tolist(),
            strict=True,
        ):
            assert got == (f(pick(x, ".b1", "s32"), pick(y, ".b2", "u32")) + z) & MASK


def test_multiply_add():
    a, b, c = inputs()
    cases = [
        ("u32", "u32", "", "", "", ""),
        ("s32", "s32", ".sat", ".shr7", "", ""),
        ("s32", "u32", "", ".shr15", "", "-"),
        ("u32", "u32", ".sat", "", "-", ""),
        ("u32", "u32", ".po.sat", ".shr7", "", ""),
    ]
    for ta, tb, modifiers, scale, minus, take in cases:
        text = f"vmad.s32.{ta}.{tb}{modifiers}{scale} %r13, {minus}%r10, %r11.h0, {take}%r12;"
        signed = "s32" in (ta, tb) or bool(minus) or bool(take)
        for got, x, y, z in zip(run(text, a, b, c), a.tolist(), b.tolist(), c.tolist(), strict=True):
            t = pick(x, "", ta) * pick(y, ".h0", tb) * (-1 if minus else 1)
            other = z - (1 << 32) if signed and z >> 31 else z
            t += -other if take else other
            t += "po" in modifiers
            t >>= int(scale[4:] or 0)
            assert got == (clamp(t, 32, signed) if "sat" in modifiers else t) & MASK, (text, hex(x), hex(y), hex(z))


def test_two_and_four_at_a_time():
    rng = random.Random(2)
    a, b, c = inputs()
    statements = []
    for count, name in itertools.product((2, 4), OPERATIONS):
        letter, width = ("h", 16) if count == 2 else ("b", 8)
        for ta, tb in itertools.product(("u32", "s32"), repeat=2):
            d, modifier = rng.choice(("u32", "s32")), rng.choice(("", ".sat", ".add"))
            digits = [[rng.randrange(2 * count) for _ in range(count)] for _ in range(2)]
            digits = [[0, 0, 2, 4] if k == [1, 0, 2, 4] else k for k in digits]  # ptxas reads .b1024 as a type
            selectors = ["." + letter + "".join(map(str, k)) for k in digits]
            if rng.random() < 0.3:
                selectors = ["", ""]
                digits = [list(reversed(range(count))), list(reversed(range(count, 2 * count)))]
            chosen = sorted(rng.sample(range(count), rng.randrange(1, count + 1)), reverse=True)
            mask = "." + letter + "".join(map(str, chosen))
            text = f"{name}{count}.{d}.{ta}.{tb}{modifier} %r13{mask}, %r10{selectors[0]}, %r11{selectors[1]}, %r12;"
            statements.append(text)
            for got, x, y, z in zip(run(text, a, b, c), a.tolist(), b.tolist(), c.tolist(), strict=True):
                total = z
                for k in chosen:
                    v = []
                    for t, order in ((ta, digits[0]), (tb, digits[1])):
                        n = order[count - 1 - k]
                        e = (y if n >= count else x) >> n % count * width & (1 << width) - 1
                        v.append(e - (1 << width) if t == "s32" and e >> (width - 1) else e)
                    r = OPERATIONS[name](*v)
                    r = clamp(r, width, d == "s32") if modifier == ".sat" else r
                    if modifier == ".add":
                        total += r
                    else:
                        field = (1 << width) - 1 << k * width
                        total = total & ~field | r << k * width & field
                assert got == total & MASK, (text, hex(x), hex(y), hex(z))
    assert not ptxas_oracle.refused(
        [
            s.replace("%r13", "%r4").replace("%r12", "%r2").replace("%r11", "%r1").replace("%r10", "%r0")
            for s in statements
        ],
        "sm_90a",
    )
