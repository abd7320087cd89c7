"""matmul_sparse: matrix product with 2:4 sparse weights on tensor cores, by mma.sp and wgmma.mma_async.sp, in six steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm import matmul_mma, sparse, sparse_cluster_k, sparse_tiles
from ptxkit.kernels.gemm.matmul import LARGE
from ptxkit.kernels.gemm.product import Gemm
from ptxkit.kernels.gemm.sparse_compress import (
    TYPES,
    compress_launch,
    decompress_launch,
    has_too_many_words,
    row_multiple,
    widen_launch,
)
from ptxkit.kernels.measured import gemm_tiles
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload import tiling
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.products import product

WGMMA = ("sm_90a",)
DENSE = matmul_mma.STEP_4  # the tile of the product with the dense matrix
BOX_COLS = 64  # of the part of c that a consumer stores at a time

STEP_3 = Tile(
    {
        "BM": 256,
        "BN": 128,
        "CONSUMERS": 2,
        "STAGES": 4,
        "CLUSTER_M": 1,
        "CLUSTER_N": 1,
        "GROUP": 1,
        "REGISTERS": 0,
        "STORE": 0,
        "BOXES": 1,
    }
)


@dataclass(frozen=True)
class SparseMmaTile(TemplateStruct):
    """``SparseMmaTile`` of cu/kernels/matmul_sparse.cu."""

    BM: int
    BN: int
    WM: int
    WN: int
    STAGES: int
    GROUP: int


@dataclass(frozen=True)
class SparseTile(TemplateStruct):
    """``SparseTile`` of cu/kernels/matmul_sparse.cu."""

    BM: int
    BN: int
    CONSUMERS: int
    STAGES: int
    CLUSTER_M: int
    CLUSTER_N: int
    GROUP: int
    REGISTERS: int
    STORE: int
    BOXES: int


def but(tile: Tile, **changed: int) -> Tile:
    """The same tile with some values replaced."""
    return Tile({**tile, **changed})


STEP_4 = but(STEP_3, GROUP=16, REGISTERS=240, STORE=1, BOXES=2)


def stage_bytes(rows: int, columns: int, itemsize: int) -> int:
    """A stage in shared memory: a tile of a, the stored elements and the metadata of a tile of b."""
    metadata = columns // sparse.ROWS * sparse.block_words(itemsize) * 4
    return cdiv(rows * sparse.STAGE_BYTES + columns * sparse.STAGE_BYTES // 2 + metadata, 1024) * 1024


def with_room(w: Workload, tile: Tile, needed: Callable[[Tile], int]) -> Tile:
    """A tile, with fewer stages where the shared memory of a CTA does not hold all of them.

    Args:
        needed: the bytes that a CTA needs with a tile.
    """
    fewer = (but(tile, STAGES=stages) for stages in range(tile.STAGES, 1, -1))
    return next((t for t in fewer if needed(t) <= w.device.target.limits.shared_bytes_per_cta), tile)


def box_rows(t: Tile) -> int:
    """Rows of the part of c that a consumer stores at a time."""
    return 32 if t.BM % 32 == 0 else 40 if t.BM % 40 == 0 else 88


def part_rows(t: Tile) -> int:
    """Rows of a that are loaded at a time: whole patterns of the swizzle, each for one CTA of a cluster."""
    return int(t.BM if t.CLUSTER_N == 1 else t.BM // (5 if t.BM % 16 else 2))


def shared_bytes(t: Tile, itemsize: int) -> int:
    """Dynamic shared memory of a CTA: ``Layout`` of the kernel."""
    boxes = t.CONSUMERS * t.BOXES * box_rows(t) * BOX_COLS * 2 if t.STORE else 0
    return int(t.STAGES * stage_bytes(t.BM, t.BN, itemsize) + boxes + 16 * t.STAGES)


def full(t: Tile) -> Tile:
    """The tile of step 5 with the parameters that are not swept."""
    return Tile({name: t.get(name, fixed) for name, fixed in STEP_4.items()})


def usable(w: MatmulSparse, t: Tile) -> bool | str:
    """The constraint of step 5."""
    most = 200 if t.REGISTERS == 240 and t.CONSUMERS == 2 else 128
    if (sums := t.BM * t.BN // (128 * t.CONSUMERS)) > most:
        return f"a thread of {t.CONSUMERS} consumers holds {sums} sums of {t.BM} x {t.BN}, more than {most}"
    if t.BN % (sparse.ROWS * t.CONSUMERS):
        return f"BN={t.BN} is not a multiple of 64 columns for each of {t.CONSUMERS} consumers"
    if t.BN % (sparse.ROWS * t.CLUSTER_M):
        return f"BN={t.BN} is not a multiple of 64 columns for each of {t.CLUSTER_M} CTAs that load a tile of b"
    if t.REGISTERS and t.CONSUMERS == 1:
        return "one consumer has enough registers without setmaxnreg"
    boxes = t.BN // t.CONSUMERS // sparse.ROWS * (t.BM // box_rows(full(t)))
    if boxes % min(t.BOXES, boxes):
        return f"the {boxes} boxes of a consumer are not a multiple of BOXES={t.BOXES}"
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(full(t), w.itemsize)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


def preferred(w: MatmulSparse) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 5 by size: large ones read less shared memory, small ones leave fewer SMs without work."""
    yield from gemm_tiles(w.device, "matmul_sparse:step5_multicast", w.m, w.n)


def usable_mma(w: MatmulSparse, t: Tile) -> bool | str:
    """The constraint of step 1."""
    if w.dtype == "e4m3":
        return "this step multiplies bf16 and f16"
    if not 2 <= (count := t.BM // t.WM * (t.BN // t.WN)) <= 16:
        return f"{count} warps per CTA; 2 to 16 are possible"
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := t.STAGES * stage_bytes(t.BM, t.BN, 2)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


def usable_cluster_k(w: MatmulSparse, t: Tile) -> bool | str:
    """The constraint of step 6."""
    return sparse_cluster_k.usable(w.sparse_product, t)


class MatmulSparse(Workload):
    """c = a b^T with 2:4 sparse b: a (m, k), b (n, k), c (m, n), row-major; sums in f32.

    b are weights, which are pruned and compressed once: the kernels read ``values`` (n, k / 2) and ``metadata``, the form that
    ``sparse_compress`` writes. With ``weights="dense"`` each call prunes and compresses a dense b first.
    """

    source = "matmul_sparse.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096
    dtype: Literal["bf16", "f16", "e4m3"] = "bf16"
    weights: Literal["compressed", "dense"] = "compressed"
    emulator_sizes = {"m": 256, "n": 256, "k": 256}
    benchmarks = (
        {"m": 2048, "n": 2048, "k": 2048},
        {},
        {"m": 8192, "n": 8192, "k": 8192},
        {"m": 65536},
        {"m": 16384, "n": 16384, "k": 16384},
        {"m": 8192, "n": 8192, "k": 8192, "dtype": "e4m3"},
    )

    def constraints(self) -> Iterable[str]:
        if self.n % 8:
            yield "n must be a multiple of 8, so that rows of c are multiples of 16 bytes"
        if self.k % (multiple := row_multiple(self.dtype)):
            yield f"k must be a multiple of {multiple}, so that rows of stored elements are multiples of 16 bytes"
        for name, rows, cols in (("a", self.m, self.k), ("b", self.n, self.k), ("c", self.m, self.n)):
            if rows * cols >= 2**36 or (name == "b" and has_too_many_words(rows, cols, self.dtype)):
                yield f"{name} is too large"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        a, b = uniform(rng, (self.m, self.k), self.dtype), uniform(rng, (self.n, self.k), self.dtype)
        if self.weights == "dense":
            return {"a": a, "b": b}
        pruned, values, metadata = sparse.pruned_and_compressed(b)
        return {"a": a, "b": pruned, "values": values, "metadata": metadata}

    def reference(self, a: Any, b: Any, **compressed: Any) -> dict[str, Any]:
        """The product with the pruned b in float64; from 2^35 multiply-adds in float32, as for the other products."""
        wide = np.float32 if self.m * self.n * self.k >= LARGE else np.float64
        pruned = b if compressed else sparse.prune(b)
        return {"c": product(a, pruned, wide)}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, self.n), self.output_kind)}

    def temporaries(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"b_dense": ((self.n, self.k), self.output_kind)}
        if self.dtype == "e4m3":
            found["a_wide"] = ((self.m, self.k), self.output_kind)
        if self.weights == "dense":
            found["values"] = ((self.n, self.k // 2), self.dtype)
            found["metadata"] = (sparse.metadata_shape(self.n, self.k, self.itemsize), "u32")
        return found

    def work(self) -> Work:
        """Dense-equivalent flops, of which half are executed; the bytes are those of a, of b as it is given, and of c."""
        blocks, words = sparse.metadata_shape(self.n, self.k, self.itemsize)
        dense = self.n * self.k * self.itemsize
        weights = dense if self.weights == "dense" else dense // 2 + 4 * blocks * words
        moved = self.m * self.k * self.itemsize + weights + 2 * self.m * self.n
        flops = 2 * self.m * self.n * self.k
        return Work(flops=flops, bytes=moved, unit=self.dtype, sum_length=self.k // 2, executed_flops=flops // 2)

    def gemm(self) -> Gemm | None:
        """The product as libraries compute it with the pruned b, without pruning it."""
        if self.weights == "dense":
            return None
        operands = "e4m3" if self.dtype == "e4m3" else ""
        return Gemm(self.m, self.n, self.k, b_transposed=True, operands=operands, sparse="b")

    @property
    def sparse_product(self) -> sparse_cluster_k.SparseProduct:
        """What step 6 computes."""
        return sparse_cluster_k.SparseProduct(
            self.m, self.n, self.k, self.itemsize, 1, self.work().bytes, self.device
        )

    @property
    def large_tile(self) -> Tile:
        """The tile that step 5 takes without a recorded one."""
        step = self.variant("step5_multicast")
        preferred = next(iter(step.tiles(self)))
        better = tiling.faster(self, step, self.device.target, preferred)
        return full(better[0] if better else preferred)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of a and b."""
        return int(dtype_of(self.dtype).itemsize)

    @property
    def output_kind(self) -> str:
        """Element type of c."""
        return "bf16" if self.dtype == "e4m3" else self.dtype

    @property
    def compressed(self) -> list[Launch]:
        """The launches that compress b, if it is given dense."""
        if self.weights == "compressed":
            return []
        return [compress_launch("b", "values", "metadata", self.n, self.k, self.dtype)]

    def maps(self, rows: int, columns: int, blocks: int) -> tuple[TensorMap, ...]:
        """Tensor maps with boxes of ``rows`` of a, ``columns`` rows of the stored elements of b, and blocks of metadata."""
        depth = sparse.stage_elements(self.itemsize)
        return (
            TensorMap("a", box=(rows, depth), swizzle="128B"),
            TensorMap("values", box=(columns, depth // 2), swizzle="64B"),
            TensorMap("metadata", box=(blocks, sparse.block_words(self.itemsize))),
        )

    def specialized(self, t: Tile, *, persistent: bool = True) -> list[Launch]:
        """A launch of ``matmul_sparse_specialized``."""
        cluster = t.CLUSTER_M * t.CLUSTER_N
        tiles = cdiv(self.m, t.BM * t.CLUSTER_M) * cdiv(self.n, t.BN * t.CLUSTER_N)
        blocks = t.BN // sparse.ROWS // t.CLUSTER_M
        product = Launch(
            "matmul_sparse_specialized",
            cluster * (min(tiles, max(1, self.device.sms // cluster)) if persistent else tiles),
            128 * (t.CONSUMERS + 1),
            (
                *self.maps(part_rows(t), t.BN // t.CLUSTER_M, blocks),
                TensorMap("c", box=(box_rows(t), BOX_COLS), swizzle="128B"),
                *("c", self.m, self.n, self.k),
            ),
            shared=shared_bytes(t, self.itemsize),
            cluster=cluster if cluster > 1 else None,
            template=(TYPES[self.dtype], TYPES[self.output_kind], SparseTile(**t)),
        )
        return [*self.compressed, product]

    @variant(requires=("sm_80",))
    def unfused(self) -> list[Launch]:
        """b is decompressed to device memory, and multiplied as a dense matrix by mma.sync (matmul_mma, step 5)."""
        before = [decompress_launch("values", "metadata", "b_dense", self.n, self.k, self.dtype)]
        if wide := self.dtype == "e4m3":
            before.append(widen_launch("a", "a_wide", self.m * self.k))
        none = np.uint64(0)
        t = with_room(self, DENSE, lambda t: matmul_mma.shared_bytes(t, coalesced=True))
        product = Launch(
            "matmul_mma_pipelined",
            cdiv(self.m, t.BM) * cdiv(self.n, t.BN),
            32 * matmul_mma.warps(t),
            ("a_wide" if wide else "a", "b_dense", "c", none, self.m, self.n, self.k, np.float32(1), np.float32(0)),
            shared=matmul_mma.shared_bytes(t, coalesced=True),
            source="matmul_mma.cu",
            template=(TYPES[self.output_kind], matmul_mma.MmaTile(**t), True, True, 0),
        )
        return [*self.compressed, *before, product]

    @variant(
        requires=("sm_80",),
        tile={
            "BM": [128, 256, 64],  # rows and columns of c in a tile
            "BN": [128, 64],
            "WM": [32, 64],  # of these a warp's
            "WN": [64, 32],
            "STAGES": [4, 3, 5],  # of the ring
            "GROUP": [16, 8, 4, 1],  # rows of tiles in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
        },
        constraint=usable_mma,
    )
    def step1_mma_sp(self, t: Tile) -> list[Launch]:
        """mma.sp with the metadata in shared memory; cp.async fills a ring of stages."""
        product = Launch(
            "matmul_sparse_mma",
            cdiv(self.m, t.BM) * cdiv(self.n, t.BN),
            32 * (t.BM // t.WM) * (t.BN // t.WN),
            ("a", "values", "metadata", "c", self.m, self.n, self.k),
            shared=t.STAGES * stage_bytes(t.BM, t.BN, 2),
            template=(TYPES[self.dtype], SparseMmaTile(**t)),
        )
        return [*self.compressed, product]

    @variant(requires=WGMMA)
    def step2_wgmma_sp(self) -> list[Launch]:
        """TMA, then wgmma.mma_async.sp, on 128 x 128 tiles; copies and products do not overlap."""
        product = Launch(
            "matmul_sparse_tma",
            (cdiv(self.n, 128), cdiv(self.m, 128)),
            128,
            (*self.maps(128, 128, 2), "c", self.m, self.n, self.k),
            template=(TYPES[self.dtype], TYPES[self.output_kind], 128, 128),
        )
        return [*self.compressed, product]

    @variant(requires=WGMMA)
    def step3_specialized(self) -> list[Launch]:
        """A producer warpgroup fills a ring of stages; two consumer warpgroups share a tile of a, 256 x 128 tiles."""
        return self.specialized(STEP_3, persistent=False)

    @variant(requires=WGMMA)
    def step4_persistent(self) -> list[Launch]:
        """One persistent CTA per SM; TMA stores the transposed sums during the products of the next tile."""
        return self.specialized(STEP_4)

    @variant(
        requires=WGMMA,
        tile={
            "BM": [256, 200, 192, 176, 128, 64],  # rows and columns of c in a tile
            "BN": [128, 256, 192, 64],
            "CONSUMERS": [2, 1],  # warpgroups that multiply
            "STAGES": [4, 3, 5, 6, 8],  # of the ring
            "CLUSTER_M": [1, 2],  # CTAs that share a tile of b
            "CLUSTER_N": [2, 1],  # CTAs that share a tile of a
            "GROUP": [8, 4, 16, 32, 1],  # rows of clusters in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
            "REGISTERS": [240, 0],  # registers of a consumer thread; 0: the same as of a producer thread
            "BOXES": [2, 4, 1],  # boxes of c that a consumer may have in flight
        },
        constraint=usable,
        prefer=preferred,
        blocks=("BM", "BN"),
    )
    def step5_multicast(self, t: Tile) -> list[Launch]:
        """Clusters of two CTAs load each tile of a once; all tile parameters."""
        return self.specialized(full(t))

    @variant(
        requires=WGMMA,
        tile=sparse_cluster_k.SPACE,
        constraint=usable_cluster_k,
        prefer=lambda w: sparse_cluster_k.preferred(w.sparse_product),
        slower=lambda w: sparse_tiles.slower([(w.sparse_product, w.large_tile)], "step 5"),
    )
    def step6_cluster_k(self, t: Tile) -> list[Launch]:
        """For up to some hundred rows of a: tiles with any multiple of 8 of them, and k divided over the CTAs of a cluster."""
        arrays = {name: name for name in ("a", "values", "metadata", "c")}
        types = (TYPES[self.dtype], TYPES[self.output_kind])
        return [*self.compressed, sparse_cluster_k.launch(self.sparse_product, t, arrays, types)]
