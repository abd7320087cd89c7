"""The cost of a launch, for the host and for the device: bound at each call, prepared, and in a graph.

The kernel does nothing, so that its time on the device is that of a launch. The host's time is that of a call while the
device keeps up: calls are queued in groups, with a synchronization between groups that is not timed. The device's time is
that of a launch among many that were queued while the device was busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ptxkit.bench.results.overhead import GROUP, Cost
from ptxkit.bench.results.statistics import summarize
from ptxkit.compiler.nvrtc import compile_source

if TYPE_CHECKING:
    from ptxkit.runtime.gpu.device import GpuDevice

WARM_UP = 3
FLUSHES = 40
DEVICE_SAMPLES = 20


def source(arguments: int) -> str:
    """A kernel with so many pointers that does nothing."""
    parameters = ", ".join(f"const float* x{i}" for i in range(arguments))
    return f'extern "C" __global__ void nothing({parameters}) {{}}\n'


def costs(device: GpuDevice, arguments: int = 4, rounds: int = 50) -> list[Cost]:
    """The cost of a launch of a kernel that does nothing.

    Args:
        device: a GPU.
        arguments: pointers that the kernel takes.
        rounds: groups of launches for each way; the ways take turns.
    """
    image = compile_source(source(arguments), target=device.architecture, name="nothing.cu")
    kernel = device.load(image)["nothing"]
    arrays = [device.empty(32, np.float32, f"x{i}") for i in range(arguments)]
    prepared = kernel.prepare(*arrays, grid=1, block=32)
    graph = device.graph(lambda: _repeat(prepared.fire, GROUP))

    def plainly() -> None:
        with device.plain_launches():
            _repeat(prepared.fire, GROUP)

    ways: dict[str, Callable[[], None]] = {
        "arguments bound at each call": lambda: _repeat(lambda: kernel(*arrays, grid=1, block=32), GROUP),
        "prepared, as a kernel": plainly,
        "prepared": lambda: _repeat(prepared.fire, GROUP),
        f"graph of {GROUP} launches": graph,
    }
    host = _host(device, ways, rounds)
    found = []
    for number, (name, queue) in enumerate(ways.items()):
        measured = device.timing.behind(queue, DEVICE_SAMPLES, FLUSHES) if number else []
        of_device = summarize([t / GROUP for t in measured]) if measured else None
        found.append(Cost(name, summarize(host[name]), of_device))
    return found


def _host(device: GpuDevice, ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of the host for a launch, for each round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + rounds):
        for name, queue in ways.items():
            start = time.perf_counter()
            queue()
            taken = (time.perf_counter() - start) / GROUP * 1e6
            device.synchronize()
            if number >= WARM_UP:
                times[name].append(taken)
    return times


def _repeat(launch: Callable[[], None], times: int) -> None:
    for _ in range(times):
        launch()
