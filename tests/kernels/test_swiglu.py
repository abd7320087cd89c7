"""swiglu in f32, f16 and bf16."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.swiglu import Swiglu
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
DTYPES = ["f32", "f16", "bf16"]


def check(case, variant, tile=None):
    result = execute.run(case, Swiglu.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 2049), (257, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape(device, variant, dtype, rows, cols):
    check(execute.Case(Swiglu(rows=rows, cols=cols, dtype=dtype), device, seed=cols), variant)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_values_in_all_variants(device, dtype):
    values = np.array([0, -0.0, 1e-30, 1, -1, 10, -10, -87, 200, -200, 6e4, -6e4, 1e30, np.inf, -np.inf, np.nan])
    gate, up = np.meshgrid(values, [0.0, 0.5, -2, 1e4, -3e4])  # silu(-200) underflows, so times inf it is NaN
    with np.errstate(over="ignore"):
        inputs = {"gate": gate.astype(dtype_of(dtype)), "up": up.astype(dtype_of(dtype))}
    case = execute.Case(Swiglu(*gate.shape, dtype=dtype), device, inputs=inputs)
    outputs = {}
    for variant in ("fused", "vectorized"):
        check(case, variant)
        outputs[variant] = case.outputs()["out"].view(np.uint8)
    np.testing.assert_array_equal(outputs["fused"], outputs["vectorized"])
    if dtype == "f32":
        check(case, "unfused")
        np.testing.assert_array_equal(outputs["fused"], case.outputs()["out"].view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_work_is_what_is_counted(device, dtype):
    case = execute.Case(Swiglu(rows=2, cols=2048, dtype=dtype), device)
    counters = check(case, "vectorized").counters
    if counters is None:
        pytest.skip("this device does not count")
    work = case.workload.work()
    assert (counters.flops, counters.global_bytes) == (work.flops, work.bytes)


def test_more_than_a_grid_can_hold_is_refused():
    with pytest.raises(UsageError, match="more CTAs than a grid can have"):
        Swiglu(rows=2**31 - 1, cols=2**10)
