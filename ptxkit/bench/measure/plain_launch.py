"""What a plain launch costs at the moment: one small kernel after another in a graph, each waiting for the one before.

On an H200 it takes 1.04 us. In some processes add_mul_exp, as small and as plain, took 1.25 instead of 1.08 us from some moment
on, at the same clocks: whatever is launched plainly is slower then, all peers among it, and kernels that may begin while the
one before ends are not. Times of a few microseconds, and ratios of them, are of such a state; so it is recorded with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

SOURCE = """
extern "C" __global__ void plain_launch(float* data) { data[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }
"""
THREADS, CTAS = 256, 391  # 100096 elements, as an element-wise kernel of 100000 has
LAUNCHES = 200  # in a graph: a quarter of a millisecond


def plain_launch(device: Any) -> Callable[[], float]:
    """A call that gives the microseconds of one of many such launches, now; it takes as long as three graphs of them.

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

    def time_us(kept: Any = (data, launch)) -> float:  # the graph knows their addresses alone
        return float(statistics.median(device.timing.replays(graph, 3, warm=False))) / LAUNCHES

    return time_us
