"""Attributes of operations, checked: every function raises UsageError that names the attribute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.fusion.tensors import MOST, checked_dtype
from ptxkit.workload.blame import short

Attributes = Mapping[str, Any]


def dtype_of(attributes: Attributes, default: str) -> str:
    """The attribute ``dtype``, else the default. Raises UsageError."""
    return checked_dtype(attributes.get("dtype", default))


def finite(attributes: Attributes, name: str) -> float:
    """An attribute that is a finite number. Raises UsageError."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise UsageError(f"the attribute {name!r} must be a number, not {short(value)}")
    return float(value)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the floating-point numbers
        return False


def boolean(attributes: Attributes, name: str) -> bool:
    """An attribute that is true or false; without it, false. Raises UsageError."""
    value = attributes.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"the attribute {name!r} must be true or false, not {short(value)}")
    return value


def number(attributes: Attributes, name: str, default: int) -> int:
    """An attribute that is a whole number from 1. Raises UsageError."""
    value = attributes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise UsageError(f"{name} must be a positive number, not {short(value)}")
    return value
