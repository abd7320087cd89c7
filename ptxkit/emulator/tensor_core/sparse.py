"""2:4 sparsity: the metadata of mma.sp and wgmma.mma_async.sp, and the expansion to a dense matrix.

A row of A keeps half of its elements. For every chunk of the row there are four bits of metadata (PTX ISA, "Sparse matrix
storage"):

- 16-bit and 8-bit elements: a chunk has 4 elements, bits 0-1 and 2-3 are the positions of the two that are kept;
- 4-bit elements: a chunk has 4 pairs of elements, and the positions are those of pairs;
- tf32: a chunk has 2 elements; 0b0100 keeps the first, 0b1110 the second.

The lanes that hold the metadata are shown in the manual's figures 119 to 147 and 176 to 181; CuTe's ``ELayout_64x*``
(``mma_traits_sm90_gmma_sparse.hpp``) has the same layouts as shapes and strides. With g = lane / 4 and t = lane % 4 a
register holds

- ``"one"``: of the lane t = selector: row g in bits 0-15, row g + 8 in bits 16-31;
- ``"halves"``: of the lanes t = 2 selector + (0, 1): the same, in the first lane for the lower half of K, in the second for
  the upper;
- ``"rows"``: of the same two lanes: row g in the first, row g + 8 in the second;
- ``"all"``: row g in lanes t = 0 and 2, row g + 8 in 1 and 3; the lower half of K in 0 and 1, the upper in 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Bytes, Index, Lanes, Mask, Words
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.numerics import BITS
from ptxkit.errors import TrapError

SELECTORS = {"one": 4, "halves": 2, "rows": 2, "all": 1}
"""Number of valid values of the sparsity selector."""


def arrangement(t: str, k: int) -> str:
    """Which lanes hold the metadata of a matrix of ``k`` columns, counted before compression."""
    # bits of metadata a row: 4 for each chunk
    row_bits = 4 * k // chunk_elements(t)
    if BITS[t] >= 16:
        return "one" if row_bits == 16 else "halves"
    return "rows" if row_bits == 32 else "all"


def chunk_elements(t: str) -> int:
    """Number of elements of a row to which four bits of metadata apply."""
    return {32: 2, 16: 4, 8: 4, 4: 8}[BITS[t]]


def chunks(words: Words, how: str, selector: int) -> Bytes:
    """(warps, 16, chunks): four bits for every chunk, from the metadata register, (warps, 32) uint32."""
    quads = np.ascontiguousarray(words).reshape(-1, 8, 4)
    w = len(quads)
    rows: Lanes
    if how == "one":
        halves = np.ascontiguousarray(quads[:, :, selector]).view(np.uint16).reshape(w, 8, 2)
        rows = halves.transpose(0, 2, 1)
    elif how == "halves":
        pair = np.ascontiguousarray(quads[:, :, 2 * selector : 2 * selector + 2])
        rows = pair.view(np.uint16).reshape(w, 8, 2, 2).transpose(0, 3, 1, 2)
    elif how == "rows":
        rows = quads[:, :, 2 * selector : 2 * selector + 2].transpose(0, 2, 1)
    else:
        rows = quads.reshape(w, 8, 2, 2).transpose(0, 3, 1, 2)
    octets = np.ascontiguousarray(rows).reshape(w, 16, -1).view(np.uint8)
    return np.stack((octets & 15, octets >> 4), axis=-1).reshape(w, 16, -1)


def columns(found: Bytes, t: str, ordered: bool, where: Where) -> Index:
    """(warps, 16, k / 2) int64: the column of every element that is kept.

    Raises:
        TrapError: metadata for which PTX defines no behaviour.
    """
    first, second = found & 3, found >> 2
    if t == "tf32":
        bad = (found != 0b0100) & (found != 0b1110)
        kinds = "0b0100 and 0b1110 are valid for .tf32"
    else:
        bad = second <= first if ordered else second == first
        kinds = "two positions must differ" + (", the lower one in the lower bits" if ordered else "")
    if bad.any():
        value = int(found[bad].flat[0])
        row, chunk = (int(i[0]) for i in np.nonzero(bad)[1:])
        raise TrapError(f"{where}: metadata {value:#06b} for chunk {chunk} of row {row} of a warp's A; {kinds}")
    start = np.arange(found.shape[-1]) * 4
    if t == "tf32":
        return (start // 2) + (first >> 1)
    positions = np.stack((start + first, start + second), axis=-1).reshape(*found.shape[:2], -1)
    if BITS[t] > 4:
        return positions
    return np.stack((2 * positions, 2 * positions + 1), axis=-1).reshape(*found.shape[:2], -1)


def expand(kept: Lanes, where_to: Index) -> Lanes:
    """The dense matrix, (..., rows, k), from the elements that are kept, (..., rows, k / 2), and their columns."""
    out = np.zeros((*kept.shape[:-1], 2 * kept.shape[-1]), kept.dtype)
    np.put_along_axis(out, where_to, kept, axis=-1)
    return out


def kept(places: Index) -> Mask:
    """(..., rows, k): which elements of the dense matrix are kept, from their columns, (..., rows, k / 2)."""
    return expand(np.ones(places.shape, np.bool_), places)


def product(
    compute: Callable[[Lanes, Lanes, Lanes], Lanes], a: Lanes, stored: Mask | None, b: Lanes, c: Lanes
) -> Lanes:
    """``compute(a, b, c)``, in which elements of B are only multiplied with elements of A that are stored.

    Zeros in place of the other elements of A give the same result, unless the element of B is infinite or NaN, because the
    product is then NaN. H200 and B200 ignore such elements of B.

    Args:
        a: (U, m, k), expanded. stored: (U, m, k), its elements that are stored; None for a dense A.
        b: (U, k, n). c: (U, m, n).
    """
    if stored is None or b.dtype.kind not in "fc" or np.isfinite(b).all():
        return compute(a, b, c)
    rows = []
    for r in range(a.shape[1]):
        one = slice(r, r + 1)
        seen = np.where(stored[:, r, :, None], b, b.dtype.type(0))
        rows.append(compute(a[:, one], seen, c[:, one]))
    return np.concatenate(rows, axis=1)
