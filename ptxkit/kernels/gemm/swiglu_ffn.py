"""swiglu_ffn: y = (silu(x gate^T) * (x up^T)) down^T with dense weights, in two launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ptxkit import Launch, TensorMap, Tile, cdiv, variant
from ptxkit.kernels.gemm import dot, gated_multicast, matmul_wgmma, multicast, wgmma_tiles
from ptxkit.kernels.gemm.gated_ffn import GatedFfn
from ptxkit.kernels.gemm.matmul_wgmma import BK, MatmulWgmma, WgmmaTile, but
from ptxkit.kernels.measured import cluster_ctas, gemm_tiles

REQUIRES = ("sm_90a",)
STEP_1 = but(matmul_wgmma.STEP_4, REGISTERS=240)
STEP_2 = but(STEP_1, GROUP=16, STORE=1, BOXES=2)
BOX_OF_H = {"box": (16, 64), "swizzle": "128B"}
"""A box of h: ``usable`` demands multiples of its 64 columns."""


def full(t: Tile) -> Tile:
    """The tile with the parameters that are not swept."""
    return Tile({name: t.get(name, fixed) for name, fixed in STEP_2.items()})


def usable(w: SwigluFfn, t: Tile) -> bool | str:
    """The constraint of step 3."""
    return matmul_wgmma.can_run(w, full(t), simple=True, box_columns=128)  # of gate and of up, for 64 columns of h


def preferred(w: SwigluFfn) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 3 by size."""
    yield from gemm_tiles(w.device, "swiglu_ffn:step3_multicast", w.tokens, 2 * w.ffn)


def slower(w: SwigluFfn) -> str | None:
    """Why step 4 is not taken: step 3 is predicted to be faster. None where it is not."""
    gated, down = w.gated_product, w.down_product
    mine = multicast.predicted_us(gated, next(gated_multicast.preferred(gated))) + gated_multicast.second(down).predicted_us
    large = next(iter(w.variant("step3_multicast").tiles(w)))
    others = wgmma_tiles.predicted_us(gated, full(Tile(dict(large))))
    others += wgmma_tiles.predicted_us(down, next(wgmma_tiles.preferred(down)))
    return f"predicted to take {mine:.1f} us, step 3 {others:.1f} us" if others < mine else None


def slower_dot(w: SwigluFfn) -> str | None:
    """Why step 5 is not taken; None where it is predicted to be faster than step 4."""
    gated, down = w.gated_product, w.down_product
    if not (dot.was_timed(gated) and dot.was_timed(down)):
        return f"is for {dot.MOST_ROWS} token, on GPUs with times of such products"
    mine = sum(min(dot.predicted_us(product, t) for t in dot.candidates(product)) for product in (gated, down))
    others = multicast.predicted_us(gated, next(gated_multicast.preferred(gated))) + gated_multicast.second(down).predicted_us
    return f"predicted to take {mine:.1f} us, step 4 {others:.1f} us" if others < mine else None


class SwigluFfn(GatedFfn):
    """A gated feed-forward layer with dense weights: y = (silu(x gate^T) * (x up^T)) down^T."""

    source = "swiglu_ffn.cu"

    @property
    def gated_product(self) -> MatmulWgmma:
        """The product of x with the rows of gate and of up, for the model of its time."""
        return MatmulWgmma(m=self.tokens, n=2 * self.ffn, k=self.hidden, dtype=self.dtype).on(self.device)

    @property
    def gate_product(self) -> MatmulWgmma:
        """The product of x with the rows of gate."""
        return MatmulWgmma(m=self.tokens, n=self.ffn, k=self.hidden, dtype=self.dtype).on(self.device)

    @property
    def down_product(self) -> MatmulWgmma:
        """The product of h with down."""
        return MatmulWgmma(m=self.tokens, n=self.hidden, k=self.ffn, dtype=self.dtype).on(self.device)

    def launch(
        self, kernel: str, a: str, weights: tuple[str, ...], c: str, t: Tile, *, persistent: bool = True
    ) -> Launch:
        """A launch of ``product`` or, with two matrices of weights, of ``gated_product``."""
        n, k = (self.hidden, self.ffn) if weights == ("down",) else (self.ffn, self.hidden)
        cluster, cols = t.CLUSTER_M * t.CLUSTER_N, t.BN // len(weights)
        tiles = cdiv(self.tokens, t.BM * t.CLUSTER_M) * cdiv(n, cols * t.CLUSTER_N)
        return Launch(
            kernel,
            cluster * (min(tiles, cluster_ctas(self.device, cluster) // cluster) if persistent else tiles),
            128 * (t.CONSUMERS + 1),
            (
                TensorMap(a, box=(t.BM // t.CLUSTER_N, BK), swizzle="128B"),
                *(TensorMap(name, box=(cols // t.CLUSTER_M, BK), swizzle="128B") for name in weights),
                TensorMap(c, **(BOX_OF_H if len(weights) == 2 else matmul_wgmma.stored_box(t))),
                *(c, self.tokens, n, k),
            ),
            shared=matmul_wgmma.shared_bytes(t),
            cluster=cluster if cluster > 1 else None,
            template=(self.cu, WgmmaTile(**t)),
        )

    def product(self, a: str, weights: str, c: str) -> Launch:
        """A launch of ``product`` with the tile that matmul_wgmma prefers."""
        columns = self.hidden if weights == "down" else self.ffn
        depth = self.ffn if weights == "down" else self.hidden
        alike = MatmulWgmma(m=self.tokens, n=columns, k=depth, dtype=self.dtype).on(self.device)
        return self.launch("product", a, (weights,), c, full(Tile(dict(next(wgmma_tiles.preferred(alike))))))

    def gated(self, t: Tile, *, persistent: bool = True) -> Launch:
        """A launch of ``gated_product``."""
        return self.launch("gated_product", "x", ("gate", "up"), "h", t, persistent=persistent)

    @variant(requires=REQUIRES)
    def unfused(self) -> list[Launch]:
        """Four launches: products with gate and with up, silu * up, product with down."""
        return [
            self.product("x", "gate", "gate_product"),
            self.product("x", "up", "up_product"),
            self.activation(),
            self.product("h", "down", "y"),
        ]

    @variant(requires=REQUIRES)
    def step1_specialized(self) -> list[Launch]:
        """Two launches: a tile has 128 columns of gate and the same of up; a producer warpgroup and two consumers."""
        return [self.gated(STEP_1, persistent=False), self.product("h", "down", "y")]

    @variant(requires=REQUIRES)
    def step2_persistent(self) -> list[Launch]:
        """One persistent CTA per SM; TMA stores h during the products of the next tile."""
        return [self.gated(STEP_2), self.product("h", "down", "y")]

    @variant(
        requires=REQUIRES,
        tile={
            "BM": [128, 64, 256],  # tokens in a tile
            "BN": [256, 128],  # rows of gate and up in a tile, which are twice the columns of h
            "CONSUMERS": [2, 1],  # warpgroups that multiply
            "STAGES": [4, 3, 5, 6, 8],  # stages of the ring of tiles
            "CLUSTER_M": [2, 1, 4],  # CTAs that share a tile of weights
            "CLUSTER_N": [1, 2],  # CTAs that share a tile of x
            "GROUP": [8, 16, 4, 32, 1],  # rows of clusters in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
            "REGISTERS": [240, 0],  # registers of a consumer thread; 0: the same as of a producer thread
            "BOXES": [2, 1, 4],  # boxes of h that a warp may have in flight
        },
        constraint=usable,
        prefer=preferred,
    )
    def step3_multicast(self, t: Tile) -> list[Launch]:
        """Clusters of two CTAs load each tile of weights once; all tile parameters of the first launch."""
        return [self.gated(full(t)), self.product("h", "down", "y")]

    @variant(
        requires=REQUIRES,
        source=gated_multicast.SOURCE,
        tile=gated_multicast.SPACE,
        constraint=lambda w, t: multicast.usable(w.gated_product, t),
        prefer=lambda w: gated_multicast.preferred(w.gated_product),
        slower=slower,
    )
    def step4_few_tokens(self, t: Tile) -> list[Launch]:
        """For up to some hundred tokens: tiles with any multiple of 8 of them, and down loaded before h is complete."""
        gated = gated_multicast.gated(self.gated_product, t, self.cu, ("x", "gate", "up", "h"))
        taken = gated_multicast.second(self.down_product)
        if taken.kernel == "product":
            return [gated, replace(self.product("h", "down", "y"), source=self.source)]
        return [gated, gated_multicast.early(self.down_product, taken, self.cu, ("h", "down", "y"))]

    @variant(
        requires=REQUIRES,
        source=dot.GATED_SOURCE,
        tile=dot.SPACE,
        constraint=lambda w, t: dot.usable(w.gate_product, t),
        prefer=lambda w: dot.preferred(w.gate_product),
        slower=slower_dot,
    )
    def step5_dot(self, t: Tile) -> list[Launch]:
        """For one token: dot products with rows of the weights, of which down is loaded before h is complete."""
        return dot.gated(self.gate_product, self.down_product, t, self.cu)
