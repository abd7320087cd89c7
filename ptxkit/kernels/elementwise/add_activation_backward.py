"""add_activation_backward: dx = dy * activation'(x + residual), the gradient of add_activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import (
    DERIVATIVE_FLOPS,
    ELEMENTS,
    TILE,
    derivative,
    framework,
    launch,
    preferred,
    scalar,
    usable,
)


def elements(w: AddActivationBackward) -> int:
    return w.n


class AddActivationBackward(Workload):
    """Gradient of activation(x + residual), which x and residual share: three reads and one write."""

    source = "add_activation_backward.cu"
    n: int = 1 << 26
    activation: Literal["gelu", "silu", "relu"] = "gelu"
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"n": 1 << 16}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {name: uniform(rng, self.n, self.dtype) for name in ("dy", "x", "residual")}

    @by_rows("dy", "x", "residual")
    def reference(
        self, dy: np.ndarray[Any, Any], x: np.ndarray[Any, Any], residual: np.ndarray[Any, Any]
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # inf - inf is NaN
            total = (x.astype(np.float32) + residual.astype(np.float32)).astype(np.float64)  # relu' depends on the sign
            return {"dx": dy.astype(np.float64) * derivative(self.activation, total)}

    @property
    def tolerance(self) -> Tolerance | None:  # type: ignore[override]  # depends on the type here
        """The derivative has an error of up to 2^-20, and values are below 1; the unfused chain of 16-bit types also rounds the
        sum and the derivative, whose slope is below 1.1."""
        if self.dtype == "f32":
            return Tolerance(relative=1e-5, absolute=4e-6)
        unit = 2.0**-11 if self.dtype == "f16" else 2.0**-8
        return Tolerance(relative=2 * unit, absolute=4 * unit)

    def temporaries(self) -> Mapping[str, Any]:
        return {"sum": (self.n, self.dtype), "slope": (self.n, self.dtype)}

    def work(self) -> Work:
        flops = 2 + DERIVATIVE_FLOPS[self.activation]
        return Work(flops=flops * self.n, bytes=4 * ELEMENTS[self.dtype][1] * self.n)

    @property
    def types(self) -> tuple[str, str]:
        """The first template arguments: element type and activation."""
        return ELEMENTS[self.dtype][0], self.activation.upper()

    @variant
    def unfused(self) -> list[Launch]:
        """Three launches, with the sum and the derivative in device memory."""
        return [
            framework("add", self.n, self.dtype, ("x", "residual", "sum", self.n), self.types[:1]),
            framework("derivative", self.n, self.dtype, ("sum", "slope", self.n), self.types),
            framework("multiply", self.n, self.dtype, ("dy", "slope", "dx", self.n), self.types[:1]),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("add_activation_backward_fused", self.n, ("dy", "x", "residual", "dx", self.n), self.types)]

    @variant(tile=TILE, constraint=usable(elements, 3), prefer=preferred(elements, 3))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        args = ("dy", "x", "residual", "dx", self.n)
        return [launch("add_activation_backward_vectorized", self.n, self.dtype, args, t, self.types)]
