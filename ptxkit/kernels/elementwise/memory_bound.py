"""memory_bound: the kernels of compute_bound with few steps an element: all the time goes into moving it."""

from __future__ import annotations

from ptxkit.kernels.elementwise.compute_bound import ComputeBound


class MemoryBound(ComputeBound):
    """v = a*v + b, four times: at one flop a byte, to the left of any ridge, where four launches take four times as long."""

    n: int = 1 << 27  # 1 GB read and written
    intensity: float = 1.0
    emulator_sizes = {"n": 1 << 16}
