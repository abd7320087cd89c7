"""saxpy: y = a*x + y, one read of x and y and one write of y."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, cdiv, uniform, variant


class Saxpy(Workload):
    """y = a*x + y, one read of x and y and one write of y."""

    source = "saxpy.cu"
    n: int = 1 << 26  # moves 805 MB, more than any L2 holds
    emulator_sizes = {"n": 1 << 18}
    tolerance = Tolerance(ulp=0.501)  # an fma rounds once; the reference is rounded to float64 first

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"a": np.float32(2.5), "x": uniform(rng, self.n), "y": uniform(rng, self.n)}

    @by_rows("x", "y")
    def reference(self, a: np.float32, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"y": np.float64(a) * x + y}

    def work(self) -> Work:
        return Work(flops=2 * self.n, bytes=12 * self.n)

    @variant(tile={"THREADS": [256, 128, 512]})
    def scalar(self, t: Tile) -> list[Launch]:
        """One element per thread."""
        args = ("a", "x", "y", self.n)
        return [Launch("saxpy", cdiv(self.n, t.THREADS), t.THREADS, args, template=(t.THREADS,))]

    @variant(tile={"THREADS": [256, 128, 512]})
    def vectorized(self, t: Tile) -> list[Launch]:
        """Four elements per thread, in 128-bit accesses."""
        args = ("a", "x", "y", self.n)
        return [Launch("saxpy_vectorized", cdiv(self.n, 4 * t.THREADS), t.THREADS, args, template=(t.THREADS,))]

    @variant(source="saxpy.ptx")
    def ptx(self) -> list[Launch]:
        """Hand-written PTX, one element per thread."""
        return [Launch("saxpy", cdiv(self.n, 256), 256, ("a", "x", "y", self.n))]
