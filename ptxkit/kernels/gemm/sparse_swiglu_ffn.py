"""sparse_swiglu_ffn: y = (silu(x gate^T) * (x up^T)) down^T with 2:4 sparse weights, in two launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tile, cdiv, variant
from ptxkit.kernels.gemm import matmul_sparse, sparse, sparse_cluster_k, sparse_tiles
from ptxkit.kernels.gemm.gated_ffn import WEIGHTS, GatedFfn, renamed
from ptxkit.kernels.gemm.matmul_sparse import MatmulSparse, SparseMmaTile, SparseTile, but, stage_bytes, with_room
from ptxkit.kernels.measured import gemm_tiles, measured

WGMMA = ("sm_90a",)
MMA = Tile({"BM": 128, "BN": 128, "WM": 32, "WN": 64, "STAGES": 4, "GROUP": 16})
STEP_2 = but(matmul_sparse.STEP_3, BM=128, BN=256)
STEP_3 = but(STEP_2, GROUP=16, REGISTERS=240, STORE=1, BOXES=2)
TILE = {
    "BM": [200, 192, 176, 128, 64],  # tokens in a tile
    "BN": [256, 128],  # rows of gate and up in a tile, which are twice the columns of h
    "CONSUMERS": [2, 1],  # warpgroups that multiply
    "STAGES": [4, 3, 5, 6, 8],  # of the ring
    "CLUSTER_M": [1, 2],  # CTAs that share a tile of weights
    "CLUSTER_N": [2, 1],  # CTAs that share a tile of x
    "GROUP": [8, 4, 16, 32, 1],  # rows of clusters in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
    "REGISTERS": [240, 0],  # registers of a consumer thread; 0: the same as of a producer thread
    "BOXES": [1, 2, 4, 5],  # boxes of h that a consumer may have in flight
}
GATED = 1.25
"""How many times as long step 4 took as predicted for its two products, in the mean of six sizes from 96 to 2000 tokens on an
H200 (1.08 to 1.48); step 5 took 0.94 to 1.07 times as long."""


def usable(w: SparseSwigluFfn, t: Tile) -> bool | str:
    """The constraint of step 4."""
    if t.BN != 128 * t.CONSUMERS:
        return f"BN={t.BN} is not 64 columns of gate and of up for each of {t.CONSUMERS} consumers"
    if t.BN % (128 * t.CLUSTER_M):
        return (
            f"BN={t.BN} is not 64 columns of gate and of up for each of {t.CLUSTER_M} CTAs that load a tile of weights"
        )
    most = 200 if t.REGISTERS == 240 else 128
    if (sums := t.BM) > most:
        return f"a thread holds {sums} sums of {t.BM} x {t.BN}, more than {most}"
    if t.REGISTERS and t.CONSUMERS == 1:
        return "one consumer has enough registers without setmaxnreg"
    boxes = t.BM // matmul_sparse.box_rows(full(t))
    if boxes % min(t.BOXES, boxes):
        return f"the {boxes} boxes of a consumer are not a multiple of BOXES={t.BOXES}"
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := matmul_sparse.shared_bytes(full(t), 2)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


def full(t: Tile) -> Tile:
    """The tile of step 4 with the parameters that are not swept."""
    return Tile({name: t.get(name, fixed) for name, fixed in STEP_3.items()})


def candidates(w: SparseSwigluFfn) -> Iterator[Tile]:
    """Tiles of step 4 to consider: for each block and cluster, that with the most stages."""
    blocks = ({"BN": 256, "CONSUMERS": 2, "REGISTERS": 240}, {"BN": 128, "CONSUMERS": 1, "REGISTERS": 0})
    for rows, block, (down, across) in product(TILE["BM"], blocks, ((1, 1), (1, 2), (2, 1))):
        shape = {"BM": rows, **block, "CLUSTER_M": down, "CLUSTER_N": across, "GROUP": 8, "BOXES": 1}
        made = (Tile({**shape, "STAGES": stages}) for stages in sorted(TILE["STAGES"], reverse=True))
        yield from islice((t for t in made if usable(w, t) is True), 1)


def preferred(w: SparseSwigluFfn) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 4: by their predicted times, up to the rows of the products that were timed, then by size."""
    of_gated = w.gated_product
    if measured(w.device).sparse_tiles is not None and w.tokens <= sparse_tiles.MOST_TIMED_ROWS:
        yield from sorted(candidates(w), key=lambda t: sparse_tiles.predicted_us(of_gated, full(t)) or 0.0)
    yield from gemm_tiles(w.device, "sparse_swiglu_ffn:step4_multicast", w.tokens, 2 * w.ffn)


def usable_cluster_k(w: SparseSwigluFfn, t: Tile) -> bool | str:
    """The constraint of step 5."""
    return sparse_cluster_k.usable(w.gated_product, t)


def slower(w: SparseSwigluFfn) -> str | None:
    """Why step 5 is not taken: step 4 is predicted to be faster. None where it is not, or has no times."""
    if w.tokens > (most := sparse_tiles.MOST_TIMED_ROWS):
        return f"for up to {most} tokens, not {w.tokens}"
    gated, down = w.gated_product, w.down_product
    of_down = MatmulSparse(m=w.tokens, n=w.hidden, k=w.ffn, dtype=w.dtype).on(w.device).large_tile
    large = ((gated, full(next(iter(w.variant("step4_multicast").tiles(w))))), (down, of_down))
    times = [sparse_tiles.predicted_us(of, t) for of, t in large]
    if None in times:
        return None
    others = GATED * sum(time for time in times if time is not None)
    mine = sum(sparse_cluster_k.predicted_us(of, next(sparse_cluster_k.preferred(of))) for of in (gated, down))
    return f"predicted to take {mine:.1f} us, step 4 {others:.1f} us" if others < mine else None


class SparseSwigluFfn(GatedFfn):
    """A gated feed-forward layer with 2:4 sparse weights: y = (silu(x gate^T) * (x up^T)) down^T.

    The kernels read ``gate_values``, ``gate_metadata`` and so on, the form that ``sparse_compress`` writes; gate, up and down
    are the pruned weights, for the reference and for libraries.
    """

    source = "sparse_swiglu_ffn.cu"

    @property
    def multiple(self) -> int:
        """See :attr:`GatedFfn.multiple`: rows of stored elements are multiples of 16 bytes."""
        return 16

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        made = super().inputs(rng)
        for name in WEIGHTS:
            made[name], values, metadata = sparse.pruned_and_compressed(made[name])
            made |= {f"{name}_values": values, f"{name}_metadata": metadata}
        return made

    @property
    def terms(self) -> int:
        """See :attr:`GatedFfn.terms`."""
        return max(self.hidden, self.ffn) // 2

    def executed(self, flops: int) -> int:
        """See :meth:`GatedFfn.executed`: half of them."""
        return flops // 2

    @property
    def weight_bytes(self) -> int:
        """See :attr:`GatedFfn.weight_bytes`."""
        words = 2 * np.prod(sparse.metadata_shape(self.ffn, self.hidden, 2)) + np.prod(
            sparse.metadata_shape(self.hidden, self.ffn, 2)
        )
        return 3 * self.hidden * self.ffn + 4 * int(words)

    def of_weights(self, *names: str) -> int:
        """Bytes of these weights as they are read."""
        shape = (self.hidden, self.ffn) if names == ("down",) else (self.ffn, self.hidden)
        words = int(np.prod(sparse.metadata_shape(*shape, 2)))
        return len(names) * (self.hidden * self.ffn + 4 * words)

    @property
    def gated_product(self) -> sparse_cluster_k.SparseProduct:
        """The first launch of step 5."""
        moved = self.of_weights("gate", "up") + 2 * self.tokens * (self.hidden + self.ffn)
        return sparse_cluster_k.SparseProduct(self.tokens, self.ffn, self.hidden, 2, 2, moved, self.device)

    @property
    def down_product(self) -> sparse_cluster_k.SparseProduct:
        """The second launch of step 5."""
        moved = self.of_weights("down") + 2 * self.tokens * (self.hidden + self.ffn)
        return sparse_cluster_k.SparseProduct(self.tokens, self.hidden, self.ffn, 2, 1, moved, self.device)

    def product(self, step: str, a: str, weights: str, c: str) -> list[Launch]:
        """A launch of matmul_sparse: c = a weights^T."""
        n, k = (self.hidden, self.ffn) if weights == "down" else (self.ffn, self.hidden)
        w = MatmulSparse(m=self.tokens, n=n, k=k, dtype=self.dtype).on(self.device)
        names = {"a": a, "values": f"{weights}_values", "metadata": f"{weights}_metadata", "c": c}
        chosen = w.variant(step)
        tile = w.large_tile if step == "step5_multicast" else next(chosen.tiles(w))
        return renamed(chosen.launches(w, tile), names, MatmulSparse.source)

    def chain(self, step: str) -> list[Launch]:
        """The unfused chain of products by a step of matmul_sparse."""
        return [
            *self.product(step, "x", "gate", "gate_product"),
            *self.product(step, "x", "up", "up_product"),
            self.activation(),
            *self.product(step, "h", "down", "y"),
        ]

    def specialized(self, t: Tile, *, persistent: bool = True) -> Launch:
        """A launch of ``sparse_gated_specialized``."""
        cluster, cols = t.CLUSTER_M * t.CLUSTER_N, t.BN // 2
        tiles = cdiv(self.tokens, t.BM * t.CLUSTER_M) * cdiv(self.ffn, cols * t.CLUSTER_N)
        rows, depth = cols // t.CLUSTER_M, sparse.stage_elements(2)
        weights = [
            made
            for name in ("gate", "up")
            for made in (
                TensorMap(f"{name}_values", box=(rows, depth // 2), swizzle="64B"),
                TensorMap(f"{name}_metadata", box=(rows // sparse.ROWS, sparse.block_words(2))),
            )
        ]
        return Launch(
            "sparse_gated_specialized",
            cluster * (min(tiles, max(1, self.device.sms // cluster)) if persistent else tiles),
            128 * (t.CONSUMERS + 1),
            (
                TensorMap("x", box=(matmul_sparse.part_rows(t), depth), swizzle="128B"),
                *weights,
                TensorMap("h", box=(matmul_sparse.box_rows(t), matmul_sparse.BOX_COLS), swizzle="128B"),
                *("h", self.tokens, self.ffn, self.hidden),
            ),
            shared=matmul_sparse.shared_bytes(t, 2),
            cluster=cluster if cluster > 1 else None,
            template=(self.cu, SparseTile(**t)),
        )

    @variant(requires=("sm_80",))
    def unfused(self) -> list[Launch]:
        """Four launches: products by mma.sp with gate and with up, silu * up, product with down."""
        return self.chain("step1_mma_sp")

    @variant(requires=WGMMA)
    def unfused_wgmma(self) -> list[Launch]:
        """The same four launches with the fastest product, step 5 of matmul_sparse."""
        return self.chain("step5_multicast")

    @variant(requires=("sm_80",))
    def step1_mma_sp(self) -> list[Launch]:
        """Two launches: mma.sp, with gate, up and the activation in the first one."""
        t = with_room(self, MMA, lambda t: t.STAGES * stage_bytes(t.BM, t.BN, 2))
        gated = Launch(
            "sparse_gated_mma",
            cdiv(self.tokens, t.BM) * cdiv(self.ffn, t.BN // 2),
            32 * (t.BM // t.WM) * (t.BN // t.WN),
            (
                *("x", "gate_values", "gate_metadata", "up_values", "up_metadata", "h"),
                *(self.tokens, self.ffn, self.hidden),
            ),
            shared=t.STAGES * stage_bytes(t.BM, t.BN, 2),
            template=(self.cu, SparseMmaTile(**t)),
        )
        return [gated, *self.product("step1_mma_sp", "h", "down", "y")]

    @variant(requires=WGMMA)
    def step2_specialized(self) -> list[Launch]:
        """wgmma.mma_async.sp and TMA; two consumer warpgroups with 64 columns of gate and of up each, 128 rows of x."""
        return [self.specialized(STEP_2, persistent=False), *self.product("step3_specialized", "h", "down", "y")]

    @variant(requires=WGMMA)
    def step3_persistent(self) -> list[Launch]:
        """One persistent CTA per SM; TMA stores h during the products of the next tile."""
        return [self.specialized(STEP_3), *self.product("step4_persistent", "h", "down", "y")]

    @variant(
        requires=WGMMA,
        tile=TILE,
        constraint=usable,
        prefer=preferred,
    )
    def step4_multicast(self, t: Tile) -> list[Launch]:
        """Clusters of two CTAs load each tile of x once; all tile parameters of the first launch."""
        return [self.specialized(full(t)), *self.product("step5_multicast", "h", "down", "y")]

    @variant(
        requires=WGMMA,
        tile=sparse_cluster_k.SPACE,
        constraint=usable_cluster_k,
        prefer=lambda w: sparse_cluster_k.preferred(w.gated_product),
        slower=slower,
    )
    def step5_cluster_k(self, t: Tile) -> list[Launch]:
        """For up to some hundred tokens: tiles with any multiple of 8 of them, and k divided over the CTAs of a cluster."""
        arrays = {"a": "x", "values": "gate_values", "metadata": "gate_metadata", "c": "h"}
        arrays |= {"up_values": "up_values", "up_metadata": "up_metadata"}
        gated = sparse_cluster_k.launch(self.gated_product, t, arrays, (self.cu, self.cu))
        down = self.down_product
        arrays = {"a": "h", "values": "down_values", "metadata": "down_metadata", "c": "y"}
        of_down = next(sparse_cluster_k.preferred(down))
        return [gated, sparse_cluster_k.launch(down, of_down, arrays, (self.cu, self.cu), early=True)]
