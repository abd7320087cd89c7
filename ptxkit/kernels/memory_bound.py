"""memory_bound: the kernels of compute_bound with one fused multiply-add an element: all the time goes into moving it."""

from __future__ import annotations

from ptxkit.kernels.compute_bound import ComputeBound


class MemoryBound(ComputeBound):
    """v = a*v + b, once: at a quarter of a flop a byte, far to the left of any ridge."""

    n: int = 1 << 27  # 1 GB read and written
    intensity: float = 0.25
    emulator_sizes = {"n": 1 << 16}
