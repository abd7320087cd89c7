"""quantize_int8: every integer, in particular ties and boundaries."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.quantize_int8 import QuantizeInt8
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def case_of(device, x, scale, zero_point=0):
    workload = QuantizeInt8(n=x.size, scale=scale, zero_point=zero_point)
    return execute.Case(workload, device, inputs={"x": x, **workload.parameters()})


def check(case, variant, tile=None):
    result = execute.run(case, QuantizeInt8.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    assert result.verdict.max_abs_error == 0
    return case.outputs()["q"]


@pytest.mark.parametrize("n", [1, 3, 4, 5, 511, 513, 2999])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, n):
    check(execute.Case(QuantizeInt8(n=n), device, seed=n), variant)


def around_ties(scale, zero_point):
    """The numbers within a few ulp of every tie and of the ends of the range."""
    steps = np.arange(-132, 132, 0.5) - zero_point
    middle = (steps * np.float64(f32(scale))).astype(f32)
    near = [middle]
    for away in (np.inf, -np.inf):
        x = middle
        for _ in range(3):
            x = np.nextafter(x, f32(away))
            near.append(x)
    return np.concatenate(near)


SCALES = [0.0123, 1.0, 1 / 3, 0.1, 7.0, 1e-30, 1e30, -0.37, 1.9999999, 1.0000001, 3e-5, 12345.678]


@pytest.mark.parametrize("zero_point", [0, -7, 0.5, -2.3])
@pytest.mark.parametrize("scale", SCALES)
def test_ties_round_to_even_as_in_numpy(device, scale, zero_point):
    case = case_of(device, around_ties(scale, zero_point), scale, zero_point)
    for variant in ("fused", "vectorized"):
        check(case, variant)


def test_exact_ties(device):
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, -127.5, -128.5], f32)
    for variant in VARIANTS:
        q = check(case_of(device, x, 1.0), variant)
        assert q.tolist() == [-2, -2, 0, 0, 2, 2, 126, 127, -128, -128]


@pytest.mark.parametrize("seed", range(4))
def test_random_scales_and_any_bits(device, seed):
    """Random divisors, numerators of every exponent."""
    rng = np.random.default_rng(seed)
    scale = float(f32(10.0 ** rng.uniform(-29, 29)))
    any_bits = rng.integers(0, 2**32, 2000, np.uint32).view(f32)
    in_range = (rng.uniform(-140, 140, 6001) * scale).astype(f32)
    case = case_of(device, np.concatenate([any_bits, in_range]), scale, float(rng.uniform(-128, 127)))
    check(case, "fused")
    check(case, "vectorized")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_zero_point_between_integers_is_added_before_the_rounding(device, variant):
    """As in torch's per-channel quantization with floating-point parameters: not x / scale rounded, plus a number."""
    q = check(case_of(device, np.array([0, 0.25, 0.75, 1, 2, -0.5], f32), 1.0, 0.5), variant)
    assert q.tolist() == [0, 1, 1, 2, 2, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_and_special_values(device, variant):
    x = np.array([0, -0.0, 1e-45, -1e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e10, -1e10], f32)
    assert check(case_of(device, x, 1e-30), variant)[4:9].tolist() == [127, -128, 127, -128, 0]
    check(case_of(device, x, 1e30, 5), variant)
    check(case_of(device, x, 0.02, -128), variant)


@pytest.mark.parametrize(
    "tile", [{"VECTORS": 1, "THREADS": 128}, {"VECTORS": 8, "CACHE": 1}, {"VECTORS": 2, "CACHE": 3}]
)
def test_every_shape_of_tile(device, tile):
    check(execute.Case(QuantizeInt8(n=5003), device), "vectorized", tile)


@pytest.mark.parametrize(("x_offset", "q_offset"), [(1, 0), (0, 3), (0, 4), (2, 2)])
def test_unaligned_starts(device, x_offset, q_offset):
    n = 1200
    workload = QuantizeInt8(n=n, scale=0.01, zero_point=0)
    (step,) = build(workload, workload.variant("vectorized"), device.target).steps
    x = np.random.default_rng(2).uniform(-1, 1, n + 4).astype(f32)
    x_device, q_device = device.upload(x), device.upload(np.full(n + 8, 99, np.int8))
    pointers = [np.uint64(x_device.address + 4 * x_offset), np.uint64(q_device.address + q_offset)]
    kernel = device.load(step.image)[step.launch.entry]
    values = workload.parameters().values()
    kernel.prepare(*pointers, np.int64(n), *values, grid=step.launch.grid, block=step.launch.block)()
    device.synchronize()
    written = q_device.numpy()
    expected = workload.reference(x[x_offset : x_offset + n], **workload.parameters())["q"]
    np.testing.assert_array_equal(written[q_offset : q_offset + n], expected)
    np.testing.assert_array_equal(np.delete(written, np.arange(q_offset, q_offset + n)), 99)


def test_the_minimum_traffic_is_what_is_moved(device):
    case = execute.Case(QuantizeInt8(n=3001), device)
    for variant, per_element in (("vectorized", 5), ("fused", 5), ("unfused", 37)):
        counters = execute.run(case, QuantizeInt8.variant(variant)).counters
        if counters is None:
            pytest.skip("this device does not count")
        assert counters.global_bytes == per_element * 3001


def test_no_division_is_left_in_the_vectorized_loop():
    workload = QuantizeInt8(n=4096)
    image = build(workload, workload.variant("vectorized"), Target.parse("sm_90a")).images[0]
    assert "div." not in image.ptx
    assert image.ptx.count("cvt.pack.sat.s8.s32.b32") == 4  # of a complete tile, and of the vectors of the last one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "magnitude of scale must be between"),
        ({"scale": float("nan")}, "magnitude of scale must be between"),
        ({"zero_point": 128}, "zero_point must be between -128 and 127, not 128"),
        ({"zero_point": float("nan")}, "zero_point must be between -128 and 127, not nan"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        QuantizeInt8(n=4, **options)
