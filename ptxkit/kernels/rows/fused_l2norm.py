"""fused_l2norm: rows divided by their L2 norm, y[r, :] = x[r, :] / sqrt(sum(x[r, :]^2) + eps)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, cdiv, uniform, variant
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row

THREADS = 256  # threads of a CTA in the unfused chain and in fused
ELEMENTS = 4  # elements of a thread in the element-wise launches of the chain
FULL_TILE_COLUMNS = 32  # maximum number of columns per thread for code without bounds checks


class FusedL2norm(Workload):
    """Rows divided by their L2 norm: one read of x and one write of y."""

    source = "fused_l2norm.cu"
    rows: int = 8192
    cols: int = 4096
    eps: float = 1e-12
    dtype: ClassVar[row.Dtype] = "f32"
    emulator_sizes = {"rows": 128, "cols": 4096}
    benchmarks = ({"rows": 128}, {}, {"rows": 16384, "cols": 8192})
    tolerance = Tolerance(ulp=4)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, (self.rows, self.cols)), "eps": np.float32(self.eps)}

    @by_rows("x")
    def reference(self, x: np.ndarray[Any, Any], eps: np.float32) -> dict[str, Any]:
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            return {"y": wide / np.sqrt(np.einsum("rc,rc->r", wide, wide) + np.float64(eps))[:, None]}

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.rows, self.cols), "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {
            "squares": ((self.rows, self.cols), "f32"),
            "sums": (self.rows, "f64"),
            "norms": ((self.rows, 2), "f32"),
            "next": (1, "u32"),
        }

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=3 * n + 2 * self.rows, bytes=8 * n)

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.eps < float("inf"):
            yield f"eps must be finite and at least 0, not {self.eps}"
        if self.rows * cdiv(self.cols, THREADS * ELEMENTS) >= 2**31:
            yield "more CTAs than a grid can have"

    @variant
    def unfused(self) -> list[Launch]:
        """Five launches through device memory, as a framework evaluates x / sqrt((x * x).sum(1) + eps)."""
        n = self.rows * self.cols
        chunk = THREADS * ELEMENTS
        elementwise, by_row = (THREADS, ELEMENTS), (THREADS,)
        small = cdiv(self.rows, THREADS)
        return [
            Launch("l2norm_square", cdiv(n, chunk), THREADS, ("x", "squares", n), template=elementwise),
            Launch("l2norm_row_sum", self.rows, THREADS, ("x", "squares", "sums", self.cols), template=by_row),
            Launch("l2norm_add_eps", small, THREADS, ("sums", self.rows, "eps"), template=by_row),
            Launch("l2norm_sqrt", small, THREADS, ("sums", "norms", self.rows), template=by_row),
            Launch(
                "l2norm_divide",
                self.rows * cdiv(self.cols, chunk),
                THREADS,
                ("x", "norms", "y", self.cols),
                template=elementwise,
            ),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA per row, which stays in shared memory until its norm is known; bit-identical to unfused."""
        keep = 4 * self.cols <= self.device.target.limits.default_shared_bytes
        shared = 4 * self.cols if keep else 0
        args = ("x", "y", self.cols, "eps")
        return [Launch("l2norm_fused", self.rows, THREADS, args, shared=shared, template=(THREADS, keep))]

    @variant(tile=row.TILE_WITHOUT_WEIGHTS, constraint=row.usable(beside=28), prefer=row.preferred(28))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster."""
        args = ("x", "y", self.rows, self.cols, "eps")
        return [
            row.vectorized("l2norm", self, t, args, (), full_tile_columns=FULL_TILE_COLUMNS, full_tile_shares_cta=True)
        ]

    @pipeline.persistent(beside=32, weights=0)
    def persistent(self, t: Tile) -> list[Launch]:
        """Dynamic persistent kernel for long rows: clusters take rows from a tile scheduler and prefetch them through TMA."""
        args = ("x", "y", "next", self.rows, self.cols, "eps")
        return pipeline.launch_persistent("l2norm", self, t, args, ("float",), weights=0)

    @variant(source="fused_l2norm.ptx")
    def ptx(self) -> list[Launch]:
        """Hand-written PTX: one CTA per row, 128-bit accesses, the first 8192 columns in registers."""
        return [Launch("l2norm", self.rows, 512, ("x", "y", self.cols, "eps"))]
