"""Tiles of row kernels by size: those that were fastest on an H200, and those that are refused."""

from __future__ import annotations

import pytest

from ptxkit.errors import UsageError
from ptxkit.targets import Target
from ptxkit.workload import registry

TARGET = Target.parse("sm_90a")


def tile_of(kernel, size, tile=None, **options):
    workload = registry.get(kernel).make(size.split("x"), options)
    return workload.variant("vectorized").select_tile(workload, TARGET, tile)


@pytest.mark.parametrize(
    ("kernel", "size", "dtype", "expected"),
    [
        ("layernorm", "128x4096", "f32", (512, 2, True, True)),
        ("layernorm", "128x256", "f32", (128, 1, True, False)),  # complete before a grid that starts late would begin
        ("layernorm", "1024x1024", "bf16", (128, 1, True, False)),
        ("rmsnorm", "16384x4096", "f32", (256, 4, True, False)),
        ("rmsnorm", "16384x4096", "bf16", (256, 2, False, False)),
        ("softmax", "1024x1024", "f32", (128, 2, None, True)),
        ("softmax", "16384x4096", "f32", (256, 4, None, False)),
        ("scale_mask_softmax", "1024x1024", "bf16", (128, 1, None, True)),
        ("layernorm_quantize", "128x4096", "f32", (256, 4, True, True)),
        ("layernorm_quantize", "128x1024", "f32", (128, 2, True, True)),  # one row per CTA
        ("layernorm_quantize", "128x8192", "f32", (512, 4, True, True)),
    ],
)
def test_preferred_tiles(kernel, size, dtype, expected):
    tile = tile_of(kernel, size, dtype=dtype)
    assert (tile.THREADS, tile.VECTORS, tile.get("PREFETCH_WEIGHTS"), tile.NO_EARLY_LAUNCH) == expected
    assert tile.CLUSTER == 1


@pytest.mark.parametrize("kernel", ["layernorm", "softmax", "fused_l2norm"])
def test_the_next_grid_starts_late_only_where_rows_stay_in_l2(kernel):
    assert tile_of(kernel, "128x4096", {"NO_EARLY_LAUNCH": True}).NO_EARLY_LAUNCH
    assert not tile_of(kernel, "128x4096", {"NO_EARLY_LAUNCH": False}).NO_EARLY_LAUNCH
    with pytest.raises(UsageError, match="NO_EARLY_LAUNCH applies to rows in registers whose arrays fit in L2"):
        tile_of(kernel, "16384x4096", {"NO_EARLY_LAUNCH": True})
