"""add_activation_backward: the derivative of every activation in every type."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.kernels.elementwise.add_activation_backward import AddActivationBackward
from ptxkit.kernels.elementwise.elementwise import activation, derivative
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
DTYPES = ["f32", "f16", "bf16"]
ACTIVATIONS = ["gelu", "silu", "relu"]


def check(case, variant):
    result = execute.run(case, AddActivationBackward.variant(variant))
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, activation, dtype):
    check(execute.Case(AddActivationBackward(n=1003, activation=activation, dtype=dtype), device), variant)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_values_in_all_variants(device, activation):
    values = np.array([0, -0.0, 1e-30, 1, -1, 10, -10, -87, 200, -200, 3e38, -3e38, np.inf, -np.inf, np.nan])
    x, dy = (grid.reshape(-1).astype(np.float32) for grid in np.meshgrid(values, [0.5, -2, 1e4]))
    inputs = {"dy": dy, "x": x, "residual": np.zeros_like(x)}
    case = execute.Case(AddActivationBackward(n=x.size, activation=activation), device, inputs=inputs)
    for variant in VARIANTS:
        check(case, variant)


def test_work_is_what_is_counted(device):
    case = execute.Case(AddActivationBackward(n=8192, activation="silu"), device)
    counters = check(case, "vectorized").counters
    if counters is None:
        pytest.skip("this device does not count")
    work = case.workload.work()
    assert (counters.flops, counters.global_bytes) == (work.flops, work.bytes)


def test_large_values_have_a_derivative_in_16_bits(device):
    x = np.linspace(-300, 300, 601).astype(dtype_of("bf16"))
    inputs = {"dy": np.ones_like(x), "x": x, "residual": np.zeros_like(x)}
    case = execute.Case(AddActivationBackward(n=x.size, activation="silu", dtype="bf16"), device, inputs=inputs)
    check(case, "vectorized")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_derivative_is_that_of_the_activation(name):
    x = np.linspace(-30, 30, 2001) + 1e-3
    slope = (activation(name, x + 1e-6) - activation(name, x - 1e-6)) / 2e-6
    np.testing.assert_allclose(derivative(name, x), slope, atol=1e-8, rtol=1e-8)
