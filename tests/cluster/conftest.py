"""A description for sweeps on clusters, and clusters on this machine."""

from __future__ import annotations

import pytest

SOURCE = "template <int THREADS> __global__ void k(float* x) { x[blockIdx.x * THREADS + threadIdx.x] *= 2; }\n"
DESCRIPTION = """
import os
import signal

import numpy as np

from ptxkit import Launch, Work, Workload, variant


class K(Workload):
    source = "k.cu"
    n: int = 1024

    def inputs(self, rng):
        return {"x": np.ones(self.n, np.float32)}

    def reference(self, x):
        return {"x": 2 * x}

    def work(self):
        return Work(flops=self.n, bytes=8 * self.n)

    @variant(tile={"THREADS": [32, 64, 128, 256, 512]})
    def plain(self, tile):
        if tile.THREADS == FATAL and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a compiling process
            os.kill(os.getppid(), signal.SIGKILL)
        return [Launch("k", self.n // tile.THREADS, tile.THREADS, ("x",), template=(tile.THREADS,))]
"""


@pytest.fixture
def description(tmp_path):
    """A function that writes a description: the tile with ``fatal`` threads kills the worker that compiles it."""

    def write(fatal: int = 0):
        (tmp_path / "k.cu").write_text(SOURCE)
        path = tmp_path / "k.py"
        path.write_text(DESCRIPTION.replace("FATAL", str(fatal)))
        return path

    return write
