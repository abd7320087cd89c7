"""Atomics that machine code performs: those on one integer of 32 or 64 bits, or one f32 or f64, in global or shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.emulator.instructions.atomics import adds_one, combines, is_loop, may_poll
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.accesses import base_of
from ptxkit.emulator.native.operands import Places
from ptxkit.isa.model import Address, Operand, Register
from ptxkit.isa.types import TYPES, PtxType

_TYPES = ("b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")


@dataclass(frozen=True)
class Atomic:
    """An atomic.

    Attributes:
        number: of the instruction in the program.
        op: what it computes, such as ``"add"``. type: of the element.
        space: ``"global"``, ``"shared"``, or "" for generic addresses.
        base, offset: the address. values: the operands after it. destination: a register, or None.
        combined: one lane accesses memory for all lanes of a warp.
        increments: it adds the constant 1, and returns nothing.
    """

    number: int
    op: str
    type: PtxType
    space: str
    base: Operand
    offset: int
    values: tuple[Operand | None, ...]
    destination: Operand | None
    combined: bool
    increments: bool

    @property
    def size(self) -> int:
        """Bytes that a lane accesses."""
        return self.type.dtype.itemsize

    @property
    def spins(self) -> bool:
        """Whether other threads are executed next, for which it may wait."""
        return may_poll("red" if self.destination is None else "atom", self.op, self.values[-1])

    @property
    def spaces(self) -> tuple[str, ...]:
        """As what its accesses to global, shared and local memory count."""
        loops = (is_loop(self.op, self.type.name, 1, space) for space in ("global", "shared"))
        return (*(f"{s}.loop" if loop else s for s, loop in zip(("global", "shared"), loops, strict=True)), "local")


def atomic_of(typed: TypedInstruction, places: Places) -> Atomic | None:
    """The atomic of a typed instruction; None where machine code cannot perform it."""
    i, form = typed.instruction, typed.form
    if i.name not in ("atom", "red") or form is None or typed.step is None:
        return None
    if ".async" in form.opcode or form["t"] not in _TYPES or form.get("vec") or form.get("hint"):
        return None
    t, operands = TYPES[form["t"]], list(i.operands)
    destination = operands.pop(0) if i.name == "atom" else None
    address, *values = operands
    if not isinstance(address, Address) or not all(places.can_read(v, t) for v in values):
        return None
    if not places.can_write(destination, t):
        return None
    base, offset = base_of(address)
    if not places.can_be_address(base):
        return None
    space = form["space"].partition("::")[0]
    k = places.code.register_index[base.name] if isinstance(base, Register) else None
    one_address = k is None or bool(places.code.uniform >> k & 1)
    return Atomic(
        typed.number,
        form["op"],
        t,
        space,
        base,
        offset,
        tuple(values),
        destination,
        one_address and combines(i.name, form["op"], form["t"], form["space"]),
        i.name == "red" and form["op"] == "add" and form["t"] in ("u32", "s32") and adds_one(values[-1]),
    )
