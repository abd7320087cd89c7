"""The special registers that instructions read, and those of cooperative launches and of reserved shared memory."""

from __future__ import annotations

from collections.abc import Iterable

from ptxkit.isa.model import Function, Instruction, SpecialRegister

GRID_WORKSPACE = frozenset({"%envreg1", "%envreg2"})
"""The high and the low half of the address of the workspace of a cooperative launch; 0 in other launches. The workspace
holds the barrier of this_grid().sync() in cooperative_groups.h."""

NO_GRID_WORKSPACE = (
    "the kernel reads the workspace of a cooperative launch, as this_grid() does, but the launch is not cooperative: "
    "grid.sync() needs cooperative=True, or --cooperative"
)

RESERVED_SHARED = "%reserved_smem_offset_"
"""Prefix of the registers with the offsets of the shared memory that the system reserves in each CTA. PTX ISA,
"%reserved_smem_offset_begin"."""


def special_registers(instructions: Iterable[Instruction]) -> frozenset[str]:
    """Names of the special registers that are operands of the instructions."""
    return frozenset(o.name for i in instructions for o in i.operands if isinstance(o, SpecialRegister))


def reads_grid_workspace(function: Function) -> bool:
    """Whether a kernel contains ``this_grid()``, which reads the address of the workspace of a cooperative launch."""
    return function.may_mention(GRID_WORKSPACE) and special_registers(function.instructions) >= GRID_WORKSPACE


DRIVER_FUNCTIONS = frozenset({"vprintf", "__assertfail", "malloc", "free"})
"""Functions that device code declares extern and the driver provides. CUDA C++ Programming Guide, "Formatted Output",
"Assertion" and "Dynamic Global Memory Allocation"."""
