"""matmul_wgmma: the tiles that the model prefers for step 8, and step 10, which divides k into parts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import wgmma_tiles
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose
from ptxkit.workload.workload import Workload

STEP = "step10_split_k"
SM_90A = Target.parse("sm_90a")
SMALL = {"BM": 64, "BN": 128, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}


def run(device, m, n, k, tile=None, **options):
    """The output of step 10, after it has been compared with numpy."""
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    case = execute.Case(workload, device, seed=m + n + k)
    result = execute.run(case, workload.variant(STEP), None, tile, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"
    return case.outputs()["c"]


def strict(**checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", **checks))


def eights(least, most):
    """Multiples of 8."""
    return st.integers(least, most).map(lambda x: 8 * x)


@settings(max_examples=8, deadline=None)
@given(eights(1, 20), eights(1, 20), eights(25, 90), st.sampled_from(["tn", "tt", "nn", "nt"]))
@example(8, 8, 200, "tn")
def test_any_size_with_a_k_that_can_be_divided(m, n, k, layout):
    run(strict(), m, n, k, layout=layout, dtype="f16")


TILES = [
    {**SMALL, "PARTS": 3},
    {"BM": 128, "BN": 128, "STAGES": 3, "CLUSTER_M": 2, "PARTS": 2},
    {"BM": 128, "BN": 192, "CLUSTER_N": 2, "BOXES": 1, "PARTS": 4},
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_shape_of_tile_without_races(few_ctas, monkeypatch, tile):
    monkeypatch.setattr(wgmma_tiles, "MOST_WAVES", 40)  # of two CTAs, so that each of them computes several parts
    monkeypatch.setattr(Workload, "device", replace(Workload.device, sms=4))
    run(strict(racecheck="warps"), 136, 72, 584, tile)


def test_each_launch_gives_the_same_bits():
    first, other = (
        run(EmulatedDevice(settings=EmulatorSettings(completion="random", completion_seed=seed)), 72, 136, 584)
        for seed in (1, 2)
    )
    np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


def test_the_epilogue_is_applied_to_the_sum_of_all_parts(device):
    run(device, 90, 104, 520, {**SMALL, "PARTS": 4}, alpha=-1.5, beta=0.25, epilogue="bias_gelu")


@pytest.mark.parametrize(
    ("sizes", "tile", "reason"),
    [
        ((4096, 4096, 4096), {}, "c has tiles for all SMs"),
        ((64, 64, 64), {}, "k=64 is too short"),
        ((256, 256, 640), {"PARTS": 12}, "PARTS=12 is more than the 10"),
    ],
)
def test_what_the_constraint_refuses(sizes, tile, reason):
    workload = MatmulWgmma(*sizes)
    with pytest.raises(UsageError, match=reason):
        workload.variant(STEP).select_tile(workload, SM_90A, tile)


@settings(max_examples=60, deadline=None)
@given(eights(1, 2000), eights(1, 2000), eights(1, 8000))
def test_the_sums_of_parts_take_little_memory(m, n, k):
    """At most two waves of the largest tile, with the edges of the smallest; in step 13 two tiles for each CTA."""
    workload = MatmulWgmma(m=m, n=n, k=k)
    for shape, _ in workload.temporaries().values():
        assert prod(shape) * 4 <= 2 * 2 * workload.device.sms * 128 * 256 * 4


@pytest.mark.parametrize("sizes", [(256, 512, 32768), (512, 512, 16384)])
def test_parts_are_chosen_for_a_long_k_with_a_small_c(sizes):
    chosen = choose(MatmulWgmma(*sizes), target=SM_90A)
    assert chosen.variant == STEP or (chosen.variant == "step13_stream_k" and chosen.tile["DIVIDED"] == 2)


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1024, 1024, 1024), (8192, 3072, 768)])
def test_it_is_not_chosen_where_tiles_fill_the_gpu(sizes):
    assert choose(MatmulWgmma(*sizes), target=SM_90A).variant == "step8_tma_store"


def tile_of(m, n, k, **options):
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    return workload.variant("step8_tma_store").select_tile(workload, SM_90A)


def test_rows_that_begin_within_a_cache_line_are_shared_by_clusters():
    """They gain more there. With k contiguous in no operand it is the lengths of the other dimensions that count."""

    def gain(k, layout="tn"):
        workload = MatmulWgmma(m=4096, n=4096, k=k, layout=layout)
        single, cluster = ({**wgmma_tiles.shape(128, 256, 2, 4), "CLUSTER_M": ctas, "CLUSTER_N": 1} for ctas in (1, 2))
        return wgmma_tiles.predicted_us(workload, single) / wgmma_tiles.predicted_us(workload, cluster)

    assert gain(4104) > gain(4096)
    assert gain(4104) > gain(4104, layout="nt")
    misaligned = next(wgmma_tiles.preferred(MatmulWgmma(m=4096, n=4096, k=4104)))  # a shared program may be without clusters
    assert misaligned["CLUSTER_M"] * misaligned["CLUSTER_N"] == 2


def test_the_number_of_waves_decides():
    """3072^3 with 128 x 256 tiles takes three waves, of which the last has a fifth of its CTAs."""
    tile = tile_of(3072, 3072, 3072)
    tiles = wgmma_tiles.tiles(MatmulWgmma(m=3072, n=3072, k=3072), tile)
    assert tiles / 132 > 0.95 * -(-tiles // 132)


@pytest.mark.parametrize("sms", [132, 114, 20])
@pytest.mark.parametrize("step", ["step8_tma_store", STEP])
def test_a_few_programs_suffice_for_all_sizes_and_gpus(monkeypatch, step, sms):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    programs = set()
    for m in (129, 257, 1000, 4096):
        for n, k in ((256, 16384), (3000, 3000), (4096, 4096), (1032, 20000)):
            workload = MatmulWgmma(m=m, n=n, k=k)
            if workload.variant(step).refusal(workload) is None:
                programs.add(workload.variant(step).select(workload, SM_90A)[1][0].entry)
    assert programs
    assert len(programs) <= 13  # within a step, another program is taken to save 1.5 us


def test_wgmma_is_asynchronous_and_nothing_spills():
    workload = MatmulWgmma(m=256, n=256, k=4096, alpha=2.0)
    multiply, _ = build(workload, workload.variant(STEP), SM_90A).steps
    assert_sass(multiply.image, spills=0)
    assert "serialized" not in multiply.image.log  # "wgmma.mma_async instructions are serialized due to ..."
