"""The registered devices by name: the command line offers these names, and :func:`ptxkit.device` opens them.

Importing this module loads neither numpy nor a CUDA package. A further device is one more :func:`register`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ptxkit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Device

AUTO = "auto"
"""Stands for the first registered device that is present."""


@dataclass(frozen=True)
class Registered:
    """A device by name.

    Attributes:
        name: how the command line and messages call it.
        open: index -> the device; the same index gives the same object.
        present: whether it can be opened on this machine; costs little.
        times, emulates: its abilities; see :class:`ptxkit.runtime.abilities.Device`.
    """

    name: str
    open: Callable[[int], Device]
    present: Callable[[], bool]
    times: bool = False
    emulates: bool = False


_DEVICES: dict[str, Registered] = {}


def register(
    name: str,
    opener: Callable[[int], Device],
    present: Callable[[], bool] = lambda: True,
    *,
    times: bool = False,
    emulates: bool = False,
) -> None:
    """Add a device; ``"auto"`` prefers those that were registered first.

    Raises:
        UsageError: the name is taken.
    """
    if name == AUTO or name in _DEVICES:
        raise UsageError(f"there is already a device called {name!r}")
    _DEVICES[name] = Registered(name, lru_cache(maxsize=16)(opener), present, times, emulates)


def names() -> tuple[str, ...]:
    """Names of the devices, in the order in which ``"auto"`` tries them."""
    return tuple(_DEVICES)


def choices() -> tuple[str, ...]:
    """What ``--device`` takes: ``"auto"`` and the names."""
    return (AUTO, *_DEVICES)


def measures_time(name: str) -> bool:
    """Whether the device of that name measures time, as results record it: False for a name that is not registered."""
    return name in _DEVICES and _DEVICES[name].times


def open_named(name: str, index: int = 0) -> Device:
    """A device by name.

    Raises:
        UsageError: there is no such name, or no such index. UnavailableError: this machine has no such device.
    """
    if name == AUTO:
        return next(d for d in _DEVICES.values() if d.present()).open(index)
    if name not in _DEVICES:
        listed = ", ".join(repr(n) for n in choices()[:-1])
        raise UsageError(f"a device is {listed} or {choices()[-1]!r}, not {name!r}")
    return _DEVICES[name].open(index)


def first(*, times: bool = False, emulates: bool = False, index: int = 0) -> Device:
    """The first registered device with the given abilities.

    Raises:
        UnavailableError: no device has them, or this machine has no such device.
    """
    for registered in _DEVICES.values():
        if registered.times >= times and registered.emulates >= emulates:
            return registered.open(index)
    raise UnavailableError("no registered device has these abilities")


@lru_cache(maxsize=1)
def gpu_present() -> bool:
    """Whether there is a driver with at least one GPU; costs no import of a CUDA package."""
    return _gpu_count() > 0


def _gpu_count() -> int:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int()
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


def _has_gpu() -> bool:
    return gpu_present()


def _gpu(index: int) -> Device:
    if not gpu_present():
        raise UnavailableError(
            "there is no GPU here, or no NVIDIA driver; use --device emulator (ptxkit doctor shows details)"
        )
    from ptxkit.runtime.gpu.device import GpuDevice

    return GpuDevice(index)


@lru_cache(maxsize=1)
def _emulator() -> Device:
    from ptxkit.runtime.emulated import EmulatedDevice

    return EmulatedDevice()


register("gpu", _gpu, _has_gpu, times=True)
register("emulator", lambda index: _emulator(), emulates=True)
