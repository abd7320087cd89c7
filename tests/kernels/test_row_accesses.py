"""Accesses of rows narrower than 128 bits, and requests of rows before the previous grid has ended."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.isa.parser import parse
from ptxkit.kernels.rows import rows as row
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build
from ptxkit.workload.launch import Tile

TARGET = Target.parse("sm_90a")
KERNELS = ("fused_l2norm", "layernorm", "layernorm_quantize", "rmsnorm", "scale_mask_softmax", "softmax", "softmax_backward")


def run(device, name, sizes, tile, seed=0, **options):
    """Run a tile of the vectorized variant, assert that it is verified, and return its outputs."""
    workload = registry.get(name)(rows=sizes[0], cols=sizes[1], **options)
    case = execute.Case(workload, device, seed=seed)
    verdict, _ = execute.prepare(case, workload.variant("vectorized"), None, tile).check()
    assert verdict.verified, f"{verdict.worst} {verdict.explanation}"
    return case.outputs()


def of_type(name, dtype):
    return {} if name == "fused_l2norm" else {"dtype": dtype}


@pytest.mark.parametrize("cols", [290, 291, 300])  # of which 2, none, and 4 columns at a time are a whole number of accesses
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_narrow_accesses_to_rows_of_any_length(device, name, width, cols):
    if name == "fused_l2norm" and width == 4:
        pytest.skip("four columns of f32 are 128 bits")
    run(device, name, (3, cols), {"THREADS": 128, "VECTORS": 2, "WIDTH": width}, **of_type(name, "bf16"))


def test_more_threads_hold_a_row_with_narrow_accesses():
    workload = registry.get("layernorm")(rows=1, cols=1600, dtype="bf16")
    tiles = [Tile({"THREADS": 1024, "VECTORS": 1, "CLUSTER": 1, "SHIFTED": False, "WIDTH": width}) for width in (0, 4, 2)]
    assert [row.launched_lanes(workload, tile) for tile in tiles] == [(256, 1024), (512, 1024), (0, 800)]


@pytest.mark.parametrize("name", KERNELS)
def test_requests_do_not_change_results(device, name):
    found = [run(device, name, (5, 300), {"PREFETCH_L2": early}, **of_type(name, "f32")) for early in (False, True)]
    for one, other in zip(*(outputs.values() for outputs in found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "sizes", "tile", "reason"),
    [
        ("softmax", (4, 300), {"WIDTH": 4}, "WIDTH=4 is not less than the 4 columns of 128 bits"),
        ("softmax", (4, 9000), {"WIDTH": 2, "THREADS": 256, "VECTORS": 1}, "WIDTH applies to rows in the registers of a CTA"),
        ("softmax", (100_000, 512), {"PREFETCH_L2": True}, "PREFETCH_L2 applies to rows in registers whose arrays fit in L2"),
    ],
)
def test_refusals(name, sizes, tile, reason):
    workload = registry.get(name)(rows=sizes[0], cols=sizes[1])
    with pytest.raises(UsageError, match=reason):
        workload.variant("vectorized").select_tile(workload, TARGET, tile)


def chosen(name, sizes, **options):
    workload = registry.get(name)(rows=sizes[0], cols=sizes[1], **options).on(reference_facts("sm_90a"))
    return workload.variant("vectorized").select_tile(workload, TARGET)


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "requested"),
    [
        ("layernorm", (1, 1600), "bf16", True),
        ("layernorm", (132, 1024), "f16", True),
        ("layernorm", (2048, 768), "f16", True),
        ("rmsnorm", (20_000, 512), "bf16", False),  # not all rows are resident
        ("softmax_backward", (2048, 300), "f16", True),  # without weights, and all rows are resident
        ("softmax_backward", (16256, 129), "f16", True),  # rows of a warp
        ("softmax_backward", (16384, 4096), "f16", False),  # not in L2
    ],
)
def test_rows_are_requested_where_it_is_faster(name, sizes, dtype, requested):
    assert chosen(name, sizes, dtype=dtype).PREFETCH_L2 is requested


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "width", "threads"),
    [
        ("layernorm_quantize", (122, 290), "bf16", 2, 64),
        ("softmax_backward", (2048, 300), "f16", 4, 128),
        ("softmax_backward", (122, 291), "f16", 0, 64),  # an odd number of columns
        ("layernorm_quantize", (2000, 290), "bf16", 0, 128),
        ("layernorm_quantize", (122, 290), "f32", 0, 128),
    ],
)
def test_short_rows_of_few_instructions_have_narrow_accesses(name, sizes, dtype, width, threads):
    tile = chosen(name, sizes, dtype=dtype)
    assert (width, threads) == (tile.WIDTH, tile.THREADS)


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "threads", "vectors"),
    [
        ("layernorm", (3000, 1024), "f16", 256, 4),  # with 32 columns of a thread, CTAs of 128 threads spill
        ("layernorm", (4000, 1024), "f16", 128, 2),  # not all rows would be resident
        ("layernorm", (1200, 14336), "f16", 256, 7),  # the launch bounds of 384 threads are those of 512
        ("softmax_backward", (4800, 2048), "f16", 256, 1),  # two columns in a register
        ("softmax_backward", (4800, 2048), "f32", 256, 2),
    ],
)
def test_tiles_follow_from_the_registers_that_kernels_take(name, sizes, dtype, threads, vectors):
    tile = chosen(name, sizes, dtype=dtype)
    assert (threads, vectors) == (tile.THREADS, tile.VECTORS)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("add_gelu", {"n": 5000}),
        ("quantize_int8", {"n": 5000}),
        ("rmsnorm", {"rows": 3, "cols": 512}),
        ("saxpy", {"n": 5000}),
        ("softmax_backward", {"rows": 3, "cols": 512}),
        ("swiglu_backward", {"rows": 3, "cols": 512}),
    ],
)
def test_inputs_are_requested_before_the_wait_and_loaded_after_it(name, sizes):
    workload = registry.get(name)(**sizes).on(reference_facts("sm_90a"))
    (step,) = build(workload, workload.variant("vectorized"), TARGET).steps
    opcodes = [i.opcode for entry in parse(step.image.ptx).functions.values() for i in entry.instructions]
    requests = [at for at, opcode in enumerate(opcodes) if opcode.startswith("prefetch.global.L2")]
    loads = [at for at, opcode in enumerate(opcodes) if opcode.startswith("ld.global")]
    waits = [at for at, opcode in enumerate(opcodes) if opcode == "griddepcontrol.wait"]
    assert requests and max(requests) < min(at for at in waits if at > max(requests))
    assert min(waits) < min(loads)
