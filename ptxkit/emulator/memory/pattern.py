"""Address patterns: properties of the addresses of a group of lanes, which are computed once and cached.

The next iteration of a loop, and the next wave, often access the same addresses plus a constant. A pattern therefore has
offsets relative to its first lane, with their extent, element indices, sectors and bank conflicts. Most executions of an
instruction only compare their addresses with the last pattern.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Mask, Shape


class Pattern:
    """Relative byte offsets of a group of lanes, and their properties.

    Attributes:
        offsets: byte offsets from the first lane that takes part; ``low`` and ``high`` are the extremes as signed numbers.
        bits: bitwise or of all offsets, for checks of alignment.
        indices: element index of each lane, relative to the lowest one.
        contiguous: lane after lane accesses adjacent elements.
        sectors: address of the first lane modulo 32 -> the number of sectors, and the mask and shape for which it is valid.
        banks: address of the first lane modulo 4 -> the wavefronts and conflicts in shared memory, in the same form.
        in_wave: shape and stride of the wave's shared memory -> element index of each lane in it.
        in_cluster: the same where addresses have ranks: indices, their pattern, first address, lowest and highest offset.
        remote: lanes that access shared memory of another CTA; None if there are none.
    """

    __slots__ = (
        "banks",
        "base",
        "bits",
        "c",
        "contiguous",
        "first",
        "high",
        "in_cluster",
        "in_wave",
        "indices",
        "low",
        "mask",
        "offsets",
        "remote",
        "sectors",
        "shape",
    )

    def __init__(self, base: Addresses, mask: Mask | None, size: int, c: Index | None) -> None:
        self.base = base
        self.mask = mask
        self.c = c
        self.shape: tuple[int, ...] = base.shape
        flat = base.reshape(-1)
        self.first = 0 if mask is None else int(np.argmax(np.broadcast_to(mask, base.shape)))
        origin = flat[self.first]
        if mask is not None:
            base = np.where(mask, base, origin)
        self.offsets: Addresses = base - origin
        signed = self.offsets.view(np.int64)
        self.low = int(signed.min())
        self.high = int(signed.max())
        self.bits = int(np.bitwise_or.reduce(self.offsets, axis=None))
        indices: Index = (signed - self.low) >> (size.bit_length() - 1)
        n = indices.size
        self.contiguous = (
            mask is None
            and n * size == self.high - self.low + size
            and int(signed.reshape(-1)[0]) == self.low
            and bool((indices.reshape(-1) == np.arange(n)).all())
        )
        self.indices = indices
        self.sectors: dict[int, tuple[int, Mask | None, Shape]] = {}
        self.banks: dict[int, tuple[tuple[int, int], Mask | None, Shape]] = {}
        self.in_wave: dict[tuple[Shape, int], Index] = {}
        self.in_cluster: dict[tuple[Shape, int], tuple[Index, Pattern, int, int, int]] = {}
        self.remote: Mask | None = None

    def matches(self, base: Addresses, mask: Mask | None, c: Index | None) -> bool:
        """Whether ``base`` differs from the remembered addresses by one constant."""
        if mask is not self.mask or base.shape != self.shape or c is not self.c:
            return False
        if base is self.base:
            return True
        offsets = base - base.reshape(-1)[self.first]
        same = offsets == self.offsets
        return bool(same.all()) if mask is None else bool((same | ~mask).all())
