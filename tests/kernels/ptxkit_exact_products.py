"""Products of whole numbers by a step of matmul_wgmma, compared exactly, and programs without fences of the async proxy."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute
from ptxkit.workload.build import compiled


def strict(**checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", **checks))


def check_exactly(step, device, workload, tile=None, poison=False):
    """Compare with numpy, on whole numbers whose sums the types hold exactly.

    ``poison``: what lies between the rows of a and b is not a number.
    """
    rng = np.random.default_rng(workload.m + workload.n + workload.k)
    inputs = {
        name: np.where(rng.random(x.shape) < 16 / workload.k, rng.integers(-2, 3, x.shape), 0).astype(x.dtype)
        for name, x in workload.inputs(rng).items()
    }
    if poison:
        for name in "ab":
            inputs[name][:, workload.k :] = np.nan
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(step), None, tile, explicit=True)
    assert result.verdict.verified, f"{step} {result.tile}: {result.verdict.worst}"
    if workload.epilogue == "none" and np.abs(case.expected["c"]).max() <= 256:
        np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


def leave_out_proxy_fences(monkeypatch):
    """Let what is compiled from now on have no ``fence.proxy.async``."""

    def without_fence(*arguments):
        built = compiled(*arguments)
        ptx = [re.sub(r"fence\.proxy\.async[^;]*;", "", step.image.ptx) for step in built.steps]
        steps = [
            replace(step, image=replace(step.image, ptx=text, key=f"{step.image.key} unfenced"))
            for step, text in zip(built.steps, ptx, strict=True)
        ]
        return replace(built, steps=tuple(steps))

    monkeypatch.setattr(execute, "compiled", without_fence)
