"""Segments of pure instructions without machine code, such as approximate functions.

numpy computes them on the registers of the active warps as they lie in memory, without a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.lowering.literals import constant
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.segments import Segment
from ptxkit.emulator.native.storage import Storage
from ptxkit.emulator.simt.step import result_tuple
from ptxkit.isa.model import Immediate, Operand, Register
from ptxkit.isa.types import PtxType

_ALL = b"\xff\xff\xff\xff"

Place = tuple[int, np.dtype]
"""A register, and the type as which it is read or written."""


@dataclass(frozen=True)
class Computation:
    """An instruction.

    Attributes:
        sources: registers, and constants as arrays. destinations: None for a result that is discarded.
    """

    call: Callable[..., Results]
    sources: tuple[Place | Lanes, ...]
    destinations: tuple[Place | None, ...]


def computations(segment: Segment, places: Places, gated: bool) -> tuple[Computation, ...] | None:
    """The instructions of a segment; None if one of them is not pure, has a predicate, or changes the width of an operand."""
    found = []
    for typed in segment.instructions:
        one = _computation(typed, places, gated)
        if one is None:
            return None
        found.append(one)
    return tuple(found)


def _computation(typed: TypedInstruction, places: Places, gated: bool) -> Computation | None:
    step = typed.step
    if step is None or not step.pure or (typed.instruction.predicate is not None and not gated):
        return None
    sources = [constant(o, t) if isinstance(o, Immediate) else _place(o, t, places) for o, t in step.sources]
    destinations = [None if o is None else _place(o, t, places) for o, t in step.destinations]
    if any(s is None for s in sources) or any(
        d is None and o is not None for d, (o, _) in zip(destinations, step.destinations, strict=True)
    ):
        return None
    return Computation(step.call, tuple(s for s in sources if s is not None), tuple(destinations))


def _place(operand: Operand | None, t: PtxType, places: Places) -> Place | None:
    if not isinstance(operand, Register):
        return None
    k = places.code.register_index[operand.name]
    have = places.code.register_types[k].dtype
    same = have.itemsize == t.dtype.itemsize and (have.kind == "b") == (t.dtype.kind == "b")
    return (k, t.dtype) if same else None


def compute(found: tuple[Computation, ...], storage: Storage, rows: NDArray[np.int32], masks: NDArray[np.uint32]) -> None:
    """Execute instructions.

    Args:
        storage: of the registers. rows: of the wave, of the active warps. masks: their active lanes.
    """
    first, count = int(rows[0]), len(rows)
    chosen: slice | NDArray[np.int32] = rows
    if int(rows[-1]) - first == count - 1:  # they are in ascending order
        chosen = slice(first, first + count)
    active: NDArray[np.bool_] | None = None
    if masks.tobytes() != _ALL * count:
        active = np.unpackbits(masks.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little").view(np.bool_)
    for one in found:
        values = [storage.rows(*s)[chosen][:, None] if isinstance(s, tuple) else s for s in one.sources]
        results = result_tuple(one.call(*values))
        if len(results) > 1:  # they may be the registers themselves, as for mov.v2
            results = tuple(None if r is None else r.copy() for r in results)
        for d, value in zip(one.destinations, results, strict=True):
            if d is None:
                continue
            assert value is not None
            registers = storage.rows(*d)
            new = value[:, 0] if value.shape[0] == count else value.reshape(-1)
            registers[chosen] = new if active is None else np.where(active, new, registers[chosen])
