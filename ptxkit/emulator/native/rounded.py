"""Machine code for f32 sums and products with a rounding mode, .ftz or .sat.

The product of two f32 is exact in f64, and the exact sum of two f64 is their rounded sum plus its error (Knuth, TAOCP 4.2.2):
the comparison of the f32 result with both shows on which side of the exact result it is. The functions of
:mod:`ptxkit.emulator.instructions.arithmetic.rounding` define the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ptxkit.emulator.native.text import LANES, Text, constant, floats, ints

SINGLE, DOUBLE, WORD = floats(32), floats(64), ints(32)
SIGN = -(1 << 31)
TINY = 0x3810_0000_0000_0000
"""Bits of 2^-126, the smallest normal f32, as f64."""


class Rounded:
    """Writes the code of one operation.

    Args:
        name: add, sub, mul, fma or mad.
    """

    def __init__(self, name: str, mode: str, ftz: bool, sat: bool) -> None:
        self.name = name
        self.mode = mode
        self.ftz = ftz
        self.sat = sat

    def emit(self, t: Text, v: Sequence[str], with_nans: WithNans) -> list[str]:
        """The result from the operands, as bits."""
        if self.ftz:
            v = [flushed(t, x) for x in v]
        if self.name == "sub":
            operands = [v[0], t.value(f"xor {WORD} {v[1]}, {constant(SIGN, 32)}")]
        else:
            operands = list(v)
        out = self._nearest(t, v)
        if self.mode != "rn" or self.ftz:
            exact, error, zero = self._exact(t, operands)
            if self.mode != "rn":
                out = self._directed(t, exact, error, zero)
            if self.ftz:
                out = self._without_subnormals(t, out, exact, error)
        out = with_nans(t, 32, t.floating(out, 32), v if self.mode == "rn" else operands)
        return [_saturated(t, out) if self.sat else out]

    def _nearest(self, t: Text, v: Sequence[str]) -> str:
        a = [t.floating(x, 32) for x in v]
        if self.name in ("fma", "mad"):
            operands = ", ".join(f"{SINGLE} {x}" for x in a)
            return t.bits(t.value(f"call {SINGLE} @llvm.fma.v{LANES}f32({operands})"), 32)
        return t.bits(t.value(f"f{self.name} {SINGLE} {a[0]}, {a[1]}"), 32)

    def _exact(self, t: Text, v: Sequence[str]) -> tuple[str, str, str]:
        """The result rounded to f64, its error, and the sign of a zero result when rounding down, as an i32."""

        def do(operation: str, x: str, y: str) -> str:
            return t.value(f"{operation} {DOUBLE} {x}, {y}")

        a = [t.value(f"fpext {SINGLE} {t.floating(x, 32)} to {DOUBLE}") for x in v]
        if self.name == "mul":
            return do("fmul", a[0], a[1]), "zeroinitializer", ""
        x, y = (a[0], a[1]) if self.name in ("add", "sub") else (do("fmul", a[0], a[1]), a[2])
        s = do("fadd", x, y)
        bb = do("fsub", s, x)
        error = do("fadd", do("fsub", x, do("fsub", s, bb)), do("fsub", y, bb))
        either = t.value(f"or {ints(64)} {t.bits(x, 64)}, {t.bits(y, 64)}")
        high = t.value(f"trunc {ints(64)} {t.value(f'lshr {ints(64)} {either}, {constant(32, 64)}')} to {WORD}")
        return s, error, t.value(f"and {WORD} {high}, {constant(SIGN, 32)}")

    def _directed(self, t: Text, exact: str, error: str, zero: str) -> str:
        """The result in a directed mode: f32's nearest, moved by one where it is on the wrong side of the exact result."""
        nearest = t.value(f"fptrunc {DOUBLE} {exact} to {SINGLE}")
        r = t.bits(nearest, 32)
        back = t.value(f"fpext {SINGLE} {nearest} to {DOUBLE}")
        above = self._beyond(t, "ogt", back, exact, "olt", error)
        below = self._beyond(t, "olt", back, exact, "ogt", error)
        negative = t.value(f"icmp slt {WORD} {r}, zeroinitializer")
        none = constant(0, 1)
        wrong = {"rm": above, "rp": below}.get(self.mode) or t.select(negative, 1, below, above)
        # the next float away from zero has the bits plus one, the next one toward zero the bits minus one
        away = {"rm": negative, "rp": t.value(f"xor {ints(1)} {negative}, {constant(1, 1)}"), "rz": none}[self.mode]
        move = t.select(away, 32, constant(1, 32), constant(-1, 32))
        out = t.value(f"add {WORD} {r}, {t.select(wrong, 32, move, constant(0, 32))}")
        if self.mode == "rm" and zero:
            is_zero = t.value(f"fcmp oeq {DOUBLE} {exact}, zeroinitializer")
            out = t.select(is_zero, 32, zero, out)
        return out

    @staticmethod
    def _beyond(t: Text, compare: str, back: str, exact: str, other: str, error: str) -> str:
        far = t.value(f"fcmp {compare} {DOUBLE} {back}, {exact}")
        same = t.value(f"fcmp oeq {DOUBLE} {back}, {exact}")
        left = t.value(f"fcmp {other} {DOUBLE} {error}, zeroinitializer")
        return t.value(f"or {ints(1)} {far}, {t.value(f'and {ints(1)} {same}, {left}')}")

    def _without_subnormals(self, t: Text, out: str, exact: str, error: str) -> str:
        """Zero, with the sign of the result, where the exact result is smaller than every normal number."""
        bits = t.bits(exact, 64)
        size = t.floating(t.value(f"and {ints(64)} {bits}, {constant((1 << 63) - 1, 64)}"), 64)
        tiny = t.floating(t.value(f"add {ints(64)} zeroinitializer, {constant(TINY, 64)}"), 64)
        less = t.value(f"fcmp olt {DOUBLE} {size}, {tiny}")
        edge = t.value(f"fcmp oeq {DOUBLE} {size}, {tiny}")
        product = t.value(f"xor {ints(64)} {bits}, {t.bits(error, 64)}")
        opposite = t.value(f"icmp slt {ints(64)} {product}, zeroinitializer")
        inexact = t.value(f"fcmp one {DOUBLE} {error}, zeroinitializer")
        under = t.value(f"and {ints(1)} {edge}, {t.value(f'and {ints(1)} {opposite}, {inexact}')}")
        small = t.value(f"or {ints(1)} {less}, {under}")
        return t.select(small, 32, t.value(f"and {WORD} {out}, {constant(SIGN, 32)}"), out)


class WithNans(Protocol):
    """Replaces NaN results as the host's arithmetic has them."""

    def __call__(self, t: Text, bits: int, out: str, operands: Sequence[str]) -> str: ...


def flushed(t: Text, x: str) -> str:
    """f32 as bits, with zeros of the same sign in place of subnormal values."""
    exponent = t.value(f"and {WORD} {x}, {constant(0x7F80_0000, 32)}")
    small = t.value(f"icmp eq {WORD} {exponent}, zeroinitializer")
    return t.select(small, 32, t.value(f"and {WORD} {x}, {constant(SIGN, 32)}"), x)


def _saturated(t: Text, x: str) -> str:
    """Clamped to [0, 1]; NaN and -0 become +0."""
    one = constant(0x3F80_0000, 32)
    positive = t.value(f"fcmp ogt {SINGLE} {t.floating(x, 32)}, zeroinitializer")
    low = t.select(positive, 32, x, constant(0, 32))
    less = t.value(f"fcmp olt {SINGLE} {t.floating(low, 32)}, splat (float 1.0)")
    return t.select(less, 32, low, one)
