"""Machine code for ex2.approx: numpy's result, f64's 2^x rounded to f32, where that is certain.

2^x is 2^n times a polynomial of the remainder r, between -1/2 and 1/2, with Taylor's coefficients. Its error and that of
numpy's function are below :data:`ERROR`. Where numbers within this error are rounded to different f32 numbers, numpy computes
the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.forms import Destination, Form, FormText, Source, made, narrow
from ptxkit.emulator.native.operands import Places, can_translate_operands
from ptxkit.emulator.native.rounded import flushed
from ptxkit.emulator.native.scalar import with_nans
from ptxkit.emulator.native.text import LANES, Text, constant, floats, ints

ERROR = 2.0**-47
"""Bound for the relative error: those of Taylor's series, of the roundings of Horner's scheme and of a math library are
below 2^-50."""

DEGREE = 12
_COEFFICIENTS = [math.log(2) ** k / math.factorial(k) for k in range(DEGREE + 1)]
_LARGEST = 200.0
"""Exponents beyond it give infinity or 0 as well."""

_MAGIC = 1.5 * 2.0**52
"""Added to a small number, it rounds this to an integer, which the low bits of the sum contain."""


@dataclass(frozen=True)
class Exponential:
    """ex2.approx of f32, with or without .ftz."""

    ftz: bool


def exponential(typed: TypedInstruction, places: Places) -> Exponential | None:
    """An ex2 that machine code can execute; None for other instructions."""
    i = typed.instruction
    if i.name != "ex2" or i.modifiers[0] != "approx" or i.modifiers[-1] != "f32":
        return None
    return Exponential("ftz" in i.modifiers) if can_translate_operands(typed, places) else None


def _number(value: float) -> str:
    return f"splat (double 0x{struct.pack('>d', value).hex()})"


def _power(t: Text, x: str) -> str:
    """2^x in f64, with an error below :data:`ERROR`, for all lanes."""
    double, wide = floats(64), ints(64)

    def do(operation: str, a: str, b: str) -> str:
        return t.value(f"{operation} {double} {a}, {b}")

    for compare, bound in (("ogt", _LARGEST), ("olt", -_LARGEST)):
        beyond = t.value(f"fcmp {compare} {double} {x}, {_number(bound)}")
        x = t.value(f"select {ints(1)} {beyond}, {double} {_number(bound)}, {double} {x}")
    shifted = do("fadd", x, _number(_MAGIC))
    r = do("fsub", x, do("fsub", shifted, _number(_MAGIC)))
    p = _number(_COEFFICIENTS[DEGREE])
    for c in reversed(_COEFFICIENTS[:DEGREE]):
        p = do("fadd", do("fmul", p, r), _number(c))
    exponent = t.value(f"add {wide} {t.bits(shifted, 64)}, {constant(1023, 64)}")
    return do("fmul", p, t.floating(t.value(f"shl {wide} {exponent}, {constant(52, 64)}"), 64))


def _exponential(t: Text, v: Sequence[str], ftz: bool) -> tuple[str, str]:
    """The result, and the lanes for which it is uncertain."""
    single, double = floats(32), floats(64)
    given = flushed(t, v[0]) if ftz else v[0]
    power = _power(t, t.value(f"fpext {single} {t.floating(given, 32)} to {double}"))
    low, high = (
        t.value(f"fptrunc {double} {t.value(f'fmul {double} {power}, {_number(1 + e)}')} to {single}")
        for e in (-ERROR, ERROR)
    )
    unsure = t.value(f"icmp ne {ints(32)} {t.bits(low, 32)}, {t.bits(high, 32)}")
    out = with_nans(t, 32, high, [given])
    return flushed(t, out) if ftz else out, unsure


@cache
def exponential_form(ftz: bool, source: Source, to: Destination | None) -> Form:
    """A form that fails, and has then changed nothing, where the result of a lane is uncertain."""
    t = FormText()
    t.put(f"%E = alloca [{LANES} x i32], align 64")
    given, result = t.pointer(0), t.pointer(2)
    t.begin_parts()
    out, unsure = _exponential(t, [t.read(source, t.part(given, source.have))], ftz)
    t.store(ints(32), out, t.part("%E", 32))
    bad = t.value(f"and {ints(1)} {unsure}, %active")
    some = t.value(f"call i1 @llvm.vector.reduce.or.v{LANES}i1({ints(1)} {bad})")
    t.put(f"br i1 {some}, label %slow, label %sure")
    t.label("sure")
    t.end_parts()
    t.put("br label %move")
    t.label("slow")
    t.put("ret i1 false")
    t.label("move")
    if to is not None:
        t.begin_parts("move")
        t.write(to, t.part(result, to.have), t.load(ints(32), t.part("%E", 32)))
        t.end_parts()
    t.put("ret i1 true")
    return made([narrow(line) for line in t.lines])
