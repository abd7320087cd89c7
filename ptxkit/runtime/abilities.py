"""What a device offers, as protocols: every device runs kernels, some measure time, some count instructions.

:mod:`ptxkit.runtime.gpu.device` and :mod:`ptxkit.runtime.emulated` implement them, and :mod:`ptxkit.runtime.registry` lists the
devices. A caller that needs an ability asks for it by :func:`is_timed`, :func:`is_counting` or :func:`is_emulating`, never by
the device's name or class.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from ptxkit.arguments import Rule, instance
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.kernel import LoadedModule
from ptxkit.runtime.tensor_map.description import Encoder
from ptxkit.targets import Target

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.emulator import Machine
    from ptxkit.emulator.counters.counters import Counters, LineCounters
    from ptxkit.emulator.settings import EmulatorSettings
    from ptxkit.targets.gpus import DeviceFacts


IMAGE = Rule(
    "an Image of ptxkit.compiler (ptxkit.compile takes sources)",
    lambda value: hasattr(value, "ptx") and hasattr(value, "key"),
)
DEVICE = Rule("a device", lambda value: hasattr(value, "emulates") and hasattr(value, "load"))
TARGET = instance(Target, "a Target of ptxkit.targets")


@dataclass(frozen=True)
class Measurement:
    """What :meth:`Device.measure` found.

    Attributes:
        times_us: device time of each sample; empty if the device has no reliable clock.
        counters: exact counts of one sample; None if the device does not count.
        lines: the same per source line, in their order.
    """

    times_us: tuple[float, ...] = ()
    counters: Counters | None = None
    lines: tuple[LineCounters, ...] = ()


@dataclass(frozen=True)
class GpuFacts:
    """The constant properties of a GPU.

    Attributes:
        name: ``"NVIDIA H200"``. uuid: identifies this GPU, ``"GPU-471c29a5-..."``.
        compute_capability: ``"9.0"``.
        cuda_driver: CUDA version that the driver implements, ``"13.0"``.
        kernel_driver: version of the driver itself, ``"580.95.05"``; ``"unknown"`` if it cannot be read.
        multiprocessors: number of SMs.
        clock_mhz, memory_clock_mhz: maximum clocks in MHz; 0 if the driver does not report them.
        l2_bytes, memory_bytes: L2 cache; free device memory.
        shared_bytes: shared memory that a CTA can have.
    """

    name: str
    compute_capability: str
    cuda_driver: str
    kernel_driver: str
    multiprocessors: int
    clock_mhz: int
    memory_clock_mhz: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int
    uuid: str = ""


@dataclass(frozen=True)
class Sensors:
    """One reading of the GPU's sensors; None for values that cannot be read.

    Attributes:
        sm_clock_mhz, memory_clock_mhz: current clocks.
        power_w: drawn by the board.
        temperature_c: of the chip.
        throttled: the reasons for reduced clocks; empty if they are not reduced.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()


class Device(Encoder, Protocol):
    """A place where kernels run.

    Attributes:
        kind: the name under which it is registered, for reports: ``"gpu"``, ``"emulator"``.
        name: ``"NVIDIA H200"``, ``"ptxkit emulator"``.
        target: the target to compile for, architecture-specific if available; None for a device that runs any target.
        lost: the failure of the kernel that made the device unusable in this process; None while it is usable.
        lacks: features of :data:`ptxkit.targets.FEATURES` that it does not run although the target has them.
        times, counts, emulates: whether it is a :class:`TimedDevice`, a :class:`CountingDevice`, an :class:`EmulatingDevice`.
    """

    kind: str
    name: str
    target: Target | None
    lacks: frozenset[str]
    lost: str | None
    times: bool
    counts: bool
    emulates: bool

    @property
    def memory_bytes(self) -> int:
        """Free device memory in bytes."""

    @property
    def multiprocessors(self) -> int:
        """Number of SMs, from which persistent kernels compute their grids."""

    def undefined_bytes(self, address: int, nbytes: int) -> str:
        """A text about the bytes to which launches have copied uninitialised ones; "" if none are known."""

    def facts_for(self, target: Target | None) -> DeviceFacts:
        """SM count, L2 cache and limits: those of the GPU, or on a device that runs any target those of the reference GPU of
        ``target``.
        """

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
            source: the source text, for the names of parameters, if the image does not name a file.
        """

    def synchronize(self) -> None:
        """Wait for everything that was launched.

        Raises:
            FaultError: a kernel failed.
        """

    def stream(self, name: str = "") -> Any:
        """A new stream for ``stream=`` of launches. ``record()`` gives an event, ``wait(event)`` puts later launches after it,
        and ``sync()`` makes the host wait. ``name`` appears in messages of the emulator.
        """

    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What ``launches`` launches on the device's own stream, as a graph: a callable that launches all of it once."""

    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """Time ``samples`` calls of ``launch``, each with none of its data in the L2 cache; or count one call."""

    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """Microseconds of device-to-device copies of ``nbytes``.

        Raises:
            UnavailableError: the device has no clock.
        """


class Clock(Protocol):
    """Device time of calls that queue work, in microseconds; see :class:`ptxkit.runtime.gpu.timing.Timing`."""

    @property
    def flush(self) -> Callable[[], None]:
        """Queues a kernel that fills the L2 cache with other data."""

    def cold(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Times of calls that find none of their data in the L2 cache."""

    def hot(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Times of calls one after another."""

    def replays(self, replay: Callable[[], None], samples: int, warm: bool) -> list[float]:
        """Times of calls that each queue one graph."""

    def l2_copy(self, nbytes: int, samples: int) -> list[float]:
        """Times of copies that stay in the L2 cache."""


class TimedDevice(Device, Protocol):
    """A device that measures time.

    Attributes:
        stream_handle: of the stream on which it launches.
    """

    stream_handle: int

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""

    @property
    def properties(self) -> Any:
        """The driver's properties of the device, as cuda.core names them."""

    @property
    def timing(self) -> Clock:
        """Measures calls."""

    def facts(self) -> GpuFacts:
        """The constant properties: SMs, clocks, caches, driver."""

    def sensors(self) -> Sensors:
        """The current clocks, power and temperature."""

    def time_back_to_back(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Device time of each of ``samples`` calls one after another, in microseconds."""

    def plain_launches(self) -> AbstractContextManager[None]:
        """Inside, prepared launches are queued as plain kernels."""

    def unload(self, image: Image) -> None:
        """Free what :meth:`load` took; no kernel of the image may be used after it."""


class CountingDevice(Device, Protocol):
    """A device that counts what its launches execute."""

    @property
    def counters(self) -> Counters:
        """Sums over the launches since :meth:`reset_counters`."""

    @property
    def lines(self) -> tuple[LineCounters, ...]:
        """The same per source line."""

    def reset_counters(self) -> None:
        """Start counting at 0."""


class EmulatingDevice(CountingDevice, Protocol):
    """A device that executes PTX in software: it has settings, can be single-stepped, and takes small problem sizes.

    Attributes:
        machine: what executes.
    """

    machine: Machine

    @property
    def current_settings(self) -> EmulatorSettings:
        """The settings of a launch by this thread."""

    def settings(self, **changes: Any) -> AbstractContextManager[EmulatorSettings]:
        """Change settings for the launches of a ``with`` block."""


def is_timed(device: Device) -> TypeGuard[TimedDevice]:
    """Whether a device measures time."""
    return device.times


def is_counting(device: Device) -> TypeGuard[CountingDevice]:
    """Whether a device returns exact counts."""
    return device.counts


def is_emulating(device: Device) -> TypeGuard[EmulatingDevice]:
    """Whether a device executes PTX in software."""
    return device.emulates
