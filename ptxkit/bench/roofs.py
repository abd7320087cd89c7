"""The device's ceilings, measured in the run that refers to them, never looked up."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device

COPY_BYTES = 1 << 30  # beyond any L2 by a factor of ten; H200: 0.5 ms a copy
SAMPLES = 20


def copy_bandwidth_gbs(device: Device) -> float:
    """Bandwidth of a device-to-device copy, bytes read plus bytes written, in GB/s: the roof of what is memory-bound.

    The median of 20 copies of 1 GiB, or of less when the device has not four times that free.
    """
    size = min(COPY_BYTES, device.memory_bytes // 4) // 4096 * 4096
    times = device.measure_copy(size, samples=SAMPLES)
    return 2 * size / statistics.median(times) / 1e3  # bytes/us is MB/s
