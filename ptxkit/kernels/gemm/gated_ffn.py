"""What the descriptions of the gated feed-forward layers have in common: sizes, inputs, reference and tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, uniform
from ptxkit.kernels.elementwise import elementwise
from ptxkit.kernels.gemm.matmul import LARGE
from ptxkit.kernels.gemm.sparse_compress import TYPES
from ptxkit.workload.inputs import scaled_uniform
from ptxkit.workload.parallel import blocks, in_threads
from ptxkit.workload.products import product

UNIT_ROUNDOFF = {"bf16": 2.0**-9, "f16": 2.0**-12}
WEIGHTS = ("gate", "up", "down")


class GatedFfn(Workload):
    """y = (silu(x gate^T) * (x up^T)) down^T: x and y (tokens, hidden), gate and up (ffn, hidden), down (hidden, ffn).

    All row-major, so that every operand is contiguous along the dimension that is summed; sums in f32.
    """

    tokens: int = 8192
    hidden: int = 4096
    ffn: int = 14336
    dtype: Literal["bf16", "f16"] = "bf16"
    emulator_sizes = {"tokens": 128, "hidden": 256, "ffn": 256}
    benchmarks = (
        {"tokens": 16},
        {},
        {"hidden": 6144, "ffn": 24576},
        {"tokens": 65536, "hidden": 6144, "ffn": 24576},
    )

    def constraints(self) -> Iterable[str]:
        for name, value in (("hidden", self.hidden), ("ffn", self.ffn)):
            if value % self.multiple:
                yield f"{name} must be a multiple of {self.multiple}, so that rows are multiples of 16 bytes"
        for name, rows, cols in (
            ("x", self.tokens, self.hidden),
            ("h", self.tokens, self.ffn),
            ("a matrix of weights", self.ffn, self.hidden),
        ):
            if rows * cols >= 2**36:
                yield f"{name} is too large"

    @property
    def multiple(self) -> int:
        """Elements of which hidden and ffn must be multiples."""
        return 8

    def weights(self, rng: np.random.Generator) -> dict[str, Any]:
        """gate, up and down, with magnitudes as after training: results are of the order of 1, as x is."""
        shapes = {"gate": (self.ffn, self.hidden), "up": (self.ffn, self.hidden), "down": (self.hidden, self.ffn)}
        return {
            name: scaled_uniform(rng, shape, self.dtype, 4 / np.sqrt(shape[1])) for name, shape in shapes.items()
        }

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, (self.tokens, self.hidden), self.dtype), **self.weights(rng)}

    def reference(self, x: Any, gate: Any, up: Any, down: Any, **compressed: Any) -> dict[str, Any]:
        """In float64 without rounding h; from 2^35 multiply-adds in float32, whose error is far below the tolerance."""
        wide = np.float32 if self.tokens * self.hidden * self.ffn >= LARGE else np.float64
        g, u = product(x, gate, wide), product(x, up, wide)

        def activate(tokens: slice) -> None:
            with np.errstate(over="ignore"):
                g[tokens] /= 1 + np.exp(-g[tokens])
            g[tokens] *= u[tokens]

        in_threads(activate, blocks(len(g), g.size))
        return {"y": product(g, down, wide)}

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.tokens, self.hidden), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        return dict.fromkeys(("h", "gate_product", "up_product"), ((self.tokens, self.ffn), self.dtype))

    @property
    def terms(self) -> int:
        """Terms of the longest sum."""
        return max(self.hidden, self.ffn)

    @property
    def tolerance(self) -> Tolerance | None:  # type: ignore[override]  # depends on the sizes here
        """The tolerance of a sum of ``terms`` on tensor cores, as by default, and that of rounding its terms.

        h is rounded to the type, in unfused chains and libraries also the two products and silu: up to four errors of each
        term, each with a standard deviation of at most u/2. The error of the sum then has the standard deviation u relative
        to that of the sum, which is 1.25 times its mean magnitude, and the largest of 10^8 errors is 5.7 times that: 7 u.
        Terms of h are of very different size, so that some sums have fewer and larger terms than their neighbours: 16 u.
        """
        u, length = UNIT_ROUNDOFF[self.dtype], self.terms
        sums = 2.0**-24 * (8 * length**0.5 + length / 8)
        return Tolerance(relative=4 * u, ulp=1, typical=16 * u + sums)

    def work(self) -> Work:
        size = 2
        moved = size * (2 * self.tokens * self.hidden) + self.weight_bytes
        flops = 6 * self.tokens * self.hidden * self.ffn
        return Work(
            flops=flops, bytes=moved, unit=self.dtype, sum_length=self.terms, executed_flops=self.executed(flops)
        )

    def executed(self, flops: int) -> int | None:
        """Of the flops of the dense products, those that are executed; None for all."""
        return None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they are read."""
        return 6 * self.hidden * self.ffn

    @property
    def cu(self) -> str:
        """The element type in C++."""
        return TYPES[self.dtype]

    def activation(self) -> Launch:
        """h = silu(gate_product) * up_product in a launch of swiglu.cu."""
        n = self.tokens * self.ffn
        cu = elementwise.ELEMENTS[self.dtype][0]
        args = ("gate_product", "up_product", "h", n)
        vectors = n // elementwise.width(self.dtype)
        tile = Tile({"THREADS": 256, "VECTORS": 2, "CACHE": 4 if vectors > 1 << 22 else 0, "CTAS": 0})
        return replace(elementwise.launch("swiglu_vectorized", n, self.dtype, args, tile, (cu,)), source="swiglu.cu")


def renamed(launches: Iterable[Launch], names: Mapping[str, str], source: str) -> list[Launch]:
    """The launches of another description with other names for its arrays."""

    def argument(value: object) -> object:
        if isinstance(value, str):
            return names[value]
        return replace(value, array=names[str(value.array)]) if isinstance(value, TensorMap) else value

    return [
        replace(launch, args=tuple(argument(a) for a in launch.args), source=launch.source or source)
        for launch in launches
    ]
