"""Literals and constant expressions (PTX ISA, "Constants").

Integers are 64 bits wide and signed or unsigned; the rules for which one an expression is are the manual's, "Integer
Constant Expression Evaluation". A value is kept as a Python int inside the range of its type.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ptxkit.isa.lexer import Tokens
from ptxkit.isa.model import Immediate

WARP_SIZE = 32  # the constant WARP_SZ; 32 on every target so far

_INTEGER = re.compile(
    r"(?:0[xX](?P<hex>[0-9A-Fa-f]+)|0[bB](?P<bin>[01]+)|(?P<dec>[1-9]\d*|0)|0(?P<oct>[0-7]+))(?P<u>U?)"
)
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
_EXACT = re.compile(r"0(?:[fF](?P<f32>[0-9A-Fa-f]{8})|[dD](?P<f64>[0-9A-Fa-f]{16}))")
_BASES = {"hex": 16, "bin": 2, "dec": 10, "oct": 8}


@dataclass(frozen=True, slots=True)
class _Value:
    """An intermediate value of an expression: an int (signed or not), a float, or an exact f32 / f64."""

    number: int | float
    unsigned: bool = False
    width: int = 0
    bits: int = 0


def _integer(number: int, unsigned: bool) -> _Value:
    number &= 0xFFFF_FFFF_FFFF_FFFF
    if not unsigned and number >> 63:
        number -= 1 << 64
    return _Value(number, unsigned)


def _exact(bits: int, width: int) -> _Value:
    number = struct.unpack("<f" if width == 32 else "<d", bits.to_bytes(width // 8, "little"))[0]
    # math.nan itself, so that two immediates with the same bits compare equal
    return _Value(math.nan if math.isnan(number) else number, width=width, bits=bits)


def _literal(text: str) -> _Value | None:
    """The value of a number token, or None if it is not one or does not fit 64 bits."""
    if match := _INTEGER.fullmatch(text):
        digits, base = next((match[kind], base) for kind, base in _BASES.items() if match[kind] is not None)
        number = int(digits, base)
        return None if number >> 64 else _Value(number, bool(match["u"]) or number >> 63 != 0)
    if match := _EXACT.fullmatch(text):
        return _exact(int(match["f32"], 16), 32) if match["f32"] else _exact(int(match["f64"], 16), 64)
    if _FLOAT.fullmatch(text) and math.isfinite(value := float(text)):
        return _Value(value)
    return None


def parse_constant(tokens: Tokens) -> Immediate:
    """Takes a constant expression; a lone literal is one too.

    Raises:
        PtxSyntaxError: no constant stands here, or the expression divides by zero or mixes integers and floats.
    """
    i = tokens.i
    text = tokens.texts[i]
    if text.isdecimal() and (text[0] != "0" or text == "0") and len(text) < 19:
        following = tokens.texts[i + 1]
        if following in _ENDS or following[:1] == ".":
            tokens.i = i + 1  # fast path: nearly every constant is a single literal
            return Immediate(int(text))
    value = _ternary(tokens)
    return Immediate(value.number, value.width, value.bits)


def parse_integer(tokens: Tokens, what: str) -> int:
    """Takes a constant expression that must be an integer; ``what`` names it in error messages."""
    start = tokens.i
    value = parse_constant(tokens).value
    if not isinstance(value, int):
        raise tokens.expected(f"{what}, an integer", start)
    return value


_ENDS = frozenset((",", ";", "]", "}", ")"))

# Binary operators by precedence, the lowest first (PTX ISA, "Constant Expressions", operator precedence).
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), (">>", "<<"), ("+", "-"), ("*",
    "/", "%"),
)  # fmt: skip

_PLAIN: dict[str, Callable[..., int | float]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def _ternary(tokens: Tokens) -> _Value:
    start = tokens.i
    condition = _binary(tokens, 0)
    if not tokens.skip("?"):
        return condition
    if isinstance(condition.number, float):
        raise tokens.error("the condition of ?: must be an integer", start)
    start = tokens.i
    then = _ternary(tokens)
    tokens.expect(":", "in a conditional expression")
    otherwise = _ternary(tokens)
    if isinstance(then.number, float) != isinstance(otherwise.number, float):
        raise tokens.error("the two results of ?: must be both integers or both floats", start)
    chosen = then if condition.number else otherwise
    if isinstance(chosen.number, float):
        return chosen
    return _integer(chosen.number, then.unsigned or otherwise.unsigned)


def _binary(tokens: Tokens, level: int) -> _Value:
    if level == len(_LEVELS):
        return _unary(tokens)
    left = _binary(tokens, level + 1)
    while tokens.text in _LEVELS[level]:
        at = tokens.i
        operator = tokens.take()
        left = _apply(tokens, at, operator, left, _binary(tokens, level + 1))
    return left


def _apply(tokens: Tokens, at: int, operator: str, left: _Value, right: _Value) -> _Value:
    a, b = left.number, right.number
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, float) and isinstance(b, float)):
            raise tokens.error(f"'{operator}' mixes an integer and a float; PTX has no cast between them", at)
        if operator in _COMPARISONS:
            return _Value(int(_COMPARISONS[operator](a, b)))
        if operator not in ("+", "-", "*", "/"):
            raise tokens.error(f"'{operator}' takes integers", at)
        if operator == "/" and not b:
            raise tokens.error("division by zero in a constant expression", at)
        return _Value(a / b if operator == "/" else float(_PLAIN[operator](a, b)))
    unsigned = left.unsigned or right.unsigned
    if operator in ("&&", "||"):
        return _Value(int(bool(a) and bool(b)) if operator == "&&" else int(bool(a) or bool(b)))
    if operator in ("<<", ">>"):
        count = min(b & 0xFFFF_FFFF_FFFF_FFFF, 64)  # shifting by 64 gives the same result as by more
        return _integer(a << count if operator == "<<" else a >> count, left.unsigned)
    if unsigned or operator == "%":  # the remainder treats both operands as unsigned
        a, b = a & 0xFFFF_FFFF_FFFF_FFFF, b & 0xFFFF_FFFF_FFFF_FFFF
    if operator in _COMPARISONS:
        return _Value(int(_COMPARISONS[operator](a, b)))
    if operator in ("/", "%"):
        if not b:
            raise tokens.error("division by zero in a constant expression", at)
        if operator == "%":
            return _integer(a % b, False)
        quotient = abs(a) // abs(b)
        return _integer(quotient if (a < 0) == (b < 0) else -quotient, unsigned)
    return _integer(int(_PLAIN[operator](a, b)), unsigned)


def _unary(tokens: Tokens) -> _Value:
    at = tokens.i
    text = tokens.take()
    if text in ("+", "-"):
        value = _unary(tokens)
        if text == "+":
            return value
        if value.width:
            return _exact(value.bits ^ 1 << value.width - 1, value.width)
        return _Value(-value.number) if isinstance(value.number, float) else _integer(-value.number, value.unsigned)
    if text in ("!", "~"):
        number = _unary(tokens).number
        if isinstance(number, float):
            raise tokens.error(f"'{text}' takes an integer", at)
        return _Value(int(not number)) if text == "!" else _integer(~number, True)
    if text == "(":
        if tokens.text in (".s64", ".u64"):
            unsigned = tokens.take() == ".u64"
            tokens.expect(")", "after a cast")
            number = _unary(tokens).number
            if isinstance(number, float):
                raise tokens.error("PTX has no cast from float to integer in constant expressions", at)
            return _integer(number, unsigned)
        value = _ternary(tokens)
        tokens.expect(")", "in a constant expression")
        return value
    if text == "WARP_SZ":
        return _Value(WARP_SIZE)
    literal = _literal(text)
    if literal is None:
        tokens.i = at
        if text[:1].isdigit():
            raise tokens.error(f"'{text}' is not a number PTX knows, or does not fit 64 bits", at)
        raise tokens.expected("a constant", at)
    return literal
