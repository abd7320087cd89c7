"""add_gelu in f32, f16 and bf16; and the accuracy of the activation functions of the header."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.kernels.elementwise.add_gelu import AddGelu
from ptxkit.kernels.elementwise.elementwise import ELEMENTS
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = ["unfused", "fused", "vectorized"]
TILES = [{"THREADS": 128, "VECTORS": 8, "CACHE": 3}, {"THREADS": 512, "VECTORS": 2, "CACHE": 2}]
DTYPES = ["f32", "f16", "bf16"]
f32 = np.float32


def check(case, variant, tile=None):
    result = execute.run(case, AddGelu.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


def case_of(device, x, y, dtype):
    inputs = {"x": x.astype(dtype_of(dtype)), "y": y.astype(dtype_of(dtype))}
    return execute.Case(AddGelu(n=x.size, dtype=dtype), device, inputs=inputs)


@pytest.mark.parametrize("n", [1, 9, 3001])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, dtype, n):
    check(execute.Case(AddGelu(n=n, dtype=dtype), device, seed=n), variant)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_and_special_values(device, variant, dtype):
    values = [
        0,
        -0.0,
        1e-7,
        1e-30,
        1,
        -1,
        3,
        -3,
        -6,
        12,
        -12,
        100,
        -100,
        6e4,
        -6e4,
        1e20,
        -1e20,
        np.inf,
        -np.inf,
        np.nan,
    ]
    with np.errstate(over="ignore"):
        case = case_of(device, np.array(values), np.zeros(len(values)), dtype)
    check(case, variant)
    out = case.outputs()["out"].astype(f32)
    assert np.isnan(out[-2:]).all()  # -inf * 0, as in the formula
    assert out[-3] == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_and_vectorized_agree_bit_for_bit(device, dtype):
    rng = np.random.default_rng(4)
    case = case_of(device, rng.normal(0, 4, 4001), rng.normal(0, 4, 4001), dtype)
    outputs = {}
    for variant in VARIANTS:
        check(case, variant)
        outputs[variant] = case.outputs()["out"].view(np.uint8)
    np.testing.assert_array_equal(outputs["fused"], outputs["vectorized"])
    if dtype == "f32":
        np.testing.assert_array_equal(outputs["fused"], outputs["unfused"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "tile", [{"THREADS": 128, "VECTORS": 8, "CACHE": 3}, {"THREADS": 512, "VECTORS": 2, "CACHE": 2}], ids=str
)
def test_every_shape_of_tile(device, tile, dtype):
    check(execute.Case(AddGelu(n=9001, dtype=dtype), device), "vectorized", tile)


@pytest.mark.parametrize("dtype", DTYPES)
def test_work_is_what_is_counted(device, dtype):
    case = execute.Case(AddGelu(n=4096, dtype=dtype), device)
    counters = check(case, "vectorized").counters
    if counters is None:
        pytest.skip("this device does not count")
    work = case.workload.work()
    assert (counters.flops, counters.global_bytes) == (work.flops, work.bytes)
    size = ELEMENTS[dtype][1]
    assert check(case, "unfused").counters.global_bytes == 5 * size * 4096


ACTIVATIONS = """
#include "ptxkit/elementwise/activations.cuh"
using namespace ptxkit;
template <Activation A>
__global__ void apply(const float* x, float* y) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = activate<A>(x[i]);
}
"""


def exact(name, x):
    with np.errstate(all="ignore"):
        return {
            "GELU": lambda: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
            "SILU": lambda: x / (1 + np.exp(-x)),
            "RELU": lambda: np.maximum(x, 0),
            "NONE": lambda: x,
        }[name]()


@pytest.mark.parametrize("name", ["GELU", "SILU", "RELU", "NONE"])
def test_the_errors_that_the_header_states(device, name):
    image = compile_source(ACTIVATIONS, target=device.target or "sm_90a", instantiate=[f"apply<{name}>"])
    x = np.concatenate([np.linspace(-12, 12, 1 << 14), np.geomspace(1e-30, 1e30, 1 << 13)]).astype(f32)
    x = np.concatenate([x, -x[1 << 14 :]])
    on_device, y = device.upload(x), device.empty(x.size, f32)
    device.load(image)[f"apply<{name}>"](on_device, y, grid=x.size // 256, block=256)
    device.synchronize()
    got, wide = y.numpy().astype(np.float64), x.astype(np.float64)
    want = exact(name, wide)
    error = np.abs(got - want)
    if name in ("NONE", "RELU"):
        assert not error.any()
        return
    factor = 2.3022082 * (1 + 0.044715 * wide**2) if name == "GELU" else 1.442695
    exponent = np.maximum(-wide, 0) * factor  # of two, in the denominator
    small = exponent > 125.9
    assert (error <= np.abs(want) * (2.0**-21 + 2.0**-22 * exponent))[~small].all()
    assert (error <= np.abs(wide) * 2.0**-125.9)[small].all()
