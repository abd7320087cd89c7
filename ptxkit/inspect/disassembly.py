"""From a cubin to :class:`~ptxkit.inspect.model.SassFunction`: one run of nvdisasm, combined with the cubin's own tables.

nvdisasm gives text, labels and register life ranges (``-lrm narrow``: one column per register, marked where it is read or
written). Encodings and line tables are read from the cubin, because nvdisasm cannot give everything at once: its JSON has no
labels and no life ranges, and its listing with lines (``-g``) cannot be combined with them. A run takes 0.2 to 0.5 s, mostly
for start-up, so the listing is kept in the disk cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.cache import default_cache, digest
from ptxkit.compiler.elf import Cubin
from ptxkit.compiler.image import FunctionResources, Image
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import read_bytes
from ptxkit.inspect import lines
from ptxkit.inspect.model import SassFunction, SassInstruction

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,]+),")
_LABEL = re.compile(r"([$.\w]+):\s*(//.*)?$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);(.*)")
_TARGET = re.compile(r"`\(([^)]+)\)")
_BRANCH_TARGETS = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_NOTE = re.compile(
    r'\(\*"?(.*?)"?\*\)'
)  # annotations that nvdisasm adds: "SpillRefill", "BRANCH_TARGETS ...", an indirect branch's target
_MARKS_SPILLS = (13, 0)  # the first release of ptxas known to mark spills in the cubin
_FILES = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}  # nvdisasm's names of the register files


def sass(what: Image | Cubin | bytes | str | os.PathLike[str]) -> dict[str, SassFunction]:
    """Disassemble every kernel of a compiled image or cubin.

    Args:
        what: the image from :func:`ptxkit.compiler.compile_source`, a cubin's bytes, or the path of a ``.cubin``.

    Returns:
        Mangled kernel name -> its code, in the order of the file.

    Raises:
        UsageError: no cubin, a damaged one, or an image that was compiled to PTX alone.
        UnavailableError: nvdisasm is not installed or too old, or the cubin's target is unknown.
    """
    cubin, image = _cubin(what)
    sources, ptx_lines = lines.read(cubin, ".debug_line"), lines.read(cubin, ".nv_debug_line_sass")
    listing = _listing(cubin)
    functions = {}
    for name, (labels, parsed) in _parse(listing).items():
        if name not in cubin.texts:
            continue
        encodings = cubin.encodings(name)
        place = f".text.{name}"
        instructions = []
        for instruction in _without_padding(parsed, labels):
            ptx = ptx_lines.at(place, instruction.address)
            instructions.append(
                replace(
                    instruction,
                    encoding=encodings[instruction.address // 16],
                    source=sources.at(place, instruction.address),
                    ptx_line=ptx.line if ptx else None,
                )
            )
        index = cubin.texts[name].index
        callees = {
            s.value: s.name for s in cubin.symbols if s.section == index and s.size and s.value and s.name in labels
        }
        functions[name] = SassFunction(
            name=name,
            target=cubin.target,
            instructions=tuple(instructions),
            labels=labels,
            callees=dict(sorted(callees.items())),
            resources=_with_spills(cubin.resources(name), instructions),
            spills_known=cubin.release >= _MARKS_SPILLS or not any(i.opcode in ("LDL", "STL") for i in instructions),
            bounds=cubin.bounds(name),
            ptx=image.ptx if image else cubin.ptx,
        )
    return {name: functions[name] for name in cubin.texts if name in functions}


def _with_spills(resources: FunctionResources, instructions: Iterable[SassInstruction]) -> FunctionResources:
    """The resources, with the bytes of spills added up from the code, which gives the same numbers as ptxas -v."""
    from ptxkit.inspect.classes import width_bits

    spills = Counter[str]()
    for instruction in instructions:
        if instruction.is_spill:
            spills[instruction.opcode] += width_bits(instruction) // 8
    return replace(resources, spill_store_bytes=spills["STL"], spill_load_bytes=spills["LDL"])


def _cubin(what: Image | Cubin | bytes | str | os.PathLike[str]) -> tuple[Cubin, Image | None]:
    if isinstance(what, Cubin):
        return what, None
    if isinstance(what, Image):
        if what.cubin is None:
            raise UsageError(f"{what.source_name} was compiled to PTX alone; without a cubin there is no SASS")
        return Cubin(what.cubin, what.source_name), what
    if isinstance(what, bytes):
        return Cubin(what), None
    path = Path(what)
    try:
        return Cubin(read_bytes(path), str(what)), None
    except OSError as error:
        raise UsageError(f"cannot read {what}: {error.strerror}") from error


def _listing(cubin: Cubin) -> str:
    """nvdisasm's listing of a cubin, from the cache or fresh."""
    tool = toolkit.nvdisasm()
    key = digest(b"nvdisasm\0" + tool.version.encode() + b"\0" + cubin.data)
    cached = default_cache().get(key)
    if cached is not None:
        try:
            return zlib.decompress(cached).decode()
        except (zlib.error, UnicodeDecodeError):
            default_cache().drop(key)
    text = _disassemble(tool, cubin)
    default_cache().put(key, zlib.compress(text.encode(), 1))
    return text


def _disassemble(tool: toolkit.Tool, cubin: Cubin) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin.data)
        file.flush()
        # For life ranges nvdisasm analyses the data flow, which can fail on code that ptxas did not generate.
        ranged = _run(tool, ["-c", "-lrm", "narrow", file.name])
        if ranged.returncode == 0:
            return ranged.stdout
        plain = _run(tool, ["-c", "-ndf", file.name])
        if plain.returncode == 0:
            return plain.stdout
    complaint = (plain.stderr or plain.stdout).strip().replace(file.name, cubin.name).splitlines() or [
        "no reason given"
    ]
    if re.search(r"unrecognized|unsupported|unknown|not supported", complaint[0], re.IGNORECASE):
        raise UnavailableError(
            f"nvdisasm {tool.version} cannot read {cubin.name} for {cubin.target}: {complaint[0]}; "
            f"run: pip install -U nvidia-cuda-nvdisasm"
        )
    raise UsageError(f"nvdisasm cannot read {cubin.name}: {complaint[0]}")


def _run(tool: toolkit.Tool, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(tool.path), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(
            f"nvdisasm at {tool.path} cannot be run ({error.strerror}); "
            f"run: pip install --force-reinstall 'nvidia-cuda-nvdisasm>=13.2,<14'"
        ) from error


def _parse(listing: str) -> dict[str, tuple[dict[str, int], list[SassInstruction]]]:
    """Kernel name -> (labels, instructions) of a listing."""
    found: dict[str, tuple[dict[str, int], list[SassInstruction]]] = {}
    labels: dict[str, int] = {}
    instructions: list[SassInstruction] = []
    columns: _Columns | None = None
    header: list[str] = []
    for line in listing.splitlines():
        if match := _INSTRUCTION.match(line):
            instructions.append(_instruction(match, columns))
        elif (match := _LABEL.match(line)) and not match[1].startswith(".text."):
            labels[match[1]] = instructions[-1].address + 16 if instructions else 0
        elif match := _SECTION.match(line):
            labels, instructions, columns, header = {}, [], None, []
            found[match[1]] = (labels, instructions)
        elif columns is None and line.lstrip().startswith("//"):
            header.append(line[line.index("//") :])
            if len(header) > 2 and header[-1].startswith("// +"):
                columns = _Columns.read(header)
    return found


def _instruction(match: re.Match[str], columns: _Columns | None) -> SassInstruction:
    address, predicate, name, operands, rest = match.groups()
    opcode, *modifiers = name.split(".")
    named = _BRANCH_TARGETS.search(operands)
    targets = tuple(_TARGET.findall(operands)) + tuple(named[1].split(",") if named else ())
    live, reads, writes = columns.of(rest) if columns else ({}, (), ())
    return SassInstruction(
        address=int(address, 16),
        opcode=opcode,
        modifiers=tuple(modifiers),
        operands=_NOTE.sub("", _TARGET.sub(r"\1", operands)).strip(),
        predicate=predicate or "",
        live=live,
        reads=reads,
        writes=writes,
        targets=targets,
        is_spill='"SpillRefill"' in operands,
    )


def _without_padding(instructions: list[SassInstruction], labels: dict[str, int]) -> Iterator[SassInstruction]:
    """The instructions without the trailing NOPs and without the branch to itself that ptxas places before them."""
    end = len(instructions)
    while end and instructions[end - 1].opcode == "NOP":
        end -= 1
    if end > 1:
        last = instructions[end - 1]
        if last.opcode == "BRA" and not last.predicate and [labels.get(t) for t in last.targets] == [last.address]:
            end -= 1
    return iter(instructions[:end])


@dataclass(frozen=True)
class _Columns:
    """The meaning of the columns of a life-range table.

    Attributes:
        counts: register file -> span of the column that holds the number of live registers.
        registers: position -> register name.
    """

    counts: dict[str, tuple[int, int]]
    registers: dict[int, str]

    @classmethod
    def read(cls, header: list[str]) -> _Columns:
        """From the table's head: a row of names, a blank one, then the registers' numbers written downwards."""
        names, *rows = [line for line in header if line.startswith("// |")]
        edges = [i for i, character in enumerate(names) if character == "|"]
        counts, registers = {}, {}
        for left, right in pairwise(edges):
            file = _FILES.get(names[left + 1 : right].strip(), names[left + 1 : right].strip())
            number_column = next((row.index("#", left, right) for row in rows if "#" in row[left:right]), left)
            counts[file] = (left + 1, number_column + 1)
            for position in range(number_column + 1, right):
                digits = "".join(row[position] for row in rows if row[position : position + 1].isdigit())
                if digits:
                    registers[position] = f"{file}{int(digits)}"
        return cls(counts, registers)

    def of(self, text: str) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
        """(live registers by file, read, written) of the table's row at the end of a line."""
        start = text.rfind("// |")
        if start < 0:
            return {}, (), ()
        row = text[start:]
        live = {}
        for file, (left, right) in self.counts.items():
            number = row[left:right].strip()
            live[file] = int(number) if number.isdigit() else 0
        reads, writes = [], []
        for position, register in self.registers.items():
            mark = row[position : position + 1]
            if mark in ("v", "x"):
                reads.append(register)
            if mark in ("^", "x"):
                writes.append(register)
        return live, tuple(reads), tuple(writes)
