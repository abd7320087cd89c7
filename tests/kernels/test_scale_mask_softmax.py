"""scale_mask_softmax in all its variants: any width, dtype, magnitude and mask, tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.scale_mask_softmax import ScaleMaskSoftmax
from ptxkit.kernels.rows.softmax import TOLERANCES
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.verify import compare

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def mask_of(*shape, masked=0.3, seed=1):
    """0 or -inf, and sometimes a finite bias."""
    random = np.random.default_rng(seed).random(shape)
    return np.where(random < masked, -np.inf, np.where(random > 0.9, 1.5, 0)).astype(f32)


def case_of(device, s, mask, scale=0.125, **options):
    workload = ScaleMaskSoftmax(rows=s.shape[0], cols=s.shape[1], scale=scale, **options)
    return execute.Case(workload, device, inputs={"s": s, "mask": mask, "scale": f32(scale)})


def check(case, variant="vectorized", tile=None):
    """Run a variant, assert that small probabilities are accurate as well, and return y."""
    execute.run(case, ScaleMaskSoftmax.variant(variant), None, tile, explicit=True)
    y = case.outputs()["y"]
    verdict = compare("y", y, case.expected["y"], TOLERANCES[case.workload.dtype])
    assert verdict.verified, f"{variant} {tile}: {verdict.worst}"
    return y


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 3), (129, 8), (3, 33), (1, 4097)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, rows, cols):
    check(case_of(device, 20 * rows_of(rows, cols), mask_of(rows, cols)), variant)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cols", [264, 333])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes(device, variant, cols, dtype):
    s, mask = (a.astype(dtype_of(dtype)) for a in (20 * rows_of(4, cols), mask_of(4, cols)))
    check(case_of(device, s, mask, dtype=dtype), variant)


@pytest.mark.parametrize("cols", [20, 600])
@pytest.mark.parametrize("variant", VARIANTS)
def test_masked_rows_are_zero_and_nan_stays(device, variant, cols):
    s, mask = rows_of(8, cols), mask_of(8, cols, masked=0)
    mask[1] = -np.inf
    mask[2, 1:] = -np.inf
    mask[3, : cols // 2] = -np.inf
    mask[4] = np.finfo(f32).min  # as some programs mask; only rounding errors of the scores remain
    s[5, 3], mask[5, 3] = np.nan, 0
    s[6] = -np.inf
    s[7, 2], mask[7, 2] = np.inf, -np.inf
    y = check(case_of(device, s, mask), variant)
    assert not y[[1, 6]].any()
    assert y[2, 0] == 1
    assert not y[3, : cols // 2].any()
    assert np.isnan(y[[5, 7]]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_scores(device, variant):
    s = rows_of(4, 300) * np.array([1e-40, 1e4, 1e30, 3e38], f32)[:, None]
    check(case_of(device, s, mask_of(4, 300), scale=1.0), variant)


@pytest.mark.parametrize("cols", [33, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    mask = mask_of(3, cols)
    mask[2] = -np.inf
    case = case_of(device, 30 * rows_of(3, cols), mask, scale=0.3)
    unfused, fused = (check(case, name).copy() for name in ("unfused", "fused"))
    np.testing.assert_array_equal(unfused.view(np.uint32), fused.view(np.uint32))


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
    s, mask = 20 * rows_of(6, cols), mask_of(6, cols)
    mask[3] = -np.inf
    mask[4, : cols // 2] = -np.inf
    s[5, cols - 1], mask[5, cols - 1] = np.nan, 0
    check(case_of(device, s, mask, scale=1.0), tile=tile)


def test_the_scale_must_be_finite():
    with pytest.raises(UsageError, match="scale must be finite"):
        ScaleMaskSoftmax(scale=float("inf"))
