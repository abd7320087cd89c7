"""fused_l2norm in all its variants: any width, any scale, special values, tiles, alignment."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.fused_l2norm import FusedL2norm
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.verify import compare

VARIANTS = ["unfused", "fused", "vectorized", "ptx"]
f32 = np.float32


def rows_of(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(f32)


def case_of(device, x, eps=1e-12):
    workload = FusedL2norm(rows=x.shape[0], cols=x.shape[1], eps=eps)
    return execute.Case(workload, device, inputs={"x": x, "eps": f32(eps)})


def check(case, variant="vectorized", tile=None, target=None):
    """Run a variant, assert that it is verified, and return y."""
    result = execute.run(case, FusedL2norm.variant(variant), target, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()["y"]


@pytest.mark.parametrize("cols", [1, 3, 4, 5, 31, 33, 127, 128, 1000, 4097])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_width(device, variant, cols):
    check(case_of(device, rows_of(5, cols)), variant)


@pytest.mark.parametrize("rows", [1, 2, 129])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_height(device, variant, rows):
    check(case_of(device, rows_of(rows, 36)), variant)


SCALES = [1e-45, 1e-38, 1e-30, 1e-19, 1e-10, 1.0, 1e10, 1e18, 1e19, 1e30, 3e38]


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.0])
@pytest.mark.parametrize("cols", [1, 7, 260])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_scale(device, variant, cols, eps):
    x = (rows_of(len(SCALES), cols).astype(np.float64) * np.array(SCALES)[:, None]).astype(f32)
    x[:, 0] = np.array(SCALES, f32)  # so that no row is zero
    check(case_of(device, x, eps), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scales_mixed_in_one_row(device, variant):
    x = rows_of(4, 600)
    x[0, 5] = 1e30
    x[1, 5] = 1e19
    x[2] *= f32(1e-30)
    x[2, 599] = 1
    x[3] *= f32(3e38)
    check(case_of(device, x, 0.0), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_special_values_propagate_as_in_numpy(device, variant):
    x = rows_of(8, 300)
    x[1] = 0
    x[2, 7] = np.nan
    x[3, 299] = np.inf
    x[4, 0] = -np.inf
    x[5, 3], x[5, 280] = np.inf, np.nan
    x[6] = -0.0
    y = check(case_of(device, x), variant)
    assert not y[[1, 6]].any()
    assert np.isnan(y[2]).all()
    assert np.isnan(y[3, 299])
    assert not y[3, :299].any()
    assert np.isnan(y[5]).all()
    assert np.signbit(y[6]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_zero_row_without_eps_is_zero_over_zero(device, variant):
    x = rows_of(3, 20)
    x[1] = 0
    y = check(case_of(device, x, 0.0), variant)
    assert np.isnan(y[1]).all()


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_values_whose_rounding_errors_add_up(device, variant, value):
    check(case_of(device, np.full((2, 8200), value, f32)), variant)


@pytest.mark.parametrize("cols", [1, 33, 1024, 3001, 12289])
def test_fused_is_unfused_bit_for_bit(device, cols):
    x = rows_of(6, cols)
    x[1] *= f32(1e30)
    x[2] *= f32(1e-30)
    x[3] = 0
    x[4, 0] = np.inf
    case = case_of(device, x)
    unfused, fused = (check(case, name).copy() for name in ("unfused", "fused"))
    np.testing.assert_array_equal(unfused.view(np.uint32), fused.view(np.uint32))


TILES = [
    # (cols, tile), with the code that it tests
    (2, {"THREADS": 128, "VECTORS": 8}),  # one thread per row
    (17, {"THREADS": 256, "VECTORS": 1}),  # several rows per warp
    (128, {"THREADS": 128, "VECTORS": 1}),  # one warp per row
    (200, {"THREADS": 512, "VECTORS": 1}),  # two warps per row, eight rows per CTA
    (200, {"THREADS": 1024, "VECTORS": 1}),  # all sixteen barriers
    (512, {"THREADS": 128, "VECTORS": 2}),
    (1003, {"THREADS": 128, "VECTORS": 8}),
    (500, {"THREADS": 128, "VECTORS": 1}),  # a row a CTA, the last register half empty
    (64, {"THREADS": 128, "VECTORS": 2, "CACHE": 0}),
    (300, {"THREADS": 128, "VECTORS": 4, "CACHE": 3}),
    (1000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2, "CACHE": 4}),
    (4096, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 8}),  # fills the registers of a cluster
    (3000, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    x = rows_of(11, cols)
    x[2] *= f32(1e25)
    x[3] *= f32(1e-25)
    x[4] = 0
    x[9, cols - 1] = np.nan
    check(case_of(device, x), tile=tile)


@pytest.mark.parametrize(("rows", "full"), [(8, True), (11, False)])
def test_rows_that_share_a_cta_and_fill_its_registers(device, rows, full):
    """Four rows per CTA: the code without bounds checks is used only where every CTA has four."""
    workload = FusedL2norm(rows=rows, cols=128)
    tile = {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1}
    case = execute.Case(workload, device, inputs=workload.inputs(np.random.default_rng(0)))
    result = execute.run(case, FusedL2norm.variant("vectorized"), None, tile, explicit=True)
    assert result.verdict.verified, result.verdict.worst
    (launch,) = workload.variant("vectorized").launches(workload, result.tile)
    assert launch.template[-1].FULL_TILE is full


def test_a_long_row_takes_a_cluster(device):
    case = case_of(device, rows_of(1, 40_000))
    result = execute.run(case, FusedL2norm.variant("vectorized"))
    assert result.verdict.verified, result.verdict.worst
    assert result.tile.CLUSTER > 1


def test_without_clusters_a_long_row_is_streamed():
    """sm_80 has neither clusters nor distributed shared memory, but the variant is available."""
    workload = FusedL2norm(rows=2, cols=40_000)
    built = build(workload, workload.variant("vectorized"), Target.parse("sm_80"))
    assert built.tile.CLUSTER == 1
    assert built.steps[0].launch.cluster is None
    with pytest.raises(UsageError, match="clusters needs sm_90"):
        build(workload, workload.variant("vectorized"), Target.parse("sm_80"), {"CLUSTER": "2"})


@pytest.mark.parametrize(("x_offset", "y_offset"), [(1, 0), (0, 3), (2, 2)])
@pytest.mark.parametrize("variant", ["fused", "vectorized", "ptx"])
def test_unaligned_starts(device, variant, x_offset, y_offset):
    rows, cols = 3, 400  # a multiple of 4: only the start is unaligned
    workload = FusedL2norm(rows=rows, cols=cols)
    built = build(workload, workload.variant(variant), device.target)
    (step,) = built.steps
    kernel = device.load(step.image)[step.launch.entry]
    x = rows_of(rows * cols + x_offset)
    y = np.full(rows * cols + y_offset + 4, 7, f32)
    on_device = {"x": device.upload(x), "y": device.upload(y)}
    pointers = {
        "x": np.uint64(on_device["x"].address + 4 * x_offset),
        "y": np.uint64(on_device["y"].address + 4 * y_offset),
        "eps": f32(0),
    }
    arguments = [pointers[a] if isinstance(a, str) else np.int32(a) for a in step.launch.args]
    kernel.prepare(*arguments, grid=step.launch.grid, block=step.launch.block, shared=step.launch.shared)()
    device.synchronize()
    written = on_device["y"].numpy()
    inside = slice(y_offset, y_offset + rows * cols)
    expected = workload.reference(x[x_offset:].reshape(rows, cols), f32(0))["y"]
    verdict = compare("y", written[inside].reshape(rows, cols), expected, FusedL2norm.tolerance)
    assert verdict.verified, verdict.worst
    outside = np.delete(written, np.arange(inside.start, inside.stop))
    np.testing.assert_array_equal(outside, f32(7))  # no byte outside the rows is changed


def test_eps_must_not_be_negative():
    with pytest.raises(UsageError, match="eps must be finite and at least 0"):
        FusedL2norm(eps=-1e-3)


@pytest.mark.parametrize("cols", [1, 7, 64, 1000, 4096, 8192, 32768, 100_000, 262_144, 10_000_000])
@pytest.mark.parametrize("rows", [1, 128, 100_000])
@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
def test_the_preferred_tile_satisfies_the_constraint(rows, cols, target):
    if rows * cols > 2**31:
        pytest.skip("too large for any device")
    workload = FusedL2norm(rows=rows, cols=cols)
    variant = workload.variant("vectorized")
    tile = variant.select_tile(workload, Target.parse(target))
    assert any(tile.items() >= preferred.items() for preferred in variant.prefer(workload))
    assert (0 if 8 * rows * cols < 1 << 28 else 4) == tile.CACHE
    assert tile.CLUSTER == 1 or target == "sm_90a"
