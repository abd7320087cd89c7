"""Attention of few queries: keys divided among CTAs, and the rows of all heads that share keys in one tile."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit import Tile
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.attention import decode, decode_choice
from ptxkit.kernels.attention.attention import Attention
from ptxkit.kernels.attention.attention_e4m3 import AttentionE4m3
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.choice import choose

STEPS = ("step8_decode", "step9_decode_tma", "step10_decode_wgmma")
SMALL = {"ROW_WARPS": 1, "KEY_WARPS": 2, "BN": 16, "STAGES": 2}


def run(variant, tile=None, device=None, kernel=Attention, **settings):
    workload = kernel(**settings)
    case = execute.Case(workload, device or EmulatedDevice(), seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=tile is not None)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result, case


@pytest.mark.parametrize("variant", STEPS)
@pytest.mark.parametrize(("q", "heads"), [(1, 7), (5, 14)])
def test_rows_of_all_heads_that_share_keys(device, variant, q, heads):
    """7 heads: rows of a query are in two tiles, and a tile of 128 rows is not full."""
    run(variant, None, device, batch=2, heads=heads, kv_heads=heads // 7, q=q, k=100, d=64, causal=True, lengths="random")


@pytest.mark.parametrize("variant", STEPS)
@pytest.mark.parametrize(("d", "dtype"), [(128, "f16"), (256, "bf16")])
def test_longer_heads(device, variant, d, dtype):
    run(variant, None, device, batch=1, heads=4, kv_heads=2, q=2, k=90, d=d, dtype=dtype)


@pytest.mark.parametrize("variant", ["step8_decode", "step9_decode_tma"])
@pytest.mark.parametrize(
    "tile",
    [
        {"ROW_WARPS": 4, "KEY_WARPS": 2, "BN": 32, "STAGES": 2},
        {"ROW_WARPS": 2, "KEY_WARPS": 1, "BN": 64, "STAGES": 3},
        {"ROW_WARPS": 1, "KEY_WARPS": 8, "BN": 16, "STAGES": 4},
    ],
    ids=lambda tile: "-".join(map(str, tile.values())),
)
def test_tiles(variant, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    run(variant, tile, device, batch=2, heads=4, kv_heads=2, q=20, k=300, d=64, causal=True, lengths="random")


@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_a_cluster_combines_the_results_of_its_ctas(ctas):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    tile = {**SMALL, "CLUSTER": ctas}
    run("step9_decode_tma", tile, device, batch=3, heads=4, kv_heads=1, q=3, k=300, d=64, lengths="empty")


@pytest.mark.parametrize("ctas", [1, 2])
def test_parts_are_combined_in_the_same_order_in_every_launch(ctas):
    workload = Attention(batch=1, heads=2, q=3, k=900, d=64, causal=True)
    case = execute.Case(workload, EmulatedDevice())
    prepared = execute.prepare(case, workload.variant("step9_decode_tma"), None, {**SMALL, "CLUSTER": ctas})
    assert len(prepared.launches) == 2
    found = []
    for _ in range(2):
        case.reset()
        prepared.launch()
        found.append(case.outputs()["o"].view(np.uint16).copy())
    np.testing.assert_array_equal(*found)


class Lengths(Attention):
    """Sequences without queries, without keys, and without either, before, between and after others."""

    name = "attention"

    def starts(self):
        counts = ([0, 2, 1, 0, 2, 1], [0, 0, 70, 5, 130, 0])
        return tuple(np.concatenate([[0], np.cumsum(count)]).astype(np.int32) for count in counts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("variant", "tile"),
    [
        ("step8_decode", {**SMALL, "CTAS_PER_SM": 4}),
        ("step9_decode_tma", {**SMALL, "CLUSTER": 2}),
        ("step10_decode_wgmma", {"CONSUMERS": 1, "BN": 64, "STAGES": 2, "PING_PONG": 0}),
    ],
)
def test_sequences_without_queries_or_keys(variant, tile, causal):
    """Their parts exist, and have results 0 and a logarithm of minus infinity."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", initcheck=True))
    workload = Lengths(batch=6, heads=2, kv_heads=1, q=2, k=130, d=64, causal=causal)
    case = execute.Case(workload, device, seed=3)
    result = execute.run(case, workload.variant(variant), None, tile)
    assert result.verdict.verified, result.verdict.worst
    found = case.outputs()
    without = [0, 1, 5]  # the queries of the second and of the last sequence
    assert (found["o"][without].astype(np.float32) == 0).all()
    assert np.isneginf(found["lse"][:, without]).all()


NARROW = {"CONSUMERS": 1, "BN": 64, "STAGES": 2, "PING_PONG": 0}
BITS = {  # variant, tile, queries: with several parts, and with a cluster
    "cp.async": ("step8_decode", {**SMALL, "CTAS_PER_SM": 4}, 2),
    "tma": ("step9_decode_tma", {**SMALL, "ROW_WARPS": 2, "CLUSTER": 1}, 9),
    "cluster": ("step9_decode_tma", {**SMALL, "CLUSTER": 2}, 2),
    "wgmma": ("step10_decode_wgmma", {**NARROW, "CONSUMERS": 2, "PING_PONG": 1}, 40),
}


@pytest.mark.parametrize(("variant", "tile", "q"), BITS.values(), ids=BITS)
def test_results_have_the_same_bits_whenever_copies_and_products_complete(variant, tile, q):
    found = set()
    for settings in ({}, {"completion": "latest-legal"}, {"completion": "random", "completion_seed": 5}):
        device = EmulatedDevice(settings=EmulatorSettings(**settings))
        _, case = run(variant, tile, device, batch=2, heads=2, kv_heads=1, q=q, k=150, d=64, causal=True, lengths="random")
        found.add(b"".join(array.tobytes() for array in case.outputs().values()))
    assert len(found) == 1


REUSED = {  # variant, tile, queries and keys
    "cp.async": ("step8_decode", {**SMALL, "ROW_WARPS": 2}, 9, 110),
    "tma": ("step9_decode_tma", {**SMALL, "ROW_WARPS": 2, "CLUSTER": 1}, 9, 110),
    "tma_of_one_warp": ("step9_decode_tma", {**SMALL, "CLUSTER": 2}, 3, 220),
    "wgmma": ("step10_decode_wgmma", NARROW, 9, 200),
    "wgmma_in_turn": ("step10_decode_wgmma", {**NARROW, "CONSUMERS": 2, "PING_PONG": 1}, 40, 200),
}


@pytest.mark.parametrize(("variant", "tile", "q", "k"), REUSED.values(), ids=REUSED)
def test_stages_are_filled_again_when_all_lanes_have_read_them(few_ctas, variant, tile, q, k):
    """Each of two CTAs, or the cluster, has one part of all keys, in more tiles than there are stages."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="lanes"))
    result, _ = run(variant, tile, device, batch=2, heads=2, kv_heads=1, q=q, k=k, d=64, causal=True)
    assert result.launches == 1


@pytest.mark.parametrize(("variant", "kernel"), [("step9_decode_tma", Attention), ("step6_decode", AttentionE4m3)])
def test_persistent_ctas_take_one_work_item_after_the_other(few_ctas, variant, kernel):
    """Two CTAs have three of six items each, some of which have no keys or queries, with the bits that a CTA for each has."""

    class Several(kernel):
        name = kernel().name
        starts = Lengths.starts

    workload = Several(batch=6, heads=2, kv_heads=1, q=2, k=130, d=64, causal=True)
    strict = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    found = []
    for persistent, device in ((1, strict), (0, EmulatedDevice())):
        tile = {**SMALL, "ROW_WARPS": 2, "CTAS_PER_SM": 1, "CLUSTER": 1, "PERSISTENT": persistent}
        case = execute.Case(workload, device, seed=3)
        result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
        assert result.verdict.verified, result.verdict.worst
        found.append(case.outputs()["o"].view(np.uint16).copy())
    np.testing.assert_array_equal(*found)


def test_persistent_ctas_have_no_clusters():
    with pytest.raises(UsageError, match="the CTAs of a cluster have one work item"):
        run("step9_decode_tma", {**SMALL, "CLUSTER": 2, "PERSISTENT": 1}, batch=1, heads=1, q=1, k=64, d=64)


def test_parts_are_added_in_several_rounds():
    """A warp of attention_combine adds 8 of 70 parts at a time. Scores grow slowly from the first key to the last, so that the
    parts of both rounds contribute, and the maximum of the second one is larger."""
    workload = Attention(batch=1, heads=1, q=1, k=70 * 16, d=64)
    inputs = workload.inputs(np.random.default_rng(1))
    growing = np.linspace(0, 1, workload.k)[:, None, None] * inputs["query"].astype(np.float32)
    inputs["key"] = (0.3 * inputs["key"].astype(np.float32) + growing).astype(inputs["key"].dtype)
    tile = {**SMALL, "KEY_WARPS": 1, "CTAS_PER_SM": 1}
    assert decode.parts_of(workload, Tile(tile)).parts == 70
    result = execute.run(execute.Case(workload, EmulatedDevice(), inputs=inputs), workload.variant("step8_decode"), None, tile)
    assert result.verdict.verified, result.verdict.worst


@pytest.mark.parametrize(("variant", "kernel"), [*((step, Attention) for step in STEPS[:2]), ("step6_decode", AttentionE4m3)])
def test_keys_and_values_are_read_once_for_all_heads_that_share_them(few_ctas, variant, kernel):
    """Beside them, the queries, the partial results of 8 rows of a few parts, and what each thread reads of the sequence."""
    keys = 4096
    result, case = run(variant, kernel=kernel, batch=1, heads=8, kv_heads=1, q=1, k=keys, d=64)
    both = 2 * keys * 64 * case.inputs["key"].itemsize
    assert both <= result.counters.read_bytes <= 1.15 * both


CHOSEN = {
    "decoding": ({"batch": 16, "heads": 28, "kv_heads": 4, "q": 1, "k": 4096}, "step9_decode_tma", "step8_decode"),
    "no_shared_heads": ({"batch": 1, "heads": 128, "q": 1, "k": 4096}, "step9_decode_tma", "step8_decode"),
    "one_key": ({"batch": 1, "heads": 32, "q": 1, "k": 1}, "step9_decode_tma", "step8_decode"),
    "proposed_tokens": ({"batch": 4, "heads": 28, "kv_heads": 4, "q": 8, "k": 8192}, "step10_decode_wgmma", "step8_decode"),
    "chunk_of_a_prompt": ({"batch": 1, "heads": 32, "kv_heads": 8, "q": 64, "k": 32768}, "step10_decode_wgmma", "step8_decode"),
    "heads_of_256": ({"batch": 8, "heads": 16, "kv_heads": 8, "q": 1, "k": 4096, "d": 256}, "step9_decode_tma", "step8_decode"),
    "prompts": ({"batch": 2, "heads": 16, "q": 4096, "k": 4096}, "step7_continuous", "step1_tiled"),
    "prompt": ({"batch": 1, "heads": 32, "kv_heads": 8, "q": 500, "k": 500}, "step5_persistent", "step1_tiled"),
}


@pytest.mark.parametrize(("sizes", "on_h200", "on_a100"), CHOSEN.values(), ids=CHOSEN)
def test_the_choice_follows_from_the_number_of_tiles_and_the_bytes(sizes, on_h200, on_a100):
    for target, expected in (("sm_90a", on_h200), ("sm_80", on_a100)):
        facts = reference_facts(target)
        assert choose(Attention(causal=True, **sizes).on(facts), target=facts.target).variant == expected


@pytest.mark.parametrize(
    ("batch", "k", "parts", "cluster"),
    [
        (16, 4096, 1, 2),  # 64 heads of keys: the two parts of each are a cluster
        (1, 32768, 32, 1),  # 4 heads of keys for 132 SMs: 33 parts would have 32 tiles of 32 keys each, too
        (128, 4096, 1, 1),  # 512 heads of keys
    ],
)
def test_parts_fill_the_sms(batch, k, parts, cluster):
    workload = Attention(batch=batch, heads=28, kv_heads=4, q=1, k=k)
    tile = Tile({"CLUSTER": 1, **decode_choice.preferred(workload, clusters=True)[0]})
    assert (decode.parts_of(workload, tile).parts, tile.CLUSTER) == (parts, cluster)


@pytest.mark.parametrize(("batch", "persistent"), [(8, 0), (32, 1)])
def test_ctas_are_persistent_where_sms_have_several_work_items(batch, persistent):
    """320 heads of keys have 2.4 for each of 132 SMs, as many as run at the same time; 1280 have 9.7."""
    choice = choose(Attention(batch=batch, heads=40, q=1, k=500, d=128))
    assert (choice.variant, choice.tile["PERSISTENT"]) == ("step9_decode_tma", persistent)


def test_code_has_both_loads_and_no_spills():
    assert_sass("attention:step8_decode@sm_80", has={"HMMA": 48, "LDGSTS": 8}, spills=0)
    assert_sass("attention:step9_decode_tma", has={"HMMA": 48, "UTMALDG": 4}, spills=0)
    assert_sass("attention:step9_decode_tma@PERSISTENT=1,CLUSTER=1", has={"HMMA": 48, "UTMALDG": 4}, spills=0)


def test_an_sm_holds_two_ctas_with_one_warpgroup_that_multiplies():
    tile = "CONSUMERS=1,BN=64,STAGES=3,PING_PONG=0,CTAS_PER_SM=2"
    assert_sass(f"attention:step10_decode_wgmma@{tile}", has={"HGMMA": 24}, spills=0, min_ctas_per_sm=2)
