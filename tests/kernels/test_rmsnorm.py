"""rmsnorm in all its variants: any width, dtype and scale, special values, tiles, training."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.rmsnorm import Rmsnorm
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def case_of(device, x, eps=1e-6, **options):
    rows, cols = x.shape
    workload = Rmsnorm(rows=rows, cols=cols, eps=eps, **options)
    gamma = rows_of(cols, seed=1).astype(x.dtype)
    return execute.Case(workload, device, inputs={"x": x, "gamma": gamma, "eps": f32(eps)})


def check(case, variant="vectorized", tile=None):
    """Run a variant, assert that it is verified, and return y."""
    result = execute.run(case, Rmsnorm.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()["y"]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 3), (129, 8), (3, 33), (1, 4097)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, rows, cols):
    check(case_of(device, rows_of(rows, cols)), variant)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cols", [264, 333])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes(device, variant, cols, dtype):
    check(case_of(device, (8 * rows_of(4, cols)).astype(dtype_of(dtype)), dtype=dtype, training=True), variant)


SCALES = [1e-45, 1e-38, 1e-30, 1e-18, 1e-10, 1.0, 1e10, 1e18, 1e19, 1e30, 3e38]


@pytest.mark.parametrize("eps", [0.0, 1e-25, 1e-6])
@pytest.mark.parametrize("cols", [7, 260])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_scale(device, variant, cols, eps):
    x = (rows_of(len(SCALES), cols).astype(np.float64) * np.array(SCALES)[:, None]).astype(f32)
    x[:, 0] = np.array(SCALES, f32)  # so that no row is zero
    check(case_of(device, x, eps), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_special_values_propagate_as_in_numpy(device, variant):
    x = rows_of(6, 300)
    x[1] = 0
    x[2, 7] = np.nan
    x[3, 299] = np.inf
    x[5, 3], x[5, 280] = np.inf, np.nan
    y = check(case_of(device, x), variant)
    assert not y[1].any()
    assert np.isnan(y[[2, 5]]).all()
    assert np.isnan(y[3, 299])
    assert not y[3, :299].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_zero_row_without_eps_is_zero_over_zero(device, variant):
    x = rows_of(3, 20)
    x[1] = 0
    assert np.isnan(check(case_of(device, x, 0.0), variant)[1]).all()


@pytest.mark.parametrize("cols", [33, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    x = rows_of(4, cols)
    x[1] *= f32(1e30)
    x[3, 0] = np.inf
    case = case_of(device, x)
    unfused, fused = (check(case, name).copy() for name in ("unfused", "fused"))
    np.testing.assert_array_equal(unfused.view(np.uint32), fused.view(np.uint32))


TILES = [
    (5, {"THREADS": 128, "VECTORS": 1, "CACHE": 3}),  # several rows per warp
    (100, {"THREADS": 256, "VECTORS": 1, "CACHE": 0, "PREFETCH_WEIGHTS": True}),  # one row per warp
    (300, {"THREADS": 256, "VECTORS": 1, "CACHE": 2}),  # several warps per row, several rows per CTA
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2, "PREFETCH_WEIGHTS": True}),
    (2800, {"THREADS": 32, "VECTORS": 4, "CLUSTER": 8}),
    (3000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    x = rows_of(6, cols)
    x[2] *= f32(1e25)
    x[3] *= f32(1e-25)
    x[4] = 0
    x[5, cols - 1] = np.nan
    check(case_of(device, x, training=True), tile=tile)


def test_eps_must_not_be_negative():
    with pytest.raises(UsageError, match="eps must be finite and at least 0"):
        Rmsnorm(eps=-1e-3)
