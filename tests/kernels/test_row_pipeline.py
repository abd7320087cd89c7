"""Persistent CTAs that prefetch rows and keep weights, with every copy as late as its wait allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.rows import row_pipeline
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.launch import Tile
from ptxkit.workload.workload import Workload

NAME = "layernorm_quantize"
f32 = np.float32

CASES = [
    (37, 100, {"THREADS": 128, "VECTORS": 1, "STAGES": 2}),  # one row per warp
    (30, 512, {"THREADS": 128, "VECTORS": 2, "STAGES": 3}),  # several warps per row, several rows per CTA
    (19, 1000, {"THREADS": 256, "VECTORS": 1, "STAGES": 1}),
    (90, 20, {"THREADS": 128, "VECTORS": 1, "STAGES": 2}),  # several rows per warp
    (11, 333, {"THREADS": 128, "VECTORS": 1, "STAGES": 4}),  # no vectors
    (7, 3000, {"THREADS": 256, "VECTORS": 1, "CLUSTER": 4, "STAGES": 2}),
]


@pytest.fixture(autouse=True)
def few_multiprocessors(monkeypatch):
    """A device with few SMs, so that CTAs compute several rows each."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=4))


def check(rows, cols, tile, **options):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    workload = registry.get(NAME)(rows=rows, cols=cols, **options)
    inputs = workload.inputs(np.random.default_rng(2))
    if options.get("dtype", "f32") == "f32":
        inputs["x"][0] *= f32(1e-25)
        inputs["x"][5] *= f32(1e25)
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant("pipelined"), None, tile | {"CTAS_PER_SM": 1}, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return workload.variant("pipelined").launches(workload, result.tile)[0]


@pytest.mark.parametrize(("rows", "cols", "tile"), CASES)
def test_any_shape(rows, cols, tile):
    launch = check(rows, cols, tile)
    assert launch.kernel.endswith("_pipelined")
    assert launch.grid[0] <= 4


@pytest.mark.parametrize(("rows", "cols", "tile"), CASES)
def test_kept_weights(rows, cols, tile):
    launch = check(rows, cols, tile | {"SMEM_VECTORS": tile["VECTORS"]})
    without = check(rows, cols, tile | {"SMEM_VECTORS": 0})
    assert launch.shared > without.shared


@pytest.mark.parametrize("kept", [0, 1])
def test_two_bytes(kept):
    check(19, 1000, {"THREADS": 128, "VECTORS": 1, "SMEM_VECTORS": kept}, dtype="bf16")


def test_a_hint_for_l2():
    check(19, 1000, {"THREADS": 256, "VECTORS": 1, "CACHE": 4})


@pytest.mark.parametrize("rows", [1, 4, 5, 131, 132, 133, 1000])
def test_every_cta_takes_as_many_rows(rows, monkeypatch):
    """All CTAs compute the same number of rows, the last ones possibly one fewer; together they compute all rows."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=132))
    workload = registry.get(NAME)(rows=rows, cols=4096)
    tile = Tile(
        {"THREADS": 512, "VECTORS": 8, "CLUSTER": 1, "CACHE": 1, "STAGES": 2, "SMEM_VECTORS": 0, "CTAS_PER_SM": 1}
    )
    at_once = 4 * row_pipeline.grid(workload, tile)  # four rows per CTA
    assert at_once <= 4 * 132
    iterations = -(-rows // at_once)
    assert iterations == -(-rows // (4 * 132))
    assert rows > (iterations - 1) * at_once


def test_what_no_registers_hold_is_refused():
    workload = registry.get(NAME)(rows=2, cols=300_000)
    with pytest.raises(UsageError, match="do not fit in registers"):
        workload.variant("pipelined").select_tile(workload, Target.parse("sm_90a"))
