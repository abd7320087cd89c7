"""rmsnorm: y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * gamma."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, cdiv, uniform, variant
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row


class Rmsnorm(Workload):
    """RMS normalization: one read of x and one write of y."""

    source = "rmsnorm.cu"
    rows: int = 16384
    cols: int = 4096
    dtype: row.Dtype = "f32"
    eps: float = 1e-6
    training: bool = field(default=False, kw_only=True)
    emulator_sizes = {"rows": 64, "cols": 1024}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = uniform(rng, (self.rows, self.cols), self.dtype)
        return {"x": x, "gamma": uniform(rng, self.cols, self.dtype), "eps": np.float32(self.eps)}

    @by_rows("x")
    def reference(self, x: np.ndarray[Any, Any], gamma: np.ndarray[Any, Any], eps: np.float32) -> dict[str, Any]:
        y = x.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            rstd = 1 / np.sqrt(np.einsum("rc,rc->r", y, y) / self.cols + np.float64(eps))
            y *= rstd[:, None]
            y *= gamma.astype(np.float64)
        return {"y": y} | ({"rstd": rstd} if self.training else {})

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.rows, self.cols), self.dtype)} | ({"rstd": (self.rows, "f32")} if self.training else {})

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.rows, self.cols)
        matrices = {"squares": (shape, "f32"), "normalized": (shape, "f32")}
        return {"means": (self.rows, "f64"), "factors": (self.rows, "f64"), "next": (1, "u32")} | matrices

    def work(self) -> Work:
        n = self.rows * self.cols
        size = row.itemsize(self.dtype)
        return Work(flops=4 * n, bytes=2 * size * n + size * self.cols + 4 * self.rows * self.training)

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.eps < float("inf"):
            yield f"eps must be finite and at least 0, not {self.eps}"
        yield from row.too_many(self)

    @property
    def _rstd(self) -> object:
        return "rstd" if self.training else row.NULL

    @variant
    def unfused(self) -> list[Launch]:
        """Five launches through device memory: square, mean, factor, normalize, scale."""
        cu = row.cu_type(self.dtype)
        small = cdiv(self.rows, row.THREADS * row.CHUNK)
        factor = ("means", "factors", self._rstd, self.rows, "eps")
        return [
            row.by_element("rmsnorm_square", self, ("x", "squares", self.cols), (cu,)),
            row.by_row("rmsnorm_mean", self, ("x", "squares", "means", self.cols, "eps"), (cu,)),
            Launch("rmsnorm_factor", small, row.THREADS, factor, template=(row.THREADS, row.CHUNK)),
            row.by_element("rmsnorm_normalize", self, ("x", "factors", "normalized", self.cols), (cu,)),
            row.by_element("rmsnorm_scale", self, ("normalized", "gamma", "y", self.cols), (cu,)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, which stays in shared memory until its factor is known; bit-identical to unfused."""
        args = ("x", "gamma", "y", self._rstd, self.cols, "eps")
        return [row.kept("rmsnorm_fused", self, args, (row.cu_type(self.dtype),))]

    @variant(tile=row.TILE, constraint=row.usable(beside=36, early=1), prefer=row.preferred(36, weights=1, early=True))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster."""
        args = ("x", "gamma", "y", self._rstd, self.rows, self.cols, "eps")
        return [
            row.vectorized(
                "rmsnorm", self, t, args, (row.cu_type(self.dtype),), full_tile_columns=row.FULL_TILE_COLUMNS
            )
        ]

    @pipeline.persistent(beside=36, weights=1)
    def persistent(self, t: Tile) -> list[Launch]:
        """Dynamic persistent kernel for long rows: clusters take rows from a tile scheduler and prefetch them through TMA."""
        args = ("x", "gamma", "y", self._rstd, "next", self.rows, self.cols, "eps")
        return pipeline.launch_persistent("rmsnorm", self, t, args, (row.cu_type(self.dtype),), weights=1)
