"""Block-scaled products of sm_100: their source text, by CUTLASS's kernel generator, and the layout of their scale factors.

``cutlass_cppgen``, which writes the other kernels, has no block-scaled ones. ``cutlass_library.generator`` has, for mixtures of
fp8, fp6 and fp4 with scale factors for 32 elements, and for fp4 with scale factors for 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.cutlass.formats import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ptxkit.cutlass.description import GemmDescription

_ROWS, _BLOCKS = 128, 4
"""Rows and blocks whose scale factors are neighbours in memory, 512 bytes."""


def scale_bytes(rows: int, k: int, block: int = 32) -> int:
    """Size of the scale factors of a matrix of ``rows`` x ``k`` elements, one for each ``block`` elements along k."""
    return -(-rows // _ROWS) * -(-k // (block * _BLOCKS)) * _ROWS * _BLOCKS


def scale_places(rows: int, k: int, block: int = 32) -> NDArray[np.int64]:
    """(rows, blocks): the place of each scale factor in memory. CUTLASS, ``Sm1xxBlockScaledConfig``, K-major."""
    r, b = np.arange(rows)[:, None], np.arange(-(-k // block))[None]
    atom = r // _ROWS * -(-k // (block * _BLOCKS)) + b // _BLOCKS
    places: NDArray[np.int64] = atom * (_ROWS * _BLOCKS) + r % 32 * 16 + r % _ROWS // 32 * 4 + b % _BLOCKS
    return places


class _Collected:
    """What the generator takes for a manifest of kernels."""

    kernel_filter = "all"

    def __init__(self) -> None:
        self.operations: list[Any] = []

    def append(self, operation: Any) -> None:
        """An operation has been made."""
        self.operations.append(operation)


def emit(d: GemmDescription) -> tuple[str, list[str]]:
    """The type ``{d.name}_type``, and the headers that it needs."""
    import cutlass_library as library
    from cutlass_library import gemm_operation, generator

    types, schedules, epilogues = library.DataType, library.KernelScheduleType, library.EpilogueScheduleType
    format_, sms = FORMATS[d.dtype], 2 if d.schedule == "two_sm" else 1
    element, scale = getattr(types, format_.element), getattr(types, format_.scale)
    instruction = library.MathInstruction(
        list(d.instruction),
        *(element, element, types.f32),
        library.OpcodeClass.BlockScaledTensorOp,
        library.MathOperation.multiply_add,
        scale,
    )
    count = d.cluster[0] // sms, *d.cluster[1:]
    tile = library.TileDescription(
        [size * n for size, n in zip(d.tile, count, strict=True)],
        *(d.stages, [4, 1, 1], instruction, 100, 100, list(d.cluster)),
    )
    row, column = library.LayoutType.RowMajor, library.LayoutType.ColumnMajor
    output = getattr(types, d.output)
    data = {
        "a_type": element,
        "b_type": element,
        "c_type": output,
        "d_type": output,
        "acc_type": types.f32,
        "epi_type": types.f32,
        "sf_type": scale,
        "sfd_type": {"type": types.void, "vector_size": None, "layout": None},
    }
    collected = _Collected()
    generator.CreateGemmUniversal3xOperator(
        collected,
        [[[row, d.alignment], [column, d.alignment], [row, d.output_alignment]]],
        [tile],
        [data],
        [
            [
                getattr(schedules, f"{format_.kernels}TmaWarpSpecialized{sms}SmSm100"),
                getattr(epilogues, f"TmaWarpSpecialized{sms}Sm"),
            ]
        ],
        gemm_kind=library.GemmKind.BlockScaledUniversal3x,
    )
    (operation,) = collected.operations
    operation.procedural_name = lambda: f"{d.name}_type"
    emitter = gemm_operation.EmitGemmUniversal3xInstance()
    return emitter.emit(operation), list(emitter.includes)
