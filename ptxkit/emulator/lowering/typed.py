"""Typed instructions: each has its opcode split into parts, and the step, gate or terminator to which it is bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.instructions.moves import bind_move
from ptxkit.emulator.lowering.named_addresses import check_spaces, with_space
from ptxkit.emulator.lowering.requirements import check_version, opcode_for
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.absent import reason_for
from ptxkit.emulator.simt.blocks import Terminator
from ptxkit.emulator.simt.opcode_patterns import CARRY, CARRY_TYPE, Form
from ptxkit.emulator.simt.step import Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import LaneFunction, lookup
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Function, Instruction, Module, Operand, Pair, Register
from ptxkit.isa.types import PtxType


@dataclass(frozen=True)
class TypedInstruction:
    """One instruction of a function.

    Attributes:
        number: of the instruction in the program.
        where: the instruction itself, and its name in messages.
        form: the parts of its opcode; None for mov, whose forms have no pattern.
        step: its effect, with typed operands; None if it only has a gate to pass.
        gate: for an instruction that can block, what decides which threads have to wait.
        terminator: for an instruction that ends a block, what decides where its threads continue.
    """

    number: int
    where: Where
    form: Form | None
    step: Step | None = None
    gated: Gated | None = None
    terminator: Terminator | None = None

    @property
    def instruction(self) -> Instruction:
        """The instruction as it was parsed."""
        return self.where.instruction


def bind_function(
    function: Function, module: Module, layout: Layout, target: int, first: int, unsupported: list[str]
) -> list[TypedInstruction]:
    """Bind every instruction of a function.

    Args:
        first: number of the first one in the program.
        unsupported: receives a line for each form that is not implemented.
    """
    labels = frozenset(function.labels.values())
    found = []
    for position, i in enumerate(function.instructions):
        where = Where(module.path, i, function.name)
        number = first + position
        form: Form | None = None
        bound: Step | Gated | Terminator | None = None
        try:
            check_version(where, module)
            opcode = opcode_for(where.instruction.opcode, module.target)
            form, bound = _bind(function, where, layout, target, number, position, labels, opcode)
        except UnsupportedError as e:
            unsupported.append(str(e))
        if isinstance(bound, Terminator):
            found.append(TypedInstruction(number, where, form, terminator=bound))
        elif isinstance(bound, Gated):
            found.append(TypedInstruction(number, where, form, bound.step, gated=bound))
        else:
            found.append(TypedInstruction(number, where, form, bound))
    return found


def _bind(
    function: Function,
    where: Where,
    layout: Layout,
    target: int,
    number: int,
    position: int,
    labels: frozenset[int],
    opcode: str,
) -> tuple[Form | None, Step | Gated | Terminator]:
    i = where.instruction
    if i.name == "mov":
        return None, bind_move(i, where, function)
    found = lookup(opcode)
    if found is None:
        raise UnsupportedError(f"{where}{reason_for(i.opcode)}")
    entry, form = found
    if entry.kind == "alu":
        # whether the instruction has a second destination: otherwise setp need not compute the complement
        pair = bool(i.operands) and isinstance(i.operands[0], Pair)
        form = replace(form, pair=pair)
        assert entry.signature is not None
        destinations, sources = entry.signature(form)
        return form, _arithmetic(i, where, entry.lane_function(form), destinations, sources, entry.optional)
    check_spaces(where, function, layout)
    form = with_space(entry, form, i, function, layout)
    binding = Binding(i, form, number, where, function, layout, target, position, labels)
    bound = entry.function(binding)
    assert isinstance(bound, Step | Gated | Terminator)
    return form, bound


def _arithmetic(
    i: Instruction,
    where: Where,
    call: LaneFunction,
    dtypes: tuple[PtxType, ...],
    stypes: tuple[PtxType, ...],
    optional: int,
) -> Step:
    operands = list(i.operands)
    if not operands:
        raise UnsupportedError(f"{where}: no operands")
    first = operands.pop(0)
    real = [t for t in dtypes if t is not CARRY_TYPE]
    outs: list[Operand | None] = [first.first, first.second] if isinstance(first, Pair) else [first]
    if len(outs) > len(real):
        raise UnsupportedError(f"{where}: {len(outs)} destinations, the form has {len(real)}")
    single = len(real) > 1 and len(outs) == 1
    outs += [None] * (len(real) - len(outs))
    destinations: list[Typed] = []
    for t in dtypes:
        destinations.append((Register(CARRY), t) if t is CARRY_TYPE else (outs.pop(0), t))
    sources: list[Typed] = []
    for t in stypes:
        if t is CARRY_TYPE:
            sources.append((Register(CARRY), t))
        elif operands:
            sources.append((operands.pop(0), t))
    if operands:
        raise UnsupportedError(f"{where}: {len(operands)} operand(s) too many")
    if len(sources) < len(stypes) - optional:
        raise UnsupportedError(f"{where}: {len(stypes) - optional - len(sources)} operand(s) missing")
    if single:
        whole = call

        def call(*lanes: Lanes) -> Results:
            result = whole(*lanes)
            return result if isinstance(result, tuple) else (result, None)

    return Step(call, tuple(sources), tuple(destinations), pure=True)
