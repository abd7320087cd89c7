"""Time on a GPU: events on the device's stream around launches, with the L2 cache flushed in between or not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ptxkit.runtime.gpu.kernels import GpuKernels

FLUSH_SOURCE = """
// Reads `words` 16-byte words, so that nothing else stays in L2. Reading leaves clean lines; memset would leave dirty ones,
// whose write-back falls into the time of the next kernel.
extern "C" __global__ void flush_l2(const uint4* data, unsigned long long words, unsigned* never) {
    unsigned found = 0;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
        uint4 v = __ldcg(data + i);
        found |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (found == 0x9e3779b9u) *never = found;
}
"""
FLUSH_FACTOR = (
    4  # bytes read by a flush, in sizes of the L2; 2 suffice in theory, 4 also for a hashed or partitioned L2
)

ROTATION_COPIES = 40  # copies in a graph, at least, of which the first ones find no data in L2


class Timing:
    """Measures on one device. Times are device time in microseconds."""

    def __init__(self, device: GpuKernels) -> None:
        self.device = device

    def cold(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Time of each of ``samples`` calls, in microseconds, with none of their data in the L2 cache.

        The flush before each sample also keeps the stream busy while the host queues the launches, so that the host
        does not cause gaps between them.

        Raises:
            FaultError: a kernel failed.
        """
        pairs = []
        with self.device.plain_launches():
            for _ in range(samples):
                self.flush()
                start = self._event()
                launch()
                pairs.append((start, self._event()))
        self.device.synchronize()
        return [_elapsed_us(a, b) for a, b in pairs]

    def hot(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Time of each of ``samples`` calls in succession, with the caches as the preceding call left them, in microseconds."""
        with self.device.plain_launches():
            self.flush()  # keeps the stream busy while the host runs ahead
            events = [self._event()]
            for _ in range(samples):
                launch()
                events.append(self._event())
        self.device.synchronize()
        return [_elapsed_us(a, b) for a, b in pairwise(events)]

    def replays(self, replay: Callable[[], None], samples: int, warm: bool) -> list[float]:
        """Time of each of ``samples`` calls of ``replay``, which queues one graph, in microseconds.

        A kernel that is queued before each call keeps the stream busy, so that the time of the host is not measured.

        Args:
            warm: call it once more before each sample, so that the L2 cache holds what it leaves there; else the cache holds
                nothing of it at the start.
        """
        pairs = []
        for _ in range(samples):
            self.flush()
            if warm:
                replay()
            start = self._event()
            replay()
            pairs.append((start, self._event()))
        self.device.synchronize()
        return [_elapsed_us(a, b) for a, b in pairs]

    def behind(self, queue: Callable[[], None], samples: int, flushes: int) -> list[float]:
        """Device time of each of ``samples`` calls of ``queue``, in microseconds, whose launches are queued while other kernels
        run.

        Args:
            flushes: kernels of about 50 us each that run before each call; if they end before the host has queued the
                launches, the time of the host is measured.
        """
        pairs = []
        for _ in range(samples):
            for _ in range(flushes):
                self.flush()
            start = self._event()
            queue()
            pairs.append((start, self._event()))
            self.device.synchronize()
        return [_elapsed_us(a, b) for a, b in pairs]

    def l2_copy(self, nbytes: int, samples: int) -> list[float]:
        """Time of one copy of ``nbytes``, which must fit in the L2 cache, in microseconds: a graph of 20 copies is timed."""
        many, copy = 20, self._copier(nbytes)

        def copies() -> None:
            for _ in range(many):
                copy()

        return [t / many for t in self.replays(self.device.graph(copies), samples, warm=True)]

    def rotating_copy(self, nbytes: int, sets: int, samples: int) -> list[float]:
        """Time of one copy of ``nbytes`` in a graph of copies that rotate over ``sets`` pairs of arrays, in microseconds."""
        copies = [self._copier(nbytes) for _ in range(sets)]
        rounds = max(1, ROTATION_COPIES // sets)

        def queue() -> None:
            for copy in copies * rounds:
                copy()

        return [t / (rounds * sets) for t in self.replays(self.device.graph(queue), samples, warm=False)]

    def copy(self, nbytes: int, samples: int) -> list[float]:
        """Times of copies of ``nbytes`` from device memory to device memory, in microseconds, after two warm-up copies."""
        copy = self._copier(nbytes)
        self.cold(copy, 2)
        return self.cold(copy, samples)

    def _copier(self, nbytes: int) -> Callable[[], None]:
        """Queues a copy of ``nbytes`` from an initialised array to another array."""
        device = self.device
        source, destination = (device.empty(nbytes, np.uint8, f"copy {which}") for which in ("source", "destination"))
        source.fill(1)

        def copy() -> None:
            device._check(
                device.driver.call(
                    "cuMemcpyDtoDAsync_v2",
                    ctypes.c_uint64(destination.address),
                    ctypes.c_uint64(source.address),
                    ctypes.c_size_t(nbytes),
                    ctypes.c_void_p(device.stream_handle),
                )
            )

        return copy

    @cached_property
    def flush(self) -> Callable[[], None]:
        """Queues a kernel that fills the L2 cache with other data."""
        from ptxkit.compiler.nvrtc import compile_source

        device = self.device
        nbytes = FLUSH_FACTOR * device.l2_bytes
        data, never = device.empty(nbytes, np.uint8, "L2 flush"), device.empty(1, np.uint32, "never written")
        data.fill(0)
        image = compile_source(FLUSH_SOURCE, target=device.architecture, name="flush_l2.cu")
        launch = device.load(image)["flush_l2"].prepare(
            data, np.uint64(nbytes // 16), never, grid=8 * int(device.properties.multiprocessor_count), block=256
        )
        name = launch.kernel.readable

        def flush() -> None:
            launch.fire()
            device._recent.pop(name, None)  # never the kernel that failed

        return flush

    def _event(self) -> Any:
        from cuda.core import EventOptions

        # by position: the first field is enable_timing in cuda.core 1.2.0, and timing_enabled in later releases
        return self.device.own_stream.record(options=EventOptions(True))


def _elapsed_us(start: Any, end: Any) -> float:
    return float(end - start) * 1e3
