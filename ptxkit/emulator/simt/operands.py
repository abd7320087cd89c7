"""Operands that are read outside of generated code, by a gate or by the terminator of a block."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.allocations import poison
from ptxkit.emulator.simt.threads import Group
from ptxkit.isa.model import Immediate, Operand, Register


def operand_lanes(group: Group, operand: Operand | None, dtype: np.dtype) -> Lanes:
    """A register or immediate operand of a terminator or gate, as lanes of ``dtype``."""
    if isinstance(operand, Immediate):
        return np.full((1, 1, 1), int(operand.value) & ((1 << dtype.itemsize * 8) - 1), dtype)
    assert isinstance(operand, Register)
    value = group.fetch(group.frame.function.register_index[operand.name])
    if value is None:
        return poison(dtype)
    return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
