"""CUDA graphs of launches: several launches, or a single one, which the driver launches faster as a graph."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxkit.errors import FaultError

if TYPE_CHECKING:
    from ptxkit.runtime.gpu.context import GpuContext


def capture(device: GpuContext, stream: int, queue: Callable[[], None], launch_on: int) -> Callable[[], int]:
    """Capture the work that ``queue`` queues on the stream with the handle ``stream`` as a graph.

    Returns:
        A function that launches the graph on the stream ``launch_on`` and returns the driver's result code.

    Raises:
        FaultError: the driver cannot capture the work.
    """
    from cuda.bindings import driver as cu

    handle = cu.CUstream(stream)
    _ok(device, cu.cuStreamBeginCapture(handle, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        queue()
    finally:
        ended = cu.cuStreamEndCapture(handle)
    graph = _ok(device, ended)
    call = instantiated(device, int(graph), launch_on)
    cu.cuGraphDestroy(graph)
    return call


def instantiated(device: GpuContext, graph: int, launch_on: int) -> Callable[[], int]:
    """An executable graph from the handle of a graph, which the caller continues to own.

    Returns:
        A function that launches the graph on the stream ``launch_on`` and returns the driver's result code.

    Raises:
        FaultError: the driver cannot instantiate the graph.
    """
    from cuda.bindings import driver as cu

    executable = _ok(device, cu.cuGraphInstantiate(cu.CUgraph(graph), 0))
    call = partial(device.driver.library.cuGraphLaunch, ctypes.c_void_p(int(executable)), ctypes.c_void_p(launch_on))
    # the graph may still run when it is released, so it is destroyed at the next synchronization
    weakref.finalize(call, device.retired.append, partial(cu.cuGraphExecDestroy, executable)).atexit = False
    return call


def capture_check(device: GpuContext, stream: int) -> Callable[[], bool]:
    """A function that returns whether a stream is being captured; it takes as long as a launch."""
    status = ctypes.c_int()
    ask = partial(device.driver.library.cuStreamIsCapturing, ctypes.c_void_p(stream), ctypes.byref(status))

    def capturing() -> bool:
        return ask() != 0 or status.value != 0

    return capturing


def node_count(device: GpuContext, graph: int) -> int:
    """Numbers of nodes of a graph, by its handle: kernels, and copies and fills.

    Raises:
        FaultError: the driver does not know it.
    """
    from cuda.bindings import driver as cu

    _, count = _ok(device, cu.cuGraphGetNodes(cu.CUgraph(graph), 0))
    return int(count)


def _ok(device: GpuContext, result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise FaultError(f"{device.name}: {device.driver.message(int(result[0]))}, while making a graph")
    return result[1] if len(result) == 2 else result[1:]
