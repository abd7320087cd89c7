"""The special registers that code reads."""

from __future__ import annotations

from collections.abc import Iterable

from ptxkit.isa.model import Instruction, SpecialRegister

GRID_WORKSPACE = frozenset({"%envreg1", "%envreg2"})
"""The high and the low half of the address of the workspace of a cooperative launch; 0 in other launches. cooperative_groups.h
reads them for this_grid(), whose sync() keeps its barrier there."""

NO_GRID_WORKSPACE = (
    "the kernel looks for the workspace of a cooperative launch, as this_grid() does, and there is none: "
    "grid.sync() needs cooperative=True"
)

RESERVED_SHARED = "%reserved_smem_offset_"
"""Begins the names of the registers that say where the shared memory lies that the system keeps in each CTA. PTX ISA,
"%reserved_smem_offset_begin"."""


def special_registers(instructions: Iterable[Instruction]) -> frozenset[str]:
    """Names of the special registers that are operands of the instructions."""
    return frozenset(o.name for i in instructions for o in i.operands if isinstance(o, SpecialRegister))


def reads_grid_workspace(instructions: Iterable[Instruction]) -> bool:
    """Whether the code is that of ``this_grid()``: it looks for the workspace of a cooperative launch."""
    return special_registers(instructions) >= GRID_WORKSPACE
