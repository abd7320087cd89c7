"""sparse_compress: prunes a matrix to 2:4 sparsity by magnitude, and compresses it for mma.sp and wgmma.mma_async.sp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm import sparse
from ptxkit.workload.inputs import dtype_of

THREADS = {"THREADS": [256, 128, 512]}
TYPES = {"bf16": "ptxkit::bf16", "f16": "ptxkit::f16", "e4m3": "ptxkit::e4m3"}


def row_multiple(dtype: str) -> int:
    """Elements of which k must be a multiple: the stored elements of a row are then a multiple of 16 bytes."""
    return int(32 // dtype_of(dtype).itemsize)


def words(rows: int, k: int, dtype: str) -> int:
    """Words of metadata."""
    blocks, columns = sparse.metadata_shape(rows, k, dtype_of(dtype).itemsize)
    return blocks * columns


def has_too_many_words(rows: int, k: int, dtype: str) -> bool:
    """Whether the threads of a grid, one for each word of metadata, have numbers of more than 32 bits."""
    return words(rows, k, dtype) > 2**32 - max(THREADS["THREADS"])


def compress_launch(
    dense: str, values: str, metadata: str, rows: int, k: int, dtype: str, threads: int = 256
) -> Launch:
    """A launch of ``compress``."""
    count = words(rows, k, dtype)
    args = (dense, values, metadata, rows, k, np.uint32(count))
    template = (TYPES[dtype], threads)
    return Launch("compress", cdiv(count, threads), threads, args, source="sparse_compress.cu", template=template)


def decompress_launch(values: str, metadata: str, dense: str, rows: int, k: int, dtype: str) -> Launch:
    """A launch of ``decompress``, which gives bf16 of e4m3."""
    count = words(rows, k, dtype)
    args = (values, metadata, dense, rows, k, np.uint32(count))
    template = (TYPES[dtype], TYPES["bf16" if dtype == "e4m3" else dtype], 256)
    return Launch("decompress", cdiv(count, 256), 256, args, source="sparse_compress.cu", template=template)


def widen_launch(narrow: str, wide: str, elements: int) -> Launch:
    """A launch of ``widen``: e4m3 to bf16. ``elements`` is a multiple of 4."""
    args = (narrow, wide, np.uint64(elements // 4))
    return Launch("widen", cdiv(elements // 4, 256), 256, args, source="sparse_compress.cu", template=(256,))


class SparseCompress(Workload):
    """Of every four neighbouring elements of a row, the two with the larger magnitudes, and their positions."""

    source = "sparse_compress.cu"
    rows: int = 8192
    k: int = 8192
    dtype: Literal["bf16", "f16", "e4m3"] = "bf16"
    emulator_sizes = {"rows": 256, "k": 512}
    benchmarks = ({}, {"dtype": "e4m3"}, {"rows": 16384, "k": 16384})
    tolerance = Tolerance()  # elements are copied

    def constraints(self) -> Iterable[str]:
        if self.k % (multiple := row_multiple(self.dtype)):
            yield f"k must be a multiple of {multiple}, so that rows of stored elements are multiples of 16 bytes"
        if self.rows * self.k >= 2**36 or has_too_many_words(self.rows, self.k, self.dtype):
            yield "the matrix is too large"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"dense": uniform(rng, (self.rows, self.k), self.dtype)}

    def outputs(self) -> Mapping[str, Any]:
        shape = sparse.metadata_shape(self.rows, self.k, dtype_of(self.dtype).itemsize)
        return {"values": ((self.rows, self.k // 2), self.dtype), "metadata": (shape, "u32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {"pruned": ((self.rows, self.k), self.dtype)}

    def reference(self, dense: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The same selection by numpy."""
        values, metadata = sparse.compress(dense)
        return {"values": values.astype(np.float64), "metadata": metadata}

    def work(self) -> Work:
        size, n = dtype_of(self.dtype).itemsize, self.rows * self.k
        return Work(flops=0, bytes=n * size + n // 2 * size + 4 * words(self.rows, self.k, self.dtype))

    @variant(tile=THREADS)
    def unfused(self, t: Tile) -> list[Launch]:
        """Two launches: zeros replace the other elements, then the matrix is compressed."""
        pieces = self.rows * self.k * dtype_of(self.dtype).itemsize // 32
        args = ("dense", "pruned", np.uint64(pieces))
        pruned = Launch("prune", cdiv(pieces, t.THREADS), t.THREADS, args, template=(TYPES[self.dtype], t.THREADS))
        return [pruned, self.compress("pruned", t)]

    @variant(tile=THREADS)
    def fused(self, t: Tile) -> list[Launch]:
        """One launch: a thread reads 32 bytes of one or two rows, and stores the selected elements with their positions."""
        return [self.compress("dense", t)]

    def compress(self, dense: str, t: Tile) -> Launch:
        """A launch of ``compress``."""
        return compress_launch(dense, "values", "metadata", self.rows, self.k, self.dtype, t.THREADS)
