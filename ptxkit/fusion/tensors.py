"""Tensors of a graph: names, shapes, dtypes and sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ptxkit.errors import UsageError
from ptxkit.workload.blame import short
from ptxkit.workload.workload import suggestion

Shaped: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype of a result."""

BITS = {
    "f64": 64,
    "f32": 32,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "e2m1": 4,
    "s64": 64,
    "s32": 32,
    "s8": 8,
    "u8": 8,
    "bool": 8,
}
"""Bits of an element in memory."""

SPELLINGS = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int64": "s64",
    "int32": "s32",
    "int8": "s8",
    "uint8": "u8",
}
"""The names of numpy and torch -> ptxkit's."""

FLOATS = ("e2m1", "e4m3", "e5m2", "f16", "bf16", "tf32", "f32", "f64")
PROMOTED = {
    frozenset(("e4m3", "e5m2")): "f16",
    frozenset(("f16", "bf16")): "f32",
    frozenset(("s8", "u8")): "s32",
}
"""Pairs of types of which neither holds all numbers of the other -> the smallest type here that holds those of both."""
ORDER = ("bool", "u8", "s8", "s32", "s64", *FLOATS)

MOST = 2**60  # elements; products of such numbers are still exact enough as floats


def checked_dtype(name: Any) -> str:
    """The dtype of that name, which may be numpy's or torch's. Raises UsageError for an unknown one."""
    spelled = SPELLINGS.get(name, name) if isinstance(name, str) else None
    if spelled not in BITS:
        raise UsageError(f"no dtype {short(name)}; {suggestion(str(name), BITS)}")
    return spelled


def is_float(dtype: str) -> bool:
    """Whether a type has floating-point numbers."""
    return dtype in FLOATS


def promoted(dtypes: Sequence[str]) -> str:
    """The type to which operands of several types are converted, whatever their order and their shapes.

    As torch does for arrays and numpy with ml_dtypes: the type that holds the numbers of all, a floating-point type if there
    is one among them (s64 and bf16 give bf16), and f32 for bf16 and f16.
    """
    floats = [dtype for dtype in dtypes if is_float(dtype)]
    found = max(floats or dtypes, key=ORDER.index)
    # a pair without a larger one among the operands: of three types, the third one may hold both
    pairs = [result for pair, result in PROMOTED.items() if pair <= set(floats or dtypes)]
    return max([found, *pairs], key=ORDER.index)


@dataclass(frozen=True)
class Tensor:
    """A tensor: a name, a shape, and the dtype of its elements, a key of :data:`BITS`."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def checked(cls, name: Any, shape: Any, dtype: Any) -> Tensor:
        """The tensor.

        Raises:
            UsageError: a name that is no text, a shape that is not a list of positive numbers, or an unknown dtype.
        """
        if not isinstance(name, str) or not name:
            raise UsageError(f"the name of a tensor must be a text, not {name!r}")
        if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
            raise UsageError(f"tensor {name!r}: the shape must be a list of numbers, not {short(shape)}")
        for extent in shape:
            if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
                raise UsageError(f"tensor {name!r}: the shape must consist of positive numbers, not {short(extent)}")
        if math.prod(shape) > MOST:
            raise UsageError(f"tensor {name!r}: the shape must have at most 2^60 elements in all")
        try:
            return cls(name, tuple(shape), checked_dtype(dtype))
        except UsageError as error:
            raise UsageError(f"tensor {name!r}: {error}") from None

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        """Its size in memory."""
        return self.elements * BITS[self.dtype] / 8


def broadcast(inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that all inputs are broadcast to, by numpy's rules, for any number of axes. Raises UsageError."""
    rank = max(len(tensor.shape) for tensor in inputs)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in inputs]
    result = []
    for extents in zip(*padded, strict=True):
        wanted = {extent for extent in extents if extent != 1}
        if len(wanted) > 1:
            shapes = " and ".join(short(list(tensor.shape)) for tensor in inputs)
            raise UsageError(f"the shapes {shapes} cannot be broadcast")
        result.append(max(extents))
    return tuple(result)
