"""Kernels with asynchronous instructions have all necessary waits: they are also right in latest-legal mode."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, RaceError
from ptxkit.kernels.measured import H200
from ptxkit.kernels.rows import row_pipeline
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build, compiled

ASYNCHRONOUS = ("cp.async", "cp.reduce.async", "st.async", "red.async", "wgmma.mma_async")
ELSEWHERE = {"cutlass_gemm"}  # half a minute to compile each: tests/cutlass/test_emulated.py runs a few, in both modes
CASES = [
    (name, v)
    for name in registry.names()
    if name not in ELSEWHERE
    for v in registry.get(name).variants()
    if registry.get(name).variant(v).requires
]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_latest_legal_completion(name, variant, monkeypatch):
    short = replace(H200, rows=replace(H200.rows, persistent_cols=0))
    monkeypatch.setattr(row_pipeline, "measured", lambda facts: short)
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    kind = registry.get(name)
    workload = kind.make((), {}, small=True)
    built = build(workload, kind.variant(variant))
    if not any(opcode in step.image.ptx for step in built.steps for opcode in ASYNCHRONOUS):
        pytest.skip("nothing in it is asynchronous")
    result = execute.run(execute.Case(workload, device, seed=5), kind.variant(variant))
    assert result.verdict.verified, result.verdict.worst


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
        assert "no fence.proxy.async behind" in found["latest-legal"]
    elif opcode == "cp.async.bulk.wait_group":
        assert "the CTA exits before this store is known to have read its shared memory" in found["latest-legal"]
    else:
        assert found["latest-legal"] is False
