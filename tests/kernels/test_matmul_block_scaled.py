"""matmul_block_scaled: all formats, ragged sizes, quantization bit for bit, and completion as late as is legal."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.kernels.gemm.matmul_block_scaled import FORMATS, MatmulBlockScaled, dequantized
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target, missing
from ptxkit.workload import execute
from ptxkit.workload.build import build

VARIANTS = list(MatmulBlockScaled.variants())


def few_sms(**settings):
    """An emulated GPU of two SMs: persistent kernels launch two CTAs."""
    return EmulatedDevice(Machine(sms=2), EmulatorSettings(**settings))


def check(device, variant, m, n, k, tile=None, spread=0, **options):
    """Run a variant on random numbers, whose magnitude varies along k and along rows by ``spread`` powers of two."""
    requires = MatmulBlockScaled.variant(variant).requires
    if device.target is not None and (reason := missing(requires, device.target)):
        pytest.skip(reason)
    workload = MatmulBlockScaled.make([m, n, k], options)
    given = workload.inputs(np.random.default_rng(m + n + k))
    powers = np.exp2(np.linspace(-spread, 0, k)).astype(np.float32)

    def spread_out(x):
        rows = np.exp2(np.linspace(0, spread, len(x))).astype(np.float32)
        return (x.astype(np.float32) * powers * rows[:, None]).astype(x.dtype)

    inputs = {name: spread_out(x) for name, x in given.items()}
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


def in_turn():
    """Pairs of a variant and a format: each variant with one or two formats in every run, with all in the slow tests."""
    return [
        pytest.param(
            variant,
            format,
            marks=[] if place in (index % len(FORMATS), (index + 2) % len(FORMATS)) else pytest.mark.slow,
        )
        for index, variant in enumerate(VARIANTS)
        for place, format in enumerate(FORMATS)
    ]


@pytest.mark.parametrize(("variant", "format"), in_turn())
def test_every_format_and_tiles_with_remainders(device, variant, format):
    check(device, variant, 129, 136, 416, format=format)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_block(device, variant):
    check(device, variant, 1, 8, 32, format="nvf4")


@pytest.mark.parametrize("variant", VARIANTS)
def test_rings_that_wrap_around(device, variant):
    check(device, variant, 40, 136, 1568, format="nvf4")


@pytest.mark.parametrize(
    ("variant", "format"),
    [
        ("step1_single_issuer", "mxf8"),
        ("step1_single_issuer", "mxf4"),
        ("step3_cta_pairs", "nvf4"),
        *(("mma_sync", format) for format in FORMATS),
    ],
)
def test_blocks_of_different_magnitude(device, variant, format):
    """A scale factor that is applied to another block, row or column gives a wrong result."""
    check(device, variant, 64, 64, 256, spread=8, format=format)


@pytest.mark.parametrize(
    ("variant", "tile"),
    [
        ("step2_specialized", {"STAGES": 6, "GROUP": 1}),
        ("step2_specialized", {"BN": 256, "STAGES": 3, "ACCUMULATORS": 1}),
        ("step3_cta_pairs", {"BN": 128, "STAGES": 4, "ACCUMULATORS": 2}),
        ("step3_cta_pairs", {"STAGES": 3, "GROUP": 1}),
        ("mma_sync", {"BN": 64, "WM": 64, "WN": 32}),
    ],
    ids=str,
)
def test_tiles(variant, tile):
    """Sizes at which a persistent CTA or a pair computes several tiles."""
    check(few_sms(), variant, 264, 392, 320, tile, format="mxf4")


@pytest.mark.parametrize(
    ("variant", "format"),
    [
        pytest.param("unfused", "mxf8", marks=pytest.mark.slow),
        *((variant, "nvf4") for variant in VARIANTS[1:]),
        ("step3_cta_pairs", "mxf8"),
        pytest.param("mma_sync", "mxf8", marks=pytest.mark.slow),
    ],
)
def test_nothing_relies_on_early_completion(variant, format):
    """Asynchronous operations complete as late as is legal, and nothing races."""
    check(few_sms(completion="latest-legal", racecheck="warps"), variant, 140, 264, 544, format=format)


def test_pairs_of_ctas_load_each_scale_factor_of_b_once():
    """TMA multicast: a tile of 256 x 256 by a pair loads half of the bytes that four tiles of 128 x 128 load."""
    sizes, options = [256, 256, 256], {"format": "nvf4"}

    def loaded(variant):
        case = execute.Case(MatmulBlockScaled.make(sizes, options), EmulatedDevice())
        return execute.run(case, MatmulBlockScaled.variant(variant)).counters.read_bytes - 2 * 2 * 256 * 256

    tile, scales = 128 * 128, 128 * 16  # bytes of 128 rows of 256 elements, and of their scale factors
    assert loaded("step1_single_issuer") == 4 * 2 * (tile + scales)
    assert loaded("step3_cta_pairs") == 4 * (tile + scales)


@pytest.mark.parametrize(
    ("variant", "target", "reason"),
    [
        ("mma_sync", "sm_100a", "mma.block_scale needs sm_120a or sm_121a, or an f form"),
        ("mma_sync", "sm_120", "mma.block_scale needs sm_120a or sm_121a, or an f form"),
        ("mma_sync", "sm_90a", "mma.block_scale needs sm_120a or sm_121a, or an f form"),
        ("step3_cta_pairs", "sm_120a", "tcgen05 needs sm_100a, sm_103a, sm_107a or sm_110a"),
    ],
)
def test_what_a_target_lacks_is_said_before_anything_is_compiled(variant, target, reason):
    workload = MatmulBlockScaled.make([256, 256, 256], {})
    with pytest.raises(UnavailableError, match=reason):
        build(workload, workload.variant(variant), Target.parse(target))


@pytest.mark.parametrize("target", ["sm_120f", "sm_121a"])
def test_the_family_of_sm_120_has_block_scaled_mma_sync(target):
    workload = MatmulBlockScaled.make([256, 256, 256], {"format": "nvf4"})
    product = build(workload, workload.variant("mma_sync"), Target.parse(target)).steps[-1].image
    assert "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X" in product.ptx
    assert "trap;" not in product.ptx


def test_the_reference_quantizes_by_the_rules_of_the_formats():
    """One block: the scale factor and the elements by hand."""
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [1000.0, -3.0, 449.0, 0.1]  # 1000 / 448 is rounded up to 4
    expected = [1000 / 4, -3 / 4, 449 / 4, 0.1 / 4]
    e4m3 = np.array(expected, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(dequantized(x, FORMATS["mxf8"])[0, :4], 4 * e4m3)
    x = np.zeros((1, 16), np.float32)
    x[0, :5] = [6.0, 2.4, 2.5, -5.1, 0.2]  # the scale factor is 1; 2.5 is between 2 and 3, of which 2 is even
    np.testing.assert_array_equal(dequantized(x, FORMATS["nvf4"])[0, :5], [6, 2, 2, -6, 0])
    x[0, :2] = [30_000.0, -1000.0]  # the scale factor is limited to 448, and the elements to 6
    np.testing.assert_array_equal(dequantized(x, FORMATS["nvf4"])[0, :2], [6 * 448, -2 * 448])


@pytest.mark.parametrize("variant", ["unfused", "step1_single_issuer", "mma_sync"])
def test_magnitudes_beyond_the_largest_scale_factor(device, variant):
    check(device, variant, 16, 16, 64, spread=14, format="nvf4")


@pytest.mark.parametrize(("sizes", "complaint"), [((8, 12, 32), "n must be"), ((8, 16, 48), "k must be")])
def test_rows_are_multiples_of_16_bytes(sizes, complaint):
    with pytest.raises(UsageError, match=complaint):
        MatmulBlockScaled.make(sizes, {})
