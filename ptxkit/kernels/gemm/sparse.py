"""2:4 sparse matrices: of every four neighbouring elements of a row, the two with the larger magnitudes are stored.

The arrays that ``cu/ptxkit/gemm/sparse.cuh`` describes, made and read by numpy: the reference of the kernels, and the inputs of
the products. Types are numpy's float16 and ml_dtypes' bfloat16 and float8_e4m3fn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.workload.launch import cdiv
from ptxkit.workload.parallel import blocks, in_threads

ROWS = 64  # rows of a block of the metadata
STAGE_BYTES = 128  # of a row of the dense matrix in a stage
FIRST_TWO = 4  # metadata of positions 0 and 1

CHUNK = 1 << 18  # elements that a thread handles at a time, whose temporary arrays stay in the cache of a core

Matrix = npt.NDArray[Any]


def stage_elements(itemsize: int) -> int:
    """Elements of a row in a stage."""
    return STAGE_BYTES // itemsize


def block_words(itemsize: int) -> int:
    """32-bit words of metadata of 64 rows in a stage: one for each of 128 threads, two for 8-bit elements."""
    return 256 // itemsize


def metadata_shape(rows: int, k: int, itemsize: int) -> tuple[int, int]:
    """Shape of the metadata: blocks of 64 rows, words of all stages."""
    return cdiv(rows, ROWS), cdiv(k, stage_elements(itemsize)) * block_words(itemsize)


def nibbles(dense: Matrix) -> npt.NDArray[np.uint8]:
    """(rows, k / 4): the positions in each four elements of the two that are stored; the first in bits 0-1, the second in 2-3.

    Magnitudes have the order of their bits without the sign: infinity is larger than every number, and NaN than infinity. Of
    equal ones, the elements with the lower positions are selected.
    """
    found = np.empty((dense.shape[0], dense.shape[1] // 4), np.uint8)

    def select(rows: slice) -> None:
        found[rows] = _nibbles(dense[rows])

    _each_chunk(dense, select)
    return found


def _nibbles(dense: Matrix) -> npt.NDArray[np.uint8]:
    """:func:`nibbles` of a chunk."""
    bits = 8 * dense.dtype.itemsize
    fours = np.ascontiguousarray(dense).view(f"u{bits // 8}")
    fours = fours.reshape(len(fours), -1, 4) & ((1 << (bits - 1)) - 1)
    keys = [fours[..., i].astype(np.uint32) << 2 | (3 - i) for i in range(4)]  # all different
    (low, lower), (high, higher) = (_sorted(*keys[:2]), _sorted(*keys[2:]))
    first, other = _sorted(low, high)
    second = np.maximum(other, np.where(low > high, lower, higher))
    p, q = 3 - (first & 3), 3 - (second & 3)
    found: npt.NDArray[np.uint8] = (np.minimum(p, q) | np.maximum(p, q) << 2).astype(np.uint8)
    return found


def pruned_and_compressed(dense: Matrix) -> tuple[Matrix, Matrix, npt.NDArray[np.uint32]]:
    """The results of :func:`prune` and of :func:`compress`, whose elements are selected once."""
    found = nibbles(dense)
    return prune(dense, found), *compress(dense, found)


def compress(
    dense: Matrix, found: npt.NDArray[np.uint8] | None = None
) -> tuple[Matrix, npt.NDArray[np.uint32]]:
    """The stored elements, (rows, k / 2), and the metadata, of shape :func:`metadata_shape`.

    Args:
        found: the :func:`nibbles` of the matrix, if they are known.
    """
    rows, k = dense.shape
    found = nibbles(dense) if found is None else found
    words, bits = _words(dense), 8 * dense.dtype.itemsize
    values = np.empty((rows, k // 4, 2), f"u{bits // 8}")

    def select(chunk: slice) -> None:
        for i, position in enumerate((found[chunk] & 3, found[chunk] >> 2)):
            shift = position.astype(words.dtype)
            shift *= bits
            values[chunk, :, i] = words[chunk] >> shift  # the lower bits

    _each_chunk(dense, select)
    return values.view(dense.dtype).reshape(rows, k // 2), encode(found, dense.dtype.itemsize)


def prune(dense: Matrix, found: npt.NDArray[np.uint8] | None = None) -> Matrix:
    """The matrix with zeros in the place of the elements that are not stored.

    Args:
        found: see :func:`compress`.
    """
    found = nibbles(dense) if found is None else found
    words, bits = _words(dense), 8 * dense.dtype.itemsize
    element = (1 << bits) - 1
    kept = np.array([element << bits * (n & 3) | element << bits * (n >> 2) for n in range(16)], words.dtype)
    pruned = np.empty_like(words)

    def clear(rows: slice) -> None:
        np.take(kept, found[rows], out=pruned[rows], mode="clip")  # "raise" would copy the result
        pruned[rows] &= words[rows]

    _each_chunk(dense, clear)
    return pruned.view(dense.dtype).reshape(dense.shape)


def _words(dense: Matrix) -> npt.NDArray[Any]:
    """(rows, k / 4): every four elements as one integer, the first in the lowest bits."""
    return np.ascontiguousarray(dense).view(f"u{4 * dense.dtype.itemsize}")


def metadata_order(blocks: int, stages: int, itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How the metadata of every four elements, (rows, k / 4), is divided into dimensions, and the order of these in memory.

    In PTX ISA's figures "Sparse MMA .m16n8k32 metadata layout for .f16/.bf16 type" and "Sparse MMA .m16n8k64 metadata layout
    for .e4m3/.e5m2/.s8/.u8 type", lane 4 g + q of a warp has metadata of the rows g and g + 8 of its 16. A warpgroup has four
    of these.
    """
    if itemsize == 2:  # lane q has 16 elements: row g in bits 0-15, row g + 8 in bits 16-31
        # block, warp, half, g, stage, q, four -> block, stage, warp, g, q; half, four
        return (blocks, 4, 2, 8, stages, 4, 4), (0, 4, 1, 3, 5, 2, 6)
    # 32 elements of one row: lanes q = 0 and 2 have row g, lanes 1 and 3 have row g + 8; two instructions
    # block, warp, half, g, stage, part, q / 2, four -> block, stage, warp, g, q / 2, half, part; four
    return (blocks, 4, 2, 8, stages, 2, 2, 8), (0, 4, 1, 3, 6, 2, 5, 7)


def encode(found: npt.NDArray[np.uint8], itemsize: int) -> npt.NDArray[np.uint32]:
    """The metadata, in the order of :func:`metadata_order`, from four bits for every four elements: (rows, k / 4)."""
    rows, fours = found.shape
    shape = metadata_shape(rows, 4 * fours, itemsize)
    stages = shape[1] // block_words(itemsize)
    padded = np.full((shape[0] * ROWS, stages * stage_elements(itemsize) // 4), FIRST_TWO, np.uint8)
    padded[:rows, :fours] = found
    split, order = metadata_order(shape[0], stages, itemsize)
    parts = padded.reshape(split).transpose(order)
    eights = np.ascontiguousarray(parts).reshape(*shape, 8)
    words = np.zeros(shape, np.uint32)
    for i in range(8):
        words |= eights[..., i].astype(np.uint32) << np.uint32(4 * i)
    return words


def _each_chunk(dense: Matrix, function: Callable[[slice], None]) -> None:
    """Call a function for chunks of the rows of a matrix, in threads: numpy releases the interpreter's lock."""
    in_threads(function, blocks(len(dense), dense.size, CHUNK))


def _sorted(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The larger and the smaller of two numbers."""
    return np.maximum(x, y), np.minimum(x, y)
