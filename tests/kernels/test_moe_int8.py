"""moe_int8: types, forms of results, ragged sizes, tiles, late completion, races, and the compiled code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.inspect import sass
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe import two_launches
from ptxkit.kernels.moe.moe_int8 import MoeInt8
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.workload import Workload

FUSED = ["step1_mma", "step2_wgmma"]
TWO = "step3_two_launches"
FITTED = "step4_fitted"
SMALL = {
    "step1_mma": {"BT": 16, "WT": 16, "STAGES": 2},
    "step2_wgmma": {"BW": 128, "BT": 16, "CONSUMERS": 2, "CLUSTER": 2, "PING_PONG": 1, "GROUP": 2},
}
EVERY = [
    pytest.param(
        dtype, output, marks=() if (dtype, output) in (("s8", "token"), ("e4m3", "bf16")) else pytest.mark.slow
    )
    for dtype in ("s8", "e4m3")
    for output in ("token", "given", "bf16")
]


def check(device, variant, m, n, k, tile=None, **options):
    workload = MoeInt8(m=m, n=n, k=k, **options)
    case = execute.Case(workload, device, seed=m + n + k)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


def compiled(step):
    """The machine code of a launch: the image may contain other kernels as well."""
    return sass(step.image)[step.image.entry(step.launch.entry)]


@pytest.fixture
def few_ctas(monkeypatch):
    """A device on which persistent kernels launch three CTAs, so that each computes several tiles."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=3))


@pytest.mark.parametrize("variant", [name for name in MoeInt8.variants() if name != TWO])
@pytest.mark.parametrize(("dtype", "output"), EVERY)
def test_every_type_and_form_of_results(device, dtype, output, variant):
    check(device, variant, 37, 80, 112, dtype=dtype, output=output)


@pytest.mark.parametrize("variant", [TWO, FITTED])
@pytest.mark.parametrize(("dtype", "m", "n", "k"), [("e4m3", 37, 80, 112), ("s8", 1, 16, 16), ("e4m3", 1, 8208, 16)])
def test_results_that_another_launch_quantizes(few_ctas, monkeypatch, dtype, m, n, k, variant):
    """Also rows that are longer than the registers of a CTA hold: 8208 results are 513 groups of 16, for 512 threads."""
    monkeypatch.setattr(two_launches, "GROUPS", 1)
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))
    check(device, variant, m, n, k, dtype=dtype)


@pytest.mark.parametrize("two", [TWO, FITTED])
def test_exact_sums_have_the_same_bits_in_one_launch_and_in_two(device, two):
    """Among them a token of zeros, and one whose scale is not a number."""
    workload = MoeInt8(m=9, n=272, k=144)
    data = workload.inputs(np.random.default_rng(3))
    data["a"][4] = 0
    data["a_scales"][6] = np.nan
    found = []
    for variant in ("step2_wgmma", two):
        case = execute.Case(workload, device, inputs=data)
        execute.prepare(case, workload.variant(variant)).launch()
        found.append({name: array.copy() for name, array in case.outputs().items()})
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])
    assert found[1]["scales"][4] == 0


@pytest.mark.parametrize(
    ("options", "fitted"),
    [
        ({"m": 46, "n": 704, "k": 1600}, True),
        ({"m": 129, "n": 4112, "k": 4080, "dtype": "e4m3"}, True),
        ({"m": 129, "n": 4112, "k": 4080, "dtype": "e4m3", "output": "bf16"}, True),
        ({"m": 384, "dtype": "e4m3"}, True),
        ({"m": 511, "n": 5120, "k": 13824}, True),
        ({"m": 1023, "n": 1040, "k": 1008, "dtype": "e4m3", "output": "given"}, True),
        ({"m": 2047, "n": 2064, "k": 2032, "dtype": "e4m3"}, True),
        ({"m": 3000, "n": 4096, "k": 4096, "output": "given"}, False),
    ],
)
def test_the_product_that_was_measured_to_be_faster(options, fitted):
    workload = MoeInt8(**options).on(reference_facts("sm_90a"))
    variants = [name for name, v in workload.variants().items() if v.slower is None or v.slower(workload) is None]
    assert variants[-1] == (FITTED if fitted else "step2_wgmma")


def test_a_product_that_matmul_fused_refuses_is_left_to_the_other_steps():
    workload = MoeInt8(m=1, n=1 << 20, k=16).on(reference_facts("sm_90a"))
    assert "results" not in workload.temporaries()
    with pytest.raises(UsageError, match="the arrays are too large"):
        workload.variant(FITTED).select_tile(workload, Target.parse("sm_90a"))


def test_given_scales_need_no_second_launch():
    workload = MoeInt8(output="given")
    with pytest.raises(UsageError, match="only output=token has scales that follow from the results, not output=given"):
        workload.variant(TWO).select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.parametrize("variant", FUSED)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 16), (17, 272, 144)])
def test_ragged_sizes(device, variant, m, n, k):
    check(device, variant, m, n, k)


@pytest.mark.parametrize("output", ["token", "bf16"])
def test_the_last_cluster_has_a_tile_beyond_the_weights(device, output):
    """272 weights are three tiles of 128, computed by two clusters of two CTAs."""
    check(device, "step2_wgmma", 70, 272, 144, {"BW": 128, "BT": 64, "CONSUMERS": 2, "CLUSTER": 2, "GROUP": 2}, output=output)


def test_alternating_consumers_wait_for_phases_that_are_far_ahead(few_ctas):
    """A tile has 13 steps, more than two rounds of a ring of 6 stages: the second consumer begins 13 stages after the first."""
    device = EmulatedDevice(settings=EmulatorSettings(counting=False, completion="latest-legal"))
    tile = {"BW": 128, "BT": 128, "CONSUMERS": 2, "PING_PONG": 1, "GROUP": 1}
    check(device, "step2_wgmma", 300, 256, 13 * 128, tile)


@pytest.mark.parametrize("variant", FUSED)
def test_sums_are_exact_and_ties_round_to_even(device, variant):
    """With scales of 1, the products 0.5, 1.5, 2.5, ... of the given scales are ties, and every result is exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((24, 256), (48, 256)))
    b[:, :] = 0
    b[:, :2] = rng.integers(-60, 60, (48, 2))
    a[:, :2] = rng.integers(-1, 2, (24, 2))
    ones = {"a_scales": np.ones(24, np.float32), "b_scales": np.ones(48, np.float32)}
    inputs = {"a": a, "b": b, **ones, "scales": np.full(24, 2, np.float32)}
    case = execute.Case(MoeInt8(m=24, n=48, k=256, output="given"), device, inputs=inputs)
    execute.prepare(case, case.workload.variant(variant)).launch()
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    assert (exact % 2 == 1).any()  # there are ties
    np.testing.assert_array_equal(case.outputs()["out"], np.rint(exact / 2))


@pytest.mark.parametrize("variant", [*FUSED, TWO, FITTED])
def test_ties_round_to_even_with_a_scale_of_the_tokens_own(device, variant):
    """The largest sum of each token is 254, so that its scale is 2, and every odd sum is a tie."""
    a, b = (np.zeros(shape, np.int8) for shape in ((9, 32), (48, 32)))
    a[:, :2] = 1
    b[:, :2] = np.random.default_rng(3).integers(-63, 64, (48, 2))
    b[5, :2] = 127
    ones = {"a_scales": np.ones(9, np.float32), "b_scales": np.ones(48, np.float32)}
    case = execute.Case(MoeInt8(m=9, n=48, k=32), device, inputs={"a": a, "b": b, **ones})
    execute.prepare(case, case.workload.variant(variant)).launch()
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    assert (exact % 2 == 1).any()  # there are ties
    np.testing.assert_array_equal(case.outputs()["scales"], np.full(9, 2, np.float32))
    np.testing.assert_array_equal(case.outputs()["out"], np.rint(exact / 2))


@pytest.mark.parametrize("variant", [*FUSED, TWO, FITTED])
def test_a_channel_that_is_not_a_number_leaves_the_others_as_they_are(device, variant):
    """e4m3 weights may be NaN. The largest magnitude of a token ignores what is NaN."""
    workload = MoeInt8(m=9, n=48, k=32, dtype="e4m3")
    given = workload.inputs(np.random.default_rng(4))
    found = []
    for row in (0.0, np.nan):
        given["b"][7] = np.float32(row)
        case = execute.Case(workload, device, inputs=given)
        execute.prepare(case, workload.variant(variant)).launch()
        found.append(case.outputs())
    whole, spoiled = found
    np.testing.assert_array_equal(spoiled["scales"], whole["scales"])
    others = np.arange(48) != 7
    assert (spoiled["out"][:, others].view(np.uint8) == whole["out"][:, others].view(np.uint8)).all()
    assert np.isnan(spoiled["out"][:, 7].astype(np.float32)).all()


@pytest.mark.parametrize("variant", FUSED)
def test_few_results_differ_by_one_and_only_at_ties(device, variant):
    case = execute.Case(MoeInt8(m=64, n=256, k=128), device, seed=5)
    execute.prepare(case, case.workload.variant(variant)).launch()
    given = case.data.inputs
    c = moe.sums_of(given["a"], given["b"]) * given["a_scales"].astype(np.float64)[:, None] * given["b_scales"]
    steps = c / (np.abs(c).max(axis=1) / 127)[:, None]
    wrong = case.outputs()["out"] != np.rint(steps)
    assert wrong.sum() <= 8  # of 16384
    assert (np.abs(np.abs(steps - np.trunc(steps)) - 0.5)[wrong] < 1e-4).all()


@pytest.mark.parametrize("variant", [*FUSED, TWO, FITTED])
def test_a_token_of_zeros_has_scale_zero(device, variant):
    data = MoeInt8(m=9, n=32, k=32).inputs(np.random.default_rng(2))
    data["a"][4] = 0
    case = execute.Case(MoeInt8(m=9, n=32, k=32), device, inputs=data)
    execute.prepare(case, case.workload.variant(variant)).launch()
    assert case.outputs()["scales"][4] == 0 and (case.outputs()["out"][4] == 0).all()
    assert (case.outputs()["scales"][5] > 0).all()


@pytest.mark.parametrize("variant", FUSED)
@pytest.mark.parametrize("completion", ["latest-legal", pytest.param("random", marks=pytest.mark.slow)])
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, variant, completion):
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
    check(device, variant, 40, 256, 400, SMALL[variant])


@pytest.mark.parametrize("variant", ["step1_mma", pytest.param("step2_wgmma", marks=pytest.mark.slow)])
def test_no_races_over_several_tiles(few_ctas, variant):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    check(device, variant, 40, 256, 272, SMALL[variant])


@pytest.mark.slow
@pytest.mark.parametrize("variant", FUSED)
def test_nothing_uninitialised_is_used(variant):
    settings = EmulatorSettings(initcheck=True, completion="latest-legal", trap=("nan",))
    check(EmulatedDevice(settings=settings), variant, 20, 144, 80)


TILES = [
    {"BW": 64, "BT": 8, "CONSUMERS": 1},
    {"BW": 256, "BT": 16, "CONSUMERS": 2},
    {"BW": 256, "BT": 128, "CONSUMERS": 2},
    {"BW": 128, "BT": 256, "CONSUMERS": 2, "GROUP": 1, "CLUSTER": 2},
    {"BW": 128, "BT": 64, "CONSUMERS": 1},
    {"BW": 128, "BT": 128, "CONSUMERS": 2, "CLUSTER": 2, "PING_PONG": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_shape_of_tile(device, tile):
    check(device, "step2_wgmma", 20, 144, 80, tile, output="bf16")


MMA_TILES = [
    {"BW": 64, "BT": 16, "WW": 16, "WT": 16, "STAGES": 6},
    {"BW": 128, "BT": 128, "WW": 64, "WT": 32, "GROUP": 1},
    {"BW": 256, "BT": 32, "WW": 32, "WT": 32, "STAGES": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
def test_every_shape_of_mma_tile(device, tile):
    check(device, "step1_mma", 20, 144, 80, tile, output="given")


@pytest.mark.parametrize(
    ("m", "output"),
    [
        (4096, "token"),
        *(pytest.param(m, o, marks=pytest.mark.slow) for m, o in ((4096, "bf16"), (100, "token"), (1, "bf16"))),
    ],
)
@pytest.mark.parametrize(("dtype", "opcode"), [("s8", "IGMMA"), pytest.param("e4m3", "QGMMA", marks=pytest.mark.slow)])
def test_wgmma_is_asynchronous_and_nothing_spills(dtype, opcode, m, output):
    workload = MoeInt8(m=m, dtype=dtype, output=output)
    step = build(workload, workload.variant("step2_wgmma"), Target.parse("sm_90a")).steps[-1]
    assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
    assert_sass(compiled(step), has=opcode, spills=0)


@pytest.mark.parametrize(
    ("target", "dtype", "opcode"), [("sm_80", "s8", "IMMA.16832"), ("sm_89", "e4m3", "QMMA.16832")]
)
def test_mma_sync_runs_before_hopper(target, dtype, opcode):
    workload = MoeInt8(dtype=dtype, output="bf16")
    step = build(workload, workload.variant("step1_mma"), Target.parse(target)).steps[-1]
    assert_sass(compiled(step), has=[opcode, "LDSM.16.M88.4", "LDGSTS"], spills=0)


def test_tokens_beyond_what_is_resident_are_refused():
    workload = MoeInt8(n=131072)
    with pytest.raises(UsageError, match="exchange the tokens' largest magnitudes: more than [0-9]+, which 132 SMs compute"):
        workload.variant("step2_wgmma").select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.parametrize("variant", ["unfused", "step1_mma"])
def test_e4m3_needs_sm_89(variant):
    workload = MoeInt8(dtype="e4m3").on(reference_facts("sm_80"))
    with pytest.raises(UsageError, match="needs sm_89"):
        workload.variant(variant).select_tile(workload, Target.parse("sm_80"))


@pytest.mark.parametrize(
    ("sizes", "message"), [({"n": 24}, "n must be a multiple of 16"), ({"k": 8}, "k must be a multiple of 16")]
)
def test_rows_are_multiples_of_16_bytes(sizes, message):
    with pytest.raises(UsageError, match=message):
        MoeInt8(**{"m": 8, "n": 16, "k": 16, **sizes})


def test_sums_that_would_exceed_32_bits_are_refused_in_s8_alone():
    with pytest.raises(UsageError, match="k must be at most 131071, so that no sum of products of s8 exceeds 32 bits"):
        MoeInt8(m=1, n=16, k=131072)
    MoeInt8(m=1, n=16, k=131072, dtype="e4m3")


def test_large_arrays_of_random_elements_repeat_no_row():
    rows = moe.random_elements(np.random.default_rng(0), (40, 4 << 20), "s8")
    assert len({row[:64].tobytes() for row in rows}) == 40


def test_products_of_the_reference_are_exact():
    a, b = np.full((1, 3000), -128, np.int8), np.full((1, 3000), -128, np.int8)
    a[0, -1] = 127
    assert moe.sums_of(a, b)[0, 0] == 2999 * 128 * 128 - 127 * 128
    assert dtype_of("s8") == a.dtype
