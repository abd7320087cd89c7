"""The base class of the pipeline examples, y = gelu(x) * gate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ptxkit import Tile, Tolerance, Work, Workload, by_rows, cdiv, uniform
from ptxkit.kernels.elementwise.elementwise import ACTIVATION_FLOPS, activation


class Gate(Workload):
    """y = gelu(x) * gate in f32, with the tanh formula of GELU."""

    n: int = 64 << 20
    emulator_sizes = {"n": 1 << 15}
    tolerance = Tolerance(relative=2e-6, absolute=1e-7)

    def constraints(self) -> Iterable[str]:
        if self.n % 4:
            yield "n must be a multiple of 4, because the kernels access 16 bytes at a time"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, self.n), "gate": uniform(rng, self.n)}

    @by_rows("x", "gate")
    def reference(self, x: np.ndarray[Any, Any], gate: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"y": activation("gelu", x.astype(np.float64)) * gate}

    def outputs(self) -> dict[str, Any]:
        return {"y": (self.n, "f32")}

    def work(self) -> Work:
        return Work(flops=(ACTIVATION_FLOPS["gelu"] + 1) * self.n, bytes=12 * self.n)

    def ctas(self, tile: int, per_sm: int) -> int:
        """CTAs of a launch: ``per_sm`` for each SM, but at most one for each tile of ``tile`` times 16 bytes."""
        return min(self.device.sms * per_sm, cdiv(self.n, 4 * tile))


def resident(w: Any, t: Tile, shared: int, threads: int) -> bool | str:
    """Whether ``t.CTAS`` CTAs with ``shared`` bytes and ``threads`` threads each fit on an SM."""
    limits = w.device.target.limits
    if t.CTAS * threads > limits.threads:
        return f"{t.CTAS} CTAs of {threads} threads are more than an SM holds"
    if t.CTAS * (shared + limits.reserved_bytes) > limits.shared_bytes or shared > limits.shared_bytes_per_cta:
        return f"{t.CTAS} CTAs need {shared} bytes of shared memory each, more than an SM has"
    return True
