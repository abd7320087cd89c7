"""Addresses that name a variable: the state space of the variable is that of the access.

Without a state space in the opcode, an address in a register is generic. The name of a shared or local variable, however,
stands for its address in that state space, which is not a generic address. Where the opcode has a state space, the variable
must lie in it; ptxas reports "State space mismatch between instruction and address".
"""

from __future__ import annotations

from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import Entry
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Address, Function, Instruction, Symbol

_SPACES = frozenset(("global", "shared", "local", "const", "param"))
_OF_ADDRESSES = ("cvta", "mapa", "getctarank", "isspacep")
"""Instructions that take the address itself, without brackets."""


def with_space(entry: Entry, form: Form, i: Instruction, function: Function, layout: Layout) -> Form:
    """The form, with the state space of the variable in the address if the opcode does not specify one."""
    if form.get("space") != "":
        return form
    address = next((o for o in i.operands if isinstance(o, Address)), None)
    if address is None or not isinstance(address.base, Symbol):
        return form
    found = layout.space_of(address.base.name, function)
    allowed = entry.sets.get("space", "").split()
    space = next((s for s in (found, f"{found}::cta") if s in allowed), "")
    return Form(form.opcode, {**form.parts, "space": space}) if space else form


def check_spaces(where: Where, function: Function, layout: Layout) -> None:
    """Compare the variables in an instruction's addresses with its state spaces.

    Raises:
        UnsupportedError: a variable lies in another state space.
    """
    i = where.instruction
    named = [(n, o.base.name) for n, o in enumerate(_addresses(i)) if isinstance(o.base, Symbol) and not o.coordinates]
    if i.name in _OF_ADDRESSES:
        named = [(0, o.name) for o in i.operands[1:] if isinstance(o, Symbol)]
    if not named:
        return
    spaces = [space for m in i.modifiers if (space := m.partition("::")[0]) in _SPACES]
    for n, name in named:
        found = layout.space_of(name, function)
        if not found:
            continue
        if i.name == "isspacep" or "to" in i.modifiers:
            raise UnsupportedError(f"{where}: takes an address in a register, not the name of a variable")
        if n < len(spaces) and spaces[n] != found:
            raise UnsupportedError(f"{where}: '{name}' is in {found} memory, not in {spaces[n]} memory")
        if not spaces and "tensormap" not in i.modifiers and i.name != "tensormap":
            _check_generic(where, name, found)


def _addresses(i: Instruction) -> list[Address]:
    return [o for o in i.operands if isinstance(o, Address)]


def _check_generic(where: Where, name: str, found: str) -> None:
    """An instruction without a state space accesses the variable ``name``."""
    if found in ("const", "param"):
        raise UnsupportedError(f"{where}: '{name}' is in {found} memory, which the instruction has to name")
    if found == "local" and where.instruction.name in ("atom", "red"):
        raise UnsupportedError(f"{where}: '{name}' is in local memory, in which there are no atomics")
