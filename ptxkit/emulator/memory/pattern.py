"""Address patterns: what follows from the addresses of a set of lanes, worked out once and remembered.

Patterns repeat: the next iteration of a loop, and the next wave, touch the same addresses shifted by a constant. So a pattern
is kept relative to its first lane, with its extent, element indices, sectors and bank conflicts, and most executions only
compare.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Pattern:
    """Relative byte offsets of a set of lanes, and what follows from them."""

    __slots__ = (
        "base",
        "bits",
        "c",
        "contiguous",
        "first",
        "high",
        "indices",
        "low",
        "mask",
        "offsets",
        "remote",
        "shape",
        "units",
    )

    def __init__(self, base: Any, mask: Any, size: int, c: Any) -> None:
        self.base = base
        self.mask = mask
        self.c = c
        self.shape = base.shape
        flat = base.reshape(-1)
        self.first = 0 if mask is None else int(np.argmax(np.broadcast_to(mask, base.shape)))
        origin = flat[self.first]
        if mask is not None:
            base = np.where(mask, base, origin)
        self.offsets: NDArray[np.uint64] = base - origin
        signed = self.offsets.view(np.int64)
        self.low = int(signed.min())
        self.high = int(signed.max())
        self.bits = int(np.bitwise_or.reduce(self.offsets, axis=None))
        indices = (signed - self.low) >> (size.bit_length() - 1)
        n = indices.size
        self.contiguous = (
            mask is None
            and n * size == self.high - self.low + size
            and int(signed.reshape(-1)[0]) == self.low
            and bool((indices.reshape(-1) == np.arange(n)).all())
        )
        self.indices = indices
        self.units: dict[Any, Any] = {}
        self.remote: Any = None  # lanes that access shared memory of another CTA, if any do

    def matches(self, base: Any, mask: Any, c: Any) -> bool:
        """Whether ``base`` differs from the remembered addresses by one constant."""
        if mask is not self.mask or base.shape != self.shape or c is not self.c:
            return False
        if base is self.base:
            return True
        offsets = base - base.reshape(-1)[self.first]
        same = offsets == self.offsets
        return bool(same.all()) if mask is None else bool((same | ~mask).all())
