"""Debug sections of a PTX text as bytes: NVRTC writes DWARF as ``.section`` directives when it compiles with ``-G``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"^\s*\.section\s+(\.debug_\w+)\s*\{(.*?)^\s*\}", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"([\w$%.]+):|\.b(8|16|32|64)\s+([^\n;]*)")
_SYMBOL = re.compile(r"([A-Za-z_$%.][\w$%.]*)\s*(?:\+\s*(\d+))?")


@dataclass
class Section:
    """The content of one section.

    Attributes:
        data: its bytes, with zeros where an address or an offset of another section belongs.
        symbols: byte offset -> (label, variable or section, addend) that belongs there.
        labels: label -> byte offset.
    """

    data: bytearray = field(default_factory=bytearray)
    symbols: dict[int, tuple[str, int]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)


def read_sections(ptx: str) -> dict[str, Section]:
    """Section name (``".debug_info"``) -> content. Values that are differences of labels are left 0."""
    found = {}
    for match in _SECTION.finditer(ptx):
        section = found[match[1]] = Section()
        for token in _TOKEN.finditer(match[2]):
            if token[1]:
                section.labels[token[1]] = len(section.data)
                continue
            size = int(token[2]) // 8
            for item in token[3].split("//")[0].split(","):
                _append(section, item.strip(), size)
    return found


def _append(section: Section, item: str, size: int) -> None:
    if not item:
        return
    try:
        value = int(item, 0)
    except ValueError:
        value = 0
        symbol = _SYMBOL.fullmatch(item)
        if symbol:
            section.symbols[len(section.data)] = symbol[1], int(symbol[2] or 0)
    section.data += (value & ((1 << size * 8) - 1)).to_bytes(size, "little")
