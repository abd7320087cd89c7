"""Values of expressions in one thread, computed as C computes them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptxkit.debugger.ctypes import BOOL, C_TYPES, DOUBLE, FLOAT, INT, LONG, UINT, ULONG, CType, array_of, pointer_to
from ptxkit.debugger.memory import Location, located
from ptxkit.debugger.syntax import Node
from ptxkit.errors import UsageError

MAX_ELEMENTS = 1 << 20
"""Elements that one slice may have."""


@dataclass(frozen=True)
class Value:
    """A value with its type.

    Attributes:
        raw: its bytes; None without a value.
        location: its location in memory; None for a register or a computed value.
        missing: the reason why there is no value: ``"<not written>"``, ``"<optimised out>"``.
    """

    type: CType
    raw: bytes | None
    location: Location | None = None
    missing: str = ""

    @property
    def python(self) -> Any:
        """The value as a Python int, float, bool, list or dict; None without a value."""
        return None if self.raw is None else self.type.decode(self.raw)


class Scope(Protocol):
    """The meaning of names and addresses for one thread."""

    def name(self, name: str) -> Value: ...
    def register(self, name: str) -> Value: ...
    def memory(self, where: Location, nbytes: int) -> bytes: ...


def evaluate(node: Node, scope: Scope) -> Value:
    """The value of an expression.

    Raises:
        UsageError: an unknown name, an operation that the types do not have, memory that cannot be read, or a
            computation with a missing value.
    """
    match node.op:
        case "number":
            return _literal(node.value)
        case "name":
            return scope.name(node.value)
        case "register":
            return scope.register(node.value)
        case "cast":
            return _cast(evaluate(node.operands[0], scope), node.value)
        case "?":
            return evaluate(node.operands[1 if _truth(evaluate(node.operands[0], scope)) else 2], scope)
        case "&&" | "||":
            known = _truth(evaluate(node.operands[0], scope))
            if known == (node.op == "||"):
                return _of(BOOL, known)
            return _of(BOOL, _truth(evaluate(node.operands[1], scope)))
        case "index":
            base, index = (evaluate(n, scope) for n in node.operands)
            return _element(base, _integer(index), scope)
        case "slice":
            base, first, last = (evaluate(n, scope) for n in node.operands)
            return _slice(base, _integer(first), _integer(last), scope)
        case "@":
            base, count = (evaluate(n, scope) for n in node.operands)
            return _repeated(base, _integer(count), scope)
        case "member":
            return _member(evaluate(node.operands[0], scope), node.value)
        case "unary*":
            return _element(evaluate(node.operands[0], scope), 0, scope)
        case "unary&":
            return _address(evaluate(node.operands[0], scope))
        case "unary!":
            return _of(BOOL, not _truth(evaluate(node.operands[0], scope)))
        case "unary-" | "unary+" | "unary~":
            value = evaluate(node.operands[0], scope)
            made = _promoted(value)
            number = _number(value)
            if node.op == "unary~":
                return _of(made, ~_integer(value))
            return _of(made, -number if node.op == "unary-" else number)
        case _:
            left, right = (evaluate(n, scope) for n in node.operands)
            return _binary(node.op, left, right)


def truth(node: Node, scope: Scope) -> bool:
    """Whether a condition holds."""
    return _truth(evaluate(node, scope))


# -- leaves ------------------------------------------------------------------------------------------------------------


def _of(made: CType, number: Any) -> Value:
    return Value(made, made.encode(number))


def _literal(text: str) -> Value:
    body = text.rstrip("uUlL") if text[:2].lower() == "0x" or not any(c in text for c in ".eE") else text
    if text[:2].lower() != "0x" and any(c in text for c in ".eE"):
        return _of(FLOAT if text[-1] in "fF" else DOUBLE, float(text.rstrip("fF")))
    number = int(body, 16) if body[:2].lower() == "0x" else int(body, 10)
    suffix = text[len(body) :].lower()
    hexadecimal = body[:2].lower() == "0x"
    choices = [UINT, ULONG] if "u" in suffix else [INT, UINT, LONG, ULONG] if hexadecimal else [INT, LONG, ULONG]
    if "l" in suffix:
        choices = [c for c in choices if c.size == 8]
    for made in choices:
        if made.decode(made.encode(number)) == number:
            return _of(made, number)
    raise UsageError(f"{text} does not fit 64 bits")


def _number(value: Value) -> Any:
    if value.raw is None:
        raise UsageError(f"the value is {value.missing}")
    if not value.type.scalar:
        raise UsageError(f"{value.type.name} is not a number")
    return value.python


def _integer(value: Value) -> int:
    number = _number(value)
    if isinstance(number, float):
        raise UsageError(f"{number} is not an integer")
    return int(number)


def _truth(value: Value) -> bool:
    return bool(_number(value))


# -- memory ------------------------------------------------------------------------------------------------------------


def load(made: CType, where: Location, scope: Scope) -> Value:
    """The value at an address, read as a type."""
    return Value(made, scope.memory(where, made.size), where)


def _base(value: Value) -> tuple[CType, Location]:
    """Element type and first location of a pointer or an array."""
    if value.type.kind == "array" and value.type.target is not None:
        if value.location is None:
            raise UsageError(f"{value.type.name} is not in memory")
        return value.type.target, value.location
    if value.type.kind != "pointer" or value.type.target is None:
        raise UsageError(f"{value.type.name} is not a pointer or array; a cast makes one: (float*)%rd1")
    if value.type.target.size == 0:
        raise UsageError(f"{value.type.name} has no element type; cast it: (float*)p")
    return value.type.target, located(_integer(value), value.type.space)


def _element(base: Value, index: int, scope: Scope) -> Value:
    if base.type.kind == "array" and base.location is None and base.raw is not None and base.type.target is not None:
        size = base.type.target.size
        if not 0 <= index < base.type.count:
            raise UsageError(f"index {index} is outside {base.type.name}")
        return Value(base.type.target, base.raw[index * size : (index + 1) * size])
    target, where = _base(base)
    return load(target, Location(where.space, where.address + index * target.size), scope)


def _slice(base: Value, first: int, last: int, scope: Scope) -> Value:
    if last <= first:
        raise UsageError(f"[{first}:{last}] has no elements; [first:last] takes the elements before last")
    if last - first > MAX_ELEMENTS:
        raise UsageError(f"[{first}:{last}] has {last - first:,} elements; the limit is {MAX_ELEMENTS:,}")
    target, where = _base(base)
    start = Location(where.space, where.address + first * target.size)
    return load(array_of(target, last - first), start, scope)


def _repeated(base: Value, count: int, scope: Scope) -> Value:
    if base.location is None and base.type.kind != "pointer":
        raise UsageError("@ takes something in memory on its left, such as x[4]@8")
    if not 1 <= count <= MAX_ELEMENTS:
        raise UsageError(f"@{count}: the number of elements is 1 to {MAX_ELEMENTS:,}")
    if base.type.kind == "pointer" and base.location is None:
        target, where = _base(base)
    else:
        assert base.location is not None
        target, where = base.type, base.location
    return load(array_of(target, count), where, scope)


def _member(value: Value, name: str) -> Value:
    if value.type.kind != "struct":
        raise UsageError(f"{value.type.name} has no members; .{name} needs a structure")
    field = next((f for f in value.type.fields if f.name == name), None)
    if field is None:
        raise UsageError(
            f"{value.type.name} has no member {name}; it has {', '.join(f.name for f in value.type.fields)}"
        )
    raw = None if value.raw is None else value.raw[field.offset : field.offset + field.type.size]
    where = value.location
    return Value(
        field.type, raw, None if where is None else Location(where.space, where.address + field.offset), value.missing
    )


def _address(value: Value) -> Value:
    if value.location is None:
        raise UsageError("& takes something in memory; a register or a computed value has no address")
    space = "" if value.location.space == "global" else value.location.space
    made = pointer_to(value.type, space)
    return _of(made, value.location.address)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _cast(value: Value, made: CType) -> Value:
    if value.type.kind == "array" and made.kind == "pointer":
        value = _decayed(value, made)
    number = _number(value)
    if value.type.kind == "pointer" and made.kind == "pointer" and not made.space:
        made = pointer_to(made.target or C_TYPES["void"], value.type.space)
    if value.type.kind == "bits" and made.kind == "float" and made.size == value.type.size:
        return Value(made, value.raw)  # untyped bits have no number of their own to convert
    if made.kind != "float" and isinstance(number, float):
        if number != number or number in (float("inf"), float("-inf")):
            raise UsageError(f"{number} has no integer value")
        number = int(number)
    if made.kind == "void" or not made.scalar:
        raise UsageError(f"cannot cast to {made.name}")
    return _of(made, bool(number) if made.kind == "bool" else number)


def _decayed(value: Value, made: CType) -> Value:
    if value.location is None:
        raise UsageError(f"{value.type.name} is not in memory")
    space = "" if value.location.space == "global" else value.location.space
    target = made.target or C_TYPES["void"]
    return _of(pointer_to(target, space), value.location.address)


def _promoted(value: Value) -> CType:
    made = value.type
    if made.kind == "float":
        return DOUBLE if made.size == 8 else FLOAT
    if made.kind == "pointer":
        return ULONG
    unsigned = made.kind in ("uint", "bits")
    if made.size == 8:
        return ULONG if unsigned else LONG
    return UINT if unsigned and made.size == 4 else INT


def _common(left: Value, right: Value) -> CType:
    a, b = _promoted(left), _promoted(right)
    if "float" in (a.kind, b.kind):
        return DOUBLE if DOUBLE in (a, b) else FLOAT
    size = max(a.size, b.size)
    unsigned = any(t.kind == "uint" and t.size == size for t in (a, b))
    return {(4, False): INT, (4, True): UINT, (8, False): LONG, (8, True): ULONG}[size, unsigned]


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_BITWISE: dict[str, Callable[[int, int], int]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


def _binary(op: str, left: Value, right: Value) -> Value:
    if op in ("+", "-") and (left.type.kind in ("pointer", "array") or right.type.kind in ("pointer", "array")):
        return _pointer_sum(op, left, right)
    if op in _COMPARE:
        return _of(BOOL, _COMPARE[op](*_compared(left, right)))
    made = _common(left, right)
    a, b = _number(left), _number(right)
    if op in _BITWISE:
        return _of(made, _BITWISE[op](_integer(left), _integer(right)))
    if op in ("<<", ">>"):
        made = _promoted(left)
        x, bits = made.decode(made.encode(_integer(left))), _integer(right)
        if not 0 <= bits < made.size * 8:
            raise UsageError(f"a shift by {bits} of {made.size * 8} bits")
        return _of(made, x << bits if op == "<<" else x >> bits)
    if made.kind != "float":
        a, b = made.decode(made.encode(a)), made.decode(made.encode(b))
    match op:
        case "+":
            return _of(made, a + b)
        case "-":
            return _of(made, a - b)
        case "*":
            return _of(made, a * b)
    if made.kind == "float":
        if op == "%":
            raise UsageError("% takes integers")
        with np.errstate(all="ignore"):  # as on the device: an infinity, or NaN for 0 / 0
            return _of(made, float(np.float64(a) / np.float64(b)))
    if b == 0:
        raise UsageError("division by zero")
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return _of(made, quotient if op == "/" else a - quotient * b)


def _compared(left: Value, right: Value) -> tuple[Any, Any]:
    a, b = _number(left), _number(right)
    made = _common(left, right)
    if made.kind == "float":
        return made.decode(made.encode(a)), made.decode(made.encode(b))
    return made.decode(made.encode(a)), made.decode(made.encode(b))


def _pointer_sum(op: str, left: Value, right: Value) -> Value:
    if left.type.kind not in ("pointer", "array"):
        left, right = right, left
        if op == "-":
            raise UsageError("cannot subtract a pointer from a number")
    target, where = _base(left)
    if right.type.kind in ("pointer", "array"):
        if op == "+":
            raise UsageError("cannot add two pointers")
        return _of(LONG, (where.address - _base(right)[1].address) // target.size)
    step = _integer(right) * target.size
    space = "" if where.space == "global" else where.space
    made = left.type if left.type.kind == "pointer" else pointer_to(target, space)
    start = _integer(left) if left.type.kind == "pointer" else where.address
    return _of(made, start + (step if op == "+" else -step))
