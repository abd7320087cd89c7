"""A kernel and the functions that it calls, bound: ready for execution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.native.program import NativeProgram
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Function, Instruction
from ptxkit.isa.specials import special_registers


@dataclass
class EntryCode:
    """A bound kernel.

    Attributes:
        target: the target of the program, ``"sm_90a"``.
        has_stack: the kernel, or a function that it can call, uses local memory.
        native: machine code for it; None where it is executed one instruction at a time, or by a back end of its own.
        reads_undefined: on some path, the kernel or a function that it can call reads a register before it is written.
    """

    name: str
    path: str
    target: str
    function: Function
    layout: Layout
    blocks: list[BasicBlock]
    instructions: list[tuple[Where, Instruction]]
    entry: FunctionCode
    const_ranges: list[tuple[int, int]]
    has_stack: bool
    reads_undefined: bool
    native: NativeProgram | None = None

    @cached_property
    def specials(self) -> frozenset[str]:
        """Special registers that the kernel and what it calls read."""
        return special_registers(i for _, i in self.instructions)
