"""Types of the numpy arrays that instructions work on.

A lane array has one value for each thread of a wave, on the axes (CTAs, warps of a CTA, 32). An axis has length 1 where the
value is the same along it; numpy broadcasts, so that a value common to the whole wave is computed once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Lanes: TypeAlias = NDArray[Any]
"""A lane array. Its dtype is that of the PTX type of an operand, which is known when an instruction is bound, not to the type
checker; arrays whose dtype is fixed have one of the types below."""

Mask: TypeAlias = NDArray[np.bool_]
"""Lanes that take part, or for which a predicate holds."""

Bytes: TypeAlias = NDArray[np.uint8]
"""Memory."""

Words: TypeAlias = NDArray[np.uint32]
"""32-bit registers."""

Addresses: TypeAlias = NDArray[np.uint64]
"""Byte addresses as PTX has them."""

Index: TypeAlias = NDArray[np.int64]
"""Positions: of threads in a wave, of elements in memory, of bytes."""

Elements: TypeAlias = slice | Index
"""Some elements of an asynchronous operation, as the index of its arrays."""

Shape: TypeAlias = tuple[int, int, int]
"""Of a lane array."""

Results: TypeAlias = Lanes | tuple[Lanes | None, ...] | None
"""What a step returns: the lanes of its destination, a tuple for several (None for one that is omitted), or None."""
