"""The metadata of a sparse A in tensor memory, and the expansion of A to a dense matrix.

PTX ISA, "Sparse Matrices", has the meaning of an index; where it lies is the content of figures, taken from CuTe's
``atom/mma_traits_sm100.hpp`` (``tmem_e_frg``, ``tmem_e_frg_ws``) for M = 128 and ``.ws``, and continued to the layouts
that use half of the lanes. Each 4 bits are for a chunk of a row, chunks from the low bits up. With 16-bit and 32-bit
elements 16 lanes have the 16 rows whose D is in them: row r has the bits from 16 (r / 8 % 2) on of lane r % 8 for the
first half of K and of lane r % 8 + 8 for the second. With narrower elements the row has 64 bits in its own lane, in two
columns.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import BITS

_PAIRS = {0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE}
"""Valid 4-bit metadata for two of four elements; the low two bits are the index of the first."""
_SINGLE = {0x4: 0, 0xE: 1}
"""Valid 4-bit metadata for one of two elements."""
CHUNKS = 16
"""Number of rows whose metadata is in a group of 16 lanes."""


def columns(t: str) -> int:
    """Columns of tensor memory that the metadata of one instruction occupies."""
    return 1 if BITS[t] >= 16 else 2


def nibbles(words: Lanes, t: str, lane: int, rows: int) -> Lanes:
    """(rows, chunks) uint8 of the rows of a part, from (128, columns) uint32.

    Args:
        lane: of the part's first row; ``rows`` is a multiple of 16.
    """
    if BITS[t] < 16:
        held = np.ascontiguousarray(words[lane : lane + rows]).view(np.uint8)
        return np.stack((held & 15, held >> 4), axis=-1).reshape(rows, -1)
    r = np.arange(rows)[:, None]
    half = np.arange(2)[None]
    at = lane + r // CHUNKS * CHUNKS + r % 8 + 8 * half
    found = words[at, 0] >> (16 * (r // 8 % 2)).astype(np.uint32) & np.uint32(0xFFFF)
    shifts = np.arange(0, 16, 4, dtype=np.uint32)
    return (found[..., None] >> shifts & np.uint32(15)).astype(np.uint8).reshape(rows, -1)


def expand(stored: Lanes, indices: Lanes, t: str, pairs: bool) -> tuple[Lanes, Lanes] | str:
    """A expanded with zeros, (M, 2 kept) codes, and which elements are stored; or the reason why metadata is not valid.

    Args:
        stored: (M, kept) codes.
        indices: (M, chunks), 4 bits each.
        pairs: of eight neighbours two pairs are stored, instead of two of four.
    """
    legal = set(_SINGLE) if t == "tf32" else _PAIRS
    bad = ~np.isin(indices, list(legal))
    if bad.any():
        row, chunk = (int(v[0]) for v in np.nonzero(bad))
        known = ", ".join(f"{v:#06b}" for v in sorted(legal))
        return f"the index of chunk {chunk} of row {row} is {int(indices[row, chunk]):#06b}; meaningful are {known}"
    m = len(stored)
    chunks = indices.shape[1]
    if t == "tf32":
        places = 2 * np.arange(chunks)[None] + (indices == 0xE)
    else:
        two = np.stack((indices & 3, indices >> 2), axis=-1).astype(np.int64)
        places = (4 * np.arange(chunks)[None, :, None] + two).reshape(m, -1)
    if pairs:
        places = np.stack((2 * places, 2 * places + 1), axis=-1).reshape(m, -1)
    full = np.zeros((m, 2 * stored.shape[1]), stored.dtype)
    kept = np.zeros(full.shape, np.bool_)
    rows = np.arange(m)[:, None]
    full[rows, places] = stored
    kept[rows, places] = True
    return full, kept
