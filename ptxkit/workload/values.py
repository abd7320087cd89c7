"""The values of a workload's sizes and options: parsing, conversion and ranges."""

from __future__ import annotations

import re
import typing
from typing import Any, Literal

from ptxkit.errors import UsageError

LARGEST_SIZE = 2**31 - 1  # kernels have sizes as 32-bit integers, and it is the maximum of gridDim.x


def parse_size(kernel: str, name: str, text: str | int) -> int:
    """A size from the command line; UsageError if it is not a whole number. Its range is checked later."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    digits = str(text).strip()
    if not re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", digits):
        raise UsageError(f"{kernel}: size {name} must be a whole number, not {text!r}")
    return int(digits) if len(digits) < 4000 else LARGEST_SIZE + 1  # int() does not accept longer ones


def check_size(kernel: str, name: str, value: Any) -> None:
    """Raise UsageError unless a size is a whole number in the range of a kernel's 32-bit integers."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{kernel}: size {name} must be a whole number, not {value!r}")
    if value < 1:
        raise UsageError(f"{kernel}: size {name} must be at least 1, not {value}")
    if value > LARGEST_SIZE:
        shown = str(value) if value < 10**20 else "what is given"
        raise UsageError(f"{kernel}: size {name} must be at most {LARGEST_SIZE} (2^31 - 1), not {shown}")


def option_value(kernel: str, name: str, kind: Any, value: Any) -> Any:
    """An option converted to its declared type; UsageError if that is not possible."""
    if typing.get_origin(kind) is Literal:
        for choice in typing.get_args(kind):
            if str(value) == str(choice):
                return choice
        known = ", ".join(map(str, typing.get_args(kind)))
        raise UsageError(f"{kernel}: option {name} must be one of {known}, not {value!r}")
    if kind is bool and isinstance(value, str):
        if value.lower() not in ("true", "false", "1", "0"):
            raise UsageError(f"{kernel}: option {name} must be true or false, not {value!r}")
        return value.lower() in ("true", "1")
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{kernel}: option {name} must be {kind.__name__}, not {value!r}") from None
