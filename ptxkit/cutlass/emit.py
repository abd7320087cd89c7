"""Generates the CUTLASS source text of a description. Needs no GPU and no compiler.

Only the emitters of ``cutlass_cppgen`` are imported: its front end requires a CUDA toolkit and modules of an older cuda-python,
and the emitters do not.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from ptxkit.cutlass import block_scaled, package
from ptxkit.cutlass.formats import FORMATS
from ptxkit.errors import UnavailableError

if TYPE_CHECKING:
    from ptxkit.cutlass.description import GemmDescription

# CUTLASS's headers use names of the C++ standard library, which NVRTC does not have
_PROLOGUE_3X = """\
#include <cuda/std/type_traits>
namespace std {
using cuda::std::conditional_t;
using cuda::std::is_const_v;
using cuda::std::is_pointer_v;
using cuda::std::void_t;
}
"""

_INCLUDES_SM100 = """\
#include "cutlass/gemm/collective/sm100_mma_warpspecialized.hpp"
#include "cutlass/gemm/collective/builders/sm100_umma_builder.inl"
"""

_INCLUDES_BLOCK_SCALED = """\
#include "cutlass/gemm/collective/sm100_blockscaled_mma_warpspecialized.hpp"
#include "cutlass/gemm/collective/builders/sm100_blockscaled_umma_builder.inl"
"""

_ACTIVATIONS = {"relu": "ReLu", "gelu": "GELU_taylor", "silu": "SiLu"}

# schedule -> (kernel schedule, epilogue schedule, tile scheduler) of cutlass_library
_SCHEDULES = {
    "cooperative": ("TmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative", "Persistent"),
    "stream_k": ("TmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative", "StreamK"),
    "pingpong": ("TmaWarpSpecializedPingpong", "TmaWarpSpecialized", "Persistent"),
    "one_sm": ("TmaWarpSpecialized1SmSm100", "TmaWarpSpecialized1Sm", "Default"),
    "one_sm_stream_k": ("TmaWarpSpecialized1SmSm100", "TmaWarpSpecialized1Sm", "StreamK"),
    "two_sm": ("TmaWarpSpecialized2SmSm100", "TmaWarpSpecialized2Sm", "Default"),
}


def emit(d: GemmDescription) -> str:
    """The kernel ``d.name`` and the type ``{d.name}_type`` that it runs, with their includes.

    Raises:
        UnavailableError: CUTLASS is not installed, or is of an unsupported version.
    """
    package.check()
    _load()
    from cutlass_library import SubstituteTemplate

    if d.dtype in FORMATS:
        from cutlass_cppgen.backend.gemm_operation import GemmRTUniversal3x

        body, names = block_scaled.emit(d)
        module, suffix = GemmRTUniversal3x, "_type"
    else:
        module = _operation(d).rt_module
        body, names, suffix = module.emit(), module.emitter.includes, module.emitter.operation_suffix
        if d.epilogue != "linear" and d.generation == 3:
            body = _with_activation(body, d)
    includes = "".join(f'#include "{name}"\n' for name in names)
    if d.generation == 3:
        includes = _PROLOGUE_3X + includes + (_INCLUDES_SM100 if d.arch >= 100 else "")
        includes += _INCLUDES_BLOCK_SCALED if d.dtype in FORMATS else ""
    values = {"operation_name": d.name, "operation_suffix": suffix}
    return f"{includes}{body}{SubstituteTemplate(module.KernelTemplate, values)}"


@cache
def _load() -> None:
    """Import the emitters, without the database that CUTLASS's unused compiler would open in the working directory."""
    import sqlite3

    connect = sqlite3.connect
    sqlite3.connect = lambda *_, **__: connect(":memory:")  # type: ignore[assignment]
    try:
        importlib.import_module("cutlass_cppgen.backend.gemm_operation")
    except ImportError as error:
        raise UnavailableError(f"CUTLASS cannot be imported: {error}; {package.INSTALL}") from error
    finally:
        sqlite3.connect = connect


def _operation(d: GemmDescription) -> Any:
    """CUTLASS's own description."""
    import cutlass_library as library
    from cutlass_cppgen.backend import epilogue
    from cutlass_cppgen.backend.gemm_operation import GemmOperationUniversal
    from cutlass_cppgen.backend.library import MathInstruction, TensorDescription, TileDescription

    types = library.DataType
    # mma.sync kernels round float32 to tf32 themselves; with TMA, a and b must be declared tf32, and the copy rounds them
    element = types.f32 if d.dtype == "tf32" and d.generation == 2 else _type(d.dtype)
    output, accumulator = _type(d.output), _type(d.accumulator)
    opcode = library.OpcodeClass.Simt if d.schedule == "simt" else library.OpcodeClass.TensorOp
    math = (
        library.MathOperation.multiply_add_saturate
        if d.dtype == "s8" and d.generation == 2
        else library.MathOperation.multiply_add
    )
    instruction = MathInstruction(list(d.instruction), _type(d.dtype), _type(d.dtype), accumulator, opcode, math)
    schedules = _SCHEDULES.get(d.schedule)
    kernel, finish, tiles = (
        (
            getattr(library.KernelScheduleType, schedules[0]),
            getattr(library.EpilogueScheduleType, schedules[1]),
            getattr(library.TileSchedulerType, schedules[2]),
        )
        if schedules
        else (None, None, None)
    )
    tile = TileDescription(
        *(list(d.tile), d.stages, list(d.warps) if d.generation == 2 else None, instruction),
        *(list(d.cluster), kernel, finish, tiles),
    )
    tile.blackwell_threadblock_shape = list(
        d.tile
    )  # otherwise the emitter divides the tile by the cluster, even on sm_90
    activation = _ACTIVATIONS.get(d.epilogue)
    functor = epilogue.LinearCombination(output, d.output_alignment, accumulator, accumulator)
    if activation is not None:
        functor = epilogue.LinearCombinationGeneric(
            getattr(epilogue, d.epilogue), output, d.output_alignment, accumulator, accumulator
        )
    layouts = {"row": library.LayoutType.RowMajor, "column": library.LayoutType.ColumnMajor}
    operation = GemmOperationUniversal(
        arch=d.arch,
        tile_description=tile,
        A=TensorDescription(element, layouts[d.a_layout], d.alignment),
        B=TensorDescription(element, layouts[d.b_layout], d.alignment),
        C=TensorDescription(output, layouts["row"], d.output_alignment),
        epilogue_functor=functor,
        swizzling_functor=library.SwizzlingFunctor.Identity8,
    )
    operation.procedural_name = lambda: d.name  # CUTLASS's own name leaves out the cluster and the scheduler
    return operation


def _type(name: str) -> Any:
    """One of cutlass_library's DataType."""
    import cutlass_library as library

    return getattr(library.DataType, name)


def _with_activation(body: str, d: GemmDescription) -> str:
    """The source text of a 3.x kernel with an activation, which the emitter does not support: the collective builder takes
    the epilogue operation as its last template argument."""
    fusion = (
        f",\n    cutlass::epilogue::fusion::LinCombEltAct<cutlass::epilogue::thread::{_ACTIVATIONS[d.epilogue]}, "
        f"{_tag(d.output)}, {_tag(d.accumulator)}>"
    )
    head, end, tail = body.partition("\n  >::CollectiveOp;")
    return head + fusion + end + tail


def _tag(name: str) -> str:
    """A type in C++."""
    import cutlass_library as library

    return str(library.DataTypeTag[_type(name)])
