"""Undefined values in a collective that lanes of one warp execute at different instructions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.initcheck.arithmetic import flagged
from ptxkit.emulator.initcheck.check import InitCheck
from ptxkit.emulator.initcheck.origins import COMPUTED
from ptxkit.emulator.initcheck.shadow import as_data, every, from_data, resized, shadow
from ptxkit.emulator.simt.instrumented import unsigned
from ptxkit.emulator.simt.step import Step, result_tuple
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Negated, Operand, Register
from ptxkit.isa.types import PtxType


def met(
    check: InitCheck, step: Step, where: Where, union: Group, values: list[Lanes], parts: list[tuple[Group, Step]]
) -> Shadow | None:
    """Undefined bits of the first result of ``step``, wave shape; see WaveState.undefined_together.

    Bits that shfl moves stay with their values. Any other result is undefined for a warp if one of its operands is.
    """
    shape = union.wave.shape
    sources = [_gathered(shape, [(g, s.sources[n][0]) for g, s in parts], t) for n, (_, t) in enumerate(step.sources)]
    if all(s is None for s in sources) or not step.destinations:
        return None
    first, result = sources[0], step.destinations[0][1]
    if where.instruction.name == "shfl" and first is not None and all(s is None for s in sources[1:]):
        inner, rest = check.mirror.group(union), [union.select(v) for v in values[1:]]

        def exchanged(lanes: Lanes) -> Lanes:
            moved = result_tuple(step.call(inner, union.select(lanes), *rest))[0]
            assert moved is not None
            wide = np.zeros(shape, moved.dtype)
            wide[:] = np.broadcast_to(moved, union.shape) if not union.rows else 0
            if union.rows:
                wide[union.c, union.w] = np.broadcast_to(moved, union.shape)[:, 0]
            return wide

        bits = from_data(exchanged(as_data(first, step.sources[0][1])), result)
        return shadow(bits, exchanged(first.origin.view(np.uint32)).view(np.int32))
    lanes = np.zeros(shape, np.bool_)
    origin: NDArray[np.int32] = np.zeros(shape, np.int32)
    for s in sources:
        if s is not None:
            lanes |= s.lanes
            origin = np.maximum(origin, s.origin)
    warps = np.broadcast_to(lanes.any(-1, keepdims=True), shape)
    origin = np.broadcast_to(origin.max(-1, keepdims=True), shape)
    return flagged([shadow(every(warps, unsigned(result)), origin)], COMPUTED)[0]


def _gathered(shape: tuple[int, ...], operands: list[tuple[Group, Operand | None]], t: PtxType) -> Shadow | None:
    """The undefined bits of one source, which each group reads from an operand of its own."""
    bits, origin = np.zeros(shape, unsigned(t)), np.zeros(shape, np.int32)
    for group, operand in operands:
        if isinstance(operand, Negated):
            operand = operand.operand
        if not isinstance(operand, Register):
            continue
        found = group.frame.undefined.get(group.frame.function.register_index[operand.name])
        if found is not None:
            mask = group.full_mask()
            np.copyto(bits, resized(found.bits, unsigned(t)), where=mask)
            np.copyto(origin, found.origin, where=mask)
    return shadow(bits, origin)
