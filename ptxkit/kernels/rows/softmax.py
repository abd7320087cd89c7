"""softmax: y[r, :] = exp(x[r, :] - max) / sum(exp(x[r, :] - max)), with dropout when p is not 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.philox import random_words
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row

TOLERANCES = {
    "f32": Tolerance(relative=1e-5, absolute=1e-30),
    "f16": Tolerance(relative=2e-3, absolute=1e-7),
    "bf16": Tolerance(relative=1.6e-2, absolute=1e-30),
}
"""Absolute tolerance by dtype, so small that a probability of 1e-6 is compared as well."""


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of the vectorized variant."""
    if t.WIDTH == 2 and w.p > 0:
        return "WIDTH=2: dropout takes random words for four columns at a time"
    return row.usable(beside=32)(w, t)


class Softmax(Workload):
    """Softmax of rows, with dropout when p is not 0: one read of x and one write of y."""

    source = "softmax.cu"
    rows: int = 16384
    cols: int = 4096
    p: float = 0.0  # probability of an element to be dropped
    seed: int = field(default=1234, kw_only=True)
    dtype: row.Dtype = "f32"
    emulator_sizes = {"rows": 64, "cols": 1024}
    benchmarks = ({"rows": 1024, "cols": 1024}, {})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = uniform(rng, (self.rows, self.cols), self.dtype)
        threshold, scale = np.uint32(self.p * 2**32), np.float32(1 / (1 - self.p))
        return {"x": x, "threshold": threshold, "scale": scale, "seed": np.uint64(self.seed)}

    def reference(
        self, x: np.ndarray[Any, Any], threshold: np.uint32, scale: np.float32, seed: np.uint64
    ) -> dict[str, Any]:
        words = random_words(x.size, int(seed)).reshape(x.shape) if self.p > 0 else None
        return self._dropped(x=x, words=words, threshold=threshold, scale=np.float64(scale))

    @by_rows("x", "words")
    def _dropped(
        self, x: np.ndarray[Any, Any], words: np.ndarray[Any, Any] | None, threshold: np.uint32, scale: np.float64
    ) -> dict[str, Any]:
        """The reference, from the random words of all elements."""
        y = probabilities(x.astype(np.float64))
        if words is not None:
            y *= scale
            y[words < threshold] = 0
        return {"y": y}

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.rows, self.cols), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.rows, self.cols)
        vectors = {"maxima": (self.rows, "f32"), "sums": (self.rows, "f32"), "next": (1, "u32")}
        return vectors | {"exponentials": (shape, "f32"), "probabilities": (shape, "f32")}

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=5 * n, bytes=2 * row.itemsize(self.dtype) * n)

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.p < 1:
            yield f"p must be at least 0 and below 1, not {self.p}"
        yield from row.too_many(self)

    @property
    def _drops(self) -> bool:
        return self.p > 0

    @variant
    def unfused(self) -> list[Launch]:
        """Four launches through device memory, five with dropout: maximum, exponentials, their sum, quotients, dropout."""
        cu = row.cu_type(self.dtype)
        chain = [
            row.by_row("softmax_max", self, ("x", "maxima", self.cols), (cu,)),
            row.by_element("softmax_exp", self, ("x", "maxima", "exponentials", self.cols), (cu,)),
            row.by_row("softmax_sum", self, ("exponentials", "sums", self.cols), ()),
        ]
        divide = ("exponentials", "sums")
        if not self._drops:
            return [*chain, row.by_element("softmax_divide", self, (*divide, "y", self.cols), (cu,))]
        dropout = ("probabilities", "y", self.cols, "threshold", "scale", "seed")
        return [
            *chain,
            row.by_element("softmax_divide", self, (*divide, "probabilities", self.cols), ("float",)),
            row.by_element("softmax_dropout", self, dropout, (cu,)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, whose exponentials stay in shared memory until their sum is known; bit-identical to unfused."""
        args = ("x", "y", self.cols, "threshold", "scale", "seed")
        return [row.kept("softmax_fused", self, args, (row.cu_type(self.dtype), self._drops), size=4)]

    @variant(
        tile=row.TILE_WITHOUT_WEIGHTS,
        constraint=usable,
        prefer=row.preferred(32),
    )
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster; one barrier."""
        args = ("x", "y", self.rows, self.cols, "threshold", "scale", "seed")
        return [
            row.vectorized(
                "softmax",
                self,
                t,
                args,
                (row.cu_type(self.dtype), self._drops),
                full_tile_columns=row.FULL_TILE_COLUMNS,
            )
        ]

    @pipeline.persistent(beside=32, weights=0)
    def persistent(self, t: Tile) -> list[Launch]:
        """Dynamic persistent kernel for long rows: clusters take rows from a tile scheduler and prefetch them through TMA."""
        args = ("x", "y", "next", self.rows, self.cols, "threshold", "scale", "seed")
        return pipeline.launch_persistent("softmax", self, t, args, (row.cu_type(self.dtype), self._drops), weights=0)


def probabilities(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Softmax of each row in float64; overwrites its argument."""
    with np.errstate(all="ignore"):  # NaN and infinity propagate
        x -= x.max(1, keepdims=True)
        np.exp(x, out=x)
        x /= x.sum(1, keepdims=True)
    return x
