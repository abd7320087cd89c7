"""How ``ptxkit run`` measures time: cold samples until the rule is content.

A sample is one pass over all of a variant's launches with nothing of its data in the L2 cache, between two events on the
stream. Cold, because a kernel that runs inside a larger program rarely finds its input in the cache, and because a warm
figure for a working set below the L2's size would be compared with a roof of device memory that does not apply to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.workload.execute import Prepared

WARM_UP = 5  # samples thrown away: module loading, lazily allocated memory and rising clocks are in the first ones


class StoppingRule(Protocol):
    """When there are enough samples; see :mod:`ptxkit.bench.measure.statistics`."""

    def enough(self, samples: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop."""

    def batch(self, taken: int) -> int:
        """How many samples to take before asking again, ``taken`` of them being there."""


def cold_times_us(device: Device, prepared: Prepared, rule: StoppingRule) -> list[float]:
    """Device times of a prepared variant, until ``rule`` has enough; empty where the device has no clock to trust.

    Raises:
        FaultError: a kernel failed.
    """
    times: list[float] = []
    if not device.measure(prepared.launch, samples=WARM_UP).times_us:
        return times
    start = time.perf_counter()
    while not rule.enough(times, time.perf_counter() - start):
        times += device.measure(prepared.launch, samples=rule.batch(len(times))).times_us
    return times
