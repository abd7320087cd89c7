"""The machine code of row kernels: no spills in any tile that is preferred, wide accesses, as many barriers as groups."""

from __future__ import annotations

import pytest

from ptxkit.inspect.disassembly import sass
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import registry
from ptxkit.workload.build import build

NAMES = ["fused_l2norm", "layernorm", "rmsnorm", "softmax", "scale_mask_softmax", "layernorm_quantize"]
NAMES += ["layernorm_backward", "rmsnorm_backward"]
TYPES = ["f32", pytest.param("bf16", marks=pytest.mark.slow)]  # elements are unpacked to as many f32 registers
SIZES = [(128, 4096), (16384, 4096), (512, 32768), (512, 262144)]


def built(name, rows, cols, tile=None, **options):
    workload = registry.get(name)(rows=rows, cols=cols, **options)
    return build(workload, workload.variant("vectorized"), Target.parse("sm_90a"), tile)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_preferred_tiles_do_not_spill(name, rows, cols, dtype):
    options = {} if name == "fused_l2norm" else {"dtype": dtype}
    if dtype != "f32" and not options:
        pytest.skip("f32 alone")
    for image in built(name, rows, cols, **options).images:
        assert_sass(image, spills=0)


@pytest.mark.parametrize(
    ("threads", "vectors", "chunks"), [(1024, 8, 1), (512, 16, 1), (1024, 8, 2)], ids=["32", "64", "chunked"]
)
def test_l2norm_with_many_columns_a_thread_does_not_spill(threads, vectors, chunks):
    tile = {"THREADS": threads, "VECTORS": vectors, "CLUSTER": 1}
    for image in built("fused_l2norm", 512, 4 * threads * vectors * chunks, tile).images:
        assert_sass(image, spills=0)


@pytest.mark.parametrize(("cols", "dtype"), [(262_144, "f32"), (131_072, "bf16")])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "softmax"])
def test_persistent_kernels_do_not_spill(name, cols, dtype):
    workload = registry.get(name)(rows=512, cols=cols, dtype=dtype)
    step = build(workload, workload.variant("persistent"), Target.parse("sm_90a")).steps[1]
    assert_sass(sass(step.image)[step.image.entry(step.launch.entry)], has=["UBLKCP", "STAS"], spills=0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("threads", "vectors"), [(1024, 4), (512, 8), (128, 8)])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "scale_mask_softmax", "layernorm_quantize"])
def test_tiles_that_are_offered_do_not_spill(name, threads, vectors, dtype):
    vectors = vectors if dtype == "f32" else max(vectors // 2, 1)
    wide = 4 if dtype == "f32" else 8
    for image in built(
        name, 512, threads * vectors * wide, {"THREADS": threads, "VECTORS": vectors}, dtype=dtype
    ).images:
        assert_sass(image, spills=0)


@pytest.mark.parametrize(
    ("name", "cols"),
    [("rmsnorm", 11008), ("layernorm", 22016), ("softmax", 28672), ("rmsnorm", 14337), ("layernorm_quantize", 11009)],
)
def test_more_than_one_cta_is_resident_where_the_launch_has_fewer_threads_than_the_launch_bounds(name, cols):
    (step,) = built(name, 4096, cols, dtype="bf16").steps
    limits = Target.parse("sm_90a").limits
    registers = sass(step.image)[step.image.entry(step.launch.entry)].resources.registers
    assert 2 * step.launch.block[0] * -(-registers // 8) * 8 <= limits.registers


@pytest.mark.parametrize("name", NAMES)
def test_accesses_are_128_bits_wide(name):
    step = built(name, 16384, 4096).steps[0]
    stores = "STG.32" if name == "layernorm_quantize" else "STG.128"
    copied = "LDGSTS.128" if name.endswith("backward") else "LDG.128"
    assert_sass(sass(step.image)[step.image.entry(step.launch.entry)], has=[copied, stores])


@pytest.mark.parametrize(("name", "tile"), [("fused_l2norm", {"VECTORS": 1}), ("softmax", {"VECTORS": 1})])
def test_a_barrier_for_each_group(name, tile):
    """512 threads with eight rows of 64: ptxas counts eight barriers, not the sixteen that it allocates for a computed
    number."""
    (step,) = built(name, 16384, 256, {"THREADS": 512} | tile).steps
    (function,) = sass(step.image).values()
    assert function.resources.barriers == 8


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("variant", ["vectorized", "pipelined"])
@pytest.mark.parametrize(("rows", "cols"), [(16384, 4096), *(pytest.param(*x, marks=pytest.mark.slow) for x in SIZES)])
def test_gradients_with_an_activation_do_not_spill(variant, dtype, rows, cols):
    workload = registry.get("layernorm_backward")(rows=rows, cols=cols, dtype=dtype, activation="gelu")
    for image in build(workload, workload.variant(variant), Target.parse("sm_90a")).images:
        assert_sass(image, spills=0)


@pytest.mark.parametrize("name", ["layernorm_quantize", "layernorm_backward", "rmsnorm_backward"])
def test_the_tma_unit_copies_rows_ahead(name):
    workload = registry.get(name)(rows=16384, cols=4096)
    step = build(workload, workload.variant("pipelined"), Target.parse("sm_90a")).steps[0]
    assert_sass(sass(step.image)[step.image.entry(step.launch.entry)], has=["UBLKCP"], spills=0)
