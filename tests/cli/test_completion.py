"""``ptxkit run --completion`` and ``--racecheck``: each of them reports a kernel with a missing wait."""

from __future__ import annotations

import pytest

from ptxkit import cli
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.runtime.device import device

DESCRIPTION = '''
"""Copies x through shared memory."""
import numpy as np
from ptxkit import Launch, Work, Workload, variant


class Mine(Workload):
    source = "mine.cu"
    n: int = 1024

    def inputs(self, rng):
        return {"x": rng.random(self.n, np.float32)}

    def reference(self, x):
        return {"y": x}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant(requires=["cp.async"])
    def forgetful(self):
        return [Launch("mine", grid=self.n // 256, block=256, args=("x", "y"))]
'''
SOURCE = r"""
#include <cuda_pipeline.h>
extern "C" __global__ void mine(const float* x, float* y) {
    __shared__ float tile[256];
    unsigned i = blockIdx.x * 256 + threadIdx.x;
    __pipeline_memcpy_async(tile + threadIdx.x, x + i, 4);
    __pipeline_commit();
    __syncthreads();
    y[i] = tile[threadIdx.x];
}
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(DESCRIPTION)
    (tmp_path / "mine.cu").write_text(SOURCE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("completion", "code"), [("eager", 0), ("latest-legal", 1)])
def test_a_missing_wait(mine, completion, code):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(mine), "--device", "emulator", "--completion", completion])
    assert stopped.value.code == code


@pytest.mark.parametrize("option", ["--racecheck", "--racecheck-lanes"])
def test_a_race(mine, option, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(mine), "--device", "emulator", option])
    assert stopped.value.code == 5
    error = capsys.readouterr().err
    assert "a race in shared memory" in error and "cp.async.wait_group" in error
    assert device("emulator").current_settings == EmulatorSettings()


@pytest.mark.gpu
def test_a_gpu_completes_as_it_does(mine, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(mine), "--device", "gpu", "--completion", "eager"])
    assert stopped.value.code == 2
    assert "--completion is for the emulator only" in capsys.readouterr().err
