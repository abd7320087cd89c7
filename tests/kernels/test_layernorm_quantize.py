"""layernorm_quantize in all its variants: integers, scales, any width, dtype and scale, special values, tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.layernorm_quantize import LayernormQuantize, quantizable
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def case_of(device, x, eps=1e-5, **options):
    rows, cols = x.shape
    workload = LayernormQuantize(rows=rows, cols=cols, eps=eps, **options)
    gamma, beta = rows_of(2, cols, seed=1).astype(x.dtype)
    return execute.Case(workload, device, inputs={"x": x, "gamma": gamma, "beta": beta, "eps": f32(eps)})


def check(case, variant="vectorized", tile=None):
    """Run a variant, whose integers may differ only next to a tie, and return the outputs."""
    result = execute.run(case, LayernormQuantize.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    outputs = case.outputs()
    with np.errstate(all="ignore"):
        v, scales = quantizable(**case.inputs)
        beside = np.abs(np.abs(v / scales[:, None]) % 1 - 0.5)
    assert (beside[outputs["q"] != np.rint(case.expected["q"])] < 1e-3).all()
    return outputs


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 3), (129, 8), (3, 33), (1, 4097)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, rows, cols):
    check(case_of(device, rows_of(rows, cols)), variant)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cols", [264, 333])
@pytest.mark.parametrize("variant", ["fused", "vectorized"])
def test_dtypes(device, variant, cols, dtype):
    outputs = check(case_of(device, (8 * rows_of(4, cols)).astype(dtype_of(dtype)), dtype=dtype), variant)
    assert (np.abs(outputs["q"].astype(int)).max(1) == 127).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_scale(device, variant):
    scales = np.array([1e-30, 1e-10, 1.0, 1e10, 1e19, 3e38])
    x = (rows_of(len(scales), 260).astype(np.float64) * scales[:, None]).astype(f32)
    check(case_of(device, x), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_zeros_and_special_values(device, variant):
    x = rows_of(4, 300)
    x[1] = 7  # only beta remains, which is zero
    x[2, 7] = np.nan
    x[3, 299] = np.inf
    case = case_of(device, x)
    case.inputs["beta"][:] = 0
    outputs = check(case, variant)
    assert outputs["scales"][1] == 0
    assert np.isnan(outputs["scales"][2:]).all()
    assert not outputs["q"][1:].any()


@pytest.mark.parametrize("cols", [33, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    x = rows_of(3, cols)
    x[1] *= f32(1e30)
    case = case_of(device, x)
    unfused, fused = (check(case, name) for name in ("unfused", "fused"))
    for name in unfused:
        np.testing.assert_array_equal(unfused[name], fused[name])


TILES = [
    (5, {"THREADS": 128, "VECTORS": 1, "CACHE": 3}),  # several rows per warp
    (100, {"THREADS": 256, "VECTORS": 1, "CACHE": 0, "PREFETCH_WEIGHTS": True}),  # one row per warp
    (300, {"THREADS": 256, "VECTORS": 1, "CACHE": 2}),  # several warps per row, several rows per CTA
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),
    (2800, {"THREADS": 32, "VECTORS": 4, "CLUSTER": 8}),
    (3000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    x = rows_of(5, cols)
    x[2] *= f32(1e25)
    x[3] += f32(1e5)
    x[4, cols - 1] = np.nan
    check(case_of(device, x), tile=tile)


def test_eps_must_not_be_negative():
    with pytest.raises(UsageError, match="eps must be finite and at least 0"):
        LayernormQuantize(eps=-1e-3)
