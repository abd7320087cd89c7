"""The two line tables of a cubin: address -> CUDA C++ line (``.debug_line``), address -> PTX line (``.nv_debug_line_sass``).

Both are DWARF line programs (DWARF 4, section 6.2). NVIDIA adds two extended opcodes (named in LLVM's Dwarf.def):
``DW_LNE_NVIDIA_inlined_call`` (0x90) with the row of the call, counted from 1 in its sequence, and the callee's name, and
``DW_LNE_NVIDIA_set_function_name`` (0x91). Addresses are relocated by the symbol of the function, so each row belongs to a
section. pyelftools reads neither these relocations nor these opcodes.

Where a function of one file calls an inlined function of another, ptxas adds a row for the call that has the callee's file
instead of the caller's; :func:`with_callers_files` corrects it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ptxkit.compiler.elf import Cubin, damaged
from ptxkit.isa.lexer import unescape_path
from ptxkit.isa.model import Loc

_INLINED_CALL, _SET_FUNCTION_NAME = 0x90, 0x91


class LineTable:
    """Address -> position, for every section of a cubin. An address belongs to the last row at or before it."""

    def __init__(self, rows: dict[str, list[tuple[int, Loc | None]]]) -> None:
        self._rows = {}
        for section, found in rows.items():
            last = dict(
                found
            )  # of the rows at one address, the last is the code's own, and the others are its call sites
            self._rows[section] = (sorted(last), last)

    def at(self, section: str, address: int) -> Loc | None:
        """The position of the instruction at ``address`` of ``section``, or None when the table has no entry for it."""
        addresses, rows = self._rows.get(section, ([], {}))
        index = bisect_right(addresses, address)
        return rows[addresses[index - 1]] if index else None

    def __bool__(self) -> bool:
        return bool(self._rows)


def read(cubin: Cubin, section_name: str) -> LineTable:
    """The table in ``section_name``; an empty one when the cubin has none (it was made without ``-lineinfo``).

    Raises:
        UsageError: the table is damaged.
    """
    section = cubin.section(section_name)
    if section is None:
        return LineTable({})
    try:
        return LineTable(_rows(cubin.content(section), cubin.relocations(section)))
    except (struct.error, LookupError, ValueError, ZeroDivisionError) as error:
        raise damaged(cubin.name) from error


def _rows(data: bytes, relocations: dict[int, tuple[str, int]]) -> dict[str, list[tuple[int, Loc | None]]]:
    rows: dict[str, list[tuple[int, Loc | None]]] = {}
    position = 0
    while position + 4 <= len(data):
        length = int(struct.unpack_from("<I", data, position)[0])
        for place, address, loc in _Program(data, position, length, relocations).rows():
            rows.setdefault(place, []).append((address, loc))
        position += 4 + length
    return rows


@dataclass(frozen=True)
class _Row:
    address: int
    file: int
    line: int
    column: int
    context: int  # 1-based row of the call that this one was inlined at; 0 for none
    function: int = 0  # where the name of the inlined function stands in .debug_str; 0 outside inlined functions


def with_callers_files(rows: list[_Row]) -> list[_Row]:
    """The rows of a sequence, with the file of call-site rows corrected.

    A call-site row has no instruction of its own; it only states where a function was inlined. Its file becomes that of the
    instructions at the same line of the same call or, if there are none, that of most instructions of the same function. A
    row that such instructions confirm is unchanged.
    """
    callers = {row.context for row in rows if 0 < row.context <= len(rows)}
    only_calls = {n for n in callers if n < len(rows) and rows[n].address == rows[n - 1].address}
    by_line: dict[tuple[int, int], Counter[int]] = {}  # call and line -> files of instructions
    by_function: dict[int, Counter[int]] = {}
    for number, row in enumerate(rows, 1):
        if row.context and number not in only_calls:
            by_line.setdefault((row.context, row.line), Counter())[row.file] += 1
            by_function.setdefault(row.function, Counter())[row.file] += 1
    fixed = list(rows)
    for number in only_calls:
        row = rows[number - 1]
        files = by_line.get((row.context, row.line)) or (by_function.get(row.function) if row.function else None)
        if files and row.file not in files:
            fixed[number - 1] = replace(row, file=files.most_common(1)[0][0])
    return fixed


class _Program:
    """The decoder of one DWARF line program: a header, followed by opcodes that append rows to the line table."""

    def __init__(self, data: bytes, start: int, length: int, relocations: dict[int, tuple[str, int]]) -> None:
        self.data, self.relocations = data, relocations
        self.position, self.end = start + 4, start + 4 + length
        version, header = struct.unpack_from("<HI", data, self.position)
        self.position += 6
        code = self.position + header
        self.step = self._byte()
        if version >= 4:
            self._byte()  # operations per instruction, for VLIW
        self._byte()  # default_is_stmt
        self.line_base = struct.unpack("<b", bytes([self._byte()]))[0]
        self.line_range, self.opcode_base = self._byte(), self._byte()
        self.argument_counts = [self._byte() for _ in range(self.opcode_base - 1)]
        directories = [""]
        while name := self._text():
            directories.append(name)
        self.files = [""]
        while name := self._text():
            directory = directories[self._unsigned()]
            self._unsigned(), self._unsigned()  # time of change and size, which NVRTC leaves 0
            path = name if not directory or name.startswith("/") else f"{directory}/{name}"
            self.files.append(unescape_path(path))
        self.position = code

    def rows(self) -> Iterator[tuple[str, int, Loc | None]]:
        """(section name, address, position) of every row; line 0 has no position."""
        while self.position < self.end:
            place, found, end = self._sequence()
            found = with_callers_files(found)
            for row in found:
                yield place, row.address, self._loc(row, found)
            yield place, end, None

    def _loc(self, row: _Row, rows: list[_Row], depth: int = 0) -> Loc | None:
        if not row.line:
            return None
        # The depth is limited, because the calls of a damaged table may form a cycle.
        caller = rows[row.context - 1] if 0 < row.context <= len(rows) and depth < 64 else None
        file = self.files[row.file] if row.file < len(self.files) else ""
        return Loc(file, row.line, row.column, self._loc(caller, rows, depth + 1) if caller else None)

    def _sequence(self) -> tuple[str, list[_Row], int]:
        """Rows up to the next end of a sequence."""
        place, address, file, line, column, context = "", 0, 1, 1, 0, 0
        function = 0
        rows: list[_Row] = []
        while self.position < self.end:
            opcode = self._byte()
            if opcode >= self.opcode_base:
                advance = opcode - self.opcode_base
                address += advance // self.line_range * self.step
                line += self.line_base + advance % self.line_range
                rows.append(_Row(address, file, line, column, context, function))
            elif opcode == 0:
                size = self._unsigned()
                after = self.position + size
                extended = self._byte()
                if extended == 1:
                    self.position = after
                    return place, rows, address
                if extended == 2:
                    place, address = self.relocations.get(
                        self.position, (place, int.from_bytes(self.data[self.position : after], "little"))
                    )
                elif extended == _INLINED_CALL:
                    context = self._unsigned()
                    function = self._unsigned() if context else 0
                self.position = after
            elif opcode == 1:
                rows.append(_Row(address, file, line, column, context, function))
            elif opcode == 2:
                address += self._unsigned() * self.step
            elif opcode == 3:
                line += self._signed()
            elif opcode == 4:
                file = self._unsigned()
            elif opcode == 5:
                column = self._unsigned()
            elif opcode == 8:
                address += (255 - self.opcode_base) // self.line_range * self.step
            elif opcode == 9:
                address += int(struct.unpack_from("<H", self.data, self.position)[0])
                self.position += 2
            else:
                for _ in range(self.argument_counts[opcode - 1]):
                    self._unsigned()
        return place, rows, address

    def _byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def _text(self) -> str:
        end = self.data.index(b"\0", self.position)
        text = self.data[self.position : end].decode(errors="replace")
        self.position = end + 1
        return text

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def _signed(self) -> int:
        start = self.position
        value = self._unsigned()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value
