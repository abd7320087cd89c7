"""scale_mask_softmax: y[r, :] = softmax(s[r, :] * scale + mask[r, :]), zeros for rows whose columns are all masked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.rows import rows as row


class ScaleMaskSoftmax(Workload):
    """Softmax of scaled and masked scores: two reads and one write instead of eleven passes."""

    source = "scale_mask_softmax.cu"
    rows: int = 16384
    cols: int = 4096
    scale: float = 0.125  # 1 / sqrt(64), for attention heads of 64
    masked: float = 0.25  # fraction of the scores that the random mask removes
    dtype: row.Dtype = "f32"
    emulator_sizes = {"rows": 64, "cols": 1024}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shape = (self.rows, self.cols)
        s, mask = uniform(rng, shape, self.dtype), uniform(rng, shape, self.dtype)
        mask[mask < 2 * self.masked - 1] = -np.inf
        return {"s": s, "mask": mask, "scale": np.float32(self.scale)}

    @by_rows("s", "mask")
    def reference(self, s: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], scale: np.float32) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            y = s.astype(np.float64)
            y *= np.float64(scale)
            y += mask.astype(np.float64)
            largest = y.max(1, keepdims=True)
            y -= np.where(np.isneginf(largest), 0, largest)
            np.exp(y, out=y)
            total = y.sum(1, keepdims=True)
            y /= np.where(total == 0, 1, total)
        return {"y": y}

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.rows, self.cols), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        matrix = ((self.rows, self.cols), "f32")
        vectors = {"maxima": (self.rows, "f32"), "sums": (self.rows, "f32")}
        return vectors | {"scaled": matrix, "scores": matrix, "exponentials": matrix}

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=7 * n, bytes=3 * row.itemsize(self.dtype) * n)

    def constraints(self) -> Iterable[str]:
        if not np.isfinite(self.scale):
            yield f"scale must be finite, not {self.scale}"
        if not 0 <= self.masked <= 1:
            yield f"masked must be between 0 and 1, not {self.masked}"
        yield from row.too_many(self)

    @variant
    def unfused(self) -> list[Launch]:
        """Six launches through device memory: scale, mask, maximum, exponentials, their sum, quotients."""
        cu = row.cu_type(self.dtype)
        return [
            row.by_element("scores_scale", self, ("s", "scaled", self.cols, "scale"), (cu,)),
            row.by_element("scores_mask", self, ("scaled", "mask", "scores", self.cols), (cu,)),
            row.by_row("scores_max", self, ("scores", "maxima", self.cols), ()),
            row.by_element("scores_exp", self, ("scores", "maxima", "exponentials", self.cols), ()),
            row.by_row("scores_sum", self, ("exponentials", "sums", self.cols), ()),
            row.by_element("scores_divide", self, ("exponentials", "sums", "y", self.cols), (cu,)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, whose scores stay in shared memory; bit-identical to unfused."""
        args = ("s", "mask", "y", self.cols, "scale")
        return [row.kept("scale_mask_softmax_fused", self, args, (row.cu_type(self.dtype),), size=4)]

    @variant(
        tile=row.TILE_WITHOUT_WEIGHTS,
        constraint=row.usable(beside=32, size=4),
        prefer=row.preferred(40),
    )
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster; one barrier."""
        args = ("s", "mask", "y", self.rows, self.cols, "scale")
        return [row.vectorized("scale_mask_softmax", self, t, args, (row.cu_type(self.dtype),), size=4)]
