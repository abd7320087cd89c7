"""What a device offers: :mod:`ptxkit.runtime.gpu.device` and :mod:`ptxkit.runtime.emulated` implement it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.kernel import Kernel, LoadedModule, PreparedLaunch

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.emulator.counters.counters import Counters, LineCounters
    from ptxkit.runtime.tensor_map.rules import Encoding
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import DeviceFacts

__all__ = ["Device", "DeviceArray", "Kernel", "LoadedModule", "Measurement", "PreparedLaunch", "device", "gpu_present"]


@dataclass(frozen=True)
class Measurement:
    """What :meth:`Device.measure` found.

    Attributes:
        times_us: device time of each sample; empty where the device has no clock to trust.
        counters: exact counts of one sample; None where the device does not count.
        lines: the same per source line, in their order.
    """

    times_us: tuple[float, ...] = ()
    counters: Counters | None = None
    lines: tuple[LineCounters, ...] = ()


class Device(Protocol):
    """A place where kernels run.

    Attributes:
        kind: ``"gpu"`` or ``"emulator"``.
        name: ``"NVIDIA H200"``, ``"ptxkit emulator"``.
        target: what to compile for, with the ``a`` suffix where there is one; None for a device that runs any target.
        lost: how a kernel failed with which the device was lost, so that nothing more can run on it in this process; else None.
        lacks: features of :data:`ptxkit.targets.FEATURES` that it cannot run all the same.
    """

    kind: str
    name: str
    target: Target | None
    lacks: frozenset[str]
    lost: str | None

    @property
    def memory_bytes(self) -> int:
        """Free device memory in bytes."""

    @property
    def multiprocessors(self) -> int:
        """How many there are: what persistent kernels make their grids by."""

    def facts_for(self, target: Target | None) -> DeviceFacts:
        """SM count, L2 cache and limits: of the GPU itself, or without one of the reference GPU of what is compiled for."""

    def tensor_map(self, m: Encoding) -> bytes:
        """A tensor map as the device's kernels read it."""

    def upload(self, array: Any, name: str = "") -> DeviceArray:
        """A copy of a C-contiguous array on the device; ``name`` appears in messages.

        Raises:
            UsageError: not contiguous. UnavailableError: not enough memory.
        """

    def empty(self, shape: int | tuple[int, ...], dtype: Any, name: str = "") -> DeviceArray:
        """An uninitialised (in the emulator: poisoned) array on the device.

        Raises:
            UnavailableError: not enough memory.
        """

    def load(self, image: Image, source: str | None = None) -> LoadedModule:
        """The image's kernels, ready to be launched; loading one twice gives the same module.

        Args:
            source: the text it was compiled from, for the names of parameters, where the image does not name a file.
        """

    def synchronize(self) -> None:
        """Wait for everything that was launched.

        Raises:
            FaultError: a kernel failed.
        """

    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """Time ``launch`` as often as asked, each time with none of its data in the L2 cache; or count one call of it."""

    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """Microseconds of device-to-device copies of ``nbytes``.

        Raises:
            UnavailableError: the device has no clock.
        """


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


def device(kind: str = "auto", index: int = 0) -> Device:
    """A device by kind.

    Args:
        kind: ``"gpu"``, ``"emulator"``, or ``"auto"``: the GPU where there is one, else the emulator.
        index: which GPU.

    Raises:
        UsageError: another kind. UnavailableError: there is no such GPU.
    """
    if kind not in ("auto", "gpu", "emulator"):
        raise UsageError(f"a device is 'auto', 'gpu' or 'emulator', not {kind!r}")
    if kind == "auto":
        kind = "gpu" if gpu_present() else "emulator"
    return _gpu(index) if kind == "gpu" else _emulator()


@lru_cache(maxsize=16)
def _gpu(index: int) -> Device:
    if not gpu_present():
        raise UnavailableError(
            "there is no GPU here, or no NVIDIA driver; use --device emulator (ptxkit doctor tells more)"
        )
    from ptxkit.runtime.gpu.device import GpuDevice

    return GpuDevice(index)


@lru_cache(maxsize=1)
def _emulator() -> Device:
    from ptxkit.runtime.emulated import EmulatedDevice

    return EmulatedDevice()
