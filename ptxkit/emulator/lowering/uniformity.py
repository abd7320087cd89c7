"""Which registers have one value for all threads of a warp that execute an instruction together, as far as the text shows it.

ptxas combines the values of a warp for an atomic whose address is such a register, so that counts of memory accesses depend on
it. They must not depend on how the emulator represents values, which differs between its back ends.

A register is uniform if every instruction that writes it computes it from uniform operands, and if no branch that separates
threads of a warp decides which of several writes a thread has executed last.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.reconvergence import divergent_regions
from ptxkit.emulator.lowering.register_sets import registers_in
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.isa.model import Negated, Operand, Register, SpecialRegister, Symbol

_OF_THE_CTA = ("ctaid", "nctaid", "ntid", "gridid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid", "nwarpid")
"""Special registers that have one value in a CTA."""


def uniform_registers(runs: Sequence[StraightRun], code: FunctionCode) -> int:
    """The bit set of the uniform registers of a function.

    Args:
        runs: of the function, in the order of their blocks.
    """
    uniform = writes = several = 0
    for run in runs:
        for typed in run.instructions:
            targets = _targets(typed, code)
            several |= targets & writes | (targets if typed.instruction.predicate is not None else 0)
            writes |= targets
    uniform = writes & ~_written_elsewhere(runs, code)
    regions = divergent_regions([run.block for run in runs], code.function.is_entry)
    while True:
        before = uniform
        for run in runs:
            for typed in run.instructions:
                targets = _targets(typed, code)
                if targets & uniform and not _keeps(typed, uniform, code):
                    uniform &= ~targets
        for run, region in zip(runs, regions, strict=True):
            if region and _separates(run.block, uniform, code):
                for k in members(region):
                    uniform &= ~(runs[k].block.written & several)
        if uniform == before:
            return uniform


def _written_elsewhere(runs: Sequence[StraightRun], code: FunctionCode) -> int:
    """Registers that calls and gated instructions write, and parameters of the function."""
    found = registers_in([Register(v.name) for v in code.function.params if v.space == "reg"], code.register_index)
    for run in runs:
        found |= registers_in(run.block.terminator.writes(), code.register_index)
        if run.block.gate is not None:
            for typed in run.instructions[:1]:
                found |= _targets(typed, code)
    return found


def _targets(typed: TypedInstruction, code: FunctionCode) -> int:
    return 0 if typed.step is None else registers_in((o for o, _ in typed.step.destinations), code.register_index)


def _keeps(typed: TypedInstruction, uniform: int, code: FunctionCode) -> bool:
    """Whether the results of an instruction are uniform if these registers are."""
    step, predicate = typed.step, typed.instruction.predicate
    assert step is not None
    parts = typed.instruction.opcode.split(".")
    if not step.pure and not (parts[0] == "ld" and ("param" in parts or "const" in parts)):
        return False
    if parts[0] == "ld" and "param" in parts and not code.function.is_entry:
        return False
    operands = (*(o for o, _ in step.sources), None if predicate is None else predicate.register)
    return all(_is_uniform(o, uniform, code) for o in operands)


def _is_uniform(operand: Operand | None, uniform: int, code: FunctionCode) -> bool:
    if isinstance(operand, Negated):
        operand = operand.operand
    if isinstance(operand, SpecialRegister):
        return operand.name.lstrip("%").partition(".")[0] in _OF_THE_CTA
    if isinstance(operand, Register | Symbol) and operand.name in code.register_index:
        return bool(uniform >> code.register_index[operand.name] & 1)
    return True


def _separates(block: BasicBlock, uniform: int, code: FunctionCode) -> bool:
    """Whether the terminator of a block can send threads of a warp to different places."""
    terminator = block.terminator
    predicate = None if terminator.predicate is None else terminator.predicate.register
    return any(not _is_uniform(o, uniform, code) for o in (predicate, *terminator.decides()))
