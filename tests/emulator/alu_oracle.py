"""Independent references for the arithmetic tests: IEEE formats and PTX's modifiers over Python's exact rationals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import alu_forms
import numpy as np

from ptxkit.emulator.simt.table import lookup

NAN = "nan"
Value = Fraction | float | str
"""A finite value, an infinity or -0.0 as a float, or NAN."""


@dataclass(frozen=True)
class Format:
    """A binary interchange format."""

    exponent: int
    fraction: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.fraction

    @lru_cache(maxsize=1 << 16)
    def decode(self, bits: int) -> Value:
        """The value of these bits; -0.0 for a negative zero."""
        negative = bits >> (self.bits - 1) & 1
        magnitude = bits & ((1 << (self.bits - 1)) - 1)
        if magnitude > self.infinity:
            return NAN
        if magnitude == self.infinity:
            return -math.inf if negative else math.inf
        if magnitude == 0:
            return -0.0 if negative else Fraction(0)
        e, f = magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1)
        significand = f if e == 0 else f | 1 << self.fraction
        exponent = max(e, 1) - self.bias - self.fraction
        v = Fraction(significand << exponent) if exponent >= 0 else Fraction(significand, 1 << -exponent)
        return -v if negative else v

    def encode(self, value: Value, mode: str = "rn") -> int | str:
        """Bits of a value rounded in ``mode``; NAN stays NAN."""
        if value == NAN:
            return NAN
        sign = 1 << (self.bits - 1)
        if isinstance(value, float):
            if math.isinf(value):
                return self.infinity | (sign if value < 0 else 0)
            return sign if math.copysign(1, value) < 0 else 0
        if value == 0:
            return 0
        v, unit = abs(value.numerator), value.denominator
        # floor(log2), exactly
        log = v.bit_length() - unit.bit_length()
        if unit << max(log, 0) > v << max(-log, 0):
            log -= 1
        quantum = max(log, 1 - self.bias) - self.fraction
        unit <<= max(quantum, 0)
        whole, rest = divmod(v << max(-quantum, 0), unit)
        down = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        if mode == "rn":
            up = 2 * rest > unit or (2 * rest == unit and whole & 1)
        elif mode == "rna":
            up = 2 * rest >= unit
        else:
            up = rest != 0 and not down
        whole += bool(up)
        code = whole + ((quantum + self.fraction + self.bias - 1) << self.fraction)
        largest = self.infinity - 1
        if code > largest:
            code = largest if down else self.infinity
        return code | (sign if value < 0 else 0)


FORMATS = {"f16": Format(5, 10), "bf16": Format(8, 7), "f32": Format(8, 23), "f64": Format(11, 52)}


def negative(v: Value) -> bool:
    """Whether the sign bit is set; NAN has none."""
    return v != NAN and (math.copysign(1, v) < 0 if isinstance(v, float) else v < 0)


def negate(v: Value) -> Value:
    """-v, with signed zeros."""
    if v == NAN:
        return NAN
    if isinstance(v, float) and v == 0:
        return Fraction(0)
    return -0.0 if v == 0 else -v


def add(a: Value, b: Value, mode: str = "rn") -> Value:
    """IEEE 754 sum, not yet rounded; the mode decides the sign of an exact zero."""
    if NAN in (a, b):
        return NAN
    for x, y in ((a, b), (b, a)):
        if isinstance(x, float) and math.isinf(x):
            return NAN if isinstance(y, float) and math.isinf(y) and x != y else x
    if a == 0 and b == 0:
        return -0.0 if (negative(a) and negative(b)) or (mode == "rm" and (negative(a) or negative(b))) else Fraction(0)
    total = Fraction(a) + Fraction(b)
    return total or (-0.0 if mode == "rm" else Fraction(0))


def multiply(a: Value, b: Value) -> Value:
    """IEEE 754 product, not yet rounded."""
    if NAN in (a, b):
        return NAN
    sign = negative(a) != negative(b)
    infinite = any(isinstance(v, float) and math.isinf(v) for v in (a, b))
    if infinite:
        return NAN if 0 in (a, b) else (-math.inf if sign else math.inf)
    if 0 in (a, b):
        return -0.0 if sign else Fraction(0)
    return Fraction(a) * Fraction(b)


def divide(a: Value, b: Value) -> Value:
    """IEEE 754 quotient, not yet rounded."""
    if NAN in (a, b):
        return NAN
    sign = negative(a) != negative(b)
    ia, ib = (isinstance(v, float) and math.isinf(v) for v in (a, b))
    if (ia and ib) or (a == 0 and b == 0):
        return NAN
    if ia or b == 0:
        return -math.inf if sign else math.inf
    if ib or a == 0:
        return -0.0 if sign else Fraction(0)
    return Fraction(a) / Fraction(b)


def root(a: Value) -> Value:
    """Square root with enough bits, the last one sticky, that rounding it gives the rounded exact root."""
    if a == NAN or (negative(a) and a != 0):
        return NAN
    if a == 0 or isinstance(a, float):
        return a
    scaled = a * 4**1300
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = whole * whole * scaled.denominator != scaled.numerator
    return Fraction(2 * whole + inexact, 2**1301)


def flushed(v: Value, t: str) -> Value:
    """Replaces subnormal values of a format by zeros of the same sign."""
    f = FORMATS[t]
    if v == NAN or isinstance(v, float) or v == 0 or abs(v) >= Fraction(2) ** (1 - f.bias):
        return v
    return -0.0 if v < 0 else Fraction(0)


def saturated(v: Value) -> Value:
    """Clamped to [0, 1]; NaN becomes 0."""
    return Fraction(0) if v == NAN or v <= 0 else min(v, Fraction(1)) if v != math.inf else Fraction(1)


_EXACT: dict[str, Callable[..., Value]] = {
    "add": add,
    "sub": lambda a, b, mode: add(a, negate(b), mode),
    "mul": lambda a, b, mode: multiply(a, b),
    "fma": lambda a, b, c, mode: add(multiply(a, b), c, mode),
    "mad": lambda a, b, c, mode: add(multiply(a, b), c, mode),
    "div": lambda a, b, mode: divide(a, b),
    "rcp": lambda a, mode: divide(Fraction(1), a),
    "sqrt": lambda a, mode: root(a),
}


def arithmetic(opcode: str, *operands: int) -> int | str:
    """The result bits of an add, sub, mul, fma, div, rcp or sqrt of one of FORMATS, or NAN."""
    name, *modifiers = opcode.split(".")
    t = modifiers[-1].removesuffix("x2")
    f = FORMATS[t]
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    values = [f.decode(v) for v in operands]
    if "ftz" in modifiers:
        values = [flushed(v, t) for v in values]
    exact = _EXACT[name](*values, mode)
    if "relu" in modifiers and exact != NAN and negative(exact):
        exact = Fraction(0)
    if "sat" in modifiers:
        exact = saturated(exact)
    if "ftz" in modifiers and exact != NAN:
        exact = flushed(exact, t)  # decided by the value before rounding
    return f.encode(exact, mode)


# -- running the table's functions -------------------------------------------------------------------------------------------


def apply(opcode: str, *lanes: Any, pair: bool = False) -> Any:
    """The lane function of ``opcode`` on arrays, whose bits are taken as its source types."""
    found = lookup(opcode)
    assert found is not None, opcode
    entry, form = found
    form = replace(form, pair=pair)
    assert entry.signature is not None
    _, types = entry.signature(form)
    arrays = []
    for value, t in zip(lanes, types[: len(lanes)], strict=True):
        a = np.asarray(value)
        if t.name == "pred" or t.name == "cc":
            a = a.astype(bool)
        else:
            a = a.astype(np.uint64).astype(f"u{t.dtype.itemsize}").view(t.dtype) if a.dtype != t.dtype else a
        arrays.append(a.reshape(1, 1, -1))
    kept = [a.copy() for a in arrays]
    with np.errstate(all="ignore"):
        result = entry.lane_function(form)(*arrays)
    for a, k in zip(arrays, kept, strict=True):
        assert a.tobytes() == k.tobytes(), f"{opcode} changed its input"
    return result


def bits_of(result: Any, count: int) -> list[int]:
    """Lanes as unsigned integers."""
    a = np.ascontiguousarray(np.broadcast_to(result, (1, 1, count)))
    return (
        [int(v) for v in a.view(f"u{a.dtype.itemsize}").reshape(-1)]
        if a.dtype != bool
        else [int(v) for v in a.reshape(-1)]
    )


def operands(opcode: str, count: int) -> Sequence[np.ndarray]:
    """Special and random inputs, one row of bits per source."""
    form = alu_forms.Form(opcode)
    sources = [t for t in form.types()[1] if t.name != "cc"]
    return alu_forms.inputs(form, count)[: len(sources)]


def is_nan(bits: int, t: str) -> bool:
    """Whether these bits are a NaN of the format."""
    f = FORMATS[t]
    return bits & ((1 << (f.bits - 1)) - 1) > f.infinity
