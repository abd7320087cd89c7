"""Matrix descriptors of wgmma: which 16-byte chunks of shared memory hold a tile.

PTX ISA, "Matrix Descriptor Format" and "Canonical Layouts" of wgmma. A chunk is 16 bytes: T = 128 / element bits elements that
are neighbours along the major dimension. With S the chunks in a row of the swizzle pattern (1, 2, 4, 8 for none, 32, 64, 128
bytes), chunk c along K of row r, or chunk j along M or N of column k, lie at

    K-major, S = 1      16 (r % 8) + SBO (r / 8) + LBO c
    K-major, S > 1      16 S (r % 8) + SBO (r / 8) + 16 c
    MN-major, S = 1     16 (k % 8) + LBO (k / 8) + SBO j
    MN-major, S > 1     16 S (k % 8) + SBO (k / 8) + 16 (j % S) + LBO (j / S)

bytes after the start address. Then address bits 4 to 6 (1, 2 or 3 of them for 32, 64 or 128 bytes) are combined with bits 7
to 9 of the whole address by exclusive or, so that a tile may start anywhere in the pattern. The base offset is subtracted
from bits 7 to 9 first, for patterns that do not start at a multiple of their size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index

_CHUNKS_PER_ROW = {0: 1, 1: 8, 2: 4, 3: 2}
SWIZZLES = {0: "no swizzle", 1: "128-byte swizzle", 2: "64-byte swizzle", 3: "32-byte swizzle"}


@dataclass(frozen=True)
class Descriptor:
    """The fields of a descriptor, in bytes.

    Attributes:
        start: shared-memory address of the tile.
        leading, stride: leading and stride dimension byte offsets.
        base: base offset, 0 to 7.
        swizzle: the two swizzle bits, as :data:`SWIZZLES` names them.
    """

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @classmethod
    def parse(cls, bits: int) -> Descriptor:
        """Split a descriptor of 64 bits into its fields."""
        return cls(
            (bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, bits >> 49 & 7, bits >> 62 & 3
        )

    def __str__(self) -> str:
        return (
            f"start {self.start:#x}, leading dimension {self.leading} bytes, stride dimension {self.stride} bytes, "
            f"{SWIZZLES[self.swizzle]}"
        )


@dataclass(frozen=True)
class Tile:
    """The location of a tile in shared memory.

    Attributes:
        chunks: indices of 16-byte chunks from address 0: (rows, chunks along K), or (K, chunks along M or N) for MN-major.
        low, high: address of the first byte, and of the byte after the last.
    """

    chunks: NDArray[np.int64]
    low: int
    high: int


@lru_cache(maxsize=8192)
def tile(bits: int, extent: int, k_bytes: int, mn_major: bool) -> Tile:
    """The tile that a descriptor describes.

    Args:
        bits: the descriptor.
        extent: rows of A, columns of B.
        k_bytes: K-major: bytes of a row along K (32, or 64 for the dense operand of a sparse product). MN-major, where
            elements have 2 bytes: twice K.
    """
    d = Descriptor.parse(bits)
    per_row = _CHUNKS_PER_ROW[d.swizzle]
    offsets: Index
    if mn_major:
        k, j = np.arange(k_bytes // 2)[:, None], np.arange(extent // 8)[None]
        if per_row == 1:
            offsets = 16 * (k % 8) + d.leading * (k // 8) + d.stride * j
        else:
            offsets = 16 * per_row * (k % 8) + d.stride * (k // 8) + 16 * (j % per_row) + d.leading * (j // per_row)
    else:
        r, c = np.arange(extent)[:, None], np.arange(k_bytes // 16)[None]
        step = d.leading if per_row == 1 else 16
        offsets = 16 * per_row * (r % 8) + d.stride * (r // 8) + step * c
    address = d.start + offsets.astype(np.int64)
    phase = ((address >> 7) - d.base) & (per_row - 1)
    address ^= phase << 4
    chunks = address >> 4
    chunks.setflags(write=False)
    return Tile(chunks, int(address.min()), int(address.max()) + 16)
