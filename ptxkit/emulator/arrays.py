"""Names for the types of the numpy arrays that instructions work on.

A lane array has one value for each thread of a wave, on the axes (CTAs, warps of a CTA, 32). An axis has length 1 where the
value is the same along it; numpy broadcasts, so that a value common to the whole wave is computed once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Lanes: TypeAlias = NDArray[Any]
"""A lane array of any dtype. The dtype follows from the PTX type of an operand, which the type checker cannot know. Arrays with
a fixed dtype have one of the types below."""

Mask: TypeAlias = NDArray[np.bool_]
"""Booleans: the lanes that take part in an operation, or the values of a predicate."""

Bytes: TypeAlias = NDArray[np.uint8]
"""Bytes of memory."""

Words: TypeAlias = NDArray[np.uint32]
"""Values of 32-bit registers."""

Addresses: TypeAlias = NDArray[np.uint64]
"""Byte addresses in a PTX state space, or generic addresses."""

Index: TypeAlias = NDArray[np.int64]
"""Indices of threads in a wave, of elements in memory, or of bytes."""

Elements: TypeAlias = slice | Index
"""Selects some elements of an asynchronous operation: an index for the arrays of the operation."""

Shape: TypeAlias = tuple[int, int, int]
"""Shape of a lane array: (CTAs, warps of a CTA, 32)."""

Results: TypeAlias = Lanes | tuple[Lanes | None, ...] | None
"""What a step returns: the lanes of its destination, a tuple for several (None for one that is omitted), or None."""


def distinct(values: NDArray[np.integer[Any]]) -> list[int]:
    """The different values of a few, in ascending order. ``np.unique`` imports ``numpy.ma`` when it is first called."""
    return sorted(set(values.ravel().tolist()))
