"""add_mul_exp: any length, any alignment, special values, tiles; and the header that element-wise kernels share."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.add_mul_exp import AddMulExp
from ptxkit.kernels.elementwise.elementwise import TILE
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.verify import compare

VARIANTS = ["unfused", "fused", "vectorized"]
f32 = np.float32


def check(case, variant, tile=None):
    result = execute.run(case, AddMulExp.variant(variant), tile=tile)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize("n", [1, 3, 4, 5, 511, 512, 513, 2999])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_length(device, variant, n):
    check(execute.Case(AddMulExp(n=n), device, seed=n), variant)


@pytest.mark.parametrize(
    "tile",
    [
        {"THREADS": 128, "VECTORS": 1, "CTAS": 0},
        {"THREADS": 128, "VECTORS": 2, "CACHE": 1},
        {"THREADS": 128, "VECTORS": 4, "CACHE": 2},
        {"THREADS": 128, "VECTORS": 8, "CACHE": 3},
        {"THREADS": 256, "VECTORS": 2, "CACHE": 4},
        {"THREADS": 1024, "VECTORS": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [4 * 1024, 5003])
def test_every_shape_of_tile(device, tile, n):
    check(execute.Case(AddMulExp(n=n), device), "vectorized", tile)


def test_ctas_that_take_tile_after_tile(device):
    """More tiles than CTAS, the last of them partial."""
    case = execute.Case(AddMulExp(n=2 * 264 * 512 + 777), device)
    result = check(case, "vectorized", {"THREADS": 128, "VECTORS": 1, "CTAS": 264})
    assert result.prepared.build.steps[0].launch.grid == (264, 1, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_and_special_values(device, variant):
    values = np.array(
        [0, -0.0, 1e-45, 44.36, 44.37, -51.9, -43, 100, -100, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan], f32
    )
    x, y = (grid.reshape(-1).copy() for grid in np.meshgrid(values, np.append(values[:-3], f32(0))))
    case = execute.Case(AddMulExp(n=x.size), device, inputs={"x": x, "y": y})
    check(case, variant)
    out = case.outputs()["out"].reshape(-1, values.size)  # the last row adds zero
    assert out[-1, :2].tolist() == [1, 1]
    assert (out[-1, -3], out[-1, -2]) == (np.inf, 0)
    assert np.isnan(out[:, -1]).all()


def test_all_variants_agree_bit_for_bit(device):
    rng = np.random.default_rng(5)
    inputs = {name: rng.uniform(-40, 40, 3001).astype(f32) for name in "xy"}
    case = execute.Case(AddMulExp(n=3001), device, inputs=inputs)
    bits = []
    for variant in VARIANTS:
        check(case, variant)
        bits.append(case.outputs()["out"].view(np.uint32))
    np.testing.assert_array_equal(bits[0], bits[1])
    np.testing.assert_array_equal(bits[0], bits[2])


def test_the_minimum_traffic_is_what_is_moved(device):
    case = execute.Case(AddMulExp(n=3001), device)
    moved = {}
    for variant in VARIANTS:
        counters = check(case, variant).counters
        if counters is None:
            pytest.skip("this device does not count")
        moved[variant] = counters.global_bytes
    assert moved["fused"] == moved["vectorized"] == case.workload.work().bytes
    assert moved["unfused"] == 28 * 3001


def test_accesses_are_128_bits_wide(device):
    n = 1 << 12
    case = execute.Case(AddMulExp(n=n), device)
    wide, narrow = (check(case, name).counters for name in ("vectorized", "fused"))
    if wide is None:
        pytest.skip("this device does not count")
    assert wide.by_class["load.global"] == 2 * n // 4
    assert narrow.by_class["load.global"] == 2 * n
    assert wide.global_load_sectors == narrow.global_load_sectors == 2 * 4 * n // 32


@pytest.mark.parametrize("offsets", [(1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 1, 1)])
@pytest.mark.parametrize("variant", ["fused", "vectorized"])
def test_unaligned_starts(device, variant, offsets):
    n = 1100
    workload = AddMulExp(n=n)
    (step,) = build(workload, workload.variant(variant), device.target).steps
    rng = np.random.default_rng(2)
    arrays = {name: rng.uniform(-1, 1, n + 8).astype(f32) for name in ("x", "y")} | {"out": np.full(n + 8, 7, f32)}
    on_device = {name: device.upload(array) for name, array in arrays.items()}
    starts = dict(zip(("x", "y", "out"), offsets, strict=True))
    pointers = [np.uint64(on_device[name].address + 4 * starts[name]) for name in ("x", "y", "out")]
    kernel = device.load(step.image)[step.launch.entry]
    kernel.prepare(*pointers, np.int64(n), grid=step.launch.grid, block=step.launch.block)()
    device.synchronize()
    x, y = (arrays[name][starts[name] : starts[name] + n] for name in ("x", "y"))
    written = on_device["out"].numpy()
    inside = slice(starts["out"], starts["out"] + n)
    verdict = compare("out", written[inside], workload.reference(x, y)["out"])
    assert verdict.verified, verdict.worst
    np.testing.assert_array_equal(np.delete(written, np.arange(inside.start, inside.stop)), f32(7))


@pytest.mark.parametrize("n", [1, 100_000, 1 << 20, 20 << 20, 100 << 20, 2**31 - 1])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_the_preferred_tile_satisfies_the_constraint(n, target):
    workload = AddMulExp(n=n)
    variant = workload.variant("vectorized")
    tile = variant.select_tile(workload, Target.parse(target))
    assert any(tile.items() >= preferred.items() for preferred in variant.prefer(workload))
    assert (tile.CACHE == 0) == (12 * n <= 256 << 20)  # longer arrays leave L2 early


def test_tiles_that_cannot_be_used_are_refused_with_the_reason():
    workload = AddMulExp(n=10_000)
    with pytest.raises(UsageError, match="1024 threads have 64 registers each, too few for VECTORS=8"):
        workload.variant("vectorized").select_tile(
            workload, Target.parse("sm_90a"), {"THREADS": "1024", "VECTORS": "8"}
        )
    with pytest.raises(UsageError, match="CTAS=264 exceeds the number of tiles, 10"):
        workload.variant("vectorized").select_tile(
            workload, Target.parse("sm_90a"), {"THREADS": "256", "VECTORS": "1", "CTAS": "264"}
        )


def test_no_tile_spills():
    """Every THREADS and VECTORS that the constraint allows keeps its vectors in registers."""
    workload = AddMulExp(n=2**31 - 1)
    for threads in TILE["THREADS"]:
        for vectors in TILE["VECTORS"]:
            tile = {"THREADS": threads, "VECTORS": vectors, "CACHE": 2, "CTAS": 2112}
            if workload.variant("vectorized").constraint(workload, _Tile(tile)) is True:
                image = build(workload, workload.variant("vectorized"), Target.parse("sm_90a"), tile).images[0]
                (resources,) = image.functions.values()
                assert (resources.spill_store_bytes, resources.local_bytes) == (0, 0), tile


class _Tile(dict):
    __getattr__ = dict.__getitem__
