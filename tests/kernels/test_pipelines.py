"""two_stage_pipeline and warp_specialized: any number of tiles, and the overlap, or its absence, in each variant."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.pipelines.two_stage_pipeline import TwoStagePipeline
from ptxkit.kernels.pipelines.warp_specialized import WarpSpecialized
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_sass
from ptxkit.workload import execute, registry

VARIANTS = [(w.name, v) for w in (TwoStagePipeline, WarpSpecialized) for v in w.variants()]


def check(device, kernel, variant, n, tile=None):
    workload = registry.get(kernel).make([n])
    result = execute.run(execute.Case(workload, device), workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


@pytest.mark.parametrize("n", [4, 2044, 2048, 2052, 100_000])
@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_any_number_of_tiles(device, kernel, variant, n):
    check(device, kernel, variant, n)


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_a_cta_takes_many_tiles(device, monkeypatch, kernel, variant):
    monkeypatch.setattr(f"ptxkit.kernels.pipelines.{kernel}.{registry.get(kernel).__name__}.ctas", lambda *_: 2)
    check(device, kernel, variant, 2048 * 23 + 400)


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_no_variant_relies_on_copies_that_happen_to_be_early(monkeypatch, kernel, variant):
    """Asynchronous operations complete as late as the program's waits allow."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    monkeypatch.setattr(f"ptxkit.kernels.pipelines.{kernel}.{registry.get(kernel).__name__}.ctas", lambda *_: 2)
    check(device, kernel, variant, 2048 * 23 + 400)


@pytest.mark.parametrize("tile", [{"STAGES": 4}, {"STAGES": 2, "CONSUMERS": 128, "QUADS": 1}], ids=str)
@pytest.mark.parametrize("variant", ["named_barriers", "mbarriers"])
def test_stages(device, monkeypatch, variant, tile):
    monkeypatch.setattr(WarpSpecialized, "ctas", lambda *_: 3)
    check(device, "warp_specialized", variant, 40_000, tile)


def test_n_is_a_multiple_of_4():
    with pytest.raises(UsageError, match="multiple of 4"):
        TwoStagePipeline(n=10)


def test_the_instructions_that_copy():
    assert_sass("two_stage_pipeline:two_stage@sm_80", has={"LDGSTS": 16, "LDGDEPBAR": 2}, spills=0)
    assert_sass("two_stage_pipeline:bulk@sm_90a", has=["UBLKCP"], lacks="LDGSTS", spills=0)
    assert_sass("warp_specialized:named_barriers@sm_80", has=["LDGSTS", "BAR.ARV"], spills=0)
    assert_sass("warp_specialized:mbarriers@sm_90a", has=["UBLKCP", "SYNCS"], lacks="LDGSTS", spills=0)


def test_the_reference_is_the_formula():
    x, gate = np.array([0.0, 1.0, -2.0, 3.0], np.float32), np.array([5, 2, 1, -1], np.float32)
    u = np.sqrt(2 / np.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3)
    np.testing.assert_allclose(TwoStagePipeline(n=4).reference(x, gate)["y"], 0.5 * x * (1 + np.tanh(u)) * gate)
