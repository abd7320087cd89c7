"""quantize_int8: q = clamp(round(x / scale + zero_point), -128, 127), ties to even."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, by_rows, cdiv, uniform, variant
from ptxkit.kernels.elementwise.elementwise import SCALAR_THREADS, TILE, framework, launch, preferred, scalar, usable


def elements(w: QuantizeInt8) -> int:
    return w.n


class QuantizeInt8(Workload):
    """f32 to int8 with one scale and zero point; every integer agrees with numpy's.

    The zero point is a number of f32 between -128 and 127, which need not be an integer.
    """

    source = "quantize_int8.cu"
    n: int = 200 << 20  # moves 1 GB
    scale: float = 0.0123  # size of a quantization step; inputs in [-1, 1] give integers from -81 to 81
    zero_point: float = field(default=3, kw_only=True)
    emulator_sizes = {"n": 1 << 16}
    benchmarks = ({"n": 1 << 20}, {"n": 10 << 20}, {"n": 50 << 20}, {})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, self.n), **self.parameters()}

    def parameters(self) -> dict[str, Any]:
        """The inputs that are passed by value; ``inverse`` is 1 / scale rounded to nearest."""
        scale = np.float32(self.scale)
        return {"scale": scale, "inverse": np.float32(1) / scale, "zero_point": np.float32(self.zero_point)}

    @by_rows("x")
    def reference(
        self, x: np.ndarray[Any, Any], scale: np.float32, inverse: np.float32, zero_point: np.float32
    ) -> dict[str, Any]:
        """In float32, because the correct integer depends on the rounding of quotient and sum."""
        with np.errstate(all="ignore"):
            steps = np.rint(x / scale + zero_point)
        return {"q": np.nan_to_num(np.clip(steps, -128, 127), nan=0.0).astype(np.int8)}

    def outputs(self) -> Mapping[str, Any]:
        return {"q": (self.n, "s8")}

    def temporaries(self) -> Mapping[str, Any]:
        return {"a": (self.n, "f32"), "b": (self.n, "f32")}

    def work(self) -> Work:
        return Work(flops=4 * self.n, bytes=5 * self.n)  # divide, add, round, clamp

    def constraints(self) -> Iterable[str]:
        if not 1e-30 <= abs(self.scale) <= 1e30:
            yield f"the magnitude of scale must be between 1e-30 and 1e30, not {self.scale}"
        if not -128 <= self.zero_point <= 127:
            yield f"zero_point must be between -128 and 127, not {self.zero_point}"

    @variant
    def unfused(self) -> list[Launch]:
        """Five launches: divide, add, round, clamp, convert."""
        n = self.n
        return [
            framework("divide", n, "f32", ("x", "a", n, "scale")),
            framework("add_zero_point", n, "f32", ("a", "b", n, "zero_point")),
            framework("round_even", n, "f32", ("b", "a", n)),
            framework("clamp", n, "f32", ("a", "b", n)),
            Launch("to_int8", cdiv(n, SCALAR_THREADS), SCALAR_THREADS, ("b", "q", n), template=(SCALAR_THREADS,)),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("quantize_fused", self.n, ("x", "q", self.n, "scale", "zero_point"))]

    @variant(tile=TILE, constraint=usable(elements, 1), prefer=preferred(elements, 1))
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit loads and 32-bit stores; multiplications instead of the division."""
        args = ("x", "q", self.n, "scale", "inverse", "zero_point")
        return [launch("quantize_vectorized", self.n, "f32", args, t)]
