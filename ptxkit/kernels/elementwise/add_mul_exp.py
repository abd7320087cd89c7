"""add_mul_exp: out = exp((x + y) * 2), element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import (
    TILE,
    framework,
    launch,
    preferred,
    scalar,
    slower_than_scalar,
    usable,
)


def elements(w: AddMulExp) -> int:
    return w.n


class AddMulExp(Workload):
    """exp((x + y) * 2): two reads and one write instead of four and three."""

    source = "add_mul_exp.cu"
    n: int = 1 << 26  # moves 805 MB, more than any L2 holds
    emulator_sizes = {"n": 1 << 16}
    benchmarks = ({"n": 100_000}, {"n": 1_000_000}, {"n": 20_000_000}, {"n": 100_000_000})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, self.n), "y": uniform(rng, self.n)}

    @by_rows("x", "y")
    def reference(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # exp(1e38) is infinite, as in the kernel
            return {"out": np.exp((x.astype(np.float64) + y) * 2)}

    def temporaries(self) -> Mapping[str, Any]:
        return {"sum": (self.n, "f32"), "twice": (self.n, "f32")}

    def work(self) -> Work:
        return Work(flops=3 * self.n, bytes=12 * self.n)

    @variant
    def unfused(self) -> list[Launch]:
        """Three launches, with both intermediate results in device memory."""
        return [
            framework("add", self.n, "f32", ("x", "y", "sum", self.n)),
            framework("mul", self.n, "f32", ("sum", "twice", self.n)),
            framework("exponential", self.n, "f32", ("twice", "out", self.n)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("add_mul_exp_fused", self.n, ("x", "y", "out", self.n))]

    @variant(tile=TILE, constraint=usable(elements, 2), prefer=preferred(elements, 2), slower=slower_than_scalar)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        return [launch("add_mul_exp_vectorized", self.n, "f32", ("x", "y", "out", self.n), t)]
