"""bias_dropout_residual: the same random numbers in every variant and tile and in numpy; Philox compared with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit import Tolerance
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.bias_dropout_residual import BiasDropoutResidual
from ptxkit.kernels.elementwise.philox import philox4x32_10, random_words
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.verify import compare

VARIANTS = ["unfused", "fused", "vectorized"]
DTYPES = ["f32", "f16", "bf16"]
f32 = np.float32

# kat_vectors of Random123, the authors' library: counter, key, words
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_numpys_philox_has_the_known_answers(counter, key, expected):
    found = philox4x32_10(words(counter)[:, None], tuple(map(int, words(key))))
    np.testing.assert_array_equal(found[:, 0], words(expected))


def test_the_devices_philox_has_the_known_answers(device):
    source = """
    #include "ptxkit/elementwise/philox.cuh"
    __global__ void known(const uint4* counter, const uint2* key, uint4* words) {
        words[threadIdx.x] = ptxkit::philox4x32_10(counter[threadIdx.x], key[threadIdx.x]);
    }
    """
    kernel = device.load(compile_source(source, target=device.target or "sm_90a"))["known"]
    counters, keys, expected = (np.stack([words(row[k]) for row in KNOWN]) for k in range(3))
    out = device.empty(expected.shape, np.uint32)
    kernel(device.upload(counters), device.upload(keys), out, grid=1, block=3)
    device.synchronize()
    np.testing.assert_array_equal(out.numpy(), expected)


def test_words_do_not_depend_on_how_many_are_made():
    many = random_words(1 << 18, 7)
    np.testing.assert_array_equal(random_words(1001, 7), many[:1001])
    assert abs((many < 2**31).mean() - 0.5) < 0.005
    assert (random_words(1001, 7 + 2**32) != many[:1001]).all()


def check(case, variant, tile=None):
    result = execute.run(case, BiasDropoutResidual.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 6), (1, 1025), (300, 8), (2, 2056)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape(device, variant, dtype, rows, cols):
    check(execute.Case(BiasDropoutResidual(rows=rows, cols=cols, dtype=dtype), device, seed=cols), variant)


@pytest.mark.parametrize(("p", "seed"), [(0.0, 5), (0.25, 0), (0.5, 2**64 - 1), (0.999, 2**32), (0.1, 1)])
def test_the_mask_is_numpys_element_for_element(device, p, seed):
    workload = BiasDropoutResidual(rows=7, cols=404, p=p, seed=seed)
    inputs = {**workload.inputs(np.random.default_rng(0)), "x": np.ones((7, 404), f32)}
    inputs |= {"bias": np.zeros(404, f32), "residual": np.zeros((7, 404), f32)}
    case = execute.Case(workload, device, inputs=inputs)
    kept = random_words(7 * 404, seed).reshape(7, 404) >= p * 2**32
    for variant in VARIANTS:
        check(case, variant)
        np.testing.assert_array_equal(case.outputs()["out"] != 0, kept)
        if variant == "unfused":
            np.testing.assert_array_equal(case.array("mask").numpy(), kept)
    assert abs(kept.mean() - (1 - p)) < 0.04


TILES = [
    {"THREADS": 128, "ROWS": 1, "CACHE": 0},
    {"THREADS": 256, "ROWS": 2, "CACHE": 1},
    {"THREADS": 512, "ROWS": 4, "CACHE": 2},
    {"THREADS": 128, "ROWS": 8, "CACHE": 3},
]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), [(41, 36), (5, 2052), (130, 3)])
def test_every_tile_draws_the_same_numbers(device, tile, rows, cols):
    case = execute.Case(BiasDropoutResidual(rows=rows, cols=cols, p=0.3), device)
    tile = tile | {"ROWS": min(tile["ROWS"], 1 if rows == 5 else 8)}
    check(case, "fused")
    fused = case.outputs()["out"]
    if BiasDropoutResidual.variant("vectorized").constraint(case.workload, _Tile(tile)) is not True:
        tile["ROWS"] = 1
    check(case, "vectorized", tile)
    np.testing.assert_array_equal(fused.view(np.uint32), case.outputs()["out"].view(np.uint32))


class _Tile(dict):
    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_is_fused_rounds_once(device, dtype):
    """The tolerance of the workload allows the roundings of the unfused chain; the other variants need none."""
    case = execute.Case(BiasDropoutResidual(rows=8, cols=260, dtype=dtype), device)
    for variant in ("fused", "vectorized"):
        check(case, variant)
        verdict = compare("out", case.outputs()["out"], case.expected["out"], Tolerance(ulp=0.501, absolute=1e-6))
        assert verdict.verified, verdict.worst


def test_fused_is_unfused_bit_for_bit(device):
    case = execute.Case(BiasDropoutResidual(rows=13, cols=132, p=0.37), device)
    check(case, "unfused")
    unfused = case.outputs()["out"]
    for variant in ("fused", "vectorized"):
        check(case, variant)
        np.testing.assert_array_equal(unfused.view(np.uint32), case.outputs()["out"].view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropped_values_leave_no_trace(device, dtype):
    """Infinity and NaN in x disappear where they are dropped, and are kept elsewhere."""
    workload = BiasDropoutResidual(rows=4, cols=64, p=0.5, dtype=dtype)
    inputs = workload.inputs(np.random.default_rng(1))
    inputs["x"] = np.full((4, 64), np.inf).astype(dtype_of(dtype))
    inputs["x"][1] = np.nan
    inputs["x"][2] = -65504
    case = execute.Case(workload, device, inputs=inputs)
    for variant in VARIANTS:
        check(case, variant)
        out = case.outputs()["out"].astype(f32)
        kept = (random_words(256, 1234) >= 2**31).reshape(4, 64)
        np.testing.assert_array_equal(np.isfinite(out[:2]), ~kept[:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_minimum_traffic_is_what_is_moved(device, dtype):
    workload = BiasDropoutResidual(rows=32, cols=1024, dtype=dtype)
    case = execute.Case(workload, device)
    counters = check(case, "vectorized", {"THREADS": 256, "ROWS": 4}).counters
    if counters is None:
        pytest.skip("this device does not count")
    size = case.inputs["x"].dtype.itemsize
    assert counters.global_bytes == workload.work().bytes + size * 1024 * (32 // 4 - 1)  # the bias once in four rows
    unfused = check(case, "unfused").counters
    assert unfused.global_bytes == 32 * 1024 * (7 * size + 1 + size)  # and the bias, once a row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 1.0}, "p must be at least 0 and below 1, not 1.0"),
        ({"p": float("nan")}, "p must be at least 0"),
        ({"seed": -1}, "seed must be an unsigned 64-bit number, not -1"),
        ({"rows": 2**31 - 1, "cols": 1024}, "more CTAs than a grid can have"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        BiasDropoutResidual(**options)


@pytest.mark.parametrize("cols", [1, 7, 64, 4096, 262_144])
@pytest.mark.parametrize("rows", [1, 128, 16384])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_preferred_tile_satisfies_the_constraint(rows, cols, dtype):
    workload = BiasDropoutResidual(rows=rows, cols=cols, dtype=dtype)
    variant = workload.variant("vectorized")
    tile = variant.select_tile(workload, Target.parse("sm_90a"))
    assert any(tile.items() >= preferred.items() for preferred in variant.prefer(workload))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [72, 101])
def test_random_words_that_are_generated_ahead_give_the_same_bits(device, cols, dtype):
    case = execute.Case(BiasDropoutResidual(rows=9, cols=cols, dtype=dtype), device)
    found = []
    for ahead in (False, True):
        tile = {"THREADS": 128, "ROWS": 2, "AHEAD": ahead}
        assert execute.run(case, BiasDropoutResidual.variant("vectorized"), None, tile, explicit=True).verdict.verified
        found.append(case.outputs()["out"].copy())
    np.testing.assert_array_equal(found[0].view(np.uint8), found[1].view(np.uint8))


@pytest.mark.parametrize(("rows", "cols", "ahead"), [(64, 5120, True), (1000, 8192, False), (16384, 4096, False)])
def test_random_words_are_generated_ahead_where_the_next_grid_has_room(rows, cols, ahead):
    workload = BiasDropoutResidual(rows=rows, cols=cols, dtype="f16").on(reference_facts("sm_90a"))
    assert workload.variant("vectorized").select_tile(workload, Target.parse("sm_90a")).AHEAD is ahead
