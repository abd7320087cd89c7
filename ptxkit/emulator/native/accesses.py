"""Loads and stores of memory that machine code performs."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.operands import TEMPORARIES, Places, width
from ptxkit.isa.model import Address, Immediate, Operand, Register, Symbol, Vector
from ptxkit.isa.types import TYPES, PtxType


@dataclass(frozen=True)
class Access:
    """A load or store.

    Attributes:
        number: of the instruction in the program.
        space: ``"global"``, ``"shared"``, ``"local"``, or "" for generic addresses.
        base, offset: the address. type: of an element. elements: registers or values.
        at: byte in the kernel's parameters, for a load of one; else -1.
    """

    number: int
    store: bool
    space: str
    base: Operand
    offset: int
    type: PtxType
    elements: tuple[Operand | None, ...]
    at: int = -1

    @property
    def size(self) -> int:
        """Bytes that a lane accesses."""
        return self.type.dtype.itemsize * len(self.elements)


def access_of(typed: TypedInstruction, places: Places) -> Access | None:
    """The access of a typed instruction; None where machine code cannot perform it."""
    i, form = typed.instruction, typed.form
    if i.name not in ("ld", "st") or form is None or len(i.operands) != 2:
        return None
    if form.get("sem") not in (None, "", "weak") or form.get("scope") or "hint" in form.opcode:
        return None
    t = TYPES.get(form["t"])
    if t is None or width(t) not in (8, 16, 32, 64):
        return None
    store = i.name == "st"
    address, values = (i.operands[0], i.operands[1]) if store else (i.operands[1], i.operands[0])
    elements = values.items if isinstance(values, Vector) else (values,)
    usable = places.can_read if store else places.can_write
    if not isinstance(address, Address) or not all(usable(e, t) for e in elements):
        return None
    if sum(isinstance(e, Symbol) and e.name in places.frame for e in elements) >= TEMPORARIES:
        return None
    space = (form.get("space") or ("global" if ".nc" in form.opcode else "")).partition("::")[0]
    if "cluster" in (form.get("space") or ""):
        return None
    function, layout = places.code.function, places.layout
    base: Operand = Immediate(address.offset) if address.base is None else address.base
    offset = 0 if address.base is None else address.offset
    if isinstance(base, Symbol):
        offset += base.offset
        base = Symbol(base.name)
    at = -1
    if space == "param":
        if function.is_entry and isinstance(base, Symbol) and base.name in layout.params:
            at = layout.params[base.name][0] + offset
            if store or at < 0 or at + t.dtype.itemsize * len(elements) > layout.param_bytes:
                return None
        space = "global" if function.is_entry and not isinstance(base, Symbol) else "local"
    if space == "const":
        space = "global"
    if space not in ("global", "shared", "local", "") or t.dtype.itemsize * len(elements) > 32:
        return None
    if at < 0 and not _readable(base, places):
        return None
    return Access(typed.number, store, space, base, offset, t, elements, at)


def _readable(base: Operand, places: Places) -> bool:
    if isinstance(base, Register):
        k = places.register(base)
        return k is not None and places.bits(k) in (32, 64)
    if isinstance(base, Symbol) and base.name in places.frame:
        return True
    return places.value(base, TYPES["u64"]) is not None
