"""saxpy: y = a*x + y, one read of x and y and one write of y."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, uniform, variant


class Saxpy(Workload):
    """y = a*x + y, one read of x and y and one write of y."""

    source = "saxpy.cu"
    n: int = 1 << 26  # 805 MB moved: beyond any L2
    emulator_sizes = {"n": 1 << 18}
    tolerance = Tolerance(ulp=0.501)  # one fma is the reference rounded, which itself is rounded to float64

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"a": np.float32(2.5), "x": uniform(rng, self.n), "y": uniform(rng, self.n)}

    def reference(self, a: np.float32, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"y": np.float64(a) * x + y}

    def work(self) -> Work:
        return Work(flops=2 * self.n, bytes=12 * self.n)

    @variant(tile={"THREADS": [256, 128, 512]})
    def scalar(self, t: Tile) -> list[Launch]:
        """One element a thread."""
        args = ("a", "x", "y", self.n)
        return [Launch("saxpy", cdiv(self.n, t.THREADS), t.THREADS, args, template=(t.THREADS,))]

    @variant(tile={"THREADS": [256, 128, 512]})
    def vectorized(self, t: Tile) -> list[Launch]:
        """Four elements a thread, in 128-bit accesses."""
        args = ("a", "x", "y", self.n)
        return [Launch("saxpy_vectorized", cdiv(self.n, 4 * t.THREADS), t.THREADS, args, template=(t.THREADS,))]

    @variant(source="saxpy.ptx")
    def ptx(self) -> list[Launch]:
        """Written in PTX by hand, one element a thread."""
        return [Launch("saxpy", cdiv(self.n, 256), 256, ("a", "x", "y", self.n))]
