"""What machine code reads and writes: registers by their place in a row, constants, and addresses of variables."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxkit.emulator.lowering.literals import bits_of
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Immediate, Negated, Operand, Register, Symbol
from ptxkit.isa.types import TYPES, PtxType


def width(t: PtxType) -> int:
    """Bits of a value of a type in machine code."""
    return 1 if t.kind == "p" else t.dtype.itemsize * 8


TEMPORARIES = 4
"""Addresses of variables in local memory that an instruction may read."""


@dataclass
class Places:
    """Where the registers and the addresses of variables of a function are.

    Attributes:
        offsets: of each register, in the bytes of a row: its values for the 32 lanes of a warp follow each other.
        row_bytes: of all registers, and of the temporary places behind them.
        temporary: where the places are for addresses of variables that an instruction reads, each of 64 bits for each lane.
        frame: variables in local memory and parameters of the function -> position of their address in the frame's constants.
    """

    code: FunctionCode
    layout: Layout
    offsets: list[int] = field(default_factory=list)
    row_bytes: int = 0
    temporary: int = 0
    frame: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for t in self.code.register_types:
            self.offsets.append(self.row_bytes)
            self.row_bytes += LANES * t.dtype.itemsize
        self.temporary = self.row_bytes
        self.row_bytes += TEMPORARIES * LANES * 8
        function = self.code.function
        names = [*self.code.frame_offsets]
        if not function.is_entry:
            names += [v.name for v in (*function.params, *function.returns) if v.name not in self.code.register_index]
        self.frame = {name: n for n, name in enumerate(dict.fromkeys(names))}

    def register(self, operand: Operand | None) -> int | None:
        """The number of a register operand that fits; None for anything else."""
        if not isinstance(operand, Register):
            return None
        k = self.code.register_index[operand.name]
        return k if width(self.code.register_types[k]) in (1, 16, 32, 64) else None

    def bits(self, k: int) -> int:
        """The width of a register in machine code."""
        return width(self.code.register_types[k])

    def value(self, operand: Operand | None, t: PtxType) -> int | None:
        """The bits of an operand that has one value; None for others."""
        if isinstance(operand, Immediate):
            if t.kind == "p":
                return 1 if operand.value else 0
            try:
                return bits_of(operand, t)
            except UnsupportedError:
                return None
        if isinstance(operand, Symbol) and operand.name not in self.frame:
            value = self._address(operand.name)
            if value is None:
                return None
            return (value + operand.offset) & ((1 << width(t)) - 1)
        return None

    def _address(self, name: str) -> int | None:
        layout = self.layout
        if name in layout.shared:
            return None if layout.ranked else layout.shared[name]
        if name in layout.globals:
            return layout.globals[name][0]
        return layout.functions.get(name)

    def can_read(self, operand: Operand | None, t: PtxType) -> bool:
        """Whether machine code can read an operand as a type."""
        if isinstance(operand, Negated):
            return operand.sign == "!" and t.kind == "p" and self.can_read(operand.operand, t)
        bits = width(t)
        if bits not in (1, 8, 16, 32, 64):
            return False
        k = self.register(operand)
        if k is not None:
            have = self.bits(k)
            return (have == 1) == (bits == 1) and have >= bits
        if isinstance(operand, Symbol) and operand.name in self.frame:
            return bits == 64
        return self.value(operand, t) is not None

    def can_write(self, operand: Operand | None, t: PtxType) -> bool:
        """Whether machine code can write a result of a type to an operand; None discards it."""
        if operand is None:
            return True
        k = self.register(operand)
        if k is None:
            return False
        have, bits = self.bits(k), width(t)
        return (have == 1) == (bits == 1) and have >= bits

    def can_be_address(self, base: Operand) -> bool:
        """Whether machine code can read the base of an address."""
        if isinstance(base, Register):
            k = self.register(base)
            return k is not None and self.bits(k) in (32, 64)
        if isinstance(base, Symbol) and base.name in self.frame:
            return True
        return self.value(base, TYPES["u64"]) is not None


def can_translate_operands(typed: TypedInstruction, places: Places) -> bool:
    """Whether machine code can read and write all operands of a step, and its predicate."""
    step, predicate = typed.step, typed.instruction.predicate
    if step is None or (predicate is not None and places.register(predicate.register) is None):
        return False
    if sum(isinstance(o, Symbol) and o.name in places.frame for o, _ in step.sources) > TEMPORARIES:
        return False
    return all(places.can_read(o, t) for o, t in step.sources) and all(
        places.can_write(o, t) for o, t in step.destinations
    )
