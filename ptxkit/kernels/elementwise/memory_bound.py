"""memory_bound: the kernels of compute_bound with few steps per element, so that memory bandwidth limits them."""

from __future__ import annotations

from ptxkit.kernels.elementwise.compute_bound import ComputeBound


class MemoryBound(ComputeBound):
    """v = a*v + b, four times: one flop per byte, below the ridge point of any GPU; four launches take four times as long."""

    n: int = 1 << 27  # moves 1 GB
    intensity: float = 1.0
    emulator_sizes = {"n": 1 << 16}
