"""CUDA's headers for asynchronous copies and clusters: cooperative groups, cuda::barrier, cuda::ptx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from either import MODES, has_cccl

from ptxkit.compiler import compile_source
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.runtime.device import Device
from ptxkit.runtime.emulated import EmulatedDevice

X = np.arange(2048, dtype=np.int32).reshape(2, 4, 256)
"""Two clusters of four CTAs of 256 threads."""


@pytest.fixture(scope="module")
def image():
    if not has_cccl():
        pytest.skip("the CCCL headers are not installed")
    return compile_source(Path(__file__).parent / "cooperative_groups.cu", target="sm_90a")


@pytest.fixture(params=MODES)
def place(device: Device, request) -> Device:
    if device.kind == "gpu" and request.param != MODES[0]:
        pytest.skip("a GPU has one completion mode, its own")
    if device.kind == "gpu":
        return device
    return EmulatedDevice(settings=EmulatorSettings(completion=request.param))


def test_bulk_copies_and_distributed_shared_memory(image, place):
    y = np.zeros(4096, np.int32)
    place.load(image)["k"](X.copy(), y, grid=8, block=256)
    expected = np.roll(X, -1, 1)
    expected[:, 0] += X.sum((1, 2), dtype=np.int32)[:, None]
    assert (y[:2048].reshape(X.shape) == expected).all()
    assert (y[2048:].reshape(X.shape) == 2 * X).all()


def test_memcpy_async_of_a_block(image, place):
    y = np.zeros(2048, np.int32)
    place.load(image)["p"](X.copy(), y, grid=8, block=256)
    assert (y.reshape(8, 256) == X.reshape(8, 256)[:, ::-1]).all()
