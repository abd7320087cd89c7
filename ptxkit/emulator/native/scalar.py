"""Machine code for pure instructions: one lane's results from its operands, both as bits.

The numpy functions of :mod:`ptxkit.emulator.instructions.arithmetic` define the results; a form that is not in the table here
is executed by them. PTX does not define the payload of NaN results; numpy's are those of the host: the first operand that is
NaN, made quiet, or the host's default NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW
from ptxkit.emulator.native.text import FLOATS, Text

Emit = Callable[[Text, Sequence[str]], list[str]]
"""Writes the code of an instruction; gets and returns bits in the widths of its operands."""

_RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str]], Emit]]] = []

QUIET = {32: 0x0040_0000, 64: 0x0008_0000_0000_0000}
HOST_NAN = {32: 0xFFC0_0000, 64: 0xFFF8_0000_0000_0000}
CANONICAL = {32: 0x7FFF_FFFF, 64: 0x7FFF_FFFF_FFFF_FFFF}


def emitter(opcode: str) -> Emit | None:
    """What writes the code of an opcode; None without one."""
    for pattern, make in _RULES:
        if match := pattern.fullmatch(opcode):
            return make(match)
    return None


def _rule(pattern: str) -> Callable[[Callable[[re.Match[str]], Emit]], Callable[[re.Match[str]], Emit]]:
    def register(make: Callable[[re.Match[str]], Emit]) -> Callable[[re.Match[str]], Emit]:
        _RULES.append((re.compile(pattern), make))
        return make

    return register


# -- integers ----------------------------------------------------------------------------------------------------------------


@_rule(r"(add|sub|mul\.lo)\.[us](16|32|64)")
def _sum(m: re.Match[str]) -> Emit:
    operation, kind = m[1].partition(".")[0], f"i{m[2]}"
    return lambda t, v: [t.value(f"{operation} {kind} {v[0]}, {v[1]}")]


@_rule(r"mad\.lo\.[us](16|32|64)")
def _mad(m: re.Match[str]) -> Emit:
    kind = f"i{m[1]}"
    return lambda t, v: [t.value(f"add {kind} {t.value(f'mul {kind} {v[0]}, {v[1]}')}, {v[2]}")]


@_rule(r"(mul|mad)\.(wide|hi)\.([us])(16|32|64)")
def _wide(m: re.Match[str]) -> Emit:
    bits = int(m[4])
    double = f"i{bits * 2}"
    extend = "sext" if m[3] == "s" else "zext"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.value(f"{extend} i{bits} {x} to {double}") for x in v[:2])
        out, kind = t.value(f"mul {double} {a}, {b}"), double
        if m[2] == "hi":
            out, kind = t.value(f"trunc {double} {t.value(f'lshr {double} {out}, {bits}')} to i{bits}"), f"i{bits}"
        return [t.value(f"add {kind} {out}, {v[2]}")] if m[1] == "mad" else [out]

    return emit


@_rule(r"(div|rem)\.([us])(16|32|64)")
def _divide(m: re.Match[str]) -> Emit:
    kind, signed = f"i{m[3]}", m[2] == "s"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = v
        zero = t.value(f"icmp eq {kind} {b}, 0")
        special = zero
        if signed:  # the quotient of the most negative value and -1 wraps
            minus = t.value(f"icmp eq {kind} {b}, -1")
            special = t.value(f"or i1 {zero}, {minus}")
        safe = t.select(special, kind, "1", b)
        out = t.value(f"{m[2]}{m[1]} {kind} {a}, {safe}")
        if signed:
            other = t.value(f"sub {kind} 0, {a}") if m[1] == "div" else "0"
            out = t.select(minus, kind, other, out)
        return [t.select(zero, kind, "-1" if m[1] == "div" else a, out)]

    return emit


@_rule(r"(min|max)\.([us])(16|32|64)")
def _extremum(m: re.Match[str]) -> Emit:
    kind, compare = f"i{m[3]}", f"{m[2]}{'lt' if m[1] == 'min' else 'gt'}"
    return lambda t, v: [t.select(t.value(f"icmp {compare} {kind} {v[0]}, {v[1]}"), kind, v[0], v[1])]


@_rule(r"(abs|neg)\.s(16|32|64)")
def _sign(m: re.Match[str]) -> Emit:
    kind = f"i{m[2]}"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        negative = t.value(f"sub {kind} 0, {v[0]}")
        if m[1] == "neg":
            return [negative]
        return [t.select(t.value(f"icmp slt {kind} {v[0]}, 0"), kind, negative, v[0])]

    return emit


@_rule(r"(and|or|xor|not)\.(pred|b16|b32|b64)")
def _logic(m: re.Match[str]) -> Emit:
    kind = "i1" if m[2] == "pred" else f"i{m[2][1:]}"
    if m[1] == "not":
        return lambda t, v: [t.value(f"xor {kind} {v[0]}, -1")]
    return lambda t, v: [t.value(f"{m[1]} {kind} {v[0]}, {v[1]}")]


@_rule(r"(shl|shr)\.([bus])(16|32|64)")
def _shift(m: re.Match[str]) -> Emit:
    bits = int(m[3])
    operation = "shl" if m[1] == "shl" else "ashr" if m[2] == "s" else "lshr"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        over = t.value(f"icmp ugt i32 {v[1]}, {bits - 1}")
        amount = t.select(over, "i32", str(bits - 1), v[1])
        out = t.value(f"{operation} i{bits} {v[0]}, {t.resized(amount, 32, bits)}")
        # beyond the width, the sign is what a shift by the width less one gives
        return [out if operation == "ashr" else t.select(over, f"i{bits}", "0", out)]

    return emit


@_rule(r"(popc|clz|brev)\.b(32|64)")
def _count(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[m[1]]
    more = ", i1 false" if m[1] == "clz" else ""

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        out = t.value(f"call i{bits} @llvm.{name}.i{bits}(i{bits} {v[0]}{more})")
        return [out if m[1] == "brev" else t.resized(out, bits, 32)]

    return emit


@_rule(r"shf\.([lr])\.(wrap|clamp)\.b32")
def _funnel(m: re.Match[str]) -> Emit:
    def emit(t: Text, v: Sequence[str]) -> list[str]:
        wide = t.value(f"zext i32 {v[1]} to i64")
        both = t.value(f"or i64 {t.value(f'shl i64 {wide}, 32')}, {t.value(f'zext i32 {v[0]} to i64')}")
        if m[2] == "wrap":
            amount = t.value(f"and i32 {v[2]}, 31")
        else:
            amount = t.select(t.value(f"icmp ugt i32 {v[2]}, 32"), "i32", "32", v[2])
        n = t.value(f"zext i32 {amount} to i64")
        if m[1] == "l":
            out = t.value(f"lshr i64 {t.value(f'shl i64 {both}, {n}')}, 32")
        else:
            out = t.value(f"lshr i64 {both}, {n}")
        return [t.value(f"trunc i64 {out} to i32")]

    return emit


@_rule(r"selp\.[busf](16|32|64)")
def _selp(m: re.Match[str]) -> Emit:
    return lambda t, v: [t.select(v[2], f"i{m[1]}", v[0], v[1])]


@_rule(r"cvta(\.to)?\.([\w:]+)\.u64")
def _cvta(m: re.Match[str]) -> Emit:
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(m[2].partition("::")[0], 0)
    return lambda t, v: [t.value(f"add i64 {v[0]}, {-window if m[1] else window}")]


# -- comparisons -------------------------------------------------------------------------------------------------------------

_INTEGER = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT = {
    **{op: f"o{op}" for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{op}u": f"u{op}" for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    "num": "ord",
    "nan": "uno",
}


@_rule(r"setp\.(\w+)(?:\.(and|or|xor))?\.([busf])(16|32|64)")
def _setp(m: re.Match[str]) -> Emit:
    bits, real = int(m[4]), m[3] == "f"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        if real:
            a, b = (t.floating(x, bits) for x in v[:2])
            p = t.value(f"fcmp {_FLOAT[m[1]]} {FLOATS[bits]} {a}, {b}")
        else:
            compare = _INTEGER.get(m[1]) or f"{'s' if m[3] == 's' else 'u'}{m[1]}"
            p = t.value(f"icmp {compare} i{bits} {v[0]}, {v[1]}")
        q = t.value(f"xor i1 {p}, true")
        if m[2]:
            p, q = (t.value(f"{m[2]} i1 {x}, {v[2]}") for x in (p, q))
        return [p, q]

    return emit


# -- floats ------------------------------------------------------------------------------------------------------------------


def _with_nans(t: Text, bits: int, out: str, operands: Sequence[str]) -> str:
    """``out``, a float, as bits; where it is NaN, the first operand that is NaN, or the host's default NaN."""
    kind = FLOATS[bits]
    missing = t.value(f"fcmp uno {kind} {out}, {out}")
    nan = str(HOST_NAN[bits])
    for x in reversed(operands):
        f = t.floating(x, bits)
        quiet = t.value(f"or i{bits} {x}, {QUIET[bits]}")
        nan = t.select(t.value(f"fcmp uno {kind} {f}, {f}"), f"i{bits}", quiet, nan)
    return t.select(missing, f"i{bits}", nan, t.bits(out, bits))


@_rule(r"(add|sub|mul|div)(?:\.rn)?\.f(32|64)")
def _arithmetic(m: re.Match[str]) -> Emit:
    bits = int(m[2])

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.floating(x, bits) for x in v)
        return [_with_nans(t, bits, t.value(f"f{m[1]} {FLOATS[bits]} {a}, {b}"), v)]

    return emit


@_rule(r"(?:fma|mad)\.rn\.f(32|64)")
def _fma(m: re.Match[str]) -> Emit:
    bits = int(m[1])

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        kind = FLOATS[bits]
        operands = ", ".join(f"{kind} {t.floating(x, bits)}" for x in v)
        return [_with_nans(t, bits, t.value(f"call {kind} @llvm.fma.f{bits}({operands})"), v)]

    return emit


@_rule(r"(sqrt|rcp)\.rn\.f(32|64)")
def _root(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    kind = FLOATS[bits]

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], bits)
        call = f"fdiv {kind} 1.0, {a}" if m[1] == "rcp" else f"call {kind} @llvm.sqrt.f{bits}({kind} {a})"
        return [_with_nans(t, bits, t.value(call), v)]

    return emit


@_rule(r"(rcp|sqrt|rsqrt)\.approx\.f32")
def _approximate(m: re.Match[str]) -> Emit:
    """As numpy computes them: exactly rounded in f64, and then to f32."""

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        out = t.value(f"fpext float {t.floating(v[0], 32)} to double")
        if m[1] != "rcp":
            out = t.value(f"call double @llvm.sqrt.f64(double {out})")
        if m[1] != "sqrt":
            out = t.value(f"fdiv double 1.0, {out}")
        return [_with_nans(t, 32, t.value(f"fptrunc double {out} to float"), v)]

    return emit


@_rule(r"(neg|abs)\.f(32|64)")
def _magnitude(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    top = 1 << (bits - 1)
    if m[1] == "neg":
        return lambda t, v: [t.value(f"xor i{bits} {v[0]}, {top}")]
    return lambda t, v: [t.value(f"and i{bits} {v[0]}, {top - 1}")]


@_rule(r"(min|max)\.f(32|64)")
def _float_extremum(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    kind, compare, zeros = FLOATS[bits], *(("olt", "or") if m[1] == "min" else ("ogt", "and"))

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.floating(x, bits) for x in v[:2])
        no_a, no_b = (t.value(f"fcmp uno {kind} {x}, {x}") for x in (a, b))
        same = t.value(f"fcmp oeq {kind} {a}, {b}")
        first = t.value(f"fcmp {compare} {kind} {a}, {b}")
        out = t.select(first, f"i{bits}", v[0], v[1])
        # equal values differ in the sign of zero alone
        out = t.select(same, f"i{bits}", t.value(f"{zeros} i{bits} {v[0]}, {v[1]}"), out)
        out = t.select(no_b, f"i{bits}", v[0], out)
        out = t.select(no_a, f"i{bits}", v[1], out)
        return [t.select(t.value(f"and i1 {no_a}, {no_b}"), f"i{bits}", str(CANONICAL[bits]), out)]

    return lambda t, v: emit(t, v) if len(v) == 2 else emit(t, [emit(t, v[:2])[0], v[2]])


# -- conversions -------------------------------------------------------------------------------------------------------------


@_rule(r"cvt\.[us](8|16|32|64)\.([us])(8|16|32|64)")
def _cvt(m: re.Match[str]) -> Emit:
    return lambda t, v: [t.resized(v[0], int(m[3]), int(m[1]), m[2] == "s")]


@_rule(r"cvt\.rn\.f(32|64)\.([us])(8|16|32|64)")
def _from_integer(m: re.Match[str]) -> Emit:
    bits = int(m[1])
    operation = "sitofp" if m[2] == "s" else "uitofp"
    return lambda t, v: [t.bits(t.value(f"{operation} i{m[3]} {v[0]} to {FLOATS[bits]}"), bits)]


_INTEGRAL = {"rzi": "trunc", "rni": "roundeven", "rmi": "floor", "rpi": "ceil"}


@_rule(r"cvt\.(rzi|rni|rmi|rpi)\.([us])(16|32|64)\.f(32|64)")
def _to_integer(m: re.Match[str]) -> Emit:
    want, bits = int(m[3]), int(m[4])
    kind = FLOATS[bits]
    nan = -(1 << (want - 1)) if bits == 64 or want == 64 else 0

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], bits)
        whole = t.value(f"call {kind} @llvm.{_INTEGRAL[m[1]]}.f{bits}({kind} {a})")
        name = f"llvm.fpto{m[2]}i.sat.i{want}.f{bits}"
        out = t.value(f"call i{want} @{name}({kind} {whole})")
        missing = t.value(f"fcmp uno {kind} {a}, {a}")
        return [t.select(missing, f"i{want}", str(nan), out)]

    return emit


@_rule(r"cvt\.f64\.f32")
def _to_double(_: re.Match[str]) -> Emit:
    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], 32)
        out = t.bits(t.value(f"fpext float {a} to double"), 64)
        return [t.select(t.value(f"fcmp uno float {a}, {a}"), "i64", str(CANONICAL[64]), out)]

    return emit


@_rule(r"cvt\.rn\.f32\.f64")
def _to_single(_: re.Match[str]) -> Emit:
    return lambda t, v: [t.bits(t.value(f"fptrunc double {t.floating(v[0], 64)} to float"), 32)]


# -- moves -------------------------------------------------------------------------------------------------------------------


@_rule(r"mov\.(?:[busf](?:8|16|32|64)|pred)")
def _mov(_: re.Match[str]) -> Emit:
    return lambda t, v: [v[0]]


def packing(sources: Sequence[int], destinations: Sequence[int]) -> Emit | None:
    """mov between a register and the elements of a vector; the numbers are widths in bits."""
    if len(sources) == 1 and sum(destinations) == sources[0]:

        def unpack(t: Text, v: Sequence[str]) -> list[str]:
            out, shift = [], 0
            for bits in destinations:
                part = t.value(f"lshr i{sources[0]} {v[0]}, {shift}")
                out.append(t.resized(part, sources[0], bits))
                shift += bits
            return out

        return unpack
    if len(destinations) == 1 and sum(sources) == destinations[0]:
        whole = destinations[0]

        def pack(t: Text, v: Sequence[str]) -> list[str]:
            out, shift = "0", 0
            for x, bits in zip(v, sources, strict=True):
                wide = t.resized(x, bits, whole)
                out = t.value(f"or i{whole} {out}, {t.value(f'shl i{whole} {wide}, {shift}')}")
                shift += bits
            return [out]

        return pack
    return None


def declarations() -> str:
    """Declarations of LLVM's functions that the code may call."""
    lines = []
    for b in (32, 64):
        for name, more in (("ctpop", ""), ("ctlz", ", i1"), ("bitreverse", "")):
            if (name, b) != ("ctpop", 32):
                lines.append(f"declare i{b} @llvm.{name}.i{b}(i{b}{more})")
        kind = FLOATS[b]
        lines.append(f"declare {kind} @llvm.fma.f{b}({kind}, {kind}, {kind})")
        lines += [f"declare {kind} @llvm.{name}.f{b}({kind})" for name in ("sqrt", *_INTEGRAL.values())]
        for sign in "su":
            lines += [f"declare i{w} @llvm.fpto{sign}i.sat.i{w}.f{b}({kind})" for w in (16, 32, 64)]
    return "\n".join(lines) + "\n"
