"""Descriptions get the device that they are launched on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.emulator import Machine
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.resolve import resolve

SOURCE = """
extern "C" __global__ void count(int* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = gridDim.x;
}
"""


class PersistentCount(Workload):
    source = "count.cu"
    n: int = 1000

    def inputs(self, rng):
        return {}

    def reference(self):
        return {"y": np.full(self.n, self.device.sms, np.int32)}

    def outputs(self):
        return {"y": (self.n, "s32")}

    def work(self):
        return Work(flops=0, bytes=4 * self.n)

    @variant
    def persistent(self):
        return [Launch("count", self.device.sms, 32, ("y", self.n))]


@pytest.mark.parametrize("sms", [1, 3, 132])
def test_a_description_sees_the_sms_of_its_device(tmp_path, monkeypatch, sms):
    (tmp_path / "count.cu").write_text(SOURCE)
    monkeypatch.setattr(PersistentCount, "directory", classmethod(lambda cls: tmp_path))
    case = execute.Case(PersistentCount(), EmulatedDevice(Machine(capacity=1 << 28, sms=sms)))
    assert case.workload.device.sms == sms
    assert execute.run(case, PersistentCount.variant("persistent")).verdict.verified


def test_before_a_device_is_chosen_it_is_the_reference_gpu():
    workload = PersistentCount()
    assert workload.device == reference_facts("sm_90a")
    bound = workload.on(reference_facts("sm_80"))
    assert (bound.device.gpu, workload.device.gpu) == ("NVIDIA A100-SXM4-80GB", "NVIDIA H200")
    assert bound == workload


@pytest.mark.parametrize("sms", [1, 16, 20, 58, 108, 132, 148, 188])
def test_every_variant_has_a_tile_on_gpus_of_any_size(sms):
    """The offered tiles were measured on an H200; a GPU with other numbers must also find one of them."""
    facts = replace(reference_facts("sm_90a"), sms=sms, l2_bytes=(4 << 20) * max(1, sms // 16))
    for name in registry.names():
        if name == "cutlass_gemm":
            continue
        kernel = registry.get(name)
        workload = kernel(**kernel.emulator_sizes).on(facts)
        for chosen in workload.variants().values():
            if chosen.refusal(workload) is None:
                tile = next(chosen.tiles(workload), None)
                if tile is not None:
                    assert chosen.launches(workload, tile)


class PartialSums(Workload):
    """A temporary as large as the number of SMs, as the row reductions have."""

    source = "partial.cu"
    n: int = 64

    def inputs(self, rng):
        return {"x": np.ones(self.n, np.int32)}

    def reference(self, x):
        return {"y": np.arange(self.n)}

    def outputs(self):
        return {"y": (self.n, "s32")}

    def temporaries(self):
        return {"partial": (self.device.sms, "s32")}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant
    def persistent(self):
        return [Launch("fill", self.device.sms, 32, ("partial",)), Launch("count", self.device.sms, 32, ("y", self.n))]

    @variant(requires=["sm_120a"])
    def newer(self):
        return self.persistent.function(self)


FILL = "\nextern \"C\" __global__ void fill(int* partial) { if (threadIdx.x == 0) partial[blockIdx.x] = 1; }\n"


@pytest.mark.parametrize("target", [None, "sm_80", "sm_120a"])
def test_launches_see_the_reference_gpu_of_the_target_they_are_compiled_for(tmp_path, monkeypatch, target):
    """The SM count and the L2 cache determine grids and temporaries, also where variants of one case have different targets."""
    (tmp_path / "partial.cu").write_text(SOURCE + FILL)
    monkeypatch.setattr(PartialSums, "directory", classmethod(lambda cls: tmp_path))
    case = execute.Case(PartialSums(), EmulatedDevice(), target=target and Target.parse(target))
    for name, compiled_for in (("persistent", target or "sm_90a"), ("newer", target or "sm_120a")):
        if target == "sm_80" and name == "newer":
            continue
        result = execute.run(case, PartialSums.variant(name))
        facts = reference_facts(compiled_for)
        resolved = case.resolve(PartialSums.variant(name))
        assert resolved is case.resolve(PartialSums.variant(name))
        assert (resolved.workload.device, resolved.target.name) == (facts, compiled_for)
        assert resolved.launches[0].grid == (facts.sms, 1, 1)
        assert result.prepared.case.array("partial").size == facts.sms
        assert (result.prepared.case.outputs()["y"] == facts.sms).all()


def test_without_a_device_a_variant_sees_the_reference_gpu_of_its_target(tmp_path, monkeypatch):
    (tmp_path / "count.cu").write_text(SOURCE)
    monkeypatch.setattr(PersistentCount, "directory", classmethod(lambda cls: tmp_path))
    for target in ("sm_80", "sm_90a", "sm_120a"):
        found = resolve(PersistentCount(), PersistentCount.variant("persistent"), Target.parse(target))
        assert found.launches[0].grid == (reference_facts(target).sms, 1, 1)
        assert [p.source.name for p in found.programs] == ["count.cu"] and found.program_of == (0,)
