"""A back end that shares no arithmetic with the numpy back end: it executes lane after lane, on Python integers.

It implements integer instructions, predicates, selection, and loads and stores of global memory, as the PTX manual states them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.threads import Group
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Address, Immediate, Negated, Operand, Predicate, Register, SpecialRegister, Symbol
from ptxkit.isa.types import TYPES

Values = dict[str, int]
"""The registers of one lane: their bits as unsigned integers."""


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def number(value: int, t: str) -> int:
    return signed(value, int(t[1:])) if t[0] == "s" else value


def shift_right(a: int, b: int, t: str) -> int:
    return number(a, t) >> min(b, int(t[1:]))


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul.lo": operator.mul,
    "mul.wide": operator.mul,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class ScalarRun:
    """One straight run, interpreted."""

    def __init__(self, run: StraightRun, code: FunctionCode, layout: Layout) -> None:
        self.run, self.code, self.layout = run, code, layout
        self.names = {k: name for name, k in code.register_index.items()}
        for typed in run.instructions:
            Lane.execute_of(typed)  # refuses what is not implemented

    def compile_fast(self, live: int) -> Callable[..., Any]:
        return self.compile_general(live)

    def compile_general(self, live: int) -> Callable[..., Any]:
        def execute(registers: list[Any], group: Group) -> Any:
            return self.execute(group)

        return execute

    def compile_instrumented(self, live: int) -> Callable[..., Any]:
        raise UnsupportedError("the scalar back end does not report instructions")

    def execute(self, group: Group) -> Any:
        sets = self.run.registers
        before = {k: group.fetch(k) for k in members(sets.loaded)}
        arrays = {k: None if v is None else np.broadcast_to(v, group.shape) for k, v in before.items()}
        after = {}
        for k in members(sets.written):
            old, dtype = arrays.get(k), self.code.register_types[k].dtype
            after[k] = np.zeros(group.shape, dtype) if old is None else old.copy()
        terminator = self.run.block.terminator.predicate
        decisions = np.zeros(group.shape, np.bool_)
        for place in np.argwhere(group.active()):
            at = tuple(place)
            values = {self.names[k]: bits_of(a[at]) for k, a in arrays.items() if a is not None}
            lane = Lane(group, at, values, self.code, self.layout)
            for typed in self.run.instructions:
                if typed.instruction.predicate is None or lane.holds(typed.instruction.predicate):
                    lane.execute(typed)
            for k, array in after.items():
                name = self.names[k]
                if name in values:
                    array[at] = np.array(values[name], f"u{array.dtype.itemsize}").view(array.dtype)
            if terminator is not None:
                decisions[at] = lane.holds(terminator)
        for k, array in after.items():
            group.store(k, array)
        return None if terminator is None else decisions


def bits_of(value: Any) -> int:
    return int(np.array(value).view(f"u{value.dtype.itemsize}"))


class Lane:
    """One thread in one run."""

    def __init__(self, group: Group, at: tuple[int, ...], values: Values, code: FunctionCode, layout: Layout) -> None:
        self.group, self.at, self.values, self.code, self.layout = group, at, values, code, layout

    def holds(self, p: Predicate) -> bool:
        return bool(self.values[p.register.name]) != p.negated

    def read(self, operand: Operand | None, bits: int) -> int:
        if isinstance(operand, Register):
            return self.values[operand.name] & (1 << bits) - 1
        if isinstance(operand, Immediate):
            return int(operand.value) & (1 << bits) - 1
        if isinstance(operand, SpecialRegister):
            lanes = self.group.wave.special(self.group, operand.name)
            return int(np.broadcast_to(lanes, self.group.shape)[self.at])
        assert isinstance(operand, Negated), operand
        return 1 - self.read(operand.operand, 1)

    def write(self, operand: Operand | None, value: int, bits: int) -> None:
        assert isinstance(operand, Register)
        self.values[operand.name] = value & (1 << bits) - 1

    @staticmethod
    def execute_of(typed: TypedInstruction) -> Callable[[Lane, TypedInstruction], None]:
        i = typed.instruction
        if typed.form is None:
            return Lane.move
        found = getattr(Lane, f"do_{i.name}", None)
        if found is None and not any(i.opcode.startswith(f"{name}.") for name in BINARY):
            raise UnsupportedError(f"{typed.where}: not in the scalar back end")
        return found or Lane.binary

    def execute(self, typed: TypedInstruction) -> None:
        self.execute_of(typed)(self, typed)

    # -- instructions --------------------------------------------------------------------------------------------------

    def move(self, typed: TypedInstruction) -> None:
        target, source = typed.instruction.operands
        bits = int(typed.instruction.opcode.rsplit(".", 1)[1][1:])
        self.write(target, self.read(source, bits), bits)

    def binary(self, typed: TypedInstruction) -> None:
        i = typed.instruction
        name = next(n for n in BINARY if i.opcode.startswith(f"{n}."))
        t = i.opcode.rsplit(".", 1)[1]
        bits = int(t[1:])
        a, b = (number(self.read(o, bits), t) for o in i.operands[1:])
        self.write(i.operands[0], BINARY[name](a, b), bits * (2 if name == "mul.wide" else 1))

    def do_not(self, typed: TypedInstruction) -> None:
        target, source = typed.instruction.operands
        self.write(target, ~self.read(source, 32), 32)

    def do_shl(self, typed: TypedInstruction) -> None:
        target, a, b = typed.instruction.operands
        self.write(target, self.read(a, 32) << min(self.read(b, 32), 32), 32)

    def do_shr(self, typed: TypedInstruction) -> None:
        target, a, b = typed.instruction.operands
        self.write(target, shift_right(self.read(a, 32), self.read(b, 32), typed.instruction.opcode[4:]), 32)

    def do_mad(self, typed: TypedInstruction) -> None:
        target, a, b, c = typed.instruction.operands
        self.write(target, self.read(a, 32) * self.read(b, 32) + self.read(c, 32), 32)

    def do_setp(self, typed: TypedInstruction) -> None:
        target, a, b = typed.instruction.operands
        _, how, t = typed.instruction.opcode.split(".")
        self.write(target, COMPARE[how](number(self.read(a, 32), t), number(self.read(b, 32), t)), 1)

    def do_selp(self, typed: TypedInstruction) -> None:
        target, a, b, p = typed.instruction.operands
        self.write(target, self.read(a if self.read(p, 1) else b, 32), 32)

    def do_ld(self, typed: TypedInstruction) -> None:
        target, address = typed.instruction.operands
        assert isinstance(address, Address)
        t = TYPES[typed.instruction.opcode.rsplit(".", 1)[1]]
        if isinstance(address.base, Symbol):  # a parameter of the kernel
            at = self.layout.params[address.base.name][0] + address.offset
            found = self.group.wave.launch.parameter(at, t.dtype)
            self.write(target, bits_of(found.reshape(-1)[0]), t.bits)
            return
        data = self.memory(address, t.bytes)
        self.write(target, int.from_bytes(data.tobytes(), "little"), t.bits)

    def do_st(self, typed: TypedInstruction) -> None:
        address, source = typed.instruction.operands
        assert isinstance(address, Address)
        t = TYPES[typed.instruction.opcode.rsplit(".", 1)[1]]
        data = self.read(source, t.bits).to_bytes(t.bytes, "little")
        self.memory(address, t.bytes)[:] = np.frombuffer(data, np.uint8)

    def memory(self, address: Address, nbytes: int) -> Any:
        return self.group.wave.launch.machine.memory.slice(self.read(address.base, 64) + address.offset, nbytes)


class ScalarBackEnd:
    """See :class:`ptxkit.emulator.lowering.backend.BackEnd`."""

    def translate(self, run: StraightRun, code: FunctionCode, layout: Layout) -> ScalarRun:
        return ScalarRun(run, code, layout)
