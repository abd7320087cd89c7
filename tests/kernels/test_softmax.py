"""softmax in all its variants: any width, dtype and magnitude, special values, dropout, tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.softmax import TOLERANCES, Softmax
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.verify import compare

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def case_of(device, x, **options):
    workload = Softmax(rows=x.shape[0], cols=x.shape[1], **options)
    return execute.Case(workload, device, inputs=workload.inputs(np.random.default_rng(0)) | {"x": x})


def check(case, variant="vectorized", tile=None):
    """Run a variant, assert that small probabilities are accurate as well, and return y."""
    execute.run(case, Softmax.variant(variant), None, tile, explicit=True)
    y = case.outputs()["y"]
    verdict = compare("y", y, case.expected["y"], TOLERANCES[case.workload.dtype])
    assert verdict.verified, f"{variant} {tile}: {verdict.worst}"
    return y


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 3), (129, 8), (3, 33), (1, 4097)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, rows, cols):
    y = check(case_of(device, 8 * rows_of(rows, cols)), variant)
    np.testing.assert_allclose(y.astype(np.float64).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cols", [264, 333])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes(device, variant, cols, dtype):
    check(case_of(device, (8 * rows_of(4, cols)).astype(dtype_of(dtype)), dtype=dtype), variant)


@pytest.mark.parametrize("cols", [7, 260, 1100])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_magnitude(device, variant, cols):
    scales = np.array([1e-40, 1e-10, 1, 30, 1e3, 1e10, 3.3e38])
    x = (rows_of(len(scales), cols).astype(np.float64) * scales[:, None]).astype(f32)
    check(case_of(device, x), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_large_offset_changes_nothing(device, variant):
    x = np.round(rows_of(4, 300) * 16) + np.array([0, 1000, -1e6, 1e7], f32)[:, None]  # exact sums
    y = check(case_of(device, x.astype(f32)), variant)
    assert y.max() < 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cols", [9, 24, 520, 1024, 2048])
def test_first_columns_that_say_nothing_of_the_maximum(device, cols, dtype):
    """Exponentials are computed relative to the largest of the first columns, and again where that is far below the maximum."""
    x = rows_of(12, cols)
    first = [-30, -60, -1e3, -1e30, 20, 1e3, -np.inf, np.nan]
    for row, value in enumerate(first):
        x[row, :8] = value
    x[8, 1:8], x[9, :7], x[10, 8:] = -np.inf, -40, 1e4
    y = check(case_of(device, x.astype(dtype_of(dtype)), dtype=dtype)).astype(np.float64)
    assert np.isnan(y[7]).all()
    np.testing.assert_allclose(np.delete(y, 7, 0).sum(1), 1, rtol=1e-5 if dtype == "f32" else 1e-2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cols", [20, 600])
def test_special_values_propagate_as_in_numpy(device, variant, cols):
    x = rows_of(9, cols)
    x[1] = 0
    x[2, 7] = np.nan
    x[3, cols - 1] = np.inf
    x[4] = -np.inf
    x[5, 1:] = -np.inf
    x[6, : cols // 2] = -np.inf
    x[7, 3], x[7, 8] = np.inf, -np.inf
    y = check(case_of(device, x), variant)
    assert np.isnan(y[[2, 3, 4, 7]]).all()
    assert y[5, 0] == 1
    assert not y[5, 1:].any()


@pytest.mark.parametrize("cols", [33, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    x = 30 * rows_of(3, cols)
    x[1] -= f32(1e4)
    case = case_of(device, x, p=0.25)
    unfused, fused = (check(case, name).copy() for name in ("unfused", "fused"))
    np.testing.assert_array_equal(unfused.view(np.uint32), fused.view(np.uint32))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cols", [264, 333])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_drops_what_the_seed_says(device, variant, cols, dtype):
    case = case_of(device, rows_of(5, cols).astype(dtype_of(dtype)), p=0.3, seed=2**63 + 5, dtype=dtype)
    y = check(case, variant)
    np.testing.assert_array_equal(y == 0, case.expected["y"] == 0)
    assert 0.2 < (y == 0).mean() < 0.4


def test_dropout_of_rows_in_parts_and_in_clusters(device):
    x = rows_of(2, 3000)
    case = case_of(device, x, p=0.5)
    for tile in ({"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}, {"THREADS": 128, "VECTORS": 4, "CLUSTER": 2}):
        y = check(case, tile=tile)
        np.testing.assert_array_equal(y == 0, case.expected["y"] == 0)


TILES = [
    (5, {"THREADS": 128, "VECTORS": 1, "CACHE": 3}),  # several rows per warp
    (100, {"THREADS": 256, "VECTORS": 1, "CACHE": 0}),  # one row per warp
    (300, {"THREADS": 256, "VECTORS": 1, "CACHE": 2}),  # several warps per row, several rows per CTA
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),
    (2800, {"THREADS": 32, "VECTORS": 4, "CLUSTER": 8}),
    (3000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    x = 20 * rows_of(6, cols)
    x[2] *= f32(1e25)
    x[3] = -np.inf
    x[4, : cols // 2] = -np.inf
    x[5, cols - 1] = np.nan
    check(case_of(device, x), tile=tile)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_p_is_a_probability_below_one(p):
    with pytest.raises(UsageError, match="p must be"):
        Softmax(p=p)
