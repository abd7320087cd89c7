"""The source that CUTLASS generates for every type and schedule, and the program made from it. Nothing here is compiled
for sm_90a or sm_100a, which takes half a minute: test_emulated.py does that."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ptxkit.compiler.image import Image
from ptxkit.cutlass import params
from ptxkit.cutlass.description import OUTPUTS, SCHEDULES, GemmDescription
from ptxkit.cutlass.emit import emit
from ptxkit.cutlass.formats import FORMATS
from ptxkit.cutlass.kernels.cutlass_gemm import CutlassGemm
from ptxkit.cutlass.program import GemmProgram
from ptxkit.errors import CompileError, UsageError
from ptxkit.runtime.tensor_map.limits import Encoding
from ptxkit.workload.build import build

CPP = {"bf16": "cutlass::bfloat16_t", "f16": "cutlass::half_t", "tf32": "cutlass::tfloat32_t", "f32": "float",
       "e4m3": "cutlass::float_e4m3_t", "e5m2": "cutlass::float_e5m2_t", "s8": "int8_t", "s32": "int32_t",
       "mxf8": "cute::tuple<cutlass::float_e4m3_t,cutlass::float_ue8m0_t>",
       "mxf4": "cute::tuple<cutlass::float_e2m1_t,cutlass::float_ue8m0_t>",
       "nvf4": "cute::tuple<cutlass::float_e2m1_t,cutlass::float_ue4m3_t>"}  # fmt: skip

ALL = [
    (dtype, name, variant)
    for dtype in OUTPUTS
    for w in [CutlassGemm(dtype=dtype)]
    for name, variant in w.variants().items()
    if variant.refusal(w) is None
]


def described(dtype, variant):
    w = CutlassGemm(dtype=dtype)
    (launch,) = variant.launches(w, next(variant.tiles(w)))
    return launch.source.description


def test_every_type_and_schedule_is_offered_where_there_is_one():
    offered = {(dtype, name) for dtype, name, _ in ALL}
    assert {dtype for dtype, _ in offered} == set(OUTPUTS)
    assert {described(dtype, variant).schedule for dtype, _, variant in ALL} == set(SCHEDULES)
    tma = ("cooperative", "pingpong", "stream_k", "one_sm", "one_sm_stream_k", "two_sm")
    for dtype in set(OUTPUTS) - {"f32", *FORMATS}:
        assert {(dtype, name) for name in tma} <= offered
    assert {(dtype, name) for dtype, name in offered if dtype in FORMATS} == set(product(FORMATS, ("one_sm", "two_sm")))


@pytest.mark.parametrize("dtype, name, variant", ALL, ids=[f"{dtype}-{name}" for dtype, name, _ in ALL])
def test_every_type_and_schedule_is_emitted(dtype, name, variant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    d = described(dtype, variant)
    text = emit(d)
    assert f"struct {d.name}_type :" in text
    assert re.search(rf"__global__[^;{{]*\b{d.name}\(", text)
    assert text.count("{") == text.count("}")
    operand = "float" if dtype == "tf32" and d.generation == 2 else CPP[dtype]
    assert f"{operand}, cutlass::layout::RowMajor" in text
    assert CPP[d.output] in text
    assert f"cutlass::arch::Sm{d.arch}" in text
    for size in d.tile:
        assert re.search(rf"\b_?{size}\b", text)
    assert list(tmp_path.iterdir()) == []  # the package's own compiler would leave a database in the working directory


def test_a_tile_is_that_of_a_cta_whatever_the_cluster():
    text = emit(GemmDescription(tile=(128, 256, 64), cluster=(2, 1, 1)))
    assert text.count("cute::Shape<cute::_128, cute::_256, cute::_64>") == 2
    assert text.count("cute::Shape<cute::_2,cute::_1,cute::_1>") == 2


@pytest.mark.parametrize("epilogue, named", [("relu", "ReLu"), ("gelu", "GELU_taylor"), ("silu", "SiLu")])
def test_an_activation_stands_in_both_generations(epilogue, named):
    third = emit(GemmDescription(epilogue=epilogue))
    assert re.search(
        rf"LinCombEltAct<cutlass::epilogue::thread::{named}, cutlass::bfloat16_t, float>\n  >::CollectiveOp", third
    )
    second = emit(GemmDescription(80, "multistage", tile=(128, 128, 32), stages=4, epilogue=epilogue))
    assert "LinearCombination" in second
    assert second != emit(GemmDescription(80, "multistage", tile=(128, 128, 32), stages=4)).replace(
        "_s4", f"_s4_{epilogue}"
    )


def test_the_source_is_the_same_for_all_problems_and_names_no_place():
    one, other = (GemmProgram(GemmDescription(), *sizes).source() for sizes in ((128, 128, 64), (4096, 8192, 512)))
    assert one == other
    assert str(Path.home()) not in one.text
    assert one.text.endswith('#include "ptxkit/cutlass/params_3x.cuh"\n')
    assert "-DNDEBUG" in one.options


# The program of a case of test_emulated.py: the slowest part of these tests is the compilation.
COMPILED_ANYWAY = {"dtype": "f16", "layout": "nt", "epilogue": "relu"}
COMPILED_TILE = {"BM": 64, "BN": 64, "WARPS_M": 2, "WARPS_N": 2}


def test_a_launch_is_completed_from_what_the_program_says():
    w = CutlassGemm(256, 256, 64, **COMPILED_ANYWAY)
    built = build(w, w.variant("multistage"), tile=COMPILED_TILE)
    (step,) = built.steps
    launch = step.launch
    assert step.entry == launch.kernel == launch.source.description.name
    assert launch.block == (128, 1, 1)
    stages = launch.source.description.stages * launch.source.description.stage_bytes
    assert stages <= launch.shared <= stages + 1024
    assert launch.cluster is None
    assert built.images[0].functions.keys() >= {launch.kernel, "ptxkit_build"}


def test_two_sizes_share_one_program():
    first, second = (CutlassGemm(m, 256, 64, **COMPILED_ANYWAY) for m in (256, 264))
    keys = {build(w, w.variant("multistage"), tile=COMPILED_TILE).images[0].key for w in (first, second)}
    assert len(keys) == 1


def test_a_program_without_facts_is_an_error():
    program = GemmProgram(GemmDescription(), 128, 128, 64)
    with pytest.raises(CompileError, match="x.cu: the compiled program has no ptxkit_facts"):
        program.complete(program.launch(), Image("sm_90a", "", None, source_name="x.cu"))


def note(**values):
    made = np.zeros(1, params.NOTE)
    for name, value in {"head": mark(), "tail": mark(), **values}.items():
        made[name] = value
    return made.view(np.uint8)


def mark():
    return int.from_bytes(b"tmapnote", "little")


def test_layouts_have_the_sizes_of_the_structures():
    assert params.NOTE.itemsize == 128
    assert params.PROBLEM.itemsize == 152
    assert params.ANSWER.itemsize == 56
    assert params.FACTS.itemsize == 28


def test_notes_are_read_wherever_they_lie():
    data = np.zeros(512, np.uint8)
    data[192:320] = note(
        address=1 << 40, rank=3, element=9, swizzle=3, sizes=[63, 127, (1 << 32) - 1, 0, 0], strides=[128, 1 << 39, 0, 0],
        box=[64, 128, 1, 1, 1], element_strides=[1] * 5,
    )  # fmt: skip
    ((offset, found),) = params.notes(data)
    assert offset == 192
    assert found == Encoding(9, 1 << 40, (64, 128, 1 << 32), (128, 1 << 39), (64, 128, 1), (1, 1, 1), 3, 2)


def test_what_only_begins_like_a_note_is_none():
    data = note(tail=0)
    assert list(params.notes(data)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "s8", "beta": float("nan")}, "beta must be a whole number of 32 bits for s8, not nan"),
        ({"dtype": "s8", "alpha": 2.0**31}, "alpha must be a whole number of 32 bits"),
        ({"dtype": "bf16", "alpha": float("inf")}, "alpha must be a finite number of f32, not inf"),
    ],
)
def test_factors_that_no_kernel_can_take_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        CutlassGemm(16, 16, 16, **options)
