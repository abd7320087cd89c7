"""add_activation: every activation in every type."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.add_activation import AddActivation
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
DTYPES = ["f32", "f16", "bf16"]
ACTIVATIONS = ["gelu", "silu", "relu"]


def check(case, variant, tile=None):
    result = execute.run(case, AddActivation.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize("n", [1, 2003])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, activation, dtype, n):
    check(execute.Case(AddActivation(n=n, activation=activation, dtype=dtype), device, seed=n), variant)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_values_in_all_variants(device, activation, dtype):
    values = np.array([0, -0.0, 1e-30, 1, -1, 10, -10, -87, -103, 6e4, -6e4, 3e38, -3e38, np.inf, -np.inf, np.nan])
    x, residual = (grid.reshape(-1) for grid in np.meshgrid(values, [0.0, 0.5, -0.5, np.inf]))
    with np.errstate(over="ignore"):
        inputs = {"x": x.astype(dtype_of(dtype)), "residual": residual.astype(dtype_of(dtype))}
    case = execute.Case(AddActivation(n=x.size, activation=activation, dtype=dtype), device, inputs=inputs)
    outputs = {}
    for variant in VARIANTS:
        check(case, variant)
        outputs[variant] = case.outputs()["out"].view(np.uint8)
    np.testing.assert_array_equal(outputs["fused"], outputs["vectorized"])
    if dtype == "f32":
        np.testing.assert_array_equal(outputs["fused"], outputs["unfused"])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_kernel_holds_its_own_activation_alone(activation):
    workload = AddActivation(n=4096, activation=activation)
    image = build(workload, workload.variant("fused"), Target.parse("sm_80")).images[0]
    assert ("ex2.approx" in image.ptx) is (activation != "relu")
    assert ("0fBDD2D3E8" in image.ptx.replace("0fbdd2d3e8", "0fBDD2D3E8")) is (activation == "gelu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_minimum_traffic_is_what_is_moved(device, dtype):
    case = execute.Case(AddActivation(n=3001, dtype=dtype), device)
    counters = check(case, "vectorized").counters
    if counters is None:
        pytest.skip("this device does not count")
    assert counters.global_bytes == case.workload.work().bytes


def test_unknown_activations_are_named():
    with pytest.raises(UsageError, match="option activation must be one of gelu, silu, relu, not 'tanh'"):
        AddActivation(n=4, activation="tanh")
