"""A GPU as a device that times: :class:`~ptxkit.runtime.gpu.kernels.GpuKernels` with its clock, its facts and its sensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ptxkit.arguments import CALLABLE, takes, whole
from ptxkit.runtime.abilities import GpuFacts, Measurement, Sensors
from ptxkit.runtime.gpu.facts import facts, sensors
from ptxkit.runtime.gpu.kernels import GpuKernels
from ptxkit.runtime.gpu.timing import Timing


class GpuDevice(GpuKernels):
    """One GPU: see :class:`ptxkit.runtime.abilities.TimedDevice`."""

    kind = "gpu"
    lacks: frozenset[str] = frozenset()
    times = True
    counts = False
    emulates = False

    def facts(self) -> GpuFacts:
        """The constant properties of this GPU: SMs, clocks, caches, driver."""
        return facts(self)

    def sensors(self) -> Sensors:
        """The current clocks, power and temperature."""
        return sensors(self)

    @cached_property
    def timing(self) -> Timing:
        """The timing functions for this device."""
        return Timing(self)

    @takes(launch=CALLABLE, samples=whole(1))
    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """See :meth:`ptxkit.runtime.gpu.timing.Timing.cold`."""
        return Measurement(times_us=tuple(self.timing.cold(launch, samples)))

    @takes(nbytes=whole(1), samples=whole(1))
    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """See :meth:`ptxkit.runtime.gpu.timing.Timing.copy`."""
        return self.timing.copy(nbytes, samples)

    def time_back_to_back(self, launch: Callable[[], None], samples: int) -> list[float]:
        """See :meth:`ptxkit.runtime.gpu.timing.Timing.hot`."""
        return self.timing.hot(launch, samples)
