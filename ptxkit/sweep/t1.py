"""Tile spaces in the auto-tuning community's T1 format, read as data: values are literals and conditions a small language.

T1 carries values and conditions as Python text, which other readers pass to ``eval``. Here values must be lists of
literals, and conditions may use parameters, numbers, arithmetic, comparisons,
``and``, ``or``, ``not`` and ``in``. Schema: github.com/odgaard/TuningSchema, ``TuningSchema.json``.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.files import read_text

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
LARGEST = 2**63
EXPECTED = "a T1 file is a JSON object with ConfigurationSpace.TuningParameters, a list of objects with Name and Values"


@dataclass(frozen=True)
class T1Space:
    """A tile space.

    Attributes:
        values: parameter -> values. conditions: expressions that must hold, as text.
    """

    values: Mapping[str, tuple[Any, ...]]
    conditions: tuple[str, ...]

    def allows(self, tile: Mapping[str, Any]) -> bool:
        """Whether every condition holds."""
        return all(evaluate(text, tile) for text in self.conditions)


def read(path: str | Path) -> T1Space:
    """The configuration space of a T1 file.

    Raises:
        UsageError: no such file, no T1, or an expression that is not understood; the message has it.
    """
    try:
        value = json.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no text, no JSON, a number of thousands of digits, or too deep
        raise UsageError(f"{path} is not JSON: {error}; {EXPECTED}") from None
    space = _member(value, "ConfigurationSpace", dict, path)
    parameters = _members(_member(space, "TuningParameters", list, path), ("Name", "Values"), path)
    texts = dict(parameters)
    conditions = tuple(
        text for (text,) in _members(_member(space, "Conditions", list, path, []), ("Expression",), path)
    )
    values = {name: literal(text, f"{path}: the values of {name}") for name, text in texts.items()}
    for text in conditions:
        sample = {name: options[0] for name, options in values.items()}
        try:
            evaluate(text, sample)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    return T1Space(values, conditions)


def _member(value: Any, name: str, kind: type, path: str | Path, default: Any = None) -> Any:
    """The object or the list that an object has under a name."""
    found = value.get(name, default) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        what = "an object" if kind is dict else "a list"
        raise UsageError(f"{path} is not a T1 tuning problem: it has no {name} that is {what}; {EXPECTED}")
    return found


def _members(entries: list[Any], names: tuple[str, ...], path: str | Path) -> list[tuple[Any, ...]]:
    """The values that each object of a list has under the names; the first is a string."""
    for entry in entries:
        if not isinstance(entry, dict) or not entry.keys() >= set(names) or not isinstance(entry[names[0]], str):
            raise UsageError(
                f"{path} is not a T1 tuning problem: {json.dumps(entry)[:80]} has no {' and '.join(names)}; {EXPECTED}"
            )
    return [tuple(entry[name] for name in names) for entry in entries]


def literal(text: Any, what: str) -> tuple[Any, ...]:
    """``"[16, 32]"`` as values.

    Raises:
        UsageError: it is not a list of numbers, booleans or strings.
    """
    try:
        found = ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UsageError(f"{what} must be a list of literals, not {str(text)[:80]!r}") from None
    good = isinstance(found, (list, tuple)) and found and all(isinstance(v, (int, float, str, bool)) for v in found)
    if not good:
        raise UsageError(f"{what} must be a list of literals, not {str(text)[:80]!r}")
    return tuple(found)


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """A condition's value, computed from its syntax tree; nothing is called.

    Raises:
        UsageError: an unknown name, anything that is not arithmetic and comparison, or a number that gets too large.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body, names)
    except (SyntaxError, RecursionError, ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise UsageError(f"the condition {text[:80]!r} cannot be used: {error}") from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value) if isinstance(value, (int, float, str, bool)):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"there is no parameter {name}")
            return names[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(e, names) for e in elements]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(p, names) for p in parts)
        case ast.BoolOp(values=parts):
            return any(_value(p, names) for p in parts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = _value(left, names), _value(right, names)
            if isinstance(op, ast.LShift) and b > 64:
                raise ValueError("a shift by more than 64")
            if not all(isinstance(v, (int, float)) for v in (a, b)):
                raise ValueError("arithmetic is for numbers")
            found = _ARITHMETIC[type(op)](a, b)
            if abs(found) > LARGEST:
                raise ValueError("a number that is too large")
            return found
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared(_value(left, names), ops, [_value(o, names) for o in others])
    raise ValueError(f"{ast.unparse(node)} is neither arithmetic nor a comparison")


def _compared(left: Any, ops: list[ast.cmpop], others: list[Any]) -> bool:
    for op, right in zip(ops, others, strict=True):
        if type(op) not in _COMPARE:
            raise ValueError("is and is not are not comparisons of numbers")
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
