"""Opens a device by name or by the abilities that are required."""

from __future__ import annotations

from ptxkit.arguments import TEXT, takes, whole
from ptxkit.errors import UnavailableError
from ptxkit.runtime import registry
from ptxkit.runtime.abilities import (
    CountingDevice,
    Device,
    EmulatingDevice,
    GpuFacts,
    Measurement,
    Sensors,
    TimedDevice,
    is_counting,
    is_emulating,
    is_timed,
)
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.kernel import Kernel, LoadedModule, PreparedLaunch
from ptxkit.runtime.registry import gpu_present

__all__ = [
    "CountingDevice",
    "Device",
    "DeviceArray",
    "EmulatingDevice",
    "GpuFacts",
    "Kernel",
    "LoadedModule",
    "Measurement",
    "PreparedLaunch",
    "Sensors",
    "TimedDevice",
    "device",
    "emulating_device",
    "gpu_present",
    "is_counting",
    "is_emulating",
    "is_timed",
    "timed_device",
]


@takes(kind=TEXT, index=whole(0))
def device(kind: str = registry.AUTO, index: int = 0) -> Device:
    """A device by name.

    Args:
        kind: ``"gpu"``, ``"emulator"``, another registered name, or ``"auto"``: the GPU if there is one, else the emulator.
        index: which GPU.

    Raises:
        UsageError: another name. UnavailableError: this machine has no such GPU.
    """
    return registry.open_named(kind, index)


def timed_device(index: int = 0) -> TimedDevice:
    """The device that measures time.

    Raises:
        UnavailableError: this machine has none.
    """
    found = registry.first(times=True, index=index)
    if not is_timed(found):
        raise UnavailableError(f"{found.name} measures no time")
    return found


def emulating_device() -> EmulatingDevice:
    """The device that executes PTX in software."""
    found = registry.first(emulates=True)
    if not is_emulating(found):
        raise UnavailableError(f"{found.name} does not emulate")
    return found
