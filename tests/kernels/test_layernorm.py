"""layernorm in all its variants: any width, dtype, activation and scale, special values, tiles, training."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.layernorm import Layernorm
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def case_of(device, x, eps=1e-5, **options):
    rows, cols = x.shape
    workload = Layernorm(rows=rows, cols=cols, eps=eps, **options)
    gamma, beta = rows_of(2, cols, seed=1).astype(x.dtype)
    return execute.Case(workload, device, inputs={"x": x, "gamma": gamma, "beta": beta, "eps": f32(eps)})


def check(case, variant="vectorized", tile=None):
    """Run a variant, assert that it is verified, and return y."""
    result = execute.run(case, Layernorm.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()["y"]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 3), (129, 8), (3, 33), (2, 1000), (1, 4097)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, rows, cols):
    check(case_of(device, rows_of(rows, cols), activation="none"), variant)


@pytest.mark.parametrize(("dtype", "activation"), [("f32", "relu"), ("f32", "gelu"), ("f16", "relu"), ("bf16", "gelu")])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes_and_activations(device, variant, dtype, activation):
    x = (8 * rows_of(6, 264)).astype(dtype_of(dtype))
    check(case_of(device, x, activation=activation, dtype=dtype), variant)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_odd_rows_of_two_bytes(device, dtype):
    check(case_of(device, rows_of(3, 333).astype(dtype_of(dtype)), dtype=dtype))


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_keeps_statistics(device, variant):
    check(case_of(device, rows_of(9, 260) + f32(3), training=True, activation="none"), variant)


SCALES = [1e-38, 1e-30, 1e-18, 1e-10, 1.0, 1e10, 1e18, 1e19, 1e30, 3e38]


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("cols", [7, 260])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_scale(device, variant, cols, eps):
    x = (rows_of(len(SCALES), cols).astype(np.float64) * np.array(SCALES)[:, None]).astype(f32)
    check(case_of(device, x, eps, activation="none"), variant)


@pytest.mark.parametrize("cols", [24, 256, 1500])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mean_far_greater_than_the_deviations(device, variant, cols):
    """A case in which two passes with a rounded mean fail: at 1e7 + 1 the rounding error of the mean is as large as the
    deviations."""
    x = rows_of(5, cols) * f32(4)
    x += np.array([1e3, 1e5, -1e6, 1e7, 3e7], f32)[:, None]
    check(case_of(device, x, activation="none"), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_special_values_propagate_as_in_numpy(device, variant):
    x = rows_of(7, 300)
    x[1] = 0
    x[2, 7] = np.nan
    x[3, 299] = np.inf
    x[4, 0] = -np.inf
    x[5, 3], x[5, 280] = np.inf, -np.inf
    y = check(case_of(device, x, activation="none"), variant)
    assert np.isnan(y[2:6]).all()
    assert np.isfinite(y[[0, 1, 6]]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_values_give_beta_or_nothing(device, variant):
    x = np.full((2, 1100), 1 / 3, f32)
    check(case_of(device, x, activation="none"), variant)


@pytest.mark.parametrize("cols", [33, 1024, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    x = rows_of(4, cols)
    x[1] *= f32(1e30)
    x[3, 0] = np.inf
    case = case_of(device, x)
    unfused, fused = (check(case, name).copy() for name in ("unfused", "fused"))
    np.testing.assert_array_equal(unfused.view(np.uint32), fused.view(np.uint32))


TILES = [
    (5, {"THREADS": 128, "VECTORS": 1, "CACHE": 3}),  # several rows per warp
    (37, {"THREADS": 32, "VECTORS": 1, "PREFETCH_WEIGHTS": True}),
    (100, {"THREADS": 256, "VECTORS": 1, "CACHE": 0}),  # one row per warp
    (300, {"THREADS": 256, "VECTORS": 1, "CACHE": 2}),  # several warps per row, several rows per CTA
    (1000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2, "PREFETCH_WEIGHTS": True}),
    (2800, {"THREADS": 32, "VECTORS": 4, "CLUSTER": 8}),
    (3000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    x = rows_of(7, cols)
    x[2] *= f32(1e25)
    x[3] += f32(1e5)
    x[4] = 0
    x[5, cols - 1] = np.nan
    check(case_of(device, x, activation="none", training=True), tile=tile)


def test_a_long_row_takes_a_cluster(device):
    case = case_of(device, rows_of(1, 40_000))
    result = execute.run(case, Layernorm.variant("vectorized"))
    assert result.verdict.verified, result.verdict.worst
    assert result.tile.CLUSTER > 1


def test_without_clusters_a_long_row_is_streamed():
    workload = Layernorm(rows=2, cols=40_000)
    built = build(workload, workload.variant("vectorized"), Target.parse("sm_80"))
    assert built.tile.CLUSTER == 1
    assert built.steps[0].launch.kernel == "layernorm_streamed"


def test_eps_must_not_be_negative():
    with pytest.raises(UsageError, match="eps must be finite and at least 0"):
        Layernorm(eps=-1e-3)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cols", [1, 7, 64, 1000, 4096, 8192, 32768, 100_000, 262_144, 10_000_000])
@pytest.mark.parametrize("rows", [1, 128, 16384])
@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
def test_a_preferred_tile_satisfies_the_constraint(rows, cols, target, dtype):
    if rows * cols > 2**31:
        pytest.skip("too large for any device")
    workload = Layernorm(rows=rows, cols=cols, dtype=dtype)
    variant = workload.variant("vectorized")
    tile = variant.select_tile(workload, Target.parse(target))
    assert any(tile.items() >= preferred.items() for preferred in variant.prefer(workload))
    held = tile.CLUSTER * tile.THREADS * tile.VECTORS * (4 if dtype == "f32" else 8)
    assert held >= cols or tile.STAGED or cols > (262_144 if target == "sm_90a" else 16_384)
