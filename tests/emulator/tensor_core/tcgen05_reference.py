"""tcgen05.mma one element at a time, in Python's integers and fractions, written for comparison with the description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

FIELDS = {
    "f32": (8, 23, 0),
    "tf32": (8, 10, 13),
    "bf16": (8, 7, 0),
    "f16": (5, 10, 0),
    "e4m3": (4, 3, 0),
    "e5m2": (5, 2, 0),
    "e2m3": (2, 3, 0),
    "e3m2": (3, 2, 0),
    "e2m1": (2, 1, 0),
    "ue4m3": (4, 3, 0),
}
"""Bits of exponent and fraction, and bits below that are not looked at."""
NAN, ZERO = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}, Fraction(0)
INFINITY = {"f32": 0x7F800000, "f16": 0x7C00}
SIGN = {"f32": 1 << 31, "f16": 1 << 15}


@dataclass(frozen=True)
class Number:
    """One operand: its exact value and the exponent of its encoding, or an infinity of that sign, or NaN."""

    value: Fraction = ZERO
    raw: int = 0
    infinity: int = 0
    nan: bool = False

    def __mul__(self, other: Number) -> Number:
        if self.nan or other.nan:
            return Number(nan=True)
        if self.infinity or other.infinity:
            signs = [n.infinity or (n.value > 0) - (n.value < 0) for n in (self, other)]
            return Number(infinity=signs[0] * signs[1]) if all(signs) else Number(nan=True)
        return Number(self.value * other.value, self.raw + other.raw)

    def __neg__(self) -> Number:
        return Number(-self.value, self.raw, -self.infinity, self.nan)

    @property
    def counts(self) -> bool:
        """Whether its exponent is considered."""
        return self.value != 0


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def decode(bits: int, t: str) -> Number:
    """A bit pattern as a number."""
    if t == "ue8m0":
        return Number(nan=True) if bits & 255 == 255 else Number(power((bits & 255) - 127), (bits & 255) - 127)
    exponent_bits, fraction_bits, ignored = FIELDS[t]
    bits >>= ignored
    fraction = bits & (1 << fraction_bits) - 1
    encoded = bits >> fraction_bits & (1 << exponent_bits) - 1
    sign = -1 if bits >> fraction_bits + exponent_bits & 1 and t != "ue4m3" else 1
    top = (1 << exponent_bits) - 1
    if encoded == top and t in ("f32", "tf32", "bf16", "f16", "e5m2"):
        return Number(nan=True) if fraction else Number(infinity=sign)
    if encoded == top and fraction == 7 and t in ("e4m3", "ue4m3"):
        return Number(nan=True)
    raw = max(encoded, 1) - ((1 << exponent_bits - 1) - 1)
    significand = Fraction(fraction, 1 << fraction_bits) + (encoded > 0)
    return Number(sign * significand * power(raw), raw)


def cut(value: Fraction, q: int) -> Fraction:
    """Truncated toward zero to a multiple of 2**q."""
    return math.trunc(value / power(q)) * power(q)


def encode(value: Fraction, t: str) -> int:
    """Bits of f32, rounded toward zero, or of f16, rounded to nearest even."""
    _, fraction_bits, _ = FIELDS[t]
    lowest, highest = {"f32": (-126, 127), "f16": (-14, 15)}[t]
    size = abs(value)
    if size == 0:
        return 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < power(exponent)
    unit = power(max(exponent, lowest) - fraction_bits)
    steps = math.trunc(size / unit) if t == "f32" else round(size / unit)
    if steps == 0:
        return 0
    sign = SIGN[t] if value < 0 else 0
    if steps * unit >= power(highest + 1):
        return sign | INFINITY[t]
    # counted in units of the last place, the encodings of neighbouring values are neighbours
    return sign | (steps + (max(exponent, lowest) - lowest << fraction_bits))


def special(numbers: Sequence[Number], t: str) -> int | None:
    """The result if an operand is not finite."""
    signs = {n.infinity for n in numbers if n.infinity}
    if any(n.nan for n in numbers) or len(signs) == 2:
        return NAN[t]
    return None if not signs else (SIGN[t] if signs == {-1} else 0) | INFINITY[t]


def plain(a: list[Number], b: list[Number], c: Number, t: str, scale: Number | None = None, lowered: int = 0) -> int:
    """Kinds f16, tf32, f8f6f4 and, with ``scale``, mxf8f6f4."""
    terms = [x * y if scale is None else x * y * scale for x, y in zip(a, b, strict=True)]
    terms.append(Number(c.value * power(-lowered), c.raw - lowered, c.infinity, c.nan))
    found = special(terms, t)
    if found is not None:
        return found
    raw = [n.raw for n in terms if n.counts] + ([-133] if scale is None else [])
    if not raw:
        return 0
    return encode(sum((cut(n.value, max(raw) - 25) for n in terms), ZERO), t)


def integer(a: list[int], b: list[int], c: int, saturate: bool) -> int:
    """Kind i8."""
    total = sum(x * y for x, y in zip(a, b, strict=True)) + c
    if saturate:
        total = min(max(total, -(2**31)), 2**31 - 1)
    return total & 0xFFFFFFFF


def fp4(
    a: list[Number], b: list[Number], c: Number, scale_a: list[Number], scale_b: list[Number], exact_groups: bool
) -> int:
    """Kinds mxf4 and mxf4nvf4, with scale factors of each element; ``exact_groups``: of type ue8m0.

    Written with the limits of 39 bits below products that the model states, although they never decide.
    """
    scales = [x * y for x, y in zip(scale_a, scale_b, strict=True)]
    terms = [x * y * s for x, y, s in zip(a, b, scales, strict=True)]
    found = special([*terms, c], "f32")
    if found is not None:
        return found
    raws = [n.raw if n.counts else None for n in terms]
    if not any(r is not None for r in raws):
        return encode(c.value, "f32")
    highest = max(r for r in raws if r is not None)
    top = max(s.raw for s, n in zip(scales, terms, strict=True) if n.counts)
    values = [n.value for n in terms]
    if c.counts and c.raw >= highest:
        q = c.raw - 35
        return encode(cut(c.value, q) + sum((cut(sum(g, ZERO), q) for g in groups_of(values, 16)), ZERO), "f32")
    q = max(highest - 39, top - 35, c.raw - 39 if c.counts else highest - 39)
    if not exact_groups:
        return encode(cut(c.value, q) + sum((cut(sum(g, ZERO), q) for g in groups_of(values, 4)), ZERO), "f32")
    parts: list[tuple[Fraction, int | None]] = []
    for start, group in zip(range(0, len(values), 16), groups_of(values, 16), strict=True):
        own = [r for r in raws[start : start + 16] if r is not None]
        coarser = max(q, c.raw - 35) if c.counts and own and c.raw >= max(own) else q
        parts.append((cut(sum(group, ZERO), coarser), scales[start].raw if own else None))
    result = encode(cut(c.value, q) + sum((p for p, _ in parts), ZERO), "f32")
    if 0 < result & 0x7FFFFFFF < 1 << 23:
        least = power(max(q, -174))
        parts = [(p, s) for p, s in parts if not (s is not None and s < top and abs(p) < least)]
        result = encode(cut(c.value, q) + sum((p for p, _ in parts), ZERO), "f32")
    return result


def groups_of(values: list[Fraction], size: int) -> list[list[Fraction]]:
    return [values[start : start + size] for start in range(0, len(values), size)]
