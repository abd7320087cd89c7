"""swiglu_backward: dgate = dy * up * silu'(gate) and dup = dy * silu(gate), the gradients of swiglu."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import (
    ACTIVATION_FLOPS,
    DERIVATIVE_FLOPS,
    ELEMENTS,
    TILE,
    activation,
    derivative,
    framework,
    launch,
    preferred,
    scalar,
    slower_than_scalar,
    too_many,
    usable,
)


def elements(w: SwigluBackward) -> int:
    return w.rows * w.cols


class SwigluBackward(Workload):
    """Gradients of silu(gate) * up: three reads and two writes instead of five and two."""

    source = "swiglu_backward.cu"
    rows: int = 16384
    cols: int = 4096
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"rows": 16, "cols": 4096}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {name: uniform(rng, (self.rows, self.cols), self.dtype) for name in ("dy", "gate", "up")}

    @by_rows("dy", "gate", "up")
    def reference(
        self, dy: np.ndarray[Any, Any], gate: np.ndarray[Any, Any], up: np.ndarray[Any, Any]
    ) -> dict[str, Any]:
        wide = gate.astype(np.float64)
        with np.errstate(all="ignore"):  # 0 * inf is NaN
            dgate = dy.astype(np.float64) * up.astype(np.float64) * derivative("silu", wide)
            return {"dgate": dgate, "dup": dy.astype(np.float64) * activation("silu", wide)}

    @property
    def tolerance(self) -> Tolerance | None:  # type: ignore[override]  # depends on the type here
        """The derivative has an error of up to 2^-20, relative to the product of dy and up."""
        return Tolerance(relative=1e-5, absolute=2e-6) if self.dtype == "f32" else None

    def work(self) -> Work:
        n = elements(self)
        flops = 3 + DERIVATIVE_FLOPS["silu"] + ACTIVATION_FLOPS["silu"]
        return Work(flops=flops * n, bytes=5 * ELEMENTS[self.dtype][1] * n)

    def constraints(self) -> Iterable[str]:
        yield from too_many(elements(self))

    @variant
    def unfused(self) -> list[Launch]:
        """Two launches, one for each gradient."""
        n, t = elements(self), (ELEMENTS[self.dtype][0],)
        return [
            framework("gate_gradient", n, self.dtype, ("dy", "gate", "up", "dgate", n), t),
            framework("up_gradient", n, self.dtype, ("dy", "gate", "dup", n), t),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        n = elements(self)
        args = ("dy", "gate", "up", "dgate", "dup", n)
        return [scalar("swiglu_backward_fused", n, args, (ELEMENTS[self.dtype][0],))]

    @variant(tile=TILE, constraint=usable(elements, 3), prefer=preferred(elements, 3), slower=slower_than_scalar)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        n = elements(self)
        args = ("dy", "gate", "up", "dgate", "dup", n)
        return [launch("swiglu_backward_vectorized", n, self.dtype, args, t, (ELEMENTS[self.dtype][0],))]
