"""Rows of any length in the vectorized kernels: rows that begin between two vectors, and CTAs of any number of warps.

The kernels read elements of neighbouring rows, ignore them, and store the columns in the first and the last vector one by one.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.kernels.rows import rows as row
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.launch import Tile

KERNELS = ("rmsnorm", "layernorm", "softmax", "scale_mask_softmax", "layernorm_quantize", "softmax_backward")


@st.composite
def cases(draw):
    """A kernel, its sizes and its tile, which holds a row."""
    name = draw(st.sampled_from(KERNELS))
    fields = {"dtype": draw(st.sampled_from(["bf16", "f16", "f32"]))}
    if name == "softmax":
        fields["p"] = draw(st.sampled_from([0.0, 0.25]))
    if name in ("rmsnorm", "layernorm"):
        fields["training"] = draw(st.booleans())
    tile = {
        "THREADS": draw(st.sampled_from([32, 128, 256])),
        "VECTORS": draw(st.integers(1, 5)),
        "PREFETCH_L2": draw(st.booleans()),
    }
    parameters = registry.get(name).variant("vectorized").tile
    access = draw(st.sampled_from(["vectors", *(a for a in ("SHIFTED", "WIDTH", "PACKED", "BLOCK") if a in parameters)]))
    tile["CLUSTER"] = 1 if access in ("WIDTH", "BLOCK") else draw(st.sampled_from([1, 1, 2, 4]))
    tile["WIDTH"] = 2 if access == "WIDTH" else 0
    tile |= {flag: flag == access for flag in ("SHIFTED", "PACKED", "BLOCK") if flag in parameters}
    if access == "BLOCK":
        tile["PREFETCH_L2"] = False
    if "PREFETCH_WEIGHTS" in parameters:
        tile["PREFETCH_WEIGHTS"] = access != "PACKED" and tile["VECTORS"] < 3 and draw(st.booleans())
    wide = tile["WIDTH"] or width(fields["dtype"])
    most = wide * tile["VECTORS"] * tile["THREADS"] * tile["CLUSTER"]
    short = st.integers(1, min(most, 70))
    fields["cols"] = draw(st.one_of(short, st.integers(most // 2, most), st.integers(max(1, most - 2 * wide), most)))
    fields["rows"] = draw(st.integers(1, 9 if tile["THREADS"] > 32 else 20))
    return name, fields, tile


def run(device, name, fields, tile, seed=0):
    workload = registry.get(name)(**fields)
    case = execute.Case(workload, device, seed=seed)
    prepared = execute.prepare(case, workload.variant("vectorized"), None, tile)
    verdict, _ = prepared.check()
    assert verdict.verified, f"{verdict.worst} {verdict.explanation}"
    return case, prepared


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cases())
def test_any_row_in_any_shape(device, drawn):
    try:
        run(device, *drawn)
    except UsageError as refused:  # the shape is for longer or shorter rows
        assert "no tile" in str(refused) or "refuses" in str(refused) or "VECTORS" in str(refused), refused


@pytest.mark.parametrize(("name", "cols"), [("layernorm", 517), ("softmax", 1031), ("rmsnorm", 33)])
def test_no_races_and_no_access_outside_of_arrays(name, cols):
    """The emulator refuses an access outside of an array, such as that of the vector which the last row shares with nothing."""
    device = EmulatedDevice(Machine(sms=4), EmulatorSettings(racecheck="lanes", counting=False))
    run(device, name, {"rows": 5, "cols": cols, "dtype": "bf16"}, {"THREADS": 64, "VECTORS": 3, "SHIFTED": True})


@pytest.mark.parametrize("name", ["rmsnorm", "softmax"])
def test_vectors_and_single_columns_give_the_same_values(device, name):
    """The order of sums differs, and nothing else."""
    fields = {"rows": 6, "cols": 1003, "dtype": "f16"}
    found = []
    for shifted in (False, True):
        case, _ = run(device, name, fields, {"THREADS": 128, "VECTORS": 1, "SHIFTED": shifted}, seed=3)
        found.append(case.outputs()["y"].astype(np.float64))
    np.testing.assert_allclose(found[0], found[1], rtol=2e-3)


def test_what_is_not_shifted_is_refused(device):
    with pytest.raises(UsageError, match="1024 columns are whole vectors, so SHIFTED has no effect"):
        run(device, "softmax", {"rows": 2, "cols": 1024}, {"SHIFTED": True})
    with pytest.raises(UsageError, match="SHIFTED applies to rows in registers"):
        run(device, "softmax", {"rows": 2, "cols": 1025}, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1, "SHIFTED": True})


@pytest.mark.parametrize(("cols", "dtype", "lanes", "threads"), [
    (3584, "bf16", 0, 224),  # 448 vectors, two of each thread
    (4096, "bf16", 256, 256),
    (4095, "bf16", 256, 256),
    (1000, "bf16", 64, 256),  # four rows in a CTA
])
def test_a_cta_with_one_row_has_no_idle_warps(cols, dtype, lanes, threads):
    workload = registry.get("softmax")(rows=8, cols=cols, dtype=dtype)
    tile = Tile({"THREADS": 256, "VECTORS": 2, "CLUSTER": 1, "SHIFTED": False})
    assert row.launched_lanes(workload, tile) == (lanes, threads)


@pytest.mark.parametrize(("cols", "held"), [(1024, 1024), (1023, 1032), (1025, 1032), (1028, 1032), (1030, 1040), (7, 16)])
def test_the_columns_of_a_shifted_row_are_those_of_all_vectors_that_it_touches(cols, held):
    """Over all rows: row r begins r * cols elements after a vector."""
    workload = registry.get("softmax")(rows=8, cols=cols, dtype="bf16")
    touched = max((r * cols % 8 + cols + 7) // 8 * 8 for r in range(8))
    assert row.held_columns(workload, {"SHIFTED": cols % 8 != 0}) == held == touched
