"""The current time of a plain launch: a graph of small kernels, each of which waits for the previous one.

On an H200 it takes 1.04 us. In some processes, the time of add_mul_exp rose from 1.08 to 1.25 us at some point, at the same
clocks. Plain launches, including those of all peers, are slower in this state; kernels with programmatic dependent launch are
not. Times of a few microseconds, and their ratios, depend on this state, so the time of a plain launch is recorded with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

SOURCE = """
extern "C" __global__ void plain_launch(float* data) { data[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }
"""
THREADS, CTAS = 256, 391  # 100096 elements, the size of an element-wise kernel of 100000
LAUNCHES = 200  # launches in a graph, which take a quarter of a millisecond


def plain_launch(device: Any) -> Callable[[], float]:
    """A function that measures the time of a plain launch in microseconds; it runs three graphs.

    Raises:
        FaultError: a kernel failed.
    """
    from ptxkit.compiler.nvrtc import compile_source

    image = compile_source(SOURCE, target=device.target, name="plain_launch.cu")
    data = device.upload(np.zeros(THREADS * CTAS, np.float32), "data")
    launch = device.load(image)["plain_launch"].prepare(data, grid=CTAS, block=THREADS)

    def launches() -> None:
        for _ in range(LAUNCHES):
            launch()

    graph = device.graph(launches)

    def time_us(kept: Any = (data, launch)) -> float:  # the graph contains only their addresses
        return float(statistics.median(device.timing.replays(graph, 3, warm=False))) / LAUNCHES

    return time_us
