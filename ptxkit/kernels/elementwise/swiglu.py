"""swiglu: out = silu(gate) * up, element by element, as between the matrix products of a gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    too_many,
    usable,
)


def elements(w: Swiglu) -> int:
    return w.rows * w.cols


class Swiglu(Workload):
    """silu(gate) * up: two reads and one write instead of three and two."""

    source = "swiglu.cu"
    rows: int = 16384
    cols: int = 4096
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"rows": 16, "cols": 4096}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shape = (self.rows, self.cols)
        return {"gate": uniform(rng, shape, self.dtype), "up": uniform(rng, shape, self.dtype)}

    @by_rows("gate", "up")
    def reference(self, gate: np.ndarray[Any, Any], up: np.ndarray[Any, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # 0 * inf is NaN
            return {"out": activation("silu", gate.astype(np.float64)) * up.astype(np.float64)}

    def temporaries(self) -> Mapping[str, Any]:
        return {"activated": ((self.rows, self.cols), self.dtype)}

    def work(self) -> Work:
        n = elements(self)
        return Work(flops=(ACTIVATION_FLOPS["silu"] + 1) * n, bytes=3 * ELEMENTS[self.dtype][1] * n)

    def constraints(self) -> Iterable[str]:
        yield from too_many(elements(self))

    @variant
    def unfused(self) -> list[Launch]:
        """Two launches, with silu(gate) in device memory."""
        n, t = elements(self), (ELEMENTS[self.dtype][0],)
        return [
            framework("silu", n, self.dtype, ("gate", "activated", n), t),
            framework("multiply", n, self.dtype, ("activated", "up", "out", n), t),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        n = elements(self)
        return [scalar("swiglu_fused", n, ("gate", "up", "out", n), (ELEMENTS[self.dtype][0],))]

    @variant(tile=TILE, constraint=usable(elements, 2), prefer=preferred(elements, 2))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, several in flight per thread."""
        n = elements(self)
        return [launch("swiglu_vectorized", n, self.dtype, ("gate", "up", "out", n), t, (ELEMENTS[self.dtype][0],))]
