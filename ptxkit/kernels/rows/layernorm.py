"""layernorm: y[r, :] = activation((x[r, :] - mean) / sqrt(variance + eps) * gamma + beta)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row


def gelu_tanh(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The tanh approximation of GELU, in a form without cancellation for negative arguments."""
    with np.errstate(over="ignore"):
        y: np.ndarray[Any, Any] = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * (x * x * x))))
    return y


ACTIVATIONS = {"none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu_tanh}


class Layernorm(Workload):
    """Layer normalization with scale, shift and activation: one read of x and one write of y."""

    source = "layernorm.cu"
    rows: int = 16384
    cols: int = 4096
    activation: Literal["none", "relu", "gelu"] = "gelu"
    dtype: row.Dtype = "f32"
    eps: float = 1e-5
    training: bool = field(default=False, kw_only=True)
    emulator_sizes = {"rows": 64, "cols": 1024}
    benchmarks = ({"rows": 128}, {})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = uniform(rng, (self.rows, self.cols), self.dtype)
        gamma, beta = uniform(rng, self.cols, self.dtype), uniform(rng, self.cols, self.dtype)
        return {"x": x, "gamma": gamma, "beta": beta, "eps": np.float32(self.eps)}

    @by_rows("x")
    def reference(
        self, x: np.ndarray[Any, Any], gamma: np.ndarray[Any, Any], beta: np.ndarray[Any, Any], eps: np.float32
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            y, mean, rstd = standardized(x, eps)
            y *= gamma.astype(np.float64)
            y += beta.astype(np.float64)
            result = {"y": ACTIVATIONS[self.activation](y)}
        return result | ({"mean": mean, "rstd": rstd} if self.training else {})

    def outputs(self) -> Mapping[str, Any]:
        kept = {"mean": (self.rows, "f32"), "rstd": (self.rows, "f32")} if self.training else {}
        return {"y": ((self.rows, self.cols), self.dtype)} | kept

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.rows, self.cols)
        matrices = {"normalized": (shape, "f32"), "affine": (shape, "f32")}
        return {"means": (self.rows, "f64"), "rstds": (self.rows, "f64"), "next": (1, "u32")} | matrices

    def work(self) -> Work:
        n = self.rows * self.cols
        size = row.itemsize(self.dtype)
        flops = {"none": 7, "relu": 8, "gelu": 14}[self.activation]
        return Work(flops=flops * n, bytes=2 * size * (n + self.cols) + 8 * self.rows * self.training)

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.eps < float("inf"):
            yield f"eps must be finite and at least 0, not {self.eps}"
        yield from row.too_many(self)

    @property
    def _statistics(self) -> tuple[object, object]:
        return ("mean", "rstd") if self.training else (row.NULL, row.NULL)

    @variant
    def unfused(self) -> list[Launch]:
        """Five launches through device memory: mean, rstd, normalize, affine, activation."""
        cu = row.cu_type(self.dtype)
        mean, rstd = self._statistics
        chain = [
            row.by_row("layernorm_mean", self, ("x", "means", mean, self.cols), (cu,)),
            row.by_row("layernorm_rstd", self, ("x", "means", "rstds", rstd, self.cols, "eps"), (cu,)),
            row.by_element("layernorm_normalize", self, ("x", "means", "rstds", "normalized", self.cols), (cu,)),
        ]
        affine = ("normalized", "gamma", "beta")
        if self.activation == "none":
            return [*chain, row.by_element("layernorm_affine", self, (*affine, "y", self.cols), (cu, cu))]
        return [
            *chain,
            row.by_element("layernorm_affine", self, (*affine, "affine", self.cols), (cu, "float")),
            row.by_element("layernorm_activate", self, ("affine", "y", self.cols), (cu, self.activation.upper())),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, which stays in shared memory until its statistics are known; bit-identical to unfused."""
        args = ("x", "gamma", "beta", "y", *self._statistics, self.cols, "eps")
        return [row.kept("layernorm_fused", self, args, (row.cu_type(self.dtype), self.activation.upper()))]

    @variant(
        tile=row.TILE,
        constraint=row.usable(beside=36, early=2, spills_at=32),
        prefer=row.preferred(36, weights=2, spills_at=32),
    )
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster; one barrier."""
        args = ("x", "gamma", "beta", "y", *self._statistics, self.rows, self.cols, "eps")
        template = (row.cu_type(self.dtype), self.activation.upper())
        return [row.vectorized("layernorm", self, t, args, template, full_tile_columns=row.FULL_TILE_COLUMNS)]

    @pipeline.persistent(beside=36, weights=2)
    def persistent(self, t: Tile) -> list[Launch]:
        """Dynamic persistent kernel for long rows: clusters take rows from a tile scheduler and prefetch them through TMA."""
        args = ("x", "gamma", "beta", "y", *self._statistics, "next", self.rows, self.cols, "eps")
        return pipeline.launch_persistent(
            "layernorm", self, t, args, (row.cu_type(self.dtype), self.activation.upper()), weights=2
        )


def standardized(
    x: np.ndarray[Any, Any], eps: np.float32
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(x - mean) * rstd in float64, of shape (rows, cols); mean and rstd = 1 / sqrt(variance + eps), of shape (rows,)."""
    y = x.astype(np.float64)
    mean = y.mean(1)
    y -= mean[:, None]
    rstd = 1 / np.sqrt(np.einsum("rc,rc->r", y, y) / x.shape[1] + np.float64(eps))
    y *= rstd[:, None]
    return y, mean, rstd
