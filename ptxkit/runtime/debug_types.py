"""Names and types of a kernel's parameters from the DWARF of its PTX, which ``-G`` writes."""

from __future__ import annotations

from ptxkit.isa.dwarf import Dwarf, Entry
from ptxkit.isa.parameter_types import CppType
from ptxkit.runtime.source_types import spelled_type

_DEPTH = 32  # of types that refer to types
_POINTERS = {"pointer": "*", "reference": "&", "rvalue reference": "&"}
_PASSED_THROUGH = frozenset(("typedef", "volatile", "restrict"))


def debug_parameters(kernel: str, count: int, ptx: str) -> tuple[tuple[str, CppType], ...] | None:
    """(name, type) of the ``count`` parameters of the function ``kernel``, as far as the debugging information gives them.

    Returns:
        None where the PTX has no debugging information, or none about a function with this name and so many parameters. The
        name of a parameter may be ``""``, and its type of kind ``"class"`` without text, where it is unknown.
    """
    if ".debug_info" not in ptx:
        return None
    try:
        dwarf = Dwarf(ptx)
    except (ValueError, IndexError):  # sections that are cut off, or forms that no compiler writes for PTX
        return None
    for entry in (entry for unit in dwarf.units for entry in unit.walk()):
        if entry.tag == "subprogram" and kernel in (entry.attributes.get("linkage"), entry.attributes.get("name")):
            found = [child for child in entry.children if child.tag == "parameter"]
            if len(found) == count:
                return tuple((str(p.attributes.get("name", "")), spelled_type(_spelled(dwarf, p))) for p in found)
    return None


def _spelled(dwarf: Dwarf, entry: Entry) -> str:
    """The type of an entry in C++; "" where that is not known."""
    behind, const = "", False
    for _ in range(_DEPTH):
        reference = entry.attributes.get("type")
        target = dwarf.entries.get(reference) if isinstance(reference, int) else None
        if target is None:
            return f"void{behind}" if behind else ""  # a pointer without a type is void*
        entry = target
        if entry.tag in _POINTERS:
            behind, const = _POINTERS[entry.tag] + behind, False
        elif entry.tag == "const":
            const = True
        elif entry.tag == "unspecified":
            return f"void{behind}"
        elif entry.tag not in _PASSED_THROUGH:
            name = str(entry.attributes.get("name", ""))
            return f"{'const ' if const else ''}{name}{behind}" if name else ""
    return ""
