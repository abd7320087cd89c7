"""Calls whose arguments are in another state space than the parameters of the function.

A register or a constant may be passed to a ``.param`` parameter, and a ``.param`` variable to a ``.reg`` parameter; the same
holds for results (PTX ISA, "call"). ptxas inserts the copies, and so does this module: a ``st.param`` or ``ld.param`` before
the call, and another one after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ptxkit.isa.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Operand,
    ParameterList,
    Prototype,
    Register,
    Symbol,
    Variable,
)
from ptxkit.isa.types import PtxType


def with_matching_arguments(function: Function, module: Module) -> Function:
    """The function, with copies around the calls that need them; usually it is the same object."""
    copies = _Copies(function)
    instructions: list[Instruction] = []
    starts = []
    for i in function.instructions:
        starts.append(len(instructions))
        callee = _callee(i, function, module.functions) if i.name == "call" else None
        if callee is None:
            instructions.append(i)
        else:
            instructions += copies.around(i, callee)
    if len(instructions) == len(function.instructions):
        return function
    starts.append(len(instructions))
    return replace(
        function,
        instructions=tuple(instructions),
        labels={name: starts[at] for name, at in function.labels.items()},
        registers={**function.registers, **copies.registers},
        variables={**function.variables, **copies.variables},
    )


def _callee(i: Instruction, function: Function, functions: Mapping[str, Function]) -> Function | Prototype | None:
    """The declaration of what a call calls: the function, the prototype, or the first function of a list of targets."""
    names = [o.name for o in i.operands if isinstance(o, Symbol)]
    for name in names:
        if name in functions:
            return functions[name]
        if name in function.prototypes:
            return function.prototypes[name]
        if targets := function.branch_targets.get(name):
            return functions.get(targets[0])
    return None


@dataclass
class _Copies:
    """What the copies of one function need: variables, registers."""

    function: Function
    registers: dict[str, PtxType] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)

    def around(self, i: Instruction, callee: Function | Prototype) -> list[Instruction]:
        """The call, with the copies before and after it."""
        before: list[Instruction] = []
        after: list[Instruction] = []
        operands = list(i.operands)
        lists = [n for n, o in enumerate(operands) if isinstance(o, ParameterList)]
        first = next((n for n, o in enumerate(operands) if not isinstance(o, ParameterList)), 0)
        for n in lists:
            given = operands[n]
            assert isinstance(given, ParameterList)
            formals = callee.returns if n < first else callee.params
            if len(formals) != len(given.items):
                continue
            copies = after if n < first else before
            items = [self._item(i, v, o, copies, n < first) for v, o in zip(formals, given.items, strict=True)]
            operands[n] = ParameterList(tuple(items))
        return [*before, replace(i, operands=tuple(operands)), *after]

    def _item(
        self, i: Instruction, formal: Variable, actual: Operand | None, copies: list[Instruction], result: bool
    ) -> Operand | None:
        """The operand to pass in place of ``actual``; a copy is added if it is in the wrong state space."""
        if formal.space == "param" and (isinstance(actual, Register | Immediate) or (actual is None and result)):
            variable = f"{formal.name or '_'}$copy{len(self.variables)}"
            self.variables[variable] = replace(formal, name=variable, linkage="", init=None)
            address = Address(Symbol(variable))
            bits = f"b{formal.type.bytes * 8}"
            if actual is not None:
                moved = (actual, address) if result else (address, actual)
                copies.append(replace(i, opcode=f"{'ld' if result else 'st'}.param.{bits}", operands=moved))
            return Symbol(variable)
        if formal.space == "reg" and isinstance(actual, Symbol):
            register = Register(f"{formal.name or '_'}$copy{len(self.registers)}")
            self.registers[register.name] = formal.type
            address, bits = Address(actual), f"b{formal.type.bytes * 8}"
            moved = (address, register) if result else (register, address)
            copies.append(replace(i, opcode=f"{'st' if result else 'ld'}.param.{bits}", operands=moved))
            return register
        return actual
