"""Shared memory descriptors of tcgen05: which 16-byte chunks of shared memory hold a matrix.

PTX ISA, "Shared memory descriptor", "Canonical Layouts"; CUTLASS, ``cute/arch/mma_sm100_desc.hpp`` (fields) and
``cute/atom/mma_traits_sm100.hpp`` (``make_umma_desc``, strides). A chunk is 16 bytes, T elements that are neighbours
along the major dimension. With S the chunks in a row of the swizzle pattern (1, 2, 4, 8 for none, 32, 64, 128 bytes)
and P the rows of its atom along K (8, or 4 where 32 bytes stay together), chunk c along K of row r, or chunk j along
M or N of column k, lie at

    K-major, S = 1      16 (r % 8) + SBO (r / 8) + LBO c
    K-major, S > 1      16 S (r % 8) + SBO (r / 8) + 16 c
    MN-major, S = 1     16 (k % 8) + LBO (k / 8) + SBO j
    MN-major, S > 1     16 S (k % P) + SBO (k / P) + 16 (j % S) + LBO (j / S)

bytes from the start address. Then address bits 4 to 6 (1, 2 or 3 of them for 32, 64 or 128 bytes) are combined with bits 7
to 9 of the whole address by exclusive or, after the base offset has been subtracted from the latter. In the mode with atoms
of 32 bytes, bits 5 and 6 are combined with bits 7 and 8.

With an absolute leading dimension (bit 52) the chunks that lie beyond the 128 bytes in which the matrix starts begin
at the address that LBO gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes

_CHUNKS = {0: 1, 1: 8, 2: 8, 4: 4, 6: 2}
_NAMES = {
    0: "no swizzle",
    1: "128-byte swizzle of 32-byte units",
    2: "128-byte swizzle",
    4: "64-byte swizzle",
    6: "32-byte swizzle",
}
ATOM_32 = 1
"""Swizzle mode of 128 bytes in units of 32."""


@dataclass(frozen=True)
class Descriptor:
    """The fields of a descriptor, in bytes.

    Attributes:
        start: shared-memory address of the matrix.
        leading, stride: leading and stride dimension byte offsets; ``leading`` is an address where ``absolute``.
        base: base offset, 0 to 7.
        swizzle: the swizzle mode, bits 61 to 63.
    """

    start: int
    leading: int
    stride: int
    base: int
    absolute: bool
    swizzle: int

    @classmethod
    def parse(cls, bits: int) -> Descriptor:
        """Split a descriptor of 64 bits into its fields."""
        return cls(
            (bits & 0x3FFF) << 4,
            (bits >> 16 & 0x3FFF) << 4,
            (bits >> 32 & 0x3FFF) << 4,
            bits >> 49 & 7,
            bool(bits >> 52 & 1),
            bits >> 61,
        )

    def __str__(self) -> str:
        leading = f"leading dimension {'at ' if self.absolute else ''}{self.leading:#x}"
        return (
            f"start {self.start:#x}, {leading}, stride dimension {self.stride:#x} bytes, {_NAMES.get(self.swizzle, '')}"
        )


def refusal(bits: int, target: int) -> str:
    """The reason why a descriptor is not valid, with its bits; "" if it is valid."""
    for low, field in ((14, "start address"), (30, "leading dimension byte offset")):
        if bits >> low & 3:
            return (
                f"bits {low} and {low + 1} are {bits >> low & 3:#04b}, which are reserved; the {field} has the 14 bits "
                "below them: (x & 0x3ffff) >> 4"
            )
    if bits >> 46 & 7 != 1:
        return f"bits 46 to 48 are {bits >> 46 & 7:#05b}; a descriptor of tcgen05 has 0b001"
    if bits >> 53 & 0xFF:
        return f"bits 53 to 60 are {bits >> 53 & 0xFF:#04x}; they must be 0"
    d = Descriptor.parse(bits)
    if d.swizzle not in _NAMES:
        return f"bits 61 to 63 are {d.swizzle}; swizzle modes are 0, 1, 2, 4 and 6"
    if d.absolute:
        if target != 103:
            return "bit 52 (absolute leading dimension) is set, which needs sm_103a"
        if d.swizzle != 2 or d.base:
            return "bit 52 (absolute leading dimension) is set, which needs the 128-byte swizzle and base offset 0"
    return ""


@dataclass(frozen=True)
class Tile:
    """The location of a matrix in shared memory.

    Attributes:
        chunks: indices of 16-byte chunks from address 0: (rows, chunks along K), or (K, chunks along M or N) for MN-major.
        low, high: first byte, and the byte after the last.
    """

    chunks: NDArray[np.int64]
    low: int
    high: int


@lru_cache(maxsize=8192)
def k_major(bits: int, rows: int, nbytes: int) -> Tile:
    """The chunks of a K-major matrix of ``rows`` rows of ``nbytes`` bytes along K."""
    d = Descriptor.parse(bits)
    per_row = _CHUNKS[d.swizzle]
    r, c = np.arange(rows)[:, None], np.arange(nbytes // 16)[None]
    offsets: Lanes = 16 * per_row * (r % 8) + d.stride * (r // 8) + (d.leading if per_row == 1 else 16) * c
    if d.absolute:
        column = (d.start >> 4 & 7) + c
        row = 16 * per_row * (r % 8) + d.stride * (r // 8)
        return _tile(d, np.where(column < 8, d.start + offsets, d.leading + row + 16 * (column - 8)))
    return _tile(d, d.start + offsets)


@lru_cache(maxsize=8192)
def mn_major(bits: int, extent: int, per_chunk: int, k: int) -> Tile:
    """The chunks of an MN-major matrix: ``k`` columns along K of ``extent`` elements, ``per_chunk`` in 16 bytes."""
    d = Descriptor.parse(bits)
    per_row = _CHUNKS[d.swizzle]
    column, j = np.arange(k)[:, None], np.arange(-(-extent // per_chunk))[None]
    offsets: Lanes
    if per_row == 1:
        offsets = 16 * (column % 8) + d.leading * (column // 8) + d.stride * j
    else:
        high = 4 if d.swizzle == ATOM_32 else 8
        offsets = 16 * per_row * (column % high) + d.stride * (column // high)
        offsets = offsets + 16 * (j % per_row) + d.leading * (j // per_row)
    return _tile(d, d.start + offsets)


def _tile(d: Descriptor, addresses: Lanes) -> Tile:
    address = addresses.astype(np.int64)
    if d.swizzle == ATOM_32:
        address ^= ((address >> 7) - d.base & 3) << 5
    else:
        address ^= ((address >> 7) - d.base & _CHUNKS[d.swizzle] - 1) << 4
    chunks = address >> 4
    chunks.setflags(write=False)
    return Tile(chunks, int(address.min()), int(address.max()) + 16)
