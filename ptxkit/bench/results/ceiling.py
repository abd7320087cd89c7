"""The ceilings of a GPU, and which of them bounds a kernel (the roofline model). Pure.

Without a peak rate for the type of the operands there is no statement about what bounds a kernel, because a kernel that is
below the memory roof may still be bound by a lower, unknown peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ptxkit.bench.results.json_values import Positive
from ptxkit.targets.gpus import gpu_named

MEMORY = "memory"
Source = Literal["measured", "documented"]


@dataclass(frozen=True)
class Roofs:
    """The ceilings of a GPU.

    Attributes:
        copy_gbs: device-to-device copy, bytes read plus written, measured in this run. l2_gbs: the same of what stays in L2.
        peak_tflops: type of the operands -> rate measured in this run: "f32" of fused multiply-adds, "bf16" of tensor cores.
        documented_tflops: type -> rate that the data sheet of the GPU states (:mod:`ptxkit.targets.gpus`).
    """

    copy_gbs: Positive
    l2_gbs: Positive
    peak_tflops: Mapping[str, Positive] = field(default_factory=dict)
    documented_tflops: Mapping[str, Positive] = field(default_factory=dict)

    def peak(self, unit: str) -> tuple[float, Source] | None:
        """The rate of a type in TFLOP/s: the measured one, else the documented one, else None."""
        if unit in self.peak_tflops:
            return self.peak_tflops[unit], "measured"
        if unit in self.documented_tflops:
            return self.documented_tflops[unit], "documented"
        return None


@dataclass(frozen=True)
class Ceiling:
    """The bound of some work: the roof that limits it, and the minimum time.

    Attributes:
        bound: ``"memory"``, or the type whose peak rate is the bound.
        value: GB/s of memory, TFLOP/s of a type.
        source: whether the value was measured in the run or is documented.
        time_us: minimum time of the work at the ceiling.
    """

    bound: str
    value: Positive
    source: Source
    time_us: Positive

    def __str__(self) -> str:
        """``"memory, 4257 GB/s, measured"``; ``"s8 peak, 1979 TFLOP/s, documented"``."""
        if self.bound == MEMORY:
            return f"memory, {self.value:.0f} GB/s, {self.source}"
        return f"{self.bound} peak, {self.value:.4g} TFLOP/s, {self.source}"


def bound(
    flops: float,
    nbytes: float,
    unit: str,
    bandwidth: tuple[float, Source],
    peak: tuple[float, Source] | None,
) -> Ceiling | None:
    """The roof that limits some work.

    Args:
        flops, nbytes: the work. unit: type of its operands.
        bandwidth: GB/s of the memory that holds the data; peak: TFLOP/s of ``unit``, None where no rate is known.

    Returns:
        None for no work, and for flops of a type without a rate.
    """
    gbs, memory_source = bandwidth
    memory_us = nbytes / gbs / 1e3 if math.isfinite(gbs) else 0.0
    if not flops:
        return Ceiling(MEMORY, gbs, memory_source, memory_us) if memory_us else None
    if peak is None:
        return None
    rate, source = peak
    compute_us = flops / rate / 1e6
    if compute_us > memory_us:
        return Ceiling(unit, rate, source, compute_us)
    return Ceiling(MEMORY, gbs, memory_source, memory_us)


def documented_peaks(gpu: str) -> dict[str, float]:
    """Type of the operands -> TFLOP/s that the data sheet of the GPU of that name states; empty for an unknown GPU."""
    known = gpu_named(gpu)
    return dict(known.peak_tflops) if known else {}


def ceiling(flops: float, nbytes: float, unit: str, roofs: Roofs, bandwidth_gbs: float | None = None) -> Ceiling | None:
    """The bound of work with the given flops and bytes: memory bandwidth or a peak rate.

    Args:
        bandwidth_gbs: of the memory that holds the data, instead of the copy in device memory.

    Returns:
        None for no work, and for flops of a type whose peak rate is neither measured nor documented.
    """
    return bound(flops, nbytes, unit, (bandwidth_gbs or roofs.copy_gbs, "measured"), roofs.peak(unit))
