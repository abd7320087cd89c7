"""attention_backward in all its steps: head sizes, ragged lengths, causal masks, shared heads, late completion, races."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.attention import sizes
from ptxkit.kernels.attention.attention import attend
from ptxkit.kernels.attention.attention_backward import PADDING, AttentionBackward, gradients
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build

VARIANTS = [name for name in AttentionBackward.variants() if name != "step6_deferred"]  # which is for d=128
FUSED = [v for v in VARIANTS if v != "unfused"]
ONE_OF_EACH_KERNEL = ["unfused", "step1_tiled", "step2_atomics", "step4_overlap"]
DETERMINISTIC = ["unfused", "step1_tiled"]


def check(device, variant, tile=None, **settings):
    workload = AttentionBackward(**settings)
    case = execute.Case(workload, device, seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=tile is not None)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_heads_and_ragged_tiles(device, variant):
    check(device, variant, batch=1, heads=2, q=70, k=140, d=64, causal=True, kv_heads=1)


@pytest.mark.parametrize("variant", ONE_OF_EACH_KERNEL)
def test_one_query_and_one_key(device, variant):
    check(device, variant, batch=1, heads=1, q=1, k=1, d=64, causal=True)


@pytest.mark.parametrize("lengths", ["equal", "random"])
@pytest.mark.parametrize("variant", AttentionBackward.variants())
def test_a_nan_stays_in_its_sequence(between_others, variant, lengths):
    """Not with TMA and heads of 64 elements, as docs/attention.md says."""
    by_tma = variant in ("step3_wgmma", "step4_overlap", "step5_persistent", "step6_deferred")
    d = 128 if by_tma else 64
    between_others(AttentionBackward(batch=3, heads=2, q=70, k=40, d=d, kv_heads=1, lengths=lengths), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_sequences_of_different_lengths(device, variant):
    check(device, variant, batch=3, heads=1, q=150, k=150, d=64, causal=True, lengths="random")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_f16_without_a_mask(device, variant):
    check(device, variant, batch=1, heads=1, q=70, k=140, d=128, dtype="f16")


@pytest.mark.parametrize("variant", ONE_OF_EACH_KERNEL)
def test_queries_without_a_visible_key_have_gradients_0(device, variant):
    """131 queries see no key; the others see few keys, whose gradients get nothing from these queries."""
    found = check(device, variant, batch=1, heads=1, q=140, k=9, d=64, causal=True)
    assert (found["dq"][:131].astype(np.float32) == 0).all()
    assert all(np.isfinite(gradient.astype(np.float32)).all() for gradient in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("variant", FUSED)
def test_any_tile(device, variant):
    """Every tile parameter once with each of its values."""
    space = AttentionBackward.variant(variant).tile
    for i in range(1, max(map(len, space.values()), default=1)):
        tile = {name: values[i % len(values)] for name, values in space.items()}
        check(device, variant, tile, batch=1, heads=1, q=100, k=200, d=64, causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("completion", ["latest-legal", "random"])
@pytest.mark.parametrize("variant", FUSED)
def test_late_copies_and_races(few_ctas, variant, completion):
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion, racecheck="warps", initcheck=True))
    check(device, variant, batch=2, heads=2, q=140, k=200, d=64, causal=True, lengths="random", kv_heads=1)


@pytest.mark.slow
def test_persistent_ctas_compute_several_tiles_with_late_copies(few_ctas):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))
    check(device, "step5_persistent", batch=1, heads=2, q=130, k=200, d=64, causal=True)


@pytest.mark.parametrize("completion", ["latest-legal", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{"lengths": "random"}, pytest.param({"lengths": "empty"}, marks=pytest.mark.slow)])
def test_queries_are_kept_until_the_deferred_product_has_read_them(completion, settings):
    """More tiles of queries than stages, and keys that no query sees."""
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion, racecheck="warps", initcheck=True))
    check(device, "step6_deferred", batch=2, heads=2, q=260, k=140, d=128, causal=True, kv_heads=1, **settings)


def test_gradients_of_a_sum_of_results():
    """The reference agrees with differences of sum(o * do) in float64."""
    rng = np.random.default_rng(0)
    n, m, d, step = 5, 7, 4, 1e-6
    q, k, v, do = (rng.normal(size=(rows, d)) for rows in (n, m, m, n))
    o, lse = attend(q, k, v, True)
    found = [np.zeros_like(x) for x in (q, k, v)]
    gradients(q, k, v, o, do, lse, True, *found)
    for x, gradient in zip((q, k, v), found, strict=True):
        for i in np.ndindex(x.shape):
            x[i] += step
            above = (attend(q, k, v, True)[0] * do).sum()
            x[i] -= 2 * step
            below = (attend(q, k, v, True)[0] * do).sum()
            x[i] += step
            assert gradient[i] == pytest.approx((above - below) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("lengths", ["equal", "empty"])
def test_the_reference_does_not_depend_on_the_parts_in_which_it_is_computed(monkeypatch, lengths):
    workload = AttentionBackward(batch=3, heads=4, q=150, k=150, d=64, causal=True, kv_heads=2, lengths=lengths)
    whole = workload.inputs(np.random.default_rng(0))
    gradients_of_whole = workload.reference(**whole)
    monkeypatch.setattr(sizes, "PART", 64)
    monkeypatch.setattr(sizes, "KEYS", 48)
    in_parts = workload.inputs(np.random.default_rng(0))
    np.testing.assert_allclose(in_parts["lse"], whole["lse"], rtol=1e-6)
    for name, value in workload.reference(**whole).items():
        np.testing.assert_allclose(value, gradients_of_whole[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_inputs_to_prepare_with_have_the_types_and_shapes_of_the_inputs():
    workload = AttentionBackward(batch=2, heads=4, q=20, k=30, d=64, kv_heads=2, lengths="random")
    shaped, usual = (made(np.random.default_rng(0)) for made in (workload.shaped_inputs, workload.inputs))
    assert list(shaped) == list(usual)
    assert [(x.dtype, x.shape) for x in shaped.values()] == [(x.dtype, x.shape) for x in usual.values()]


def test_large_scores_do_not_overflow(monkeypatch):
    """Scores of several hundreds, whose exponentials are infinite: lse is subtracted first. dk is a sum of products with
    queries that are 256 times as large as those for which the absolute tolerance is stated."""
    workload = AttentionBackward(batch=1, heads=1, q=64, k=64, d=64, causal=True)
    usual = workload.tolerance["dk"]
    wide = replace(usual, absolute=256 * usual.absolute)
    monkeypatch.setattr(AttentionBackward, "tolerance", wide)
    inputs = dict(workload.inputs(np.random.default_rng(0)))
    query = inputs["query"].astype(np.float32) * 256
    o, lse = attend(query[:, 0], *(inputs[name][:, 0].astype(np.float32) for name in ("key", "value")), True)
    kind = inputs["query"].dtype
    inputs |= {"query": query.astype(kind), "o": o[:, None].astype(kind), "lse": lse[None].astype(np.float32)}
    for variant in ("step1_tiled", "step4_overlap"):
        case = execute.Case(workload, EmulatedDevice(), inputs=inputs)
        assert execute.run(case, workload.variant(variant)).verdict.verified, variant


def test_fused_kernels_move_no_scores():
    """What 64 more keys add to the bytes that the launches write: dk, dv and, with atomics, a tile of dq; only the unfused
    launches write scores."""

    def written(name, keys):
        workload = AttentionBackward(batch=1, heads=1, q=64, k=keys, d=64, causal=True)  # as above: compiled already
        case = execute.Case(workload, EmulatedDevice())
        return execute.run(case, workload.variant(name)).counters.written_bytes

    gradients_of_keys, tile = 2 * 64 * 64 * 2, 64 * 64 * 4
    for variant in ONE_OF_EACH_KERNEL:
        more = written(variant, 128) - written(variant, 64) - gradients_of_keys
        if variant == "unfused":
            assert more == 64 * 64 * (4 + 2 + 4 + 2)  # scores and dP in f32, probabilities and dS in bf16
        else:
            assert more in ((0,) if variant in DETERMINISTIC else (0, tile, 2 * tile)), variant


@pytest.mark.parametrize("variant", DETERMINISTIC)
def test_deterministic_steps_use_no_atomics(variant):
    workload = AttentionBackward(batch=1, heads=1, q=64, k=64, d=64)
    ptx = "".join(step.image.ptx for step in build(workload, workload.variant(variant)).steps)
    assert "mma.sync" in ptx
    assert not re.search(r"\b(red|atom|cp\.reduce)\.", ptx)


@pytest.mark.slow
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", ["false", "true"])
def test_accumulators_of_dk_and_dv_do_not_spill(d, causal):
    assert_sass(f"attention_backward:step4_overlap@sm_90a,d={d},causal={causal}", spills=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 256}, "d must be one of 64, 128"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads must divide the 6 heads"),
        ({"batch": 70000}, "at most 65535"),
    ],
)
def test_unsupported_sizes_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        AttentionBackward(**settings)


def test_padded_rows_hold_every_sequence():
    for seed in range(20):
        counts = np.random.default_rng(seed).integers(0, 400, 7)
        starts = np.concatenate([[0], np.cumsum(counts)])
        first = [(start // PADDING + i) * PADDING for i, start in enumerate(starts)]
        for i, count in enumerate(counts):
            assert first[i] + -(-count // PADDING) * PADDING <= first[i + 1]
        assert first[-1] <= (starts[-1] // PADDING + len(counts)) * PADDING
