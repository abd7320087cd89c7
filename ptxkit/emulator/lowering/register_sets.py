"""The registers that the instructions of a basic block read and write, as bit sets in Python integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.isa.model import Negated, Operand, Predicate, Register, Symbol


@dataclass(frozen=True)
class RegisterSets:
    """The registers of one straight run.

    Attributes:
        read: registers whose value from before the run is read, by an instruction or as the predicate of the terminator.
        loaded: these, and registers whose earlier value remains in lanes that a predicated write leaves out.
        defined: registers that the run always writes.
        written: registers that the run may write.
    """

    read: int
    loaded: int
    defined: int
    written: int


def register_sets(instructions: Sequence[TypedInstruction], block: BasicBlock, code: FunctionCode) -> RegisterSets:
    """The registers that the straight run ``instructions`` of ``block`` reads and writes.

    An instruction after a gate is executed only by the lanes for which its predicate holds, so that its write is unpredicated.
    """
    read = kept = defined = written = 0
    for typed in instructions:
        step, predicate = typed.step, None if block.gate is not None else typed.instruction.predicate
        if step is None:
            continue  # a form that is not implemented: the program is refused
        used = _read(predicate, code)
        for operand, _ in step.sources:
            used |= _read(operand, code)
        read |= used & ~defined
        targets = 0
        for operand, _ in step.destinations:
            if isinstance(operand, Register):
                targets |= 1 << code.register_index[operand.name]
        if predicate is None:
            defined |= targets
        else:
            kept |= targets & ~written
        written |= targets
    read |= _read(block.terminator.predicate, code) & ~defined
    return RegisterSets(read, read | kept, defined, written)


def registers_in(operands: Iterable[Operand | Predicate | None], index: Mapping[str, int]) -> int:
    """All registers that operands name."""
    found = 0
    for operand in operands:
        found |= _named(operand, index)
    return found


def _read(operand: Operand | Predicate | None, code: FunctionCode) -> int:
    """The register that is read for a source operand of a step, or for a predicate."""
    if isinstance(operand, Predicate):
        operand = operand.register
    elif isinstance(operand, Negated):
        operand = operand.operand
    if isinstance(operand, Register):
        return 1 << code.register_index[operand.name]
    if isinstance(operand, Symbol) and not code.function.is_entry and operand.name not in code.frame_offsets:
        k = code.register_index.get(operand.name)  # a parameter of a function may be a register
        return 0 if k is None else 1 << k
    return 0


def _named(operand: Operand | Predicate | None, index: Mapping[str, int]) -> int:
    if isinstance(operand, Register):
        return 1 << index[operand.name]
    if isinstance(operand, Predicate):
        return 1 << index[operand.register.name]
    found = 0
    for attribute in ("items", "coordinates", "extra"):
        for o in getattr(operand, attribute, ()) or ():
            found |= _named(o, index)
    for attribute in ("operand", "base", "first", "second"):
        o = getattr(operand, attribute, None)
        if o is not None:
            found |= _named(o, index)
    return found
