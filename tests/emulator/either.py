"""Runs small PTX programs on any device: the emulator in one of its completion modes, or a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import kernel

from ptxkit.compiler import assemble, toolkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.runtime.device import Device
from ptxkit.runtime.emulated import EmulatedDevice

MODES = ("eager", "latest-legal")


def has_cccl() -> bool:
    """Whether <cuda/barrier> and similar headers can be included: the package that has them may not be installed."""
    return any(tool.name == "CCCL headers" for tool in toolkit.headers())


class Bench:
    """A device with a completion mode; call it with a program and its arrays."""

    def __init__(self, device: Device, completion: str) -> None:
        if device.kind == "gpu" and completion != MODES[0]:
            pytest.skip("a GPU has one completion mode, its own")
        if device.kind == "emulator":
            device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
        self.device = device

    def __call__(
        self, body: str, *arrays: np.ndarray, grid: Any = 1, block: Any = 32, target: str = "sm_90a", **options: Any
    ) -> list[np.ndarray]:
        """Run the kernel with ``body`` (see :func:`programs.kernel`) on copies of ``arrays``; returns the copies after
        the launch."""
        text = kernel(body, params=len(arrays), target=target, before=options.pop("before", ""))
        image = assemble(text, target=target, name="test.ptx", cubin=self.device.kind == "gpu", cache=False)
        copies = [a.copy() for a in arrays]
        self.device.load(image)["k"](*copies, grid=grid, block=block, **options)
        return copies


@pytest.fixture(params=MODES)
def bench(device: Device, request: pytest.FixtureRequest) -> Bench:
    """Every device in each of its completion modes."""
    return Bench(device, request.param)
