"""Loads and stores of memory that machine code performs."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.emulator.instructions.load_store import POLLING
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.context import SPACES
from ptxkit.emulator.native.operands import TEMPORARIES, Places, width
from ptxkit.isa.model import Address, Immediate, Operand, Symbol, Vector
from ptxkit.isa.types import TYPES, PtxType


@dataclass(frozen=True)
class Access:
    """A load or store.

    Attributes:
        number: of the instruction in the program.
        space: ``"global"``, ``"shared"``, ``"local"``, or "" for generic addresses.
        base, offset: the address. type: of an element. elements: registers or values.
        at: byte in the kernel's parameters, for a load of one; else -1.
        spins: it may poll memory, so that other threads are executed next.
    """

    number: int
    store: bool
    space: str
    base: Operand
    offset: int
    type: PtxType
    elements: tuple[Operand | None, ...]
    at: int = -1
    spins: bool = False

    spaces = SPACES

    @property
    def size(self) -> int:
        """Bytes that a lane accesses."""
        return self.type.dtype.itemsize * len(self.elements)


def access_of(typed: TypedInstruction, places: Places) -> Access | None:
    """The access of a typed instruction; None where machine code cannot perform it."""
    i, form = typed.instruction, typed.form
    if i.name not in ("ld", "st") or form is None or len(i.operands) != 2:
        return None
    if "hint" in form.opcode:
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
    base, offset = base_of(address)
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
    if at < 0 and not places.can_be_address(base):
        return None
    spins = not store and form.get("sem") in POLLING
    return Access(typed.number, store, space, base, offset, t, elements, at, spins)


def base_of(address: Address) -> tuple[Operand, int]:
    """The base of an address, and the bytes that are added to it."""
    if address.base is None:
        return Immediate(address.offset), 0
    if isinstance(address.base, Symbol):
        return Symbol(address.base.name), address.offset + address.base.offset
    return address.base, address.offset
