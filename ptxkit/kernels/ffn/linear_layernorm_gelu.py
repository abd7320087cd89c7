"""linear_layernorm_gelu: out = gelu(layer_norm(x w^T + bias))."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.elementwise.elementwise import ACTIVATION_FLOPS, activation
from ptxkit.kernels.ffn import linear
from ptxkit.kernels.gemm import matmul_wgmma
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.rows.layernorm import standardized

NORM_FLOPS = 7  # of layernorm, for each element
RECORD_BYTES = 8  # mean and squared deviations that a CTA sends of a row
CLUSTER_TILE = {
    "BM": [128, 64],  # rows of a cluster
    "BN": [256, 128, 64, 192],  # columns of a CTA
    "CONSUMERS": [2, 1],  # warpgroups that multiply
    "STAGES": [4, 3, 2, 6],  # stages of the ring of tiles
    "CLUSTER": [1, 2, 4, 8, 16],  # CTAs of a cluster, which have all columns
    "REGISTERS": [240, 0],  # registers of a consumer thread; 0: the same as of a producer thread
    "BOXES": [1, 2],  # boxes of the result that a warp may have in flight
}


def product_tile(t: Tile) -> Tile:
    """The tile of the product: a cluster has one row of tiles."""
    own = {name: value for name, value in t.items() if name != "CLUSTER"}
    return matmul_wgmma.full(Tile({**own, "CLUSTER_M": 1, "CLUSTER_N": t.CLUSTER, "GROUP": 1}))


def records_bytes(t: Tile) -> int:
    """Shared memory of ``NormalizedRows`` of cu/ptxkit/gemm/row_statistics.cuh: two buffers of records and of mbarriers."""
    return int(2 * t.CLUSTER * t.BM * RECORD_BYTES + 2 * 8 * 4 * t.CONSUMERS)


def usable_cluster(w: LinearLayernormGelu, t: Tile) -> bool | str:
    """The constraint of ``cluster``."""
    most = w.device.target.limits.largest_cluster
    if most < t.CLUSTER:
        return f"a cluster has at most {most} CTAs"
    if w.features > t.CLUSTER * t.BN:
        needed = cdiv(w.features, t.BN)
        return f"{w.features} features need a cluster of {needed} CTAs of {t.BN} columns, which has {t.CLUSTER}, at most {most}"
    if t.CLUSTER > 1 and w.features <= t.CLUSTER // 2 * t.BN:
        return f"half of the cluster of {t.CLUSTER} has all {w.features} features already"
    if t.BM % (8 * t.CLUSTER):
        return f"the {t.BM} rows of x cannot be loaded in {t.CLUSTER} parts of whole swizzle patterns"
    return linear.usable_wgmma(w, product_tile(t), records_bytes(t))


def preferred_cluster(w: LinearLayernormGelu) -> Iterator[Mapping[str, Any]]:
    """Few rows: as many CTAs as have a part of the columns. Many rows: large tiles."""
    few = w.rows <= 64
    for columns in (64, 128, 256) if few else (256, 192, 128, 64):
        ctas = 1 << (cdiv(w.features, columns) - 1).bit_length()
        if ctas > 16:
            continue
        yield from (
            {
                "BM": rows,
                "BN": columns,
                "CLUSTER": ctas,
                "STAGES": stages,
                "CONSUMERS": consumers,
                "REGISTERS": registers,
            }
            for rows, consumers, registers in (((64, 1, 0),) if few else ()) + ((128, 2, 240), (64, 1, 0))
            for stages in (6, 4, 3, 2)
        )


class LinearLayernormGelu(Workload):
    """out = gelu(layer_norm(x w^T + bias)): x (rows, hidden), w (features, hidden), out (rows, features)."""

    source = "linear_layernorm_gelu.cu"
    rows: int = 2048
    hidden: int = 4096
    features: int = 4096
    dtype: linear.Dtype = "bf16"
    eps: float = 1e-5
    emulator_sizes = {"rows": 64, "hidden": 256, "features": 256}
    benchmarks = linear.PRESETS

    def constraints(self) -> Iterable[str]:
        yield from linear.check_sizes(self)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": uniform(rng, (self.rows, self.hidden), self.dtype),
            "w": linear.weights(rng, self.features, self.hidden, self.dtype),
            "bias": uniform(rng, self.features, self.dtype),
            "gamma": uniform(rng, self.features, self.dtype),
            "beta": uniform(rng, self.features, self.dtype),
            "eps": np.float32(self.eps),
        }

    def reference(self, x: Any, w: Any, bias: Any, gamma: Any, beta: Any, eps: Any) -> dict[str, Any]:
        """The reference in float64; the product of large sizes in float32, whose error is far below the tolerance."""
        wide = linear.wide(self)
        product = x.astype(wide) @ w.astype(wide).T + bias.astype(wide)
        normalized = standardized(product, eps)[0] * gamma.astype(np.float64) + beta.astype(np.float64)
        return {"out": activation("gelu", normalized)}

    def outputs(self) -> Mapping[str, Any]:
        return {"out": ((self.rows, self.features), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.rows, self.features)
        found: dict[str, Any] = {"means": (self.rows, "f64"), "rstds": (self.rows, "f64")}
        found |= dict.fromkeys(("normalized", "affine"), (shape, "f32"))
        return found | dict.fromkeys(("product", "biased"), (shape, self.dtype))

    def work(self) -> Work:
        """The flops of the product, of bias, layernorm and gelu; each array is read or written once."""
        inputs, results = self.rows * self.hidden, self.rows * self.features
        elements = inputs + self.features * self.hidden + 3 * self.features + results
        return Work(
            flops=2 * inputs * self.features + (1 + NORM_FLOPS + ACTIVATION_FLOPS["gelu"]) * results,
            bytes=row.itemsize(self.dtype) * elements,
            unit=self.dtype,
            sum_length=self.hidden,
        )

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on the type here
        return linear.tolerance(self)

    @property
    def layernorm(self) -> list[Launch]:
        """The row kernel: biased to out."""
        return linear.layernorm(self, self.features, "vectorized", {"x": "biased", "y": "out"}, "gelu")

    @variant(requires=linear.MMA)
    def unfused(self) -> list[Launch]:
        """Seven launches: product, bias, mean, variance, normalize, scale and shift, gelu."""
        return [
            *linear.product(self, "x", "w", "product"),
            linear.add_bias(self, "product", "biased"),
            *linear.layernorm(self, self.features, "unfused", {"x": "biased", "y": "out"}, "gelu"),
        ]

    @variant(requires=linear.MMA, tile=linear.MMA_TILE, constraint=linear.usable_mma, prefer=linear.preferred_mma)
    def row_kernels(self, t: Tile) -> list[Launch]:
        """The product by mma.sync adds the bias in its epilogue; a row kernel normalizes its rows and applies gelu."""
        return [linear.mma_launch("linear_mma", self, t, ("x", "w", "bias", "biased")), *self.layernorm]

    @variant(
        requires=linear.WGMMA,
        tile=linear.WGMMA_TILE,
        constraint=linear.usable_wgmma,
        prefer=linear.preferred_wgmma,
    )
    def row_kernels_wgmma(self, t: Tile) -> list[Launch]:
        """row_kernels with the product by wgmma, whose results TMA stores."""
        launch = linear.wgmma_launch("linear_wgmma", self, t, ("x", "w", "biased"), ("bias", "biased"))
        return [launch, *self.layernorm]

    @variant(
        requires=linear.WGMMA,
        tile=linear.SWAPPED_TILE,
        constraint=linear.usable_swapped,
        prefer=linear.preferred_swapped,
        slower=linear.slower_product(9),
    )
    def row_kernels_swapped(self, t: Tile) -> list[Launch]:
        """For few rows: the product has the weights as its first operand, and CTAs of a cluster divide hidden."""
        return [*linear.swapped_launches(self, t, {"a": "x", "b": "w", "c": "biased"}), *self.layernorm]

    @variant(
        requires=linear.WGMMA,
        tile=linear.MULTICAST_TILE,
        constraint=linear.usable_multicast,
        prefer=linear.preferred_multicast,
        slower=linear.slower_product(15),
    )
    def row_kernels_multicast(self, t: Tile) -> list[Launch]:
        """Tiles with any multiple of 8 rows, and both operands loaded for a cluster."""
        return [*linear.multicast_launches(self, t, {"a": "x", "b": "w", "c": "biased"}), *self.layernorm]

    @variant(
        requires=linear.WGMMA,
        tile=CLUSTER_TILE,
        constraint=usable_cluster,
        prefer=preferred_cluster,
        slower=linear.slower_than_two,
    )
    def cluster(self, t: Tile) -> list[Launch]:
        """One launch: a cluster has all columns of its rows in registers and exchanges their statistics by DSMEM."""
        args = ("bias", "gamma", "beta", "out", "eps")
        maps = ("x", "w", "out")
        return [linear.wgmma_launch("linear_normalized", self, product_tile(t), maps, args, records_bytes(t))]
