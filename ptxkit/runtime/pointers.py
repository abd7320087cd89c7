"""Finds the 64-bit kernel parameters that are addresses, from the instructions that use them."""

from __future__ import annotations

from ptxkit.isa.model import Address, Function, Instruction, Operand, Register, Symbol

_KEEPS = {
    "mov": (1,),
    "cvta": (1,),
    "add": (1, 2),
    "sub": (1,),
    "mad": (3,),
    "selp": (1, 2),
    "min": (1, 2),
    "max": (1, 2),
}
"""Instruction -> indices of the operands from which an address passes to the result, possibly with an offset."""

_TAKES_HANDLE = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
"""Instructions that write the handle of a texture or surface object in brackets."""


_OBJECTS = {
    "tex": "Texture",
    "tld4": "Texture",
    "suld": "Surface",
    "sust": "Surface",
    "sured": "Surface",
}
"""Instructions that access texels -> the kind of their object."""


def addresses(function: Function) -> tuple[frozenset[str], frozenset[str]]:
    """(parameters that are addresses, parameters that may be), by name.

    A parameter is an address if a memory access or ``cvta.to`` uses it, with or without an offset, as its address. It
    may be an address if such an address is computed from several parameters, or if it is passed to a function.
    """
    sources = _sources(function)
    sure: set[str] = set()
    unsure: set[str] = set()
    for instruction in function.instructions:
        for used in _used_as_address(instruction):
            found = _in(used, sources)
            (sure if len(found) == 1 else unsure).update(found)
        if instruction.opcode.startswith("st.param"):
            unsure |= _in(instruction.operands[1], sources)
    return frozenset(sure), frozenset(unsure - sure)


def handles(function: Function) -> dict[str, str]:
    """The parameters that are handles of objects: name -> ``"Texture"`` or ``"Surface"``.

    A parameter is a handle if a texture or surface instruction that accesses texels names it, and nothing else, as its object.
    """
    if not function.may_mention(_OBJECTS):
        return {}
    accesses = [i for i in function.instructions if i.name in _OBJECTS]
    if not accesses:
        return {}
    sources = _sources(function)
    found = {}
    for instruction in accesses:
        for operand in instruction.operands:
            names = _in(operand.base, sources) if isinstance(operand, Address) else set()
            found.update(dict.fromkeys(names, _OBJECTS[instruction.name]) if len(names) == 1 else {})
    return found


def _sources(function: Function) -> dict[str, set[str]]:
    """Register -> the parameters whose values it holds, possibly with an offset."""
    names = {p.name for p in function.params}
    sources: dict[str, set[str]] = {}
    keeping = [i for i in function.instructions if i.name in _KEEPS or i.opcode.startswith("ld.param")]
    changed = True
    while changed:  # a loop may carry an address backwards
        changed = False
        for instruction in keeping:
            target = instruction.operands[0] if instruction.operands else None
            if isinstance(target, Register):
                known = sources.setdefault(target.name, set())
                found = _kept(instruction, names, sources) - known
                changed = changed or bool(found)
                known |= found
    return sources


def _kept(instruction: Instruction, names: set[str], sources: dict[str, set[str]]) -> set[str]:
    if instruction.name == "ld":
        read = instruction.operands[1]
        symbol = read.base if isinstance(read, Address) else None
        return {symbol.name} & names if isinstance(symbol, Symbol) else set()
    operands = [instruction.operands[k] for k in _KEEPS[instruction.name] if k < len(instruction.operands)]
    return set().union(*(_in(o, sources) for o in operands))


def _used_as_address(instruction: Instruction) -> list[Operand | None]:
    if instruction.opcode.startswith("cvta.to"):
        return [instruction.operands[1]]
    if instruction.name in _TAKES_HANDLE:
        return []
    return [o.base for o in instruction.operands if isinstance(o, Address)]


def _in(operand: Operand | None, sources: dict[str, set[str]]) -> set[str]:
    return sources.get(operand.name, set()) if isinstance(operand, Register) else set()
