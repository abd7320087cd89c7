"""The registers of a bound instruction and their types, determined once for the instrumentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.step import Step
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Address, Function, Instruction, Negated, Operand, Register, Symbol
from ptxkit.isa.types import PtxType


def unsigned(t: PtxType) -> np.dtype:
    """The unsigned type whose bits mark the bits of a ``t``. For 128 bits it has 64 bits, which are all set or all clear."""
    if t.dtype.kind == "b":
        return np.dtype(np.bool_)
    return np.dtype(f"u{min(t.dtype.itemsize, 8)}")


@dataclass(frozen=True)
class Source:
    """A source operand: the register that it is read from, or None, and the type that it is read as."""

    register: int | None
    type: PtxType


@dataclass(frozen=True)
class Destination:
    """A destination: its register (None for a sink), the register's type, and the type that is written."""

    register: int | None
    register_type: PtxType
    type: PtxType


class Instrumented:
    """An instruction with its step.

    Attributes:
        number: in the program.
        sources, destinations: in the order of the step's arguments and results.
        guard: register of the predicate, or None.
        space: state space that the opcode, or the variable that the address names, gives; "" for generic addresses.
    """

    def __init__(
        self,
        number: int,
        where: Where,
        form: Form | None,
        step: Step,
        index: Mapping[str, int],
        types: Sequence[PtxType],
    ) -> None:
        i = where.instruction
        self.number = number
        self.where = where
        self.instruction = i
        self.name = i.name
        self.opcode = i.opcode
        self.parts = i.modifiers
        self.step = step
        named = "" if form is None else form.get("space", "")
        self.space = named.partition("::")[0] or space(i)
        self.sources = tuple(Source(_register(o, index), t) for o, t in step.sources)
        found = [(_register(o, index), t) for o, t in step.destinations]
        self.destinations = tuple(Destination(k, t if k is None else types[k], t) for k, t in found)
        self.guard = None if i.predicate is None else index[i.predicate.register.name]


def _register(operand: Operand | None, index: Mapping[str, int]) -> int | None:
    if isinstance(operand, Negated):
        operand = operand.operand
    if isinstance(operand, Register | Symbol):  # a function's parameter may be a register, parsed as a symbol
        return index.get(operand.name)
    return None


def space(i: Instruction) -> str:
    """State space that the opcode of a load, store or atomic names; "" for generic addresses."""
    for part in i.modifiers:
        head = part.partition("::")[0]
        if head in ("global", "const", "shared", "local", "param"):
            return head
    return "global" if i.name == "ldu" or "nc" in i.modifiers else ""


def accesses_local(f: Function, i: Instruction) -> bool:
    """Whether an instruction can access local memory, where functions also keep their parameters."""
    if i.name not in ("ld", "st", "ldu"):
        return False
    where = space(i)
    if where == "param" and f.is_entry:
        address = next((o for o in i.operands if isinstance(o, Address)), None)
        base = None if address is None else address.base
        return isinstance(base, Symbol) and base.name not in {v.name for v in f.params}
    return where in ("", "local", "param")
