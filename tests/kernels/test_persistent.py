"""Dynamic persistent kernels: each row is computed once, by any cluster, with every copy as late as its wait allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.measured import H200
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.workload import Workload

NAMES = ["fused_l2norm", "layernorm", "rmsnorm", "softmax"]
f32 = np.float32

CASES = [
    (13, 500, {"THREADS": 64, "VECTORS": 1, "CLUSTER": 2, "CHUNK_VECTORS": 1, "STAGES": 2}),
    (11, 3000, {"THREADS": 128, "VECTORS": 2, "CLUSTER": 4, "CHUNK_VECTORS": 2, "STAGES": 1}),
    (
        11,
        4096,
        {"THREADS": 128, "VECTORS": 2, "CLUSTER": 4, "CHUNK_VECTORS": 1, "STAGES": 3},
    ),  # all registers hold columns
    (11, 3001, {"THREADS": 128, "VECTORS": 2, "CLUSTER": 4, "CHUNK_VECTORS": 2, "STAGES": 2}),  # no vectors
    (
        11,
        5000,
        {"THREADS": 64, "VECTORS": 8, "CLUSTER": 4, "CHUNK_VECTORS": 2, "STAGES": 3},
    ),  # more chunks than warps, some of them empty
    (7, 4096, {"THREADS": 64, "VECTORS": 1, "CLUSTER": 16, "CHUNK_VECTORS": 1, "STAGES": 3}),
    (2, 1500, {"THREADS": 64, "VECTORS": 1, "CLUSTER": 8, "CHUNK_VECTORS": 1, "STAGES": 3}),  # fewer rows than clusters
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few multiprocessors, so that clusters take several rows each, and short rows."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=8))
    short = replace(H200, rows=replace(H200.rows, persistent_cols=0))
    monkeypatch.setattr(pipeline, "measured", lambda facts: short)


def check(device, name, rows, cols, tile, **options):
    """Assert that ``persistent`` is verified, also in a second launch that begins with the row counter of the first one; return
    its launch."""
    if device.kind == "emulator":
        device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    workload = registry.get(name)(rows=rows, cols=cols, **options)
    inputs = workload.inputs(np.random.default_rng(3))
    if name != "softmax" and "dtype" not in options:
        inputs["x"][0] *= f32(1e-25)
        inputs["x"][1] *= f32(1e25)
    case = execute.Case(workload, device, inputs=inputs)
    variant = workload.variant("persistent")
    result = execute.run(case, variant, None, tile | {"CTAS_PER_SM": 1}, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    assert result.prepared is not None
    assert result.prepared.again() is None
    reset, launch = variant.launches(workload, result.tile)
    assert reset.kernel == "reset_tile_scheduler"
    return launch


@pytest.mark.parametrize(
    ("name", "rows", "cols", "tile"),
    # each shape in two kernels: one header schedules the rows and their copies for all four
    [(name, *case) for i, name in enumerate(NAMES) for j, case in enumerate(CASES) if (i + j) % 2 == 0],
)
def test_any_shape(device, name, rows, cols, tile):
    launch = check(device, name, rows, cols, tile)
    assert launch.kernel.endswith("_persistent")
    assert launch.grid[0] <= rows * tile["CLUSTER"]


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize(("cols", "kept"), [(3000, 0), (3000, 1), (4096, 2), (3001, 1)])
def test_kept_weights(device, name, cols, kept):
    check(device, name, 11, cols, CASES[2][2] | {"SMEM_VECTORS": kept})


@pytest.mark.parametrize("name", NAMES[1:])
def test_two_bytes(device, name):
    check(device, name, 11, 6000, CASES[1][2], dtype="bf16")


def test_dropped(device):
    check(device, "softmax", 9, 3000, CASES[1][2], p=0.2)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cols", [1, 100, 4096, 65536, 131072, 262_144])
@pytest.mark.parametrize("name", NAMES)
def test_a_preferred_tile_satisfies_the_constraint(name, cols, dtype):
    if name == "fused_l2norm" and dtype != "f32":
        pytest.skip("f32 alone")
    options = {} if dtype == "f32" else {"dtype": dtype}
    workload = registry.get(name)(rows=512, cols=cols, **options)
    variant = workload.variant("persistent")
    tile = variant.select_tile(workload, Target.parse("sm_90a"))
    assert any(tile.items() >= preferred.items() for preferred in variant.prefer(workload))


def test_a_target_that_promises_clusters_of_8_gets_no_more():
    workload = registry.get("softmax")(rows=512, cols=131_072)
    variant = workload.variant("persistent")
    assert variant.select_tile(workload, Target.parse("sm_90a"), {"THREADS": 256, "VECTORS": 8}).CLUSTER == 16
    with pytest.raises(UsageError, match="a cluster of 16 CTAs; sm_120a supports 8"):
        variant.select_tile(workload, Target.parse("sm_120a"), {"THREADS": 256, "VECTORS": 8, "STAGES": 1})
    assert variant.select_tile(workload, Target.parse("sm_120a")).CLUSTER == 8


def test_what_no_registers_hold_is_refused():
    workload = registry.get("rmsnorm")(rows=2, cols=1_100_000)
    with pytest.raises(UsageError, match="do not fit in registers"):
        workload.variant("persistent").select_tile(workload, Target.parse("sm_90a"))


def test_short_rows_are_left_to_others(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(UsageError, match="requires cols >= 16384"):
        registry.get("softmax")(rows=2, cols=16383).variant("persistent").select_tile(
            registry.get("softmax")(rows=2, cols=16383), Target.parse("sm_90a")
        )
