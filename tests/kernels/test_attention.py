"""attention in all its steps: head sizes, ragged lengths, causal masks, shared heads, late completion, races."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.attention.attention import Attention
from ptxkit.kernels.attention.sizes import causal_pairs
from ptxkit.kernels.attention.tiles import preferred_continuous
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.choice import choose

VARIANTS = [
    name
    for name in Attention.variants()
    if name not in ("private_counter", "late_wait")  # the kernel of step 7; for heads of 256 elements
]


def check(device, variant, tile=None, **settings):
    workload = Attention(**settings)
    case = execute.Case(workload, device, seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=tile is not None)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 1, "heads": 1, "q": 1, "k": 1},
        {"batch": 1, "heads": 4, "q": 70, "k": 140, "kv_heads": 2},
        {"batch": 3, "heads": 1, "q": 150, "k": 150, "lengths": "random"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_any_shape(device, variant, settings):
    check(device, variant, d=64, causal=True, **settings)


@pytest.mark.parametrize("variant", ["step1_tiled", "step3_overlap"])
def test_f16_without_a_mask(device, variant):
    check(device, variant, batch=2, heads=2, q=70, k=140, d=128, dtype="f16")


@pytest.mark.parametrize("variant", VARIANTS)
def test_queries_without_a_visible_key_have_results_0(device, variant):
    found = check(device, variant, batch=1, heads=2, q=140, k=9, d=64, causal=True)
    assert (found["o"][:131].astype(np.float32) == 0).all()
    assert np.isneginf(found["lse"][:, :131]).all()
    assert np.isfinite(found["lse"][:, 131:]).all()


@pytest.mark.parametrize("lengths", ["equal", "random"])
@pytest.mark.parametrize("variant", [*VARIANTS, "private_counter"])
def test_a_nan_stays_in_its_sequence(between_others, variant, lengths):
    between_others(Attention(batch=3, heads=2, q=20, k=70, d=64, kv_heads=1, lengths=lengths), variant)


@pytest.mark.parametrize("variant", ["late_wait", "step9_decode_tma"])
def test_a_nan_stays_in_its_sequence_with_heads_of_256_elements(between_others, variant):
    between_others(Attention(batch=3, heads=1, q=5, k=70, d=256), variant)


def test_heads_of_256_elements(device):
    check(device, "step4_ping_pong", batch=1, heads=1, q=20, k=80, d=256)


@pytest.mark.parametrize("tile", [{"PING_PONG": 0}, {"PING_PONG": 1}])
def test_late_wait_with_heads_of_256_elements(few_ctas, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    check(device, "late_wait", tile, batch=2, heads=1, q=140, k=200, d=256, causal=True, lengths="random")


@pytest.mark.parametrize(
    "tile",
    [
        {"CONSUMERS": 3, "BN": 64, "STAGES": 3, "PING_PONG": 0},
        {"CONSUMERS": 1, "BN": 192, "STAGES": 2, "PING_PONG": 0},
    ],
)
def test_tiles_of_persistent_ctas(device, few_ctas, tile):
    check(device, "step5_persistent", tile, batch=2, heads=2, q=130, k=200, d=64, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_three_warpgroups_of_continuous_ctas(few_ctas, causal):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    tile = {"CONSUMERS": 3, "BN": 64, "STAGES": 2, "PING_PONG": 0}
    check(device, "step7_continuous", tile, batch=2, heads=1, q=200, k=150, d=64, causal=causal, lengths="random")


@pytest.mark.parametrize(
    ("settings", "consumers"),
    [
        ({"q": 2048}, 3),
        ({"q": 2048, "batch": 4}, 2),
        ({"q": 2048, "causal": True}, 2),
        ({"q": 256}, 2),
        ({"q": 2048, "d": 128}, 2),
    ],
)
def test_the_warpgroups_of_a_tile_follow_from_the_sizes(settings, consumers):
    """Three were measured to be faster for heads of 64 elements without a mask; 256 queries leave a third of them idle, and 704
    tiles for 132 SMs a ninth of these."""
    workload = Attention(**{"batch": 8, "k": 2048, "d": 64, **settings})
    assert next(preferred_continuous(workload))["CONSUMERS"] == consumers


@pytest.mark.parametrize("completion", ["latest-legal", "random"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "unfused"])
def test_late_copies_and_races(few_ctas, variant, completion):
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion, racecheck="warps", initcheck=True))
    check(device, variant, batch=2, heads=1, q=140, k=200, d=64, causal=True, lengths="random")


def test_all_lanes_have_read_the_number_of_a_tile_whose_queries_see_no_key_before_it_is_replaced(few_ctas):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    tile = {"CONSUMERS": 1, "BN": 64, "STAGES": 2, "PING_PONG": 0}
    check(device, "step7_continuous", tile, batch=1, heads=3, q=130, k=1, d=64, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_from_a_counter_have_the_same_bits_in_every_launch(few_ctas, causal):
    """No launch clears the counter, which is 0 again after each. Sequences without queries have tiles that do not exist."""
    workload = Attention(batch=3, heads=2, q=300, k=300, d=64, causal=causal, lengths="empty")
    case = execute.Case(workload, EmulatedDevice())

    def results(variant, launches, **tile):
        case.reset()
        prepared = execute.prepare(case, workload.variant(variant), None, {"BN": 64, "STAGES": 2, **tile})
        for _ in range(launches):
            prepared.launch()
            assert case.array("next_tile").numpy().tolist() == [0]
            yield case.outputs()["o"].view(np.uint16).copy()

    (expected,) = results("step5_persistent", 1)
    for found in results("step6_dynamic", 2):
        np.testing.assert_array_equal(found, expected)
    for found in results("step7_continuous", 2, RESCALE_ABOVE=0):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("batch", "k"), [(4, 140), (2, 70)])
def test_sequences_without_queries_or_without_keys(device, variant, batch, k):
    found = check(device, variant, batch=batch, heads=1, q=70, k=k, d=64, causal=batch == 2, lengths="empty")
    rows = Attention(batch=batch, heads=1, q=70, k=k, d=64, lengths="empty").rows
    assert rows(1)[0].start == rows(1)[0].stop
    if batch == 4:
        assert (found["o"][rows(2)[0]].astype(np.float32) == 0).all()


def test_large_scores_do_not_overflow():
    """Scores of several hundreds, whose exponentials are infinite: the maximum is subtracted first."""
    workload = Attention(batch=1, heads=1, q=64, k=64, d=64, causal=True)
    inputs = dict(workload.inputs(np.random.default_rng(0)))
    inputs["query"] = (inputs["query"].astype(np.float32) * 256).astype(inputs["query"].dtype)
    for variant in ("unfused", "step1_tiled", "step3_overlap"):
        case = execute.Case(workload, EmulatedDevice(), inputs=inputs)
        assert execute.run(case, workload.variant(variant)).verdict.verified


@pytest.mark.parametrize("growth", [1, 300])
def test_results_are_rescaled_when_the_maximum_has_grown_enough(growth):
    """Scores grow from the last keys, which come first, to the first ones: in all by less than 2^8, or repeatedly by more."""
    workload = Attention(batch=1, heads=1, q=64, k=512, d=64, dtype="f16")
    inputs = dict(workload.inputs(np.random.default_rng(0)))
    query = np.zeros((64, 1, 64), np.float32)
    query[:, 0, 0] = np.linspace(0, growth, 64)  # rows that need other numbers of factors
    key = np.zeros((512, 1, 64), np.float32)
    key[:, 0, 0] = np.linspace(30, 0, 512)  # scores up to 30 growth / 8
    inputs |= {"query": query.astype(np.float16), "key": key.astype(np.float16)}
    inputs["value"] = inputs["value"] + np.float16(1)  # similar rows: sums that cancel would have no tolerance
    case = execute.Case(workload, EmulatedDevice(), inputs=inputs)
    tile = {"BN": 64, "STAGES": 2, "PING_PONG": 1, "CONSUMERS": 2, "RESCALE_ABOVE": 8}
    assert execute.run(case, workload.variant("step7_continuous"), None, tile).verdict.verified


def test_fused_kernels_move_no_scores():
    """Device memory is only read for the inputs and written for the outputs, whatever the number of keys."""
    workload = Attention(batch=1, heads=1, q=64, k=512, d=64, causal=True)
    case = execute.Case(workload, EmulatedDevice())
    stored = {}
    for variant in ("unfused", "step1_tiled", "step3_overlap"):
        stored[variant] = execute.run(case, workload.variant(variant)).counters.written_bytes
    assert stored["step1_tiled"] == stored["step3_overlap"] == 64 * 64 * 2 + 64 * 4
    assert stored["unfused"] == stored["step1_tiled"] + 64 * 512 * (4 + 2)  # scores in f32, probabilities in bf16


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 4), (3, 7), (7, 3), (5, 1)])
def test_pairs_of_a_causal_mask(n, m):
    seen = np.arange(m)[None] <= np.arange(n)[:, None] + m - n
    assert causal_pairs(n, m) == seen.sum()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 80}, "d must be one of 64, 128, 256"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads must divide the 6 heads, .*, not 4"),
        ({"kv_heads": -1}, "kv_heads must divide"),
        ({"batch": 70000}, "at most 65535"),
    ],
)
def test_unsupported_sizes_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Attention(**settings)


def test_a_private_counter_needs_no_value_before_the_launch(few_ctas):
    """Its memory was used by other launches before, so that it may hold any number."""
    workload = Attention(batch=2, heads=2, q=140, k=100, d=64, causal=True)
    case = execute.Case(workload, EmulatedDevice(settings=EmulatorSettings(racecheck="warps", initcheck=True)))
    tile = {"BN": 64, "STAGES": 2}
    expected = execute.prepare(case, workload.variant("step7_continuous"), None, tile)
    expected.launch()
    bits = case.outputs()["o"].view(np.uint16).copy()
    prepared = execute.prepare(case, workload.variant("private_counter"), None, tile)
    for _ in range(2):
        case.array("counter").copy_from(np.array([3], np.int32))
        case.reset()
        prepared.launch()
        np.testing.assert_array_equal(case.outputs()["o"].view(np.uint16), bits)


@pytest.mark.parametrize(("d", "maxima"), [(64, 30), (128, 75)])
def test_the_product_with_values_is_waited_for_after_the_maxima(maxima_between_waits, d, maxima):
    """ptxas moves waits for wgmma to the beginning of its basic block, where no exponential would overlap with the product."""
    workload = Attention(batch=8, heads=16, q=2048, k=2048, d=d)
    counts = maxima_between_waits(workload, "step7_continuous")
    assert len(counts) == 2  # the first tile of other queries, and all others
    assert min(counts) >= maxima


@pytest.mark.parametrize(("batch", "variant"), [(2, "late_wait"), (1, "step5_persistent")])
def test_late_wait_is_chosen_where_sms_have_several_tiles(batch, variant):
    assert choose(Attention(batch=batch, heads=8, q=2048, k=2048, d=256)).variant == variant


def test_heads_of_256_elements_wait_after_the_maxima(maxima_between_waits):
    counts = maxima_between_waits(Attention(batch=2, heads=8, q=2048, k=2048, d=256), "late_wait")
    assert min(counts) >= 30


def test_compiled_code_has_both_products_and_no_spills():
    assert_sass("attention:step4_ping_pong", has={"HGMMA": 32, "UTMALDG": 6}, spills=0)
    assert_sass("attention:step7_continuous", has={"HGMMA": 54, "UTMALDG": 6}, spills=0)
