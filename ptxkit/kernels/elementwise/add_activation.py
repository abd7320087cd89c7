"""add_activation: out = activation(x + residual), element by element; gelu (tanh formula), silu or relu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import (
    ACTIVATION_FLOPS,
    ELEMENTS,
    TILE,
    framework,
    launch,
    preferred,
    scalar,
    slower_than_scalar,
    usable,
)
from ptxkit.kernels.elementwise.elementwise import activation as exact_activation


def elements(w: AddActivation) -> int:
    return w.n


class AddActivation(Workload):
    """activation(x + residual); a template argument selects the activation."""

    source = "add_activation.cu"
    n: int = 1 << 26
    activation: Literal["gelu", "silu", "relu"] = "gelu"
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"n": 1 << 16}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, self.n, self.dtype), "residual": uniform(rng, self.n, self.dtype)}

    @by_rows("x", "residual")
    def reference(self, x: np.ndarray[Any, Any], residual: np.ndarray[Any, Any]) -> dict[str, Any]:
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            total = x.astype(np.float64) + residual.astype(np.float64)
        return {"out": exact_activation(self.activation, total)}

    def temporaries(self) -> Mapping[str, Any]:
        return {"sum": (self.n, self.dtype)}

    def work(self) -> Work:
        flops = 1 + ACTIVATION_FLOPS[self.activation]
        return Work(flops=flops * self.n, bytes=3 * ELEMENTS[self.dtype][1] * self.n)

    @property
    def types(self) -> tuple[str, str]:
        """The first template arguments: element type and activation."""
        return ELEMENTS[self.dtype][0], self.activation.upper()

    @variant
    def unfused(self) -> list[Launch]:
        """Two launches, with the sum in device memory."""
        return [
            framework("add", self.n, self.dtype, ("x", "residual", "sum", self.n), self.types[:1]),
            framework("activation", self.n, self.dtype, ("sum", "out", self.n), self.types),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("add_activation_fused", self.n, ("x", "residual", "out", self.n), self.types)]

    @variant(tile=TILE, constraint=usable(elements, 2), prefer=preferred(elements, 2), slower=slower_than_scalar)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        args = ("x", "residual", "out", self.n)
        return [launch("add_activation_vectorized", self.n, self.dtype, args, t, self.types)]
