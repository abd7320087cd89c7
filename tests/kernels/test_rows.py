"""Tiles of row kernels by size: those that were fastest on an H200, and those that are refused."""

from __future__ import annotations

import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.kernels.rows.row_tiles import shapes
from ptxkit.kernels.rows.rows import even_bytes
from ptxkit.targets import Target
from ptxkit.targets.gpus import REFERENCE_GPUS, DeviceFacts, reference_facts
from ptxkit.targets.occupancy import calculate
from ptxkit.workload import registry

TARGET = Target.parse("sm_90a")


def tile_of(kernel, size, tile=None, **options):
    workload = registry.get(kernel).make(size.split("x"), options)
    return workload.variant("vectorized").select_tile(workload, TARGET, tile)


@pytest.mark.parametrize(
    ("kernel", "size", "dtype", "expected"),
    [
        ("layernorm", "128x4096", "f32", (1024, 1, True)),  # all rows are resident: one vector for each thread
        ("layernorm", "128x256", "f32", (32, 2, True)),  # a warp, whose sums need no barrier
        ("layernorm", "1024x1024", "bf16", (128, 1, False)),
        ("layernorm", "2048x768", "f16", (128, 3, False)),  # four rows in a CTA: fewer CTAs to start
        ("layernorm", "1024x4093", "bf16", (256, 2, False)),  # single columns
        ("layernorm", "2048x5120", "bf16", (128, 5, False)),  # all registers hold columns
        ("rmsnorm", "16384x4096", "f32", (256, 4, True)),
        ("rmsnorm", "16384x4096", "bf16", (128, 4, False)),
        ("rmsnorm", "2048x3584", "bf16", (128, 4, False)),
        ("softmax", "1024x1024", "f32", (128, 2, None)),
        ("softmax", "225x15987", "f32", (512, 8, None)),  # two rows on each SM, so that all are resident
        ("softmax", "60000x512", "f16", (128, 4, None)),  # two rows for each warp
        ("scale_mask_softmax", "1024x1024", "bf16", (128, 1, None)),
        ("layernorm_quantize", "128x1024", "f32", (256, 1, False)),
        ("layernorm_quantize", "2048x5120", "bf16", (128, 5, False)),
    ],
)
def test_preferred_tiles(kernel, size, dtype, expected):
    tile = tile_of(kernel, size, dtype=dtype)
    assert (tile.THREADS, tile.VECTORS, tile.get("PREFETCH_WEIGHTS")) == expected
    assert tile.CLUSTER == 1


@pytest.mark.parametrize("kernel", ["layernorm", "softmax", "fused_l2norm"])
def test_the_next_grid_starts_late_only_where_rows_stay_in_l2(kernel):
    assert tile_of(kernel, "128x4096", {"NO_EARLY_LAUNCH": True}).NO_EARLY_LAUNCH
    assert not tile_of(kernel, "128x4096", {"NO_EARLY_LAUNCH": False}).NO_EARLY_LAUNCH
    with pytest.raises(UsageError, match="NO_EARLY_LAUNCH applies to rows in registers whose arrays fit in L2"):
        tile_of(kernel, "16384x4096", {"NO_EARLY_LAUNCH": True})


@pytest.mark.parametrize("each", [1, 2, 3, 5, 8, 12, 15])
@pytest.mark.parametrize("static", [0, 96, 640])
def test_an_even_grid_fills_each_sm(each, static):
    """An SM holds the CTAs that it has to, and not one more, although registers and threads allow it."""
    workload = registry.get("softmax")(rows=1000, cols=512).on(reference_facts("sm_90a"))
    for ctas in (132 * each, 132 * each - 131):
        kept = even_bytes(workload, ctas)
        assert calculate("sm_90a", 64, 32, kept + static).ctas_per_sm == each
    assert calculate("sm_90a", 64, 32, static).ctas_per_sm > each


def test_grids_with_all_rows_resident_are_even_and_others_are_not():
    assert tile_of("softmax", "2048x1024").EVEN
    assert tile_of("layernorm", "3500x1024", dtype="f16").EVEN is False  # 7 CTAs of 7 that fit
    assert tile_of("softmax", "100000x512").EVEN is False
    with pytest.raises(UsageError, match="EVEN applies to CTAs with rows in registers whose arrays fit in L2"):
        tile_of("softmax", "100000x512", {"EVEN": True})


def test_weights_are_loaded_early_only_if_all_rows_stay_resident():
    """72 registers instead of 48 leave room for 7 CTAs of 8 on an SM, and 64 for 16 of half as many threads."""
    tiles = [tile_of("layernorm", f"{rows}x768") for rows in (1800, 2048, 2400)]
    assert [(tile.THREADS, tile.PREFETCH_WEIGHTS) for tile in tiles] == [(128, True), (64, True), (128, False)]


@pytest.mark.parametrize(
    ("size", "dtype", "shifted"),
    [("32x50257", "bf16", True), ("32x50257", "f32", False), ("32x50256", "bf16", False), ("1000x129", "bf16", False)],
)
def test_long_rows_of_16_bits_that_begin_between_two_vectors_move_in_vectors(size, dtype, shifted):
    assert tile_of("softmax", size, dtype=dtype).SHIFTED is shifted


@pytest.mark.parametrize(("rows", "cols", "cluster"), [(64, 8192, 1), (64, 8200, 2), (200, 9000, 1), (16, 50_000, 8)])
def test_rows_are_distributed_over_clusters_where_sms_would_be_idle(rows, cols, cluster):
    tile = tile_of("softmax", f"{rows}x{cols}", dtype="bf16")
    assert cluster == tile.CLUSTER


@pytest.mark.parametrize("gpu", REFERENCE_GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_gpu_has_shapes_that_hold_a_row(gpu, dtype):
    target = Target.parse(f"sm_{gpu.cc}{'a' if gpu.cc >= 90 else ''}")
    facts = DeviceFacts(gpu.name, target, gpu.sms, gpu.l2_bytes, gpu.name)
    for rows, cols in ((1, 1), (7, 30_000), (1000, 129), (100_000, 64), (3000, 3000)):
        workload = registry.get("softmax")(rows=rows, cols=cols, dtype=dtype).on(facts)
        found = list(shapes(workload, cols, 1, 32, False))
        assert found
        for shape in found:
            assert shape.threads * shape.vectors * shape.cluster * width(dtype) >= cols
            assert shape.cluster <= target.limits.portable_cluster
            assert shape.resident >= 1


@pytest.mark.parametrize("inputs", [1, 2, 3, 4])
def test_rows_of_any_number_of_arrays_have_shapes(inputs):
    workload = registry.get("softmax_backward")(rows=300, cols=1021, dtype="bf16").on(reference_facts("sm_90a"))
    found = list(shapes(workload, 1021, inputs, 44, False))
    assert found
    assert all(8 * shape.vectors * inputs <= 80 for shape in found)
