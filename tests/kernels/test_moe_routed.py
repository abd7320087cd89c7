"""moe_routed: routing, types, ragged sizes, experts without a token, ties, late completion, races, and the compiled code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.inspect import sass
from ptxkit.kernels.moe import moe_routed as routed
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe.moe_routed import MoeRouted
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.workload import Workload

PROMOTED = "step5_promoted"  # for e4m3 alone
EVERY = [v for v in MoeRouted.variants() if v != PROMOTED]
# The other variants are slow here; `make test-all` runs them.
FEW = ["step3_fitted", *(pytest.param(v, marks=pytest.mark.slow) for v in EVERY if v != "step3_fitted")]
SIZES = {"tokens": 6, "hidden": 144, "ffn": 80, "experts": 5, "top_k": 2}


def made(**changes):
    return MoeRouted(**{**SIZES, **changes})


def verify(device, workload, variant, inputs=None, tile=None):
    case = execute.Case(workload, device, seed=4, inputs=inputs)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case


def with_logits(workload, logits):
    given = workload.inputs(np.random.default_rng(9))
    given["logits"][:] = logits
    return given


@pytest.mark.parametrize(
    ("dtype", "variant"),
    [
        pytest.param(dtype, v, marks=() if dtype == "s8" and v != "step2_wgmma" else pytest.mark.slow)
        for dtype in ("s8", "e4m3")
        for v in (*EVERY, *([PROMOTED] if dtype == "e4m3" else ()))
    ],
)
def test_every_type(device, dtype, variant):
    verify(device, made(dtype=dtype), variant)


@pytest.mark.parametrize("variant", FEW)
def test_one_token(device, variant):
    verify(device, made(tokens=1), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", EVERY)
def test_every_expert_has_every_token(device, variant):
    verify(device, made(experts=3, top_k=3, renormalize=False), variant)


@pytest.mark.parametrize("variant", FEW)
def test_all_tokens_to_the_same_experts(device, variant):
    """More than one block of tokens of an expert, and experts without a token before, between and after."""
    workload = made(tokens=40, hidden=32, ffn=32, experts=7)
    logits = np.zeros((40, 7), np.float32)
    logits[:, 3], logits[:, 5] = 4, 3
    case = verify(device, workload, variant, with_logits(workload, logits))
    assert (case.outputs()["expert"] == [3, 5]).all()


@pytest.mark.parametrize("variant", ["unfused", "step3_fitted"])
def test_lower_experts_come_first_where_logits_are_equal(device, variant):
    workload = made(hidden=16, ffn=16, experts=70, top_k=3)
    logits = np.zeros((6, 70), np.float32)
    logits[1, 40:] = -1  # 0, 1, 2
    logits[2, [64, 33]] = 1  # 33, 64, 0
    logits[3] = -0.0
    logits[3, ::2] = 0.0  # +0 and -0 are equal
    logits[4] = -np.arange(70) // 2  # pairs of equal ones
    logits[5, 69] = np.float32(1e-45)  # a subnormal number is larger than 0
    case = verify(device, workload, variant, with_logits(workload, logits))
    expected = [[0, 1, 2], [0, 1, 2], [33, 64, 0], [0, 1, 2], [0, 1, 2], [69, 0, 1]]
    np.testing.assert_array_equal(case.outputs()["expert"], expected)


@pytest.mark.parametrize("variant", ["unfused", "step3_fitted"])
def test_minus_infinity_excludes_an_expert(device, variant):
    """As masks do. A token whose logits are NaN has a result of NaN, and changes no other token."""
    workload = made(tokens=5, hidden=16, ffn=16, experts=5, top_k=3)
    logits = np.tile(np.arange(5, dtype=np.float32), (5, 1))
    logits[0, [1, 3]] = -np.inf
    logits[1, :3] = -np.inf  # fewer experts than top_k are left: those without a weight follow
    logits[3] = np.nan
    outputs = verify(device, workload, variant, with_logits(workload, logits)).outputs()
    np.testing.assert_array_equal(outputs["expert"][:2], [[4, 2, 0], [4, 3, 0]])
    assert outputs["weight"][1, 2] == 0
    np.testing.assert_array_equal(np.isnan(outputs["y"].astype(np.float32)).all(axis=1), np.arange(5) == 3)


def test_sorted_pairs_keep_their_order(device):
    workload = made(tokens=300, hidden=16, ffn=16, experts=40, top_k=3)
    case = execute.Case(workload, device, seed=1)
    variant = workload.variant("step2_wgmma")
    execute.prepare(case, variant).launch()
    expert = case.outputs()["expert"].reshape(-1)
    order = np.argsort(expert, kind="stable")
    arrays = {name: case.array(name).numpy() for name in ("offsets", "row", "token")}
    np.testing.assert_array_equal(arrays["token"], order // 3)
    np.testing.assert_array_equal(arrays["row"][order], np.arange(900))
    np.testing.assert_array_equal(arrays["offsets"], np.searchsorted(expert[order], np.arange(41)))


def test_the_same_sums_in_every_execution(device):
    """No atomics add results: two executions give the same bits."""
    workload = made(tokens=12, dtype="e4m3")
    for variant in ("step1_mma", "step4_quantized"):
        case = execute.Case(workload, device, seed=2)
        prepared = execute.prepare(case, workload.variant(variant))
        prepared.launch()
        first = case.outputs()["y"].tobytes()
        prepared.launch()
        assert case.outputs()["y"].tobytes() == first


LATE = [
    pytest.param(v, c, marks=() if (v, c) == ("step4_quantized", "latest-legal") else pytest.mark.slow)
    for v in EVERY
    for c in ("latest-legal", "random")
]


@pytest.fixture
def few_ctas(monkeypatch):
    """A device on which persistent kernels launch five CTAs, so that each computes several tiles."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=5))


@pytest.mark.parametrize(("variant", "completion"), LATE)
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, variant, completion):
    verify(EmulatedDevice(settings=EmulatorSettings(completion=completion)), made(), variant)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2])
def test_promoted_sums_over_several_tiles(few_ctas, cluster):
    """More than one step of k, so that the sums of a step are used while the next stage is filled."""
    settings = EmulatorSettings(completion="latest-legal", racecheck=True, initcheck=True)
    workload = made(tokens=2, hidden=144, ffn=16, dtype="e4m3", experts=1, top_k=1)
    tile = {"BW": 128, "BT": 16, "CONSUMERS": 2, "DOWN": 128, "CLUSTER": cluster, "PARTS": 1}
    verify(EmulatedDevice(settings=settings), workload, PROMOTED, tile=tile)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("tokens", [5, 9, 17, 31])
def test_boxes_without_a_token_are_not_loaded(few_ctas, tokens, cluster):
    """Tiles of 64 tokens in boxes of 16, which are filled in part; what the tile before has left there is not stored."""
    settings = EmulatorSettings(completion="latest-legal", initcheck=True)
    workload = made(tokens=tokens, hidden=272, experts=2, top_k=1)
    tile = {"BW": 128, "BT": 64, "CONSUMERS": 2, "DOWN": 128, "CLUSTER": cluster, "PARTS": 1}
    verify(EmulatedDevice(settings=settings), workload, "step3_fitted", tile=tile)


def to_expert(workload, *counts):
    """Inputs with these numbers of tokens for each expert, of one expert each."""
    given = workload.inputs(np.random.default_rng(9))
    given["logits"][:] = np.eye(workload.experts)[np.repeat(np.arange(len(counts)), counts)]
    return given


@pytest.mark.parametrize("dtype", ["s8", "e4m3"])
def test_only_tokens_of_the_expert_are_multiplied(dtype):
    """33 tokens of an expert in a tile of 64 are multiplied as 48, and one of another as 16."""
    workload = made(tokens=34, hidden=128, ffn=64, experts=2, top_k=1, dtype=dtype)
    tile = {"BW": 64, "BT": 64, "CONSUMERS": 1, "DOWN": 64, "PARTS": 1}
    case = execute.Case(workload, EmulatedDevice(), seed=4, inputs=to_expert(workload, 33, 1))
    result = execute.run(case, workload.variant("step3_fitted"), None, tile, explicit=True)
    assert result.verdict.verified
    assert sum(v for k, v in result.counters.flops_by_type.items() if "tensor" in k) == 4 * (48 + 16) * 128 * 128


@pytest.mark.parametrize(
    ("dtype", "counts", "ping_pong"),
    [
        ("e4m3", (40, 3), 0),  # two parts of 32 and 8 tokens; the second CTA has no token of the other expert
        *(
            pytest.param(dtype, counts, ping_pong, marks=pytest.mark.slow)
            for dtype, counts, ping_pong in (("s8", (70, 17), 0), ("e4m3", (33, 64), 1), ("s8", (129, 1), 1))
        ),
    ],
)
def test_clusters_share_weights(few_ctas, dtype, counts, ping_pong):
    """Each CTA loads half of the weights for both, and multiplies half of the tokens."""
    settings = EmulatorSettings(completion="latest-legal", initcheck=True, racecheck=True)
    workload = made(tokens=sum(counts), hidden=272, ffn=64, experts=2, top_k=1, dtype=dtype)
    shape = {"BW": 128, "BT": 32, "CONSUMERS": 2, "DOWN": 128, "PARTS": 1}
    tile = {**shape, "CLUSTER": 2, "SHARE_WEIGHTS": 1, "PING_PONG": ping_pong}
    inputs = to_expert(workload, *counts)
    verify(EmulatedDevice(settings=settings), workload, "step3_fitted", inputs=inputs, tile=tile)


def test_weights_are_shared_by_clusters_alone():
    workload = made()
    with pytest.raises(UsageError, match="only the CTAs of a cluster share weights"):
        workload.variant("step3_fitted").select_tile(
            workload, Target.parse("sm_90a"), {"SHARE_WEIGHTS": 1, "CLUSTER": 1}
        )


def test_promoted_sums_are_for_e4m3():
    with pytest.raises(UsageError, match="sums of s8 are exact"):
        made().variant(PROMOTED).select_tile(made(), Target.parse("sm_90a"))


@pytest.mark.parametrize(
    "variant", ["step1_mma", *(pytest.param(v, marks=pytest.mark.slow) for v in EVERY if v != "step1_mma")]
)
def test_no_races_over_several_tiles(few_ctas, variant):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    verify(device, made(tokens=4, experts=3), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", EVERY)
def test_nothing_uninitialised_is_used(variant):
    settings = EmulatorSettings(initcheck=True, completion="latest-legal")
    verify(EmulatedDevice(settings=settings), made(), variant)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_parts_of_k(device, parts):
    verify(
        device, made(ffn=272), "step3_fitted", tile={"PARTS": parts, "DOWN": 64}
    )  # three steps of k in up to eight parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "tile",
    [
        {"BW": 256, "BT": 128},
        {"BW": 256, "BT": 144},
        {"BW": 128, "BT": 256, "GROUP": 1},
        {"BW": 64, "BT": 32, "CONSUMERS": 1},
    ],
)
@pytest.mark.parametrize("variant", ["step3_fitted", "step4_quantized"])
def test_shapes_of_tiles(device, variant, tile):
    verify(device, made(tokens=20), variant, tile=tile)


def test_work_counts_the_experts_that_are_hit():
    one, many = made(tokens=1, experts=256, top_k=8), made(tokens=400, experts=256, top_k=8)
    weights = 3 * 144 * 80
    assert 8 * weights <= one.work().bytes < 9 * weights + 4096
    assert many.work().bytes > 250 * weights
    assert one.work().flops == 8 * 2 * weights


def test_routing_depends_on_its_own_seed():
    first, again = made().inputs(np.random.default_rng(0)), made().inputs(np.random.default_rng(1))
    np.testing.assert_array_equal(first["logits"], again["logits"])
    assert (first["x"] != again["x"]).any()
    assert (made(routing_seed=1).routing() != first["logits"]).any()


def test_gating_of_the_reference():
    expert, weight = routed.gated(np.array([[1.0, 3.0, 3.0, 2.0]], np.float32), 2, True)
    assert expert.tolist() == [[1, 2]] and weight.tolist() == [[0.5, 0.5]]
    _, of_all = routed.gated(np.log(np.array([[1.0, 2.0, 1.0]], np.float32)), 1, False)
    assert of_all[0, 0] == pytest.approx(0.5)


@pytest.mark.parametrize("model", [routed.MIXTRAL, routed.DEEPSEEK_V3], ids=["mixtral", "deepseek"])
@pytest.mark.parametrize("tokens", [1, 16, 128, 1024, 8192])
def test_presets_have_tiles(model, tokens):
    target = Target.parse("sm_90a")
    workload = MoeRouted(tokens=tokens, **model)
    chosen = workload.variant("step3_fitted").select_tile(workload, target)
    if tokens <= 16:
        assert chosen.BT <= 16  # at most four tokens of an expert on average, and hardly ever more than ten
    assert chosen.PARTS == 1 or tokens * model["top_k"] <= 4096
    workload.variant("step4_quantized").select_tile(workload, target)


@pytest.mark.parametrize(
    ("sizes", "form"),
    [
        (
            {"tokens": 1024, **routed.MIXTRAL},
            "shared",
        ),  # 256 tokens of an expert: two tiles, of which hardly any expert has three
        ({"tokens": 512, **routed.MIXTRAL}, "alternating"),  # 128 tokens: most experts have one tile
        ({"tokens": 8192, **routed.MIXTRAL}, "alternating"),
        ({"tokens": 4096, **routed.DEEPSEEK_V3, "top_k": 4}, "alternating"),  # 64 tokens
        ({"tokens": 192, **routed.MIXTRAL}, "one CTA"),  # reading the weights takes most of the time
        (
            {"tokens": 1024, "hidden": 1024, "ffn": 512, "experts": 8, "top_k": 2},
            "one CTA",
        ),  # fewer tiles than warpgroups
        (
            {"tokens": 1024, "hidden": 4096, "ffn": 192, "experts": 64, "top_k": 8},
            "one CTA",
        ),  # a quarter of a cluster is idle
    ],
)
def test_clusters_by_the_tokens_of_an_expert(sizes, form):
    workload = MoeRouted(**sizes)
    tile = workload.variant("step3_fitted").select_tile(workload, Target.parse("sm_90a"))
    of = {(1, 0, 0): "one CTA", (2, 1, 0): "shared", (2, 0, 1): "alternating"}
    assert of[tile.CLUSTER, tile.SHARE_WEIGHTS, tile.PING_PONG] == form


@pytest.mark.parametrize(("ffn", "parts"), [(64, 1), (256, 2), (1024, 8)])
def test_every_part_of_k_has_a_step(ffn, parts):
    workload = made(tokens=1, hidden=512, ffn=ffn)
    chosen = workload.variant("step3_fitted").select_tile(workload, Target.parse("sm_90a"))
    assert chosen["PARTS"] == parts


@pytest.mark.parametrize(
    ("tokens", "exact", "block"),
    [
        (1, True, 8),
        (9, True, 16),
        (64, True, 64),
        (256, True, 256),
        (1.0, False, 8),
        (2.0, False, 8),
        (4.1, False, 16),
        (256.0, False, 128),
    ],
)
def test_blocks_hold_the_tokens_of_an_expert(tokens, exact, block):
    """Half of the experts with 256 tokens on average have more, and a second block of 256 would be nearly empty."""
    assert moe.block_of(tokens, exact=exact) == block


PRESETS = [
    ("s8", 8192, routed.DEEPSEEK_V3),
    *(
        pytest.param(dtype, tokens, model, marks=pytest.mark.slow)
        for dtype, tokens, model in (
            ("e4m3", 8192, routed.DEEPSEEK_V3),
            ("s8", 1, routed.MIXTRAL),
            ("e4m3", 8192, routed.MIXTRAL),
        )
    ),
]


@pytest.mark.parametrize(("dtype", "tokens", "model"), PRESETS)
@pytest.mark.parametrize(
    "variant", ["step4_quantized", *(pytest.param(v, marks=pytest.mark.slow) for v in ("step3_fitted", PROMOTED))]
)
def test_wgmma_is_asynchronous_and_nothing_spills(dtype, tokens, model, variant):
    workload = MoeRouted(tokens=tokens, **model, dtype="e4m3" if variant == PROMOTED else dtype)
    dtype = workload.dtype
    for step in build(workload, workload.variant(variant), Target.parse("sm_90a")).steps:
        has = {"s8": "IGMMA", "e4m3": "QGMMA"}[dtype] if step.launch.kernel == "moe_product_wgmma" else ()
        assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
        assert_sass(sass(step.image)[step.image.entry(step.launch.entry)], has=has, spills=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden": 24}, "hidden must be a multiple of 16"),
        ({"ffn": 8}, "ffn must be a multiple of 16"),
        ({"top_k": 6}, "top_k must be at most experts=5, not 6"),
        ({"experts": 2000}, "experts must be at most 1024"),
        ({"hidden": 131072}, "hidden must be at most 131071, so that no sum of products of s8 exceeds 32 bits"),
        ({"ffn": 131072}, "ffn must be at most 131071, so that no sum of products of s8 exceeds 32 bits"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(UsageError, match=message):
        made(**sizes)


@pytest.mark.parametrize(("parts", "racecheck"), [(1, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_taken_tiles_are_each_computed_once(few_ctas, parts, racecheck):
    """More tiles than CTAs: the consumers get their numbers from the producer, and the second product begins with the counter
    that the first one has left at 0."""
    settings = EmulatorSettings(racecheck=racecheck, completion="latest-legal")
    w = made(tokens=3, hidden=272, ffn=144 if parts > 1 else 80, experts=4)
    tile = {"DYNAMIC": 1, "BW": 64, "BT": 8, "DOWN": 64, "CONSUMERS": 1, "PARTS": parts}
    verify(EmulatedDevice(settings=settings), w, "step3_fitted", tile=tile)


@pytest.mark.parametrize(("change", "said"), [({"PARTS": 4}, "4 parts of k have none"), ({"CLUSTER": 2}, "clusters")])
def test_tiles_are_not_taken(change, said):
    """A tile without a step of k has no stage that could pass its number, and the CTAs of a cluster must have the same tile."""
    w = made(ffn=272).on(reference_facts("sm_90a"))
    tile = {"BW": 64, "BT": 16, "CONSUMERS": 1, "GROUP": 8, "CLUSTER": 1, "SHARE_WEIGHTS": 0, "PING_PONG": 0}
    verdict = routed.usable_wgmma(w, moe.Tile({**tile, "DOWN": 64, "PARTS": 2, "DYNAMIC": 1, **change}))
    assert isinstance(verdict, str) and said in verdict


@pytest.mark.parametrize(
    ("sizes", "is_taken", "width"),
    [
        ({"tokens": 16, **routed.DEEPSEEK_V3}, 1, 64),
        ({"tokens": 1024, **routed.DEEPSEEK_V3}, 1, 128),  # 64 weights would read the 64 tokens of a tile too often
        ({"tokens": 1, **routed.DEEPSEEK_V3}, 0, 64),  # 8 experts are too few weights
        ({"tokens": 1024, **routed.MIXTRAL}, 0, 256),  # limited by the products
    ],
)
def test_tiles_are_taken_where_an_sm_reads_many_weights(sizes, is_taken, width):
    tile = next(iter(routed.preferred_wgmma(MoeRouted(**sizes).on(reference_facts("sm_90a")))))
    assert (tile.get("DYNAMIC", 0), tile["BW"]) == (is_taken, width)
