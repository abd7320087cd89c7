"""layernorm_quantize: layer normalization, then quantization to int8 with one scale per row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.rows.layernorm import standardized


class LayernormQuantize(Workload):
    """Layer normalization, quantized per row: q = round(v / scale), scale = max(|v|) / 127; one read of x, one write of q."""

    source = "layernorm_quantize.cu"
    rows: int = 16384
    cols: int = 4096
    dtype: row.Dtype = "f32"
    eps: float = 1e-5
    emulator_sizes = {"rows": 64, "cols": 1024}
    # The reference of q is not rounded, so that q is within half of it, and f32 arithmetic may round values next to a tie to
    # either integer. Scales have the usual relative error of 1e-5.
    tolerance = {"q": Tolerance(absolute=0.5, relative=1e-5), "scales": Tolerance(relative=1e-5)}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = uniform(rng, (self.rows, self.cols), self.dtype)
        gamma, beta = uniform(rng, self.cols, self.dtype), uniform(rng, self.cols, self.dtype)
        return {"x": x, "gamma": gamma, "beta": beta, "eps": np.float32(self.eps)}

    @by_rows("x")
    def reference(
        self, x: np.ndarray[Any, Any], gamma: np.ndarray[Any, Any], beta: np.ndarray[Any, Any], eps: np.float32
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            v, scales = quantizable(x, gamma, beta, eps)
            q = v / np.where(scales == 0, 1, scales)[:, None]
        return {"q": np.nan_to_num(q, nan=0), "scales": scales}

    def outputs(self) -> Mapping[str, Any]:
        return {"q": ((self.rows, self.cols), "s8"), "scales": (self.rows, "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        matrix = ((self.rows, self.cols), "f32")
        vectors = {"means": (self.rows, "f64"), "rstds": (self.rows, "f64"), "largest": (self.rows, "f32")}
        return vectors | {"normalized": matrix, "affine": matrix}

    def work(self) -> Work:
        n, size = self.rows * self.cols, row.itemsize(self.dtype)
        return Work(flops=9 * n, bytes=(size + 1) * n + 2 * size * self.cols + 4 * self.rows)

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.eps < float("inf"):
            yield f"eps must be finite and at least 0, not {self.eps}"
        yield from row.too_many(self)

    @variant
    def unfused(self) -> list[Launch]:
        """Six launches through device memory: mean, rstd, normalize, affine, row scales, quantize."""
        cu = row.cu_type(self.dtype)
        normalize = ("x", "means", "rstds", "normalized", self.cols)
        affine = ("normalized", "gamma", "beta", "affine", self.cols)
        rstd = ("x", "means", "rstds", row.NULL, self.cols, "eps")
        source = "layernorm.cu"
        return [
            row.by_row("layernorm_mean", self, ("x", "means", row.NULL, self.cols), (cu,), source=source),
            row.by_row("layernorm_rstd", self, rstd, (cu,), source=source),
            row.by_element("layernorm_normalize", self, normalize, (cu,), source=source),
            row.by_element("layernorm_affine", self, affine, (cu, "float"), source=source),
            row.by_row("row_scales", self, ("affine", "rstds", "largest", "scales", self.cols), ()),
            row.by_element("quantize_rows", self, ("affine", "largest", "q", self.cols), ()),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, which stays in shared memory until its statistics and scale are known; bit-identical to unfused."""
        args = ("x", "gamma", "beta", "q", "scales", self.cols, "eps")
        return [row.kept("layernorm_quantize_fused", self, args, (row.cu_type(self.dtype),), size=4)]

    @variant(
        tile=row.TILE,
        constraint=row.usable(beside=36, early=2),
        prefer=row.preferred(36, weights=2, cache=0, prefetched=False, long_columns=1 << 15, latency=1.5),
    )
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster; two barriers."""
        args = ("x", "gamma", "beta", "q", "scales", self.rows, self.cols, "eps")
        return [row.vectorized("layernorm_quantize", self, t, args, (row.cu_type(self.dtype),), full_tile_columns=64)]

    @variant(
        tile=pipeline.TILE,
        constraint=pipeline.usable(beside=36, weights=2),
        prefer=pipeline.preferred,
        requires=("tma",),
        slower=lambda w: "many small CTAs hide more latency than persistent ones that prefetch rows",
    )
    def pipelined(self, t: Tile) -> list[Launch]:
        """Persistent CTAs: TMA copies the next rows to shared memory while one is computed."""
        args = ("x", "gamma", "beta", "q", "scales", self.rows, self.cols, "eps")
        return [pipeline.launch("layernorm_quantize", self, t, args, (row.cu_type(self.dtype),), weights=2)]


def quantizable(
    x: np.ndarray[Any, Any], gamma: np.ndarray[Any, Any], beta: np.ndarray[Any, Any], eps: np.float32
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The values to quantize, of shape (rows, cols), and the scales, of shape (rows,), in float64."""
    v, _, rstd = standardized(x, eps)
    v *= gamma.astype(np.float64)
    v += beta.astype(np.float64)
    scales = np.fmax.reduce(np.abs(v), axis=1, initial=0) / 127
    return v, np.where(np.isnan(rstd), np.nan, scales)
