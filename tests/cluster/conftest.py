"""A description for sweeps on clusters, and a cluster on this machine for all tests of this folder."""

from __future__ import annotations

import pytest
from ptxkit_clusters import end_threads, no_command_left, pids, wait_for

from ptxkit.sweep.problem import Problem

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


def described(folder, fatal):
    (folder / "k.cu").write_text(SOURCE)
    path = folder / "k.py"
    path.write_text(DESCRIPTION.replace("FATAL", str(fatal)))
    return path


@pytest.fixture
def description(tmp_path):
    """A function that writes a description: the tile with ``fatal`` threads kills the worker that compiles it."""
    return lambda fatal=0: described(tmp_path, fatal)


@pytest.fixture
def problem(description):
    """A function that gives the problem of the description."""
    return lambda fatal=0: Problem(str(description(fatal)), "plain", {"n": 1024}, {}, "sm_90a")


@pytest.fixture
def said():
    return []


@pytest.fixture(scope="package")
def no_thread_left():
    """Leave nothing to the tests of other folders."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PTXKIT_EMULATOR_THREADS", "1")
        patched.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield
    end_threads()


@pytest.fixture(scope="package")
def shared_cluster(no_thread_left):
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="connections of local clusters are encrypted")
    from ptxkit.cluster.connection import connected

    with connected("local", None, False, 2) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster):
    """Two workers, which have started again if the test before killed one; afterwards, no thread of a command may run."""
    wait_for(lambda: len(pids(shared_cluster)) == 2)
    yield shared_cluster
    no_command_left()
