"""softmax_backward: dx[r, :] = scale * y[r, :] * (dy[r, :] - sum(y[r, :] * dy[r, :])), the gradient of softmax from
its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.rows.softmax import probabilities
from ptxkit.workload.inputs import dtype_of

TILE: Mapping[str, list[Any]] = {
    **row.TILE_IN_REGISTERS,
    "WIDTH": row.TILE["WIDTH"],
    "PREFETCH_L2": row.TILE["PREFETCH_L2"],
}


class SoftmaxBackward(Workload):
    """Gradient of softmax: two reads and one write. With a scale, that of the scores of softmax(scale * scores + mask)."""

    source = "softmax_backward.cu"
    rows: int = 16384
    cols: int = 4096
    scale: float = 1.0
    dtype: row.Dtype = "f32"
    emulator_sizes = {"rows": 64, "cols": 1024}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shape = (self.rows, self.cols)
        y = probabilities(uniform(rng, shape, np.float64)).astype(dtype_of(self.dtype))
        return {"y": y, "dy": uniform(rng, shape, self.dtype), "scale": np.float32(self.scale)}

    @by_rows("y", "dy")
    def reference(self, y: np.ndarray[Any, Any], dy: np.ndarray[Any, Any], scale: np.float32) -> dict[str, Any]:
        p, d = y.astype(np.float64), dy.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            return {"dx": np.float64(scale) * p * (d - np.einsum("rc,rc->r", p, d)[:, None])}

    def temporaries(self) -> Mapping[str, Any]:
        return {"products": ((self.rows, self.cols), "f32"), "sums": (self.rows, "f32")}

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=5 * n, bytes=3 * row.itemsize(self.dtype) * n)

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on the type here
        """The error of the sum is relative to the terms, so that it remains where dy and the sum cancel."""
        unit = {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7}[self.dtype]
        return Tolerance(relative=max(unit, 1e-5), typical=2.0**-16, absolute=1e-7 if self.dtype == "f16" else 1e-30)

    def constraints(self) -> Iterable[str]:
        if not np.isfinite(self.scale):
            yield f"scale must be finite, not {self.scale}"
        yield from row.too_many(self)

    @variant
    def unfused(self) -> list[Launch]:
        """Three launches through device memory: products, their sums, gradients."""
        cu = row.cu_type(self.dtype)
        combined = ("y", "dy", "sums", "dx", self.cols, "scale")
        return [
            row.by_element("softmax_backward_multiply", self, ("y", "dy", "products", self.cols), (cu,)),
            row.by_row("softmax_backward_sum", self, ("products", "sums", self.cols), ()),
            row.by_element("softmax_backward_combine", self, combined, (cu,)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, which stays in shared memory until its sum is known; bit-identical to unfused."""
        args = ("y", "dy", "dx", self.cols, "scale")
        return [row.kept("softmax_backward_fused", self, args, (row.cu_type(self.dtype),), size=8)]

    @variant(tile=TILE, constraint=row.fits_in_registers(2), prefer=row.preferred_in_registers(2, requests=True, packed=True))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster; one barrier."""
        args = ("y", "dy", "dx", self.rows, self.cols, "scale")
        return [row.launch_in_registers("softmax_backward_vectorized", self, t, args, (row.cu_type(self.dtype),))]
