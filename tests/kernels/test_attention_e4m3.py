"""attention_e4m3 in all its steps: ragged lengths, causal masks, shared heads, the order of keys, late completion, races."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.kernels.attention.attention_e4m3 import AttentionE4m3
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = list(AttentionE4m3.variants())
E4M3 = [name for name in VARIANTS if name not in ("unfused", "step1_dequantized")]


def check(device, variant, tile=None, inputs=None, **settings):
    workload = AttentionE4m3(**settings)
    case = execute.Case(workload, device, inputs=inputs, seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=tile is not None)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs(), workload.reference(**case.inputs)


@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=pytest.mark.slow if v in ("unfused", "step2_wgmma") else ()) for v in VARIANTS]
)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 3, "heads": 2, "q": 70, "k": 140, "kv_heads": 1, "lengths": "random"},
        pytest.param({"batch": 1, "heads": 1, "q": 1, "k": 1}, marks=pytest.mark.slow),
        pytest.param({"batch": 1, "heads": 2, "q": 200, "k": 70}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_any_shape(device, variant, settings):
    check(device, variant, d=64, causal=True, **settings)


@pytest.mark.parametrize("lengths", ["equal", "random"])
@pytest.mark.parametrize("variant", ["unfused", "step1_dequantized", "step6_decode"])
def test_a_nan_stays_in_its_sequence(between_others, variant, lengths):
    """Not with transposed values, as docs/attention.md says."""
    between_others(AttentionE4m3(batch=3, heads=2, q=20, k=70, d=64, kv_heads=1, lengths=lengths), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", E4M3)
@pytest.mark.parametrize("d", [128, 256])
def test_longer_heads(device, variant, d):
    if (variant, d) == ("step5_continuous", 256):
        pytest.skip("heads of 256 elements have no registers for the overlap")
    check(device, variant, batch=1, heads=1, q=70, k=200, d=d, causal=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tile",
    [
        {"BN": 64, "STAGES": 2, "OVERLAP": 1, "PING_PONG": 0},
        {"BN": 64, "STAGES": 4, "OVERLAP": 0, "PING_PONG": 1},
        {"BN": 128, "STAGES": 3, "OVERLAP": 1, "PING_PONG": 1},
    ],
)
def test_tiles_of_persistent_ctas(device, few_ctas, tile):
    check(device, "step4_persistent", tile, batch=2, heads=2, q=130, k=260, d=64, causal=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tile",
    [
        {"BN": 64, "STAGES": 2, "PING_PONG": 0},
        {"BN": 128, "STAGES": 3, "PING_PONG": 1},
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_continuous_ctas(few_ctas, causal, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    settings = {"batch": 2, "heads": 2, "q": 200, "k": 150, "d": 64, "causal": causal, "lengths": "random", "kv_heads": 1}
    check(device, "step5_continuous", tile, **settings)


def test_all_lanes_have_read_the_number_of_a_tile_whose_queries_see_no_key_before_it_is_replaced(few_ctas):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    tile = {"BN": 64, "STAGES": 2, "PING_PONG": 0}
    check(device, "step5_continuous", tile, batch=1, heads=3, q=260, k=1, d=64, causal=True)


def test_errors_are_those_of_rounded_exponentials(device):
    """A root mean square of 0.027 of that of the results, which an error in a few of many terms would exceed."""
    found, expected = check(device, "step3_overlap", batch=1, heads=1, q=128, k=256, d=64)
    error = found["o"].astype(np.float64) - expected["o"]
    assert np.sqrt(np.square(error).mean() / np.square(expected["o"]).mean()) < 0.035


@pytest.mark.parametrize("variant", ["step2_wgmma", "step4_persistent"])
def test_each_query_finds_its_key(device, variant):
    """Scores so large that each query sees one key: its results are the values of that key, whatever the order of keys."""
    workload = AttentionE4m3(batch=1, heads=1, q=64, k=150, d=64)
    inputs = workload.inputs(np.random.default_rng(1))
    places = np.random.default_rng(2).permutation(150)[:64]
    query, key = np.zeros((64, 1, 64)), np.zeros((150, 1, 64))
    query[np.arange(64), 0, np.arange(64)] = 16
    key[places, 0, np.arange(64)] = 448
    given = {**inputs, "query": query.astype(dtype_of("e4m3")), "key": key.astype(dtype_of("e4m3"))}
    given |= {"query_scale": np.ones(1, np.float32), "key_scale": np.ones(1, np.float32)}
    case = execute.Case(workload, device, inputs=given)
    execute.run(case, workload.variant(variant))
    exact = given["value"][places, 0].astype(np.float32) * given["value_scale"]
    np.testing.assert_allclose(case.outputs()["o"][:, 0].astype(np.float32), exact, rtol=2**-8)


@pytest.mark.parametrize("variant", ["step4_persistent", "step5_continuous"])
def test_queries_without_a_visible_key_have_results_0(device, variant):
    found, _ = check(device, variant, batch=1, heads=1, q=140, k=9, d=64, causal=True)
    assert (found["o"][:131].astype(np.float32) == 0).all()
    assert np.isneginf(found["lse"][:, :131]).all()
    assert np.isfinite(found["lse"][:, 131:]).all()


@pytest.mark.parametrize("completion", ["latest-legal", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", ["step2_wgmma", "step4_persistent", "step5_continuous"])
def test_late_copies_and_races(few_ctas, variant, completion):
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion, racecheck="warps", initcheck=True))
    check(device, variant, batch=2, heads=1, q=140, k=300, d=64, causal=True, lengths="random")


@pytest.mark.parametrize("lengths", ["equal", "random"])
@pytest.mark.parametrize(("batch", "k"), [(1, 1), (3, 16), (5, 33)])
def test_transposed_values_have_a_column_for_each_key(batch, k, lengths):
    """The columns of the kernel's first_column: multiples of 16, no fewer from one to the next than there are keys."""
    workload = AttentionE4m3(batch=batch, heads=1, q=1, k=k, d=64, lengths=lengths)
    starts = workload.starts()[1].astype(int)
    columns = (starts + 15 * np.arange(batch + 1)) // 16 * 16
    assert (np.diff(columns) >= np.diff(starts)).all()
    assert workload.columns == columns[-1]
    assert (np.diff(columns) <= np.diff(starts) + 30).all()


def test_the_product_with_values_is_waited_for_after_the_maxima(maxima_between_waits):
    """ptxas moves waits for wgmma to the beginning of its basic block, where no exponential would overlap with the product."""
    workload = AttentionE4m3(batch=8, heads=16, q=2048, k=2048, d=128)
    counts = maxima_between_waits(workload, "step5_continuous")
    assert len(counts) == 2  # the first tile of other queries, and all others
    assert min(counts) >= 60
    assert min(maxima_between_waits(workload, "step3_overlap")) < 10


def test_compiled_code_has_no_spills():
    assert_sass("attention_e4m3:step3_overlap", spills=0)
    assert_sass("attention_e4m3:step5_continuous", spills=0)
