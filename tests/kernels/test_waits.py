"""A wait that is left out of a kernel is found in latest-legal mode; test_kernel_races.py runs every kernel in it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, RaceError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.build import compiled

LEFT_OUT = [
    ("inline_ptx", "async_copy", "cp.async.wait_all"),
    ("matmul_wgmma", "step8_tma_store", "wgmma.wait_group"),
    ("matmul_wgmma", "step8_tma_store", "wgmma.commit_group"),
    ("matmul_wgmma", "step8_tma_store", "fence.proxy.async"),
    ("matmul_wgmma", "step8_tma_store", "cp.async.bulk.wait_group"),
]


@pytest.mark.parametrize(("name", "variant", "opcode"), LEFT_OUT)
def test_a_wait_that_is_left_out_is_found(name, variant, opcode, monkeypatch):
    """A kernel that is right when operations complete at once, and wrong when they complete as late as is legal."""

    def without(image):
        ptx = re.sub(rf"{re.escape(opcode)}[^;]*;", "", image.ptx)
        assert ptx != image.ptx
        return replace(image, ptx=ptx, key=f"{image.key} without {opcode}")

    def mutilated(*arguments):
        built = compiled(*arguments)
        return replace(built, steps=tuple(replace(s, image=without(s.image)) for s in built.steps))

    monkeypatch.setattr(execute, "compiled", mutilated)
    kind = registry.get(name)
    found = {}
    for completion in ("eager", "latest-legal"):
        device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
        case = execute.Case(kind.make((), {}, small=True), device, seed=5)
        try:
            found[completion] = execute.run(case, kind.variant(variant)).verdict.verified
        except (MemoryFault, RaceError) as fault:
            found[completion] = str(fault)
    assert found["eager"] is True
    if opcode == "fence.proxy.async":
        assert "no fence.proxy.async after it" in found["latest-legal"]
    elif opcode == "cp.async.bulk.wait_group":
        assert "the CTA exits before this store is known to have read its shared memory" in found["latest-legal"]
    else:
        assert found["latest-legal"] is False
