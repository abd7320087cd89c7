"""attention_scores in all its steps: masks and their shapes, any number of keys, rows without a key, late completion, races."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.attention.attention_scores import AttentionScores
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_sass
from ptxkit.workload import execute

VARIANTS = [name for name in AttentionScores.variants() if name != "step4_mask_tiles"]  # which has no other masks
FUSED = [name for name in VARIANTS if name != "unfused"]


def check(device, variant, tile=None, inputs=None, **settings):
    workload = AttentionScores(**settings)
    case = execute.Case(workload, device, inputs=inputs, seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=tile is not None)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()["p"], result


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "heads": 2, "q": 65, "k": 75, "mask": "array", "mask_shape": "full", "masked": 0.9},
        {"batch": 1, "heads": 4, "q": 70, "k": 70, "kv_heads": 2, "mask": "causal"},
        pytest.param({"batch": 1, "heads": 1, "q": 1, "k": 1}, marks=pytest.mark.slow),
        pytest.param(
            {"batch": 1, "heads": 2, "q": 66, "k": 136, "mask": "array", "mask_shape": "heads", "dtype": "f16"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_any_shape_and_mask(device, variant, settings):
    check(device, variant, d=64, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("variant", FUSED)
def test_a_mask_of_each_sequence(device, variant):
    check(device, variant, batch=2, heads=2, q=20, k=70, d=64, mask="array", mask_shape="batch")


@pytest.mark.parametrize("variant", VARIANTS)
def test_queries_without_a_visible_key_are_zero(device, variant):
    found, _ = check(device, variant, batch=1, heads=1, q=140, k=10, d=64, mask="causal")
    assert (found[:, :, :130].astype(np.float32) == 0).all()


@pytest.mark.parametrize("variant", FUSED)
def test_a_mask_that_hides_all_keys(device, variant):
    found, _ = check(device, variant, batch=1, heads=1, q=3, k=11, d=64, mask="array", masked=1.0)
    assert (found.astype(np.float32) == 0).all()


@pytest.mark.parametrize(
    ("variant", "tile"),
    [
        ("step1_two_passes", {"BM": 128, "BN": 32}),
        ("step2_wgmma", {"CONSUMERS": 3, "BN": 192, "STAGES": 2}),
        ("step2_wgmma", {"CONSUMERS": 1, "BN": 256, "STAGES": 3}),
        ("step3_cluster", {"CTAS": 4, "BN": 64, "STAGES": 1}),
        ("step3_cluster", {"CTAS": 8, "BN": 64, "STAGES": 2}),
    ],
)
@pytest.mark.slow
def test_tiles(device, few_ctas, variant, tile):
    """Several tiles of queries in one cluster, whose last CTA may have no key."""
    check(device, variant, tile, batch=1, heads=2, q=300, k=266 if tile.get("CTAS") == 8 else 200, d=64)


@pytest.mark.slow
@pytest.mark.parametrize("variant", FUSED)
def test_heads_of_256_elements(device, variant):
    check(device, variant, batch=1, heads=1, q=20, k=80, d=256, dtype="f16")


@pytest.mark.parametrize("completion", ["latest-legal", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("variant", "tile"),
    [
        ("step1_two_passes", None),
        ("step2_wgmma", {"CONSUMERS": 2, "BN": 64, "STAGES": 2}),
        ("step3_cluster", {"CTAS": 2, "BN": 64, "STAGES": 1}),
    ],
)
@pytest.mark.parametrize(
    "settings", [{"k": 128, "mask": "causal"}, pytest.param({"k": 127, "mask": "array"}, marks=pytest.mark.slow)]
)
def test_late_copies_and_races(few_ctas, variant, tile, completion, settings):
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion, racecheck="warps", initcheck=True))
    check(device, variant, tile, batch=1, heads=1, q=390, d=64, **settings)


@pytest.mark.parametrize(
    ("tile", "settings"),
    [
        ({"CONSUMERS": 2, "BN": 64, "STAGES": 2}, {"k": 136, "mask_shape": "shared"}),
        ({"CONSUMERS": 1, "BN": 192, "STAGES": 3}, {"k": 200, "mask_shape": "full", "masked": 0.9}),
        ({"CONSUMERS": 3, "BN": 64, "STAGES": 2}, {"k": 8, "mask_shape": "batch", "masked": 1.0}),
        ({"CONSUMERS": 2, "BN": 128, "STAGES": 2}, {"k": 264, "mask_shape": "heads", "dtype": "f16"}),
    ],
    ids=lambda value: value.get("mask_shape"),
)
def test_masks_in_tiles(few_ctas, tile, settings):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps", initcheck=True))
    check(device, "step4_mask_tiles", tile, batch=2, heads=2, q=70, d=64, mask="array", **settings)


def test_masks_that_tma_cannot_load_are_refused():
    for settings, message in (({"mask": "none"}, "no array of masks"), ({"mask": "array", "k": 70}, "multiple of 16 bytes")):
        workload = AttentionScores(batch=1, heads=1, q=64, d=64, **{"k": 64, **settings})
        with pytest.raises(UsageError, match=message):
            execute.run(execute.Case(workload, EmulatedDevice()), workload.variant("step4_mask_tiles"), explicit=True)


@pytest.mark.parametrize("variant", ["step1_two_passes", "step3_cluster"])
def test_large_scores_do_not_overflow(variant):
    """Scores of hundreds, which are exact: the maximum is subtracted first."""
    rng = np.random.default_rng(0)
    inputs = AttentionScores(batch=1, heads=1, q=64, k=64, d=64).inputs(rng)
    exact = {name: (8 * rng.integers(-2, 3, array.shape)).astype(array.dtype) for name, array in inputs.items()}
    found, _ = check(EmulatedDevice(), variant, inputs=exact, batch=1, heads=1, q=64, k=64, d=64)
    assert found.max() == 1
    assert found.min() == 0


def test_fused_kernels_move_no_scores():
    """The output is written once, and no other array of its size is moved, except the mask, which is read once by a cluster."""
    settings = {"batch": 1, "heads": 1, "q": 64, "k": 128, "d": 64, "mask": "array"}
    tiles = {"step1_two_passes": {"BM": 64, "BN": 64}, "step3_cluster": {"CTAS": 2, "BN": 64, "STAGES": 1}}
    counters = {name: check(EmulatedDevice(), name, tile, **settings)[1].counters for name, tile in tiles.items()}
    output, keys, queries = 64 * 128 * 2, 128 * 64 * 2, 64 * 64 * 2
    assert counters["step1_two_passes"].written_bytes == counters["step3_cluster"].written_bytes == output
    assert counters["step1_two_passes"].read_bytes == 2 * (output + keys) + queries
    assert counters["step3_cluster"].read_bytes == output + keys + 2 * queries  # each CTA reads the queries


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 80}, "d must be one of 64, 128, 256"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads must divide the 6 heads"),
        ({"mask_shape": "full"}, "mask_shape=full is for mask=array"),
        ({"mask": "array", "masked": 2.0}, "between 0 and 1"),
        ({"batch": 70000}, "at most 65535"),
        ({"q": 2**20, "k": 2**20}, "too large"),
    ],
)
def test_unsupported_sizes_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        AttentionScores(**settings)


def test_rows_that_no_cluster_holds_are_refused():
    workload = AttentionScores(batch=1, heads=1, q=64, k=2049, d=64)
    with pytest.raises(UsageError, match="rows of up to 2048 keys, not of 2049"):
        workload.variant("step3_cluster").select(workload, workload.device.target)


def test_compiled_code_has_no_spills():
    assert_sass("attention_scores:step2_wgmma", has={"HGMMA": 16, "UTMASTG": 1}, spills=0)
