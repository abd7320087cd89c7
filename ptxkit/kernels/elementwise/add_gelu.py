"""add_gelu: out = gelu(x + y), element by element, with the tanh formula of GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import (
    ACTIVATION_FLOPS,
    ELEMENTS,
    TILE,
    activation,
    framework,
    launch,
    preferred,
    scalar,
    slower_than_scalar,
    usable,
)


def elements(w: AddGelu) -> int:
    return w.n


class AddGelu(Workload):
    """gelu(x + y) by the tanh formula: the sum stays in a register."""

    source = "add_gelu.cu"
    n: int = 100 << 20
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"n": 1 << 16}
    benchmarks = ({"n": 100_000}, {"n": 1 << 20}, {"n": 10 << 20}, {})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, self.n, self.dtype), "y": uniform(rng, self.n, self.dtype)}

    @by_rows("x", "y")
    def reference(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> dict[str, Any]:
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            return {"out": activation("gelu", x.astype(np.float64) + y.astype(np.float64))}

    def temporaries(self) -> Mapping[str, Any]:
        return {"sum": (self.n, self.dtype)}

    def work(self) -> Work:
        return Work(flops=(1 + ACTIVATION_FLOPS["gelu"]) * self.n, bytes=3 * ELEMENTS[self.dtype][1] * self.n)

    @variant
    def unfused(self) -> list[Launch]:
        """Two launches, with the sum in device memory."""
        t = (ELEMENTS[self.dtype][0],)
        return [
            framework("add", self.n, self.dtype, ("x", "y", "sum", self.n), t),
            framework("gelu", self.n, self.dtype, ("sum", "out", self.n), t),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("add_gelu_fused", self.n, ("x", "y", "out", self.n), (ELEMENTS[self.dtype][0],))]

    @variant(tile=TILE, constraint=usable(elements, 2), prefer=preferred(elements, 2), slower=slower_than_scalar)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        args = ("x", "y", "out", self.n)
        return [launch("add_gelu_vectorized", self.n, self.dtype, args, t, (ELEMENTS[self.dtype][0],))]
