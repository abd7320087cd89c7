"""Step 9 of matmul_wgmma: few rows of a, k divided among the CTAs of a cluster, rows of a shared by multicast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import steps
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose
from ptxkit.workload.workload import Workload

STEP = "step9_swapped"
SM_90A = Target.parse("sm_90a")


def run(device, m, n, k, tile=None, seed=0, **options):
    """The output of the step, after it has been compared with numpy."""
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    case = execute.Case(workload, device, seed=seed)
    result = execute.run(case, workload.variant(STEP), None, tile, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return case.outputs()["c"]


def strict(**checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", **checks))


def sizes(layout):
    """Sizes in which only the lengths of rows in memory are multiples of 8 elements."""
    m = st.integers(1, 18).map(lambda x: 8 * x) if layout[0] == "n" else st.integers(1, 140)
    k = st.integers(1, 300) if layout == "nt" else st.integers(1, 40).map(lambda x: 8 * x)
    return st.tuples(st.just(layout), m, st.integers(1, 20).map(lambda x: 8 * x), k)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(["tn", "tt", "nn", "nt"]).flatmap(sizes), st.sampled_from(["bf16", "f16"]))
@example(("tn", 1, 8, 8), "bf16")
@example(("nt", 8, 8, 1), "f16")
@example(("tn", 129, 72, 136), "f16")
def test_any_size_that_tma_can_read(call, dtype):
    layout, m, n, k = call
    run(strict(), m, n, k, layout=layout, dtype=dtype)


TILES = [
    (8, 104, 136, {"TOKENS": 8, "PARTS": 2}),
    (1, 72, 520, {"TOKENS": 8, "PARTS": 5}),  # four CTAs own no row of c
    (17, 72, 520, {"TOKENS": 48, "PARTS": 8, "CONSUMERS": 2}),
    (33, 520, 136, {"TOKENS": 32, "PARTS": 3, "SHARING": 2}),
    (70, 136, 200, {"TOKENS": 96, "SHARING": 4}),
    (150, 136, 520, {"TOKENS": 80, "ROWS": 2}),
    (17, 520, 520, {"TOKENS": 32, "ROWS": 2, "CONSUMERS": 2, "PARTS": 2}),
    (330, 264, 328, {"TOKENS": 112, "CONSUMERS": 2, "CTAS_PER_SM": 1}),
    (200, 136, 328, {"TOKENS": 224, "PARTS": 3, "CTAS_PER_SM": 1}),
    (300, 72, 456, {"TOKENS": 160, "SHARING": 2, "CTAS_PER_SM": 1}),
    (140, 200, 72, {"TOKENS": 128, "SHARING": 8, "CONSUMERS": 2, "CTAS_PER_SM": 1}),
]


@pytest.mark.parametrize(("m", "n", "k", "tile"), TILES, ids=str)
def test_every_shape_of_tile(m, n, k, tile):
    run(strict(racecheck="warps"), m, n, k, tile)


def test_each_launch_gives_the_same_bits():
    """Whichever CTA of a cluster sends its sums first."""
    tile = {"TOKENS": 16, "PARTS": 4, "SHARING": 2}
    first, *others = (
        run(EmulatedDevice(settings=EmulatorSettings(completion="random", completion_seed=seed)), 13, 136, 520, tile)
        for seed in (1, 2, 3)
    )
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("layout", ["tn", "nt"])
def test_epilogues(device, layout):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16", "layout": layout}
    run(device, 40, 104, 200, **options)


@pytest.mark.parametrize(
    ("options", "tile", "reason"),
    [
        ({}, {"TOKENS": 8, "SHARING": 2}, "each of 2 CTAs copies 4 rows of a"),
        ({"layout": "nn"}, {"TOKENS": 32}, "each of 1 CTAs copies 32 rows of a"),
        ({}, {"PARTS": 8, "SHARING": 2}, "PARTS x SHARING = 16 CTAs"),
        ({"k": 128}, {"PARTS": 3}, "k=128 has 2 steps of 64"),
        ({}, {"TOKENS": 128, "CONSUMERS": 2, "CTAS_PER_SM": 4}, "64 sums need more than the 56 registers"),
        ({"k": 512}, {"TOKENS": 8, "CONSUMERS": 2, "ROWS": 2, "CTAS_PER_SM": 4}, "room for 1 stages"),
    ],
)
def test_what_the_constraint_refuses(options, tile, reason):
    workload = MatmulWgmma(**{"m": 64, **options})
    with pytest.raises(UsageError, match=reason):
        workload.variant(STEP).select_tile(workload, SM_90A, tile)


ROWS = (1, 4, 16, 17, 33, 64, 100, 128)
LAYERS = ((4096, 4096), (28672, 8192), (256, 16384), (152064, 3584), (2048, 7168), (5120, 5120), (64, 64))


@pytest.mark.parametrize("sms", [132, 114, 20])
def test_a_few_programs_suffice_for_all_sizes_and_gpus(monkeypatch, sms):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    programs = set()
    for m in ROWS:
        for n, k in LAYERS:
            workload = MatmulWgmma(m=m, n=n, k=k)
            _, (launch,) = workload.variant(STEP).select(workload, SM_90A)
            programs.add(launch.entry)
    assert len(programs) <= 24


@pytest.mark.parametrize("mnk", [(2, 5120, 5120), (3, 4608, 3584)])
def test_it_is_chosen_where_it_is_predicted_to_be_the_fastest(mnk):
    workload = MatmulWgmma(*mnk)
    times = steps.times(workload)
    assert min(times, key=times.get) == 9
    assert choose(workload, target=SM_90A).variant == STEP


@pytest.mark.parametrize("tile", [{"TOKENS": 8}, {"TOKENS": 48}, {"TOKENS": 128, "CONSUMERS": 2}], ids=str)
def test_wgmma_is_asynchronous_and_nothing_spills(tile):
    workload = MatmulWgmma(m=64, alpha=2.0, beta=0.5, epilogue="bias_gelu")
    (step,) = build(workload, workload.variant(STEP), SM_90A, tile).steps
    assert_sass(step.image, has=["HGMMA", "UTMALDG"], spills=0)
    assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
