"""C variables that the debugging information of a PTX text names: their types, scopes and locations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.debugger.ctypes import VOID, CType, Field, array_of, numpy_type, pointer_to
from ptxkit.isa.dwarf import Dwarf, Entry, Expression, Ref, register_name, uleb

if TYPE_CHECKING:
    from ptxkit.isa.model import Function

_ENCODINGS = {2: "bool", 4: "float", 5: "int", 6: "char", 7: "uint", 8: "uint"}
_SPACES = {3: "global", 4: "const", 5: "global", 6: "local", 7: "param", 8: "shared"}
_INTERNAL = "_INTERNAL_"  # in the mangled names of variables with internal linkage
_REGX, _ADDR, _PLUS_UCONST, _FBREG = 0x90, 0x03, 0x23, 0x91


@dataclass(frozen=True)
class InRegister:
    """The variable is in a PTX register."""

    name: str


@dataclass(frozen=True)
class InMemory:
    """The variable is ``offset`` bytes into a PTX variable, in a state space (``""`` where that follows from the variable)."""

    symbol: str
    offset: int
    space: str


@dataclass(frozen=True)
class Variable:
    """A C variable at one place of its function.

    Attributes:
        name, type: in the source.
        location: None where the debugging information gives none at this place: the value has been optimised out.
        parameter: it is a parameter of its function.
        line: of its declaration.
    """

    name: str
    type: CType
    location: InRegister | InMemory | None
    parameter: bool = False
    line: int = 0


class Variables:
    """The variables of one module.

    Args:
        ptx: the module's text; without ``-G`` it names no variables, and ``bool(variables)`` is False.
    """

    def __init__(self, ptx: str) -> None:
        self._dwarf = Dwarf(ptx)
        self._types: dict[int, CType] = {}
        self._known: dict[tuple[str, int], list[Variable]] = {}

    def __bool__(self) -> bool:
        return bool(self._dwarf)

    def at(self, function: Function, position: int) -> list[Variable]:
        """The variables in scope before instruction ``position`` of a function, innermost first, then those of the module.

        Constants of namespaces with internal linkage, such as those of headers, are left out: the debugging information has
        mangled names for them, which no expression of the source contains.
        """
        known = self._known.get((function.name, position))
        if known is None:
            known = self._known[function.name, position] = self._at(function, position)
        return known

    def _at(self, function: Function, position: int) -> list[Variable]:
        found: list[Variable] = []
        for unit in self._dwarf.units:
            for entry in unit.children:
                if entry.tag == "subprogram" and self._covers(entry, function, position):
                    found = self._scope(entry, function, position) + found
        for unit in self._dwarf.units:
            found += [v for e in unit.children if e.tag == "variable" and (v := self._variable(e, function, position))]
        return [v for v in found if _INTERNAL not in v.name]

    def _scope(self, entry: Entry, function: Function, position: int) -> list[Variable]:
        own = [
            v
            for child in entry.children
            if child.tag in ("variable", "parameter") and (v := self._variable(child, function, position))
        ]
        for child in entry.children:
            if child.tag in ("block", "inlined") and self._covers(child, function, position):
                return self._scope(child, function, position) + own
        return own

    def _covers(self, entry: Entry, function: Function, position: int) -> bool:
        low, high = entry.attributes.get("low"), entry.attributes.get("high")
        return isinstance(low, Ref) and isinstance(high, Ref) and _between(function, low, high, position)

    def _variable(self, entry: Entry, function: Function, position: int) -> Variable | None:
        attributes = entry.attributes
        for link in ("origin", "specification"):
            source = self._dwarf.entries.get(attributes.get(link, -1))
            if source is not None:
                attributes = {**source.attributes, **attributes}
        name = attributes.get("name")
        if not isinstance(name, str):
            return None
        location = attributes.get("location")
        expression: Expression | None = location if isinstance(location, Expression) else None
        if isinstance(location, Ref | int) and not isinstance(location, bool):
            expression = next(
                (e for low, high, e in self._dwarf.locations(location) if _between(function, low, high, position)), None
            )
        place = None if expression is None else _location(expression, _SPACES.get(attributes.get("space", 0), ""))
        return Variable(
            name, self._type(attributes.get("type")), place, entry.tag == "parameter", attributes.get("line", 0)
        )

    # -- types --------------------------------------------------------------------------------------

    def _type(self, offset: int | None) -> CType:
        if offset is None:
            return VOID
        if offset not in self._types:
            self._types[offset] = VOID  # ends a structure that contains a pointer to itself
            entry = self._dwarf.entries.get(offset)
            self._types[offset] = VOID if entry is None else self._made(entry)
        return self._types[offset]

    def _made(self, entry: Entry) -> CType:
        a = entry.attributes
        name, size = a.get("name", ""), a.get("size", 0)
        match entry.tag:
            case "base":
                kind = _ENCODINGS.get(a.get("encoding", 7), "uint")
                if kind == "uint" and a.get("encoding") == 8 and name == "char":
                    kind = "char"
                letter = {"float": "f", "int": "i", "char": "i"}.get(kind, "u")
                dtype = f"{letter}{size}"
                if kind == "float" and size not in (2, 4, 8):
                    kind, dtype = "bits", f"u{size}"
                if size in (1, 2, 4, 8):
                    numpy_type(dtype)
                return CType(kind, name, size, dtype=dtype)
            case "pointer" | "reference" | "rvalue reference":
                return pointer_to(self._type(a.get("type")))
            case "const" | "volatile" | "restrict":
                return self._type(a.get("type"))
            case "typedef":
                return self._type(a.get("type"))
            case "enumeration":
                values = tuple(
                    (int(c.attributes.get("const_value", 0)), c.attributes.get("name", "")) for c in entry.children
                )
                return CType("enum", name or "enum", size or 4, dtype=f"i{size or 4}", values=values)
            case "array":
                made = self._type(a.get("type"))
                for child in reversed([c for c in entry.children if c.tag == "subrange"]):
                    count = child.attributes.get("count")
                    if count is None:
                        count = child.attributes.get("upper_bound", -1) + 1
                    made = array_of(made, count if isinstance(count, int) else 0)
                return made
            case "struct" | "class" | "union":
                return CType("struct", name or entry.tag, size, fields=tuple(self._fields(entry)))
            case _:
                return VOID

    def _fields(self, entry: Entry) -> Iterator[Field]:
        for child in entry.children:
            if child.tag not in ("member", "inheritance"):
                continue
            offset = child.attributes.get("member_offset", 0)
            if isinstance(offset, Expression):
                offset = uleb(offset.data, 1)[0] if offset.data[:1] == bytes([_PLUS_UCONST]) else 0
            made = self._type(child.attributes.get("type"))
            if child.tag == "inheritance":
                yield from (Field(f.name, f.type, f.offset + offset) for f in made.fields)
            else:
                yield Field(child.attributes.get("name", ""), made, offset)


def _between(function: Function, low: Ref, high: Ref, position: int) -> bool:
    start, end = function.labels.get(low.symbol), function.labels.get(high.symbol)
    return start is not None and end is not None and start <= position < end


def _location(expression: Expression, space: str) -> InRegister | InMemory | None:
    data = expression.data
    if not data:
        return None
    if data[0] == _REGX:
        return InRegister(register_name(uleb(data, 1)[0]))
    if data[0] == _ADDR and expression.symbols:
        symbol = expression.symbols[0][1]
        offset = symbol.addend
        if len(data) > 9 and data[9] == _PLUS_UCONST:
            offset += uleb(data, 10)[0]
        return InMemory(symbol.symbol, offset, space)
    return None
