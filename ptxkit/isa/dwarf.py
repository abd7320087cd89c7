"""Reads the DWARF of a PTX text: entries as a tree, with abbreviations, strings and location lists resolved.

Source: DWARF Debugging Information Format, versions 2 to 4; NVIDIA's additions in libnvvm: a register is DW_OP_regx with the
ASCII characters of its name as the number, and DW_AT_address_class (0x33) names the state space of a location.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxkit.isa.debug_sections import Section, read_sections

TAGS = {
    0x01: "array",
    0x02: "class",
    0x04: "enumeration",
    0x05: "parameter",
    0x0B: "block",
    0x0D: "member",
    0x0F: "pointer",
    0x10: "reference",
    0x11: "unit",
    0x13: "struct",
    0x16: "typedef",
    0x17: "union",
    0x1C: "inheritance",
    0x1D: "inlined",
    0x21: "subrange",
    0x24: "base",
    0x26: "const",
    0x28: "enumerator",
    0x2E: "subprogram",
    0x34: "variable",
    0x35: "volatile",
    0x37: "restrict",
    0x3B: "unspecified",
    0x42: "rvalue reference",
}
ATTRIBUTES = {
    0x01: "sibling",
    0x02: "location",
    0x03: "name",
    0x0B: "size",
    0x11: "low",
    0x12: "high",
    0x1C: "const_value",
    0x22: "bound",
    0x2F: "upper_bound",
    0x31: "origin",
    0x33: "space",
    0x37: "count",
    0x38: "member_offset",
    0x3B: "line",
    0x3E: "encoding",
    0x40: "frame_base",
    0x47: "specification",
    0x49: "type",
    0x2007: "linkage",
    0x6E: "linkage",
}


@dataclass(frozen=True)
class Ref:
    """An address in the PTX: a label, a variable or a section, plus an offset in bytes."""

    symbol: str
    addend: int = 0


@dataclass
class Entry:
    """One debugging information entry.

    Attributes:
        offset: in ``.debug_info``, which references name.
        tag: of :data:`TAGS`, or its number.
        attributes: by the names of :data:`ATTRIBUTES`; addresses are a :class:`Ref`, expressions an :class:`Expression`.
    """

    offset: int
    tag: str
    attributes: dict[str, Any]
    children: list[Entry] = field(default_factory=list)

    def walk(self) -> Iterator[Entry]:
        """Yield the entry and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Expression:
    """A location expression: its bytes, and the symbols that they name by their offset in it."""

    data: bytes
    symbols: tuple[tuple[int, Ref], ...] = ()


class Dwarf:
    """The debugging information of one PTX text.

    Attributes:
        units: compilation units.
        entries: every entry by its offset.
    """

    def __init__(self, ptx: str) -> None:
        self._sections = read_sections(ptx) if ".debug_info" in ptx else {}
        self.units: list[Entry] = []
        self.entries: dict[int, Entry] = {}
        info = self._sections.get(".debug_info")
        at = 0
        while info is not None and at + 11 <= len(info.data):
            at = self._unit(info, at)

    def __bool__(self) -> bool:
        return bool(self.units)

    def locations(self, start: Ref | int) -> list[tuple[Ref, Ref, Expression]]:
        """A location list: (first address, address after the last, expression) of each range."""
        section = self._sections.get(".debug_loc", Section())
        if isinstance(start, Ref):
            at = start.addend + section.labels.get(start.symbol, 0)
        else:
            at = start
        found = []
        while at + 16 <= len(section.data):
            low, high = section.symbols.get(at), section.symbols.get(at + 8)
            if low is None or high is None:
                break  # two zeros end a list
            length = int.from_bytes(section.data[at + 16 : at + 18], "little")
            found.append((Ref(*low), Ref(*high), _expression(section, at + 18, length)))
            at += 18 + length
        return found

    # -- reading --------------------------------------------------------------------------------------

    def _unit(self, info: Section, start: int) -> int:
        length = int.from_bytes(info.data[start : start + 4], "little")
        end = start + 4 + length if length else len(info.data)
        place = info.symbols.get(start + 6, ("", 0))
        abbreviations = self._abbreviations(place[1] or int.from_bytes(info.data[start + 6 : start + 10], "little"))
        reader = _Reader(info, start + 11, self._sections, start)
        stack: list[Entry] = []
        while reader.at < min(end, len(info.data)):
            offset = reader.at
            code = reader.uleb()
            if code == 0:
                if not stack:
                    break
                stack.pop()
                if not stack:
                    break
                continue
            if code not in abbreviations:
                break
            tag, children, forms = abbreviations[code]
            attributes = {}
            for name, form in forms:
                value = reader.form(form)
                if name in ATTRIBUTES:
                    attributes[ATTRIBUTES[name]] = value
            entry = self.entries[offset] = Entry(offset, TAGS.get(tag, str(tag)), attributes)
            (stack[-1].children if stack else self.units).append(entry)
            if children:
                stack.append(entry)
        return end

    def _abbreviations(self, start: int) -> dict[int, tuple[int, bool, list[tuple[int, int]]]]:
        section = self._sections.get(".debug_abbrev", Section())
        reader = _Reader(section, start, self._sections, 0)
        found: dict[int, tuple[int, bool, list[tuple[int, int]]]] = {}
        while reader.at < len(section.data) and (code := reader.uleb()):
            tag, children = reader.uleb(), bool(reader.integer(1))
            forms = []
            while (pair := (reader.uleb(), reader.uleb())) != (0, 0):
                forms.append(pair)
            found[code] = tag, children, forms
        return found


class _Reader:
    def __init__(self, section: Section, at: int, sections: dict[str, Section], unit: int) -> None:
        self.section = section
        self.data = section.data
        self.at = at
        self.sections = sections
        self.unit = unit

    def integer(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def uleb(self) -> int:
        value, self.at = uleb(self.data, self.at)
        return value

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def string(self) -> str:
        end = self.data.index(0, self.at)
        text = bytes(self.data[self.at : end]).decode(errors="replace")
        self.at = end + 1
        return text

    def form(self, form: int) -> Any:
        symbol = self.section.symbols.get(self.at)
        match form:
            case 0x01:
                self.at += 8
                return Ref(*symbol) if symbol else int.from_bytes(self.data[self.at - 8 : self.at], "little")
            case 0x0A | 0x03 | 0x04 | 0x18 | 0x09:
                length = self.uleb() if form in (0x18, 0x09) else self.integer({0x0A: 1, 0x03: 2, 0x04: 4}[form])
                self.at += length
                return _expression(self.section, self.at - length, length)
            case 0x0B | 0x05 | 0x06 | 0x07 | 0x17:
                value = self.integer({0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x17: 4}[form])
                return Ref(*symbol) if symbol else value
            case 0x08:
                return self.string()
            case 0x0E:
                offset = self.integer(4)
                return self._pooled(symbol, offset)
            case 0x0C:
                return bool(self.integer(1))
            case 0x19:
                return True
            case 0x0D:
                return self.sleb()
            case 0x0F | 0x15:
                return self.uleb() + (self.unit if form == 0x15 else 0)
            case 0x11 | 0x12 | 0x13 | 0x14:
                return self.unit + self.integer({0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8}[form])
            case 0x10:
                return self.integer(4)
            case _:
                raise ValueError(f"DWARF form {form:#x}")

    def _pooled(self, symbol: tuple[str, int] | None, offset: int) -> str:
        pool = self.sections.get(".debug_str", Section())
        if symbol is not None:
            offset = symbol[1] + pool.labels.get(symbol[0], 0)
        end = pool.data.find(0, offset)
        return bytes(pool.data[offset : end if end >= 0 else None]).decode(errors="replace")


def uleb(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def register_name(number: int) -> str:
    """The register that DW_OP_regx names: the characters of its name, the first in the highest byte."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big").decode("ascii", errors="replace")


def _expression(section: Section, at: int, length: int) -> Expression:
    symbols = tuple((where - at, Ref(*s)) for where, s in section.symbols.items() if at <= where < at + length)
    return Expression(bytes(section.data[at : at + length]), symbols)
