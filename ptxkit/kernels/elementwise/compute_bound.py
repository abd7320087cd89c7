"""compute_bound: a chain of fused multiply-adds on every element. With memory_bound it covers the roofline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, uniform, variant
from ptxkit.kernels.elementwise.elementwise import TILE, framework, launch, preferred, scalar, usable
from ptxkit.kernels.measured import measured

BYTES = 8  # read and written per element
PASSES = 4  # launches of the unfused chain
COMPUTE_BOUND = 64  # flops per byte: far above the ridge point, which is 15 on an H200


def elements(w: ComputeBound) -> int:
    return w.n


def preferred_by_intensity(w: Any) -> Iterator[dict[str, int]]:
    """Tiles by size and intensity; the L2 cache does not limit compute-bound sizes."""
    if w.intensity >= COMPUTE_BOUND:
        yield dict(measured(w.device).elementwise.compute_bound)
    yield from preferred(elements, 1)(w)


class ComputeBound(Workload):
    """v = a*v + b, repeated: 256 flops per byte, above the ridge point of any GPU."""

    source = "compute_bound.cu"
    n: int = 1 << 24
    intensity: float = 256.0  # flops per byte; one fma per element is 0.25
    emulator_sizes = {"n": 1 << 12}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        # |a| < 1 bounds values and their errors; with a < 0 the sign alternates, so that a missing step changes the result.
        return {"x": uniform(rng, self.n), "a": np.float32(-1 + 2.0**-10), "b": np.float32(0.125)}

    @by_rows("x")
    def reference(self, x: np.ndarray[Any, Any], a: np.float32, b: np.float32) -> dict[str, Any]:
        power = np.float64(a) ** self.fmas
        return {"out": power * x + np.float64(b) * (1 - power) / (1 - np.float64(a))}

    def temporaries(self) -> Mapping[str, Any]:
        return {"t": (self.n, "f32"), "u": (self.n, "f32")}

    def work(self) -> Work:
        return Work(flops=2 * self.fmas * self.n, bytes=BYTES * self.n)

    def constraints(self) -> Iterable[str]:
        if not 0.25 <= self.intensity <= 4096 or self.intensity % 0.25:
            yield f"intensity must be a multiple of 0.25 from 0.25 to 4096 flops per byte, not {self.intensity}"

    @property
    def fmas(self) -> int:
        """Fused multiply-adds per element."""
        return int(self.intensity * BYTES / 2)

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on the intensity here
        """Each step rounds a value below 1.25 and reduces the error of the steps before."""
        return Tolerance(absolute=1.25 * 2.0**-24 * min(self.fmas, 2**10))

    @variant
    def unfused(self) -> list[Launch]:
        """Four launches, with the intermediate results in device memory."""
        passes = min(PASSES, self.fmas)
        arrays = ["x", *("t", "u", "t")[: passes - 1], "out"]
        return [
            framework(
                "chain_vectorized",
                self.n,
                "f32",
                (arrays[k], arrays[k + 1], self.n, "a", "b"),
                (self.fmas * (k + 1) // passes - self.fmas * k // passes,),
            )
            for k in range(passes)
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        return [scalar("chain_fused", self.n, ("x", "out", self.n, "a", "b"), (self.fmas,))]

    @variant(tile=TILE, constraint=usable(elements, 1), prefer=preferred_by_intensity)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, four independent chains per thread."""
        return [launch("chain_vectorized", self.n, "f32", ("x", "out", self.n, "a", "b"), t, (self.fmas,))]

    @variant(tile=TILE, constraint=usable(elements, 1), prefer=preferred_by_intensity, requires=["f32x2"])
    def packed(self, t: Tile) -> list[Launch]:
        """Two chains per instruction: fma.rn.f32x2."""
        return [launch("chain_packed", self.n, "f32", ("x", "out", self.n, "a", "b"), t, (self.fmas,))]
