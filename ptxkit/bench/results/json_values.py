"""JSON values as dataclasses, each field checked by its type, and by its sign where the type says one."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal

from ptxkit.errors import UsageError

Positive = Annotated[float, "a number above 0"]  # such as a time: what is divided by it is a number
NotNegative = Annotated[float, "a number, 0 or more"]  # such as a spread


def read_as(kind: type[Any], value: Any, where: str = "") -> Any:
    """A JSON object as a dataclass of that kind; what it has no field for is left out.

    Raises:
        UsageError: a field is missing or of the wrong type; the message begins with its place, below ``where``.
    """
    try:
        return _read(kind, value, where)
    except _Wrong as error:
        raise UsageError(str(error)) from None


NAMES = {int: "a whole number", str: "a string", bool: "true or false"}


class _Wrong(Exception):
    """A JSON value that is not what the schema says; names its place."""


def _read(kind: Any, value: Any, where: str) -> Any:
    """``value`` as ``kind``, a dataclass or the type of one's field."""
    if dataclasses.is_dataclass(kind):
        return _read_object(kind, value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        _expect(number and (value > 0 or (kind == NotNegative and value == 0)), value, where, args[1])
        return float(value)
    if origin in (UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _read(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        return _expect(value in args, value, where, f"one of {', '.join(map(str, args))}")
    if origin is tuple:
        _expect(isinstance(value, list) and len(value) == len(args), value, where, f"{len(args)} values")
        return tuple(_read(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))
    if origin is Sequence:
        _expect(isinstance(value, list), value, where, "a list")
        return [_read(args[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is Mapping:
        _expect(isinstance(value, dict), value, where, "an object")
        return {name: _read(args[1], v, f"{where}.{name}") for name, v in value.items()}
    if kind is Any:
        return value
    if kind is float:
        if value is None:  # NaN and infinity, which JSON lacks
            return float("inf")
        return float(_expect(isinstance(value, (int, float)) and not isinstance(value, bool), value, where, "a number"))
    wrong_bool = isinstance(value, bool) and kind is not bool  # which Python counts among the whole numbers
    return _expect(isinstance(value, kind) and not wrong_bool, value, where, NAMES.get(kind, kind.__name__))


def _read_object(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, where or "the file", "an object")
    hints = typing.get_type_hints(kind, include_extras=True)
    given = {}
    for f in dataclasses.fields(kind):
        place = f"{where}.{f.name}".lstrip(".")
        if f.name in value:
            given[f.name] = _read(hints[f.name], value[f.name], place)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise _Wrong(f"{place} is missing")
    return kind(**given)


def _expect(holds: bool, value: Any, where: str, what: str) -> Any:
    if not holds:
        raise _Wrong(f"{where} must be {what}, not {json.dumps(value)[:60]}")
    return value
