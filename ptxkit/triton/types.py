"""Types of the parameters of a Triton function, in the words of its signatures: ``*fp32``, ``i32``, ``*bf16:16``.

The words and the rules by which Triton derives them from the arguments of a launch are those of ``triton/runtime/jit.py`` and
``triton/tools/compile.py``: an address or a number that is divisible by 16 is marked as such, and a whole number 1 becomes a
constant, unless the function's decorator excludes the parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit.errors import UsageError

ELEMENTS = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "i1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}
"""Triton's name of an element type -> numpy's."""

DIVISOR = 16
"""The divisor that Triton's compiler can be told about."""

_NAMES = {numpy: triton for triton, numpy in ELEMENTS.items()}
_TYPE = re.compile(r"(\*?)([a-z]\w*)(?::(\d+))?")


@dataclass(frozen=True)
class ArgumentType:
    """The type of a parameter that a kernel takes at run time.

    Attributes:
        element: Triton's name of the type of the number, or of the elements that a pointer points to.
        pointer: whether it is a pointer.
        divisible: whether the address or the number is a multiple of 16.
    """

    element: str
    pointer: bool = False
    divisible: bool = False

    @property
    def word(self) -> str:
        """As a signature of Triton has it: ``*fp32``."""
        return f"{'*' * self.pointer}{self.element}"

    @property
    def dtype(self) -> str:
        """numpy's name of the type of elements."""
        return ELEMENTS[self.element]

    @property
    def declaration(self) -> str:
        """As a declaration of C would have it, with numpy's names: ``float32*``."""
        return f"{self.dtype}{'*' * self.pointer}"


def parse_type(text: str) -> ArgumentType | None:
    """``"*fp32:16"`` as a type; None if the text is no type.

    Raises:
        UsageError: the form of a type, with elements or a divisor that Triton does not have.
    """
    match = _TYPE.fullmatch(text)
    if match is None or (not match[1] and match[2] not in ELEMENTS):
        return None
    pointer, element, divisor = match.groups()
    if element not in ELEMENTS:
        raise UsageError(f"there is no element type {element!r} in Triton; types are {', '.join(ELEMENTS)}")
    if divisor not in (None, "", str(DIVISOR)):
        raise UsageError(f"{text}: only :{DIVISOR} states a divisor, as for triton.tools.compile")
    return ArgumentType(element, bool(pointer), divisor is not None)


def pointer_to(dtype: str, divisible: bool = True) -> ArgumentType:
    """A pointer to elements with numpy's name of their type.

    Raises:
        UsageError: Triton has no such elements.
    """
    if dtype not in _NAMES:
        raise UsageError(f"Triton has no pointers to {dtype}; it has {', '.join(_NAMES)}")
    return ArgumentType(_NAMES[dtype], True, divisible)


def number_type(value: Any, declared: str = "", specialize: bool = True) -> ArgumentType | None:
    """The type in which Triton passes a number; None where it becomes a constant.

    Args:
        value: a number of Python or numpy.
        declared: the type in the annotation of the parameter; "" without one.
        specialize: whether the value may become part of the code.

    Raises:
        UsageError: no number, or none that fits into 64 bits.
    """
    if declared:
        return ArgumentType(declared)
    if isinstance(value, bool | np.bool_):
        return ArgumentType("i1")
    if isinstance(value, float | np.floating):
        return ArgumentType("fp32")
    if not isinstance(value, int | np.integer):
        raise UsageError(f"a kernel of Triton takes numbers and arrays, not a {type(value).__name__}")
    number = int(value)
    if specialize and number == 1:
        return None
    divisible = specialize and number % DIVISOR == 0
    for element, low, high in (("i32", -(1 << 31), 1 << 31), ("i64", -(1 << 63), 1 << 63), ("u64", 0, 1 << 64)):
        if low <= number < high:
            return ArgumentType(element, divisible=divisible)
    raise UsageError(f"{number:.6g} does not fit into 64 bits")
