"""Machine code for pure instructions: the results of the lanes of a warp from their operands, both as vectors of bits.

The numpy functions of :mod:`ptxkit.emulator.instructions.arithmetic` define the results; a form that is not in the table here
is executed by them. PTX does not define the payload of NaN results; numpy's are those of the host: the first operand that is
NaN, made quiet, or the host's default NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW
from ptxkit.emulator.native.rounded import Rounded, flushed
from ptxkit.emulator.native.text import LANES, Text, constant, floats, ints, one

Emit = Callable[[Text, Sequence[str]], list[str]]
"""Writes the code of an instruction; gets and returns bits in the widths of its operands."""

_RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str]], Emit]]] = []

QUIET = {32: 0x0040_0000, 64: 0x0008_0000_0000_0000}
HOST_NAN = {32: 0xFFC0_0000, 64: 0xFFF8_0000_0000_0000}
CANONICAL = {32: 0x7FFF_FFFF, 64: 0x7FFF_FFFF_FFFF_FFFF}


@cache
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
    operation, kind = m[1].partition(".")[0], ints(int(m[2]))
    return lambda t, v: [t.value(f"{operation} {kind} {v[0]}, {v[1]}")]


@_rule(r"mad\.lo\.[us](16|32|64)")
def _mad(m: re.Match[str]) -> Emit:
    kind = ints(int(m[1]))
    return lambda t, v: [t.value(f"add {kind} {t.value(f'mul {kind} {v[0]}, {v[1]}')}, {v[2]}")]


@_rule(r"(mul|mad)\.(wide|hi)\.([us])(16|32|64)")
def _wide(m: re.Match[str]) -> Emit:
    bits = int(m[4])
    single, double = ints(bits), ints(bits * 2)
    extend = "sext" if m[3] == "s" else "zext"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.value(f"{extend} {single} {x} to {double}") for x in v[:2])
        out, kind = t.value(f"mul {double} {a}, {b}"), double
        if m[2] == "hi":
            high = t.value(f"lshr {double} {out}, {constant(bits, bits * 2)}")
            out, kind = t.value(f"trunc {double} {high} to {single}"), single
        return [t.value(f"add {kind} {out}, {v[2]}")] if m[1] == "mad" else [out]

    return emit


@_rule(r"(div|rem)\.([us])(16|32|64)")
def _divide(m: re.Match[str]) -> Emit:
    bits, signed = int(m[3]), m[2] == "s"
    kind = ints(bits)
    none, one, minus_one = (constant(n, bits) for n in (0, 1, -1))

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = v
        zero = t.value(f"icmp eq {kind} {b}, {none}")
        special = zero
        if signed:  # the quotient of the most negative value and -1 wraps
            minus = t.value(f"icmp eq {kind} {b}, {minus_one}")
            special = t.value(f"or {ints(1)} {zero}, {minus}")
        safe = t.select(special, bits, one, b)
        out = t.value(f"{m[2]}{m[1]} {kind} {a}, {safe}")
        if signed:
            other = t.value(f"sub {kind} {none}, {a}") if m[1] == "div" else none
            out = t.select(minus, bits, other, out)
        return [t.select(zero, bits, minus_one if m[1] == "div" else a, out)]

    return emit


@_rule(r"(min|max)\.([us])(16|32|64)")
def _extremum(m: re.Match[str]) -> Emit:
    bits, compare = int(m[3]), f"{m[2]}{'lt' if m[1] == 'min' else 'gt'}"
    return lambda t, v: [t.select(t.value(f"icmp {compare} {ints(bits)} {v[0]}, {v[1]}"), bits, v[0], v[1])]


@_rule(r"(abs|neg)\.s(16|32|64)")
def _sign(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    kind, none = ints(bits), constant(0, bits)

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        negative = t.value(f"sub {kind} {none}, {v[0]}")
        if m[1] == "neg":
            return [negative]
        return [t.select(t.value(f"icmp slt {kind} {v[0]}, {none}"), bits, negative, v[0])]

    return emit


@_rule(r"(and|or|xor|not)\.(pred|b16|b32|b64)")
def _logic(m: re.Match[str]) -> Emit:
    bits = 1 if m[2] == "pred" else int(m[2][1:])
    kind = ints(bits)
    if m[1] == "not":
        return lambda t, v: [t.value(f"xor {kind} {v[0]}, {constant(-1, bits)}")]
    return lambda t, v: [t.value(f"{m[1]} {kind} {v[0]}, {v[1]}")]


@_rule(r"(shl|shr)\.([bus])(16|32|64)")
def _shift(m: re.Match[str]) -> Emit:
    bits = int(m[3])
    operation = "shl" if m[1] == "shl" else "ashr" if m[2] == "s" else "lshr"

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        over = t.value(f"icmp ugt {ints(32)} {v[1]}, {constant(bits - 1, 32)}")
        amount = t.select(over, 32, constant(bits - 1, 32), v[1])
        out = t.value(f"{operation} {ints(bits)} {v[0]}, {t.resized(amount, 32, bits)}")
        # beyond the width, the sign is what a shift by the width less one gives
        return [out if operation == "ashr" else t.select(over, bits, constant(0, bits), out)]

    return emit


@_rule(r"(popc|clz|brev)\.b(32|64)")
def _count(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[m[1]]
    more = ", i1 false" if m[1] == "clz" else ""

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        out = t.value(f"call {ints(bits)} @llvm.{name}.v{LANES}i{bits}({ints(bits)} {v[0]}{more})")
        return [out if m[1] == "brev" else t.resized(out, bits, 32)]

    return emit


@_rule(r"shf\.([lr])\.(wrap|clamp)\.b32")
def _funnel(m: re.Match[str]) -> Emit:
    def emit(t: Text, v: Sequence[str]) -> list[str]:
        wide, half, word = ints(64), constant(32, 64), ints(32)
        high = t.value(f"shl {wide} {t.value(f'zext {word} {v[1]} to {wide}')}, {half}")
        both = t.value(f"or {wide} {high}, {t.value(f'zext {word} {v[0]} to {wide}')}")
        if m[2] == "wrap":
            amount = t.value(f"and {word} {v[2]}, {constant(31, 32)}")
        else:
            over = t.value(f"icmp ugt {word} {v[2]}, {constant(32, 32)}")
            amount = t.select(over, 32, constant(32, 32), v[2])
        n = t.value(f"zext {word} {amount} to {wide}")
        if m[1] == "l":
            out = t.value(f"lshr {wide} {t.value(f'shl {wide} {both}, {n}')}, {half}")
        else:
            out = t.value(f"lshr {wide} {both}, {n}")
        return [t.value(f"trunc {wide} {out} to {word}")]

    return emit


@_rule(r"selp\.[busf](16|32|64)")
def _selp(m: re.Match[str]) -> Emit:
    return lambda t, v: [t.select(v[2], int(m[1]), v[0], v[1])]


@_rule(r"cvta(\.to)?\.([\w:]+)\.u64")
def _cvta(m: re.Match[str]) -> Emit:
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(m[2].partition("::")[0], 0)
    return lambda t, v: [t.value(f"add {ints(64)} {v[0]}, {constant(-window if m[1] else window, 64)}")]


# -- comparisons -------------------------------------------------------------------------------------------------------------

_INTEGER = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT = {
    **{op: f"o{op}" for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{op}u": f"u{op}" for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    "num": "ord",
    "nan": "uno",
}


@_rule(r"setp\.(\w+?)(?:\.(and|or|xor))?(?:\.([bus])|(\.ftz)?\.f)(16|32|64)")
def _setp(m: re.Match[str]) -> Emit:
    bits, real = int(m[5]), m[3] is None

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        if real:
            a, b = (t.floating(flushed(t, x) if m[4] else x, bits) for x in v[:2])
            p = t.value(f"fcmp {_FLOAT[m[1]]} {floats(bits)} {a}, {b}")
        else:
            compare = _INTEGER.get(m[1]) or f"{'s' if m[3] == 's' else 'u'}{m[1]}"
            p = t.value(f"icmp {compare} {ints(bits)} {v[0]}, {v[1]}")
        q = t.value(f"xor {ints(1)} {p}, {constant(-1, 1)}")
        if m[2]:
            p, q = (t.value(f"{m[2]} {ints(1)} {x}, {v[2]}") for x in (p, q))
        return [p, q]

    return emit


# -- floats ------------------------------------------------------------------------------------------------------------------


def with_nans(t: Text, bits: int, out: str, operands: Sequence[str]) -> str:
    """``out``, a float, as bits; where it is NaN, the first operand that is NaN, or the host's default NaN.

    Three operands are those of a multiplication and addition.
    """
    kind = floats(bits)
    missing = t.value(f"fcmp uno {kind} {out}, {out}")
    found = t.bits(out, bits)

    def correct() -> str:
        nan = constant(HOST_NAN[bits], bits)
        for n, x in reversed(list(enumerate(operands))):
            f = t.floating(x, bits)
            quiet = t.value(f"or {ints(bits)} {x}, {constant(QUIET[bits], bits)}")
            nan = t.select(t.value(f"fcmp uno {kind} {f}, {f}"), bits, quiet, nan)
            if n == 2:  # the third operand is added to the product of the others, which may be invalid
                a, b = (t.floating(y, bits) for y in operands[:2])
                product = t.value(f"fmul {kind} {a}, {b}")
                invalid = t.value(f"fcmp uno {kind} {product}, {product}")
                nan = t.select(invalid, bits, constant(HOST_NAN[bits], bits), nan)
        return t.select(missing, bits, nan, found)

    return t.corrected(bits, found, missing, correct)


@_rule(r"(add|sub|mul|div)(?:\.rn)?\.f(32|64)")
def _arithmetic(m: re.Match[str]) -> Emit:
    bits = int(m[2])

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.floating(x, bits) for x in v)
        return [with_nans(t, bits, t.value(f"f{m[1]} {floats(bits)} {a}, {b}"), v)]

    return emit


@_rule(r"(?:fma|mad)\.rn\.f(32|64)")
def _fma(m: re.Match[str]) -> Emit:
    bits = int(m[1])

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        kind = floats(bits)
        operands = ", ".join(f"{kind} {t.floating(x, bits)}" for x in v)
        return [with_nans(t, bits, t.value(f"call {kind} @llvm.fma.v{LANES}f{bits}({operands})"), v)]

    return emit


@_rule(r"(add|sub|mul|fma|mad)(?:\.(rn|rz|rm|rp))?(\.ftz)?(\.sat)?\.f32")
def _rounded(m: re.Match[str]) -> Emit:
    code = Rounded(m[1], m[2] or "rn", bool(m[3]), bool(m[4]))
    return lambda t, v: code.emit(t, v, with_nans)


@_rule(r"(sqrt|rcp)\.rn\.f(32|64)")
def _root(m: re.Match[str]) -> Emit:
    bits = int(m[2])
    kind = floats(bits)

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], bits)
        call = f"fdiv {kind} {one(bits)}, {a}" if m[1] == "rcp" else f"call {kind} @llvm.sqrt.v{LANES}f{bits}({kind} {a})"
        return [with_nans(t, bits, t.value(call), v)]

    return emit


@_rule(r"(rcp|sqrt|rsqrt)\.approx(\.ftz)?\.f32")
def _approximate(m: re.Match[str]) -> Emit:
    """As numpy computes them: exactly rounded in f64, and then to f32."""

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        double = floats(64)
        given = flushed(t, v[0]) if m[2] else v[0]
        out = t.value(f"fpext {floats(32)} {t.floating(given, 32)} to {double}")
        if m[1] != "rcp":
            out = t.value(f"call {double} @llvm.sqrt.v{LANES}f64({double} {out})")
        if m[1] != "sqrt":
            out = t.value(f"fdiv {double} {one(64)}, {out}")
        out = with_nans(t, 32, t.value(f"fptrunc {double} {out} to {floats(32)}"), v)
        return [flushed(t, out) if m[2] else out]

    return emit


@_rule(r"div\.full(\.ftz)?\.f32")
def _divide_full(m: re.Match[str]) -> Emit:
    def emit(t: Text, v: Sequence[str]) -> list[str]:
        given = [flushed(t, x) if m[1] else x for x in v]
        a, b = (t.floating(x, 32) for x in given)
        out = with_nans(t, 32, t.value(f"fdiv {floats(32)} {a}, {b}"), v)
        return [flushed(t, out) if m[1] else out]

    return emit


@_rule(r"(neg|abs)(?:(\.ftz)?\.f32|\.f64)")
def _magnitude(m: re.Match[str]) -> Emit:
    bits = int(m[0][-2:])
    operation, other = ("xor", 1 << (bits - 1)) if m[1] == "neg" else ("and", (1 << (bits - 1)) - 1)

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        given = flushed(t, v[0]) if m[2] else v[0]
        return [t.value(f"{operation} {ints(bits)} {given}, {constant(other, bits)}")]

    return emit


@_rule(r"(min|max)(?:(\.ftz)?\.f32|\.f64)")
def _float_extremum(m: re.Match[str]) -> Emit:
    bits = int(m[0][-2:])
    kind, compare, zeros = floats(bits), *(("olt", "or") if m[1] == "min" else ("ogt", "and"))

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a, b = (t.floating(x, bits) for x in v[:2])
        no_a, no_b = (t.value(f"fcmp uno {kind} {x}, {x}") for x in (a, b))
        same = t.value(f"fcmp oeq {kind} {a}, {b}")
        first = t.value(f"fcmp {compare} {kind} {a}, {b}")
        out = t.select(first, bits, v[0], v[1])
        # equal values differ in the sign of zero alone
        out = t.select(same, bits, t.value(f"{zeros} {ints(bits)} {v[0]}, {v[1]}"), out)
        out = t.select(no_b, bits, v[0], out)
        out = t.select(no_a, bits, v[1], out)
        both = t.value(f"and {ints(1)} {no_a}, {no_b}")
        return [t.select(both, bits, constant(CANONICAL[bits], bits), out)]

    def every(t: Text, v: Sequence[str]) -> list[str]:
        given = [flushed(t, x) for x in v] if m[2] else v
        return emit(t, given) if len(given) == 2 else emit(t, [emit(t, given[:2])[0], given[2]])

    return every


# -- conversions -------------------------------------------------------------------------------------------------------------


@_rule(r"cvt\.[us](8|16|32|64)\.([us])(8|16|32|64)")
def _cvt(m: re.Match[str]) -> Emit:
    return lambda t, v: [t.resized(v[0], int(m[3]), int(m[1]), m[2] == "s")]


@_rule(r"cvt\.rn\.f(32|64)\.([us])(8|16|32|64)")
def _from_integer(m: re.Match[str]) -> Emit:
    bits = int(m[1])
    operation = "sitofp" if m[2] == "s" else "uitofp"
    return lambda t, v: [t.bits(t.value(f"{operation} {ints(int(m[3]))} {v[0]} to {floats(bits)}"), bits)]


_INTEGRAL = {"rzi": "trunc", "rni": "roundeven", "rmi": "floor", "rpi": "ceil"}


@_rule(r"cvt\.(rzi|rni|rmi|rpi)\.([us])(16|32|64)\.f(32|64)")
def _to_integer(m: re.Match[str]) -> Emit:
    want, bits = int(m[3]), int(m[4])
    kind = floats(bits)
    nan = -(1 << (want - 1)) if bits == 64 or want == 64 else 0

    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], bits)
        whole = t.value(f"call {kind} @llvm.{_INTEGRAL[m[1]]}.v{LANES}f{bits}({kind} {a})")
        name = f"llvm.fpto{m[2]}i.sat.v{LANES}i{want}.v{LANES}f{bits}"
        out = t.value(f"call {ints(want)} @{name}({kind} {whole})")
        missing = t.value(f"fcmp uno {kind} {a}, {a}")
        return [t.select(missing, want, constant(nan, want), out)]

    return emit


@_rule(r"cvt\.f64\.f32")
def _to_double(_: re.Match[str]) -> Emit:
    def emit(t: Text, v: Sequence[str]) -> list[str]:
        a = t.floating(v[0], 32)
        single = floats(32)
        out = t.bits(t.value(f"fpext {single} {a} to {floats(64)}"), 64)
        return [t.select(t.value(f"fcmp uno {single} {a}, {a}"), 64, constant(CANONICAL[64], 64), out)]

    return emit


@_rule(r"cvt\.rn\.f32\.f64")
def _to_single(_: re.Match[str]) -> Emit:
    return lambda t, v: [t.bits(t.value(f"fptrunc {floats(64)} {t.floating(v[0], 64)} to {floats(32)}"), 32)]


# -- moves -------------------------------------------------------------------------------------------------------------------


@_rule(r"mov\.(?:[busf](?:8|16|32|64)|pred)")
def _mov(_: re.Match[str]) -> Emit:
    return lambda t, v: [v[0]]


@cache
def packing(sources: tuple[int, ...], destinations: tuple[int, ...]) -> Emit | None:
    """mov between a register and the elements of a vector; the numbers are widths in bits."""
    if len(sources) == 1 and sum(destinations) == sources[0]:

        def unpack(t: Text, v: Sequence[str]) -> list[str]:
            out, shift = [], 0
            for bits in destinations:
                part = t.value(f"lshr {ints(sources[0])} {v[0]}, {constant(shift, sources[0])}")
                out.append(t.resized(part, sources[0], bits))
                shift += bits
            return out

        return unpack
    if len(destinations) == 1 and sum(sources) == destinations[0]:
        whole = destinations[0]

        def pack(t: Text, v: Sequence[str]) -> list[str]:
            out, shift = constant(0, whole), 0
            for x, bits in zip(v, sources, strict=True):
                wide = t.resized(x, bits, whole)
                moved = t.value(f"shl {ints(whole)} {wide}, {constant(shift, whole)}")
                out = t.value(f"or {ints(whole)} {out}, {moved}")
                shift += bits
            return [out]

        return pack
    return None


def declarations() -> str:
    """Declarations of LLVM's functions that the code may call."""
    lines = [f"declare i1 @llvm.vector.reduce.or.v{LANES}i1({ints(1)})"]
    for b in (32, 64):
        whole, n = ints(b), f"v{LANES}"
        for name, more in (("ctpop", ""), ("ctlz", ", i1"), ("bitreverse", "")):
            lines.append(f"declare {whole} @llvm.{name}.{n}i{b}({whole}{more})")
        kind = floats(b)
        lines.append(f"declare {kind} @llvm.fma.{n}f{b}({kind}, {kind}, {kind})")
        lines += [f"declare {kind} @llvm.{name}.{n}f{b}({kind})" for name in ("sqrt", *_INTEGRAL.values())]
        for sign in "su":
            lines += [f"declare {ints(w)} @llvm.fpto{sign}i.sat.{n}i{w}.{n}f{b}({kind})" for w in (16, 32, 64)]
    return "\n".join(lines) + "\n"
