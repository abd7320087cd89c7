"""Step 14 of matmul_wgmma and ``cluster_k`` of matmul_fused: the CTAs of a cluster divide k and add their sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels import measured as measurements
from ptxkit.kernels.gemm import cluster_k, stream_k
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

STEP = "step14_cluster_k"
SM_90A = Target.parse("sm_90a")


def run(device, workload, variant=STEP, tile=None, seed=0):
    """The output of the variant, after it has been compared with numpy."""
    case = execute.Case(workload, device, seed=seed)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return case.outputs()["c"]


def strict(sms=132, **checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(Machine(sms=sms), EmulatorSettings(completion="latest-legal", **checks))


def tile_of(**values):
    """A tile with all parameters."""
    return {"CONSUMERS": 1, "ROWS": 1, "COLUMNS": 64, "PARTS": 2, **values}


LENGTHS = st.integers(1, 150) | st.integers(1, 18).map(lambda x: 8 * x)  # of rows that TMA cannot read, and that it can


@settings(max_examples=12, deadline=None)
@given(
    *(LENGTHS, LENGTHS, st.integers(65, 300) | st.integers(9, 40).map(lambda x: 8 * x)),
    *(st.sampled_from(["tn", "tt", "nn", "nt"]), st.sampled_from(["bf16", "f16"])),
)
@example(1, 1, 72, "tn", "bf16")
@example(129, 71, 136, "tn", "f16")
@example(5, 71, 131, "tt", "bf16")
def test_any_size(m, n, k, layout, dtype):
    run(strict(), MatmulWgmma(m=m, n=n, k=k, layout=layout, dtype=dtype))


TILES = [  # sizes and tile
    ((70, 96, 264), {"CONSUMERS": 2, "COLUMNS": 48, "PARTS": 3}),  # five steps: shares of one and of two
    ((1, 97, 1032), {"ROWS": 2, "COLUMNS": 40, "PARTS": 5}),  # units of one vector; one row, and elements alone
    ((130, 8, 520), {"COLUMNS": 8, "PARTS": 8}),  # fewer units than CTAs
    ((200, 300, 1544), {"COLUMNS": 256, "CONSUMERS": 2, "PARTS": 2}),  # more steps than stages
    ((190, 330, 200), {"CONSUMERS": 3, "COLUMNS": 112, "PARTS": 4}),  # a step for each CTA
    ((256, 64, 456), {"CONSUMERS": 2, "ROWS": 2, "COLUMNS": 128, "PARTS": 7}),
]


@pytest.mark.parametrize(("mnk", "tile"), TILES, ids=str)
def test_every_shape_of_tile_without_races(mnk, tile):
    run(strict(racecheck="warps"), MatmulWgmma(*mnk), tile=tile_of(**tile))


@pytest.mark.parametrize(
    ("sizes", "tile", "options"),
    [
        ((17, 73, 400), {}, {"dtype": "s8", "scale": "rows_columns", "bias": True, "amax": True, "batch": 2}),
        ((60, 90, 400), {"PARTS": 4}, {"dtype": "e4m3", "scale": "tensor", "residual": True, "amax": True, "batch": 3}),
        ((72, 136, 134), {}, {"layout": "nt", "activation": "silu_mul", "batch": 2}),
        ((5, 72, 260), {"PARTS": 8}, {"dtype": "tf32", "ldc": 75}),
        ((70, 90, 640), {"PARTS": 5}, {"dtype": "s8"}),
    ],
    ids=str,
)
def test_epilogues_types_and_batches_without_races(sizes, tile, options):
    run(strict(racecheck="warps"), MatmulFused(*sizes, **options), "cluster_k", tile_of(**tile))


def test_each_launch_gives_the_same_bits():
    """Whichever sums arrive first."""
    first, *others = (
        run(
            EmulatedDevice(Machine(sms=8), EmulatorSettings(completion="random", completion_seed=seed)),
            MatmulWgmma(13, 136, 520),
            tile=tile_of(PARTS=5),
        )
        for seed in (1, 2, 3)
    )
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("n", [104, 103])
def test_epilogues(device, n):
    run(device, MatmulWgmma(40, n, 200, alpha=-1.5, beta=0.25, epilogue="bias_gelu", dtype="f16"))


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({"k": 130}, {"PARTS": 4}, "k=130 has 3 steps of 128 bytes, fewer than PARTS=4"),
        ({"layout": "tt"}, {"COLUMNS": 32}, "no whole boxes of a row-major b"),
        ({}, {"COLUMNS": 160, "ROWS": 2}, "a thread holds 160 sums"),
        ({}, {"COLUMNS": 256, "CONSUMERS": 3}, "128 sums need more than"),
    ],
)
def test_what_the_constraint_refuses(options, tile, reason):
    workload = MatmulWgmma(**{"m": 64, **options})
    with pytest.raises(UsageError, match=reason):
        workload.variant(STEP).select_tile(workload, SM_90A, tile_of(**tile))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 9000), st.integers(65, 9000), st.sampled_from([132, 114, 20]))
def test_candidates_fit_the_device(m, n, k, sms):
    facts = replace(reference_facts("sm_90a"), sms=sms)
    workload = MatmulWgmma(m=m, n=n, k=k).on(facts)
    for tile in cluster_k.candidates(workload):
        assert cluster_k.usable(workload, tile) is True
        assert cluster_k.shared_bytes(workload, tile) + stream_k.STATIC_BYTES <= facts.target.limits.shared_bytes_per_cta
        # every vector of a thread has room at its owner
        assert tile["PARTS"] * -(-cluster_k.units(tile) // tile["PARTS"]) >= cluster_k.units(tile)


UNMEASURED = [MatmulWgmma(333, 3584, 3584), MatmulWgmma(128, 5376, 3584), MatmulFused(128, 5376, 3584, dtype="e4m3")]


@pytest.mark.parametrize("workload", UNMEASURED, ids=str)
def test_it_is_not_chosen_before_it_was_measured(workload, monkeypatch):
    h200, facts = measurements.H200, reference_facts("sm_90a")
    monkeypatch.setattr(measurements, "MEASURED", {h200.gpu: replace(h200, cluster_k=None)})
    choice = choose(workload.on(facts), target=SM_90A)
    assert not choice.variant.endswith("cluster_k")
    assert any(o.name.endswith("cluster_k") and o.objection == "no times of it were measured" for o in choice.candidates)


@pytest.mark.parametrize("workload", [MatmulWgmma(336, 3584, 3584), MatmulFused(336, 3584, 3584)], ids=str)
def test_it_is_chosen_where_its_fitted_model_is_the_fastest(workload, monkeypatch):
    h200 = measurements.H200
    at_once = {"latency_us": 0.1, "hit_us": 0.1, "launch_us": 0.0, "end_us": 0.0, "exchange_us": 0.0}
    fast = replace(h200.stream_k, column_us=1e-4, shared_gbs=1e6, **at_once)
    entry = replace(h200, cluster_k=fast, multicast=None)
    monkeypatch.setattr(measurements, "MEASURED", {h200.gpu: entry})
    choice = choose(workload.on(reference_facts("sm_90a")), target=SM_90A)
    assert choice.variant.endswith("cluster_k")


@pytest.mark.parametrize(
    "tile", [{"COLUMNS": 256, "CONSUMERS": 2}, {"COLUMNS": 128, "ROWS": 2}, {"COLUMNS": 176, "CONSUMERS": 3}], ids=str
)
def test_wgmma_is_asynchronous_and_nothing_spills(tile):
    workload = MatmulWgmma(m=300, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (multiply,) = build(workload, workload.variant(STEP), SM_90A, tile_of(**tile)).steps
    assert_sass(multiply.image, has=["HGMMA", "UTMALDG"], spills=0)
    assert "serialized" not in multiply.image.log  # "wgmma.mma_async instructions are serialized due to ..."
