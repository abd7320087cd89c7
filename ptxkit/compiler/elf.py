"""The cubin file format: sections, symbols, attributes, embedded PTX, and the target.

A cubin is a 64-bit ELF file of machine 190. NVIDIA does not document its extensions; the facts here come from the
output of ``cuobjdump -elf``, which names the same bytes, and for the flags from LLVM's BinaryFormat/ELF.h (``EF_CUDA_*``):

- ``.text.NAME`` is the code of kernel NAME and of the functions it calls; 16 bytes an instruction;
- ``e_flags`` holds the architecture in bits 8-15 and ``a`` in bit 3 with ELF ABI 8, in bits 0-7 and bit 11 before;
- ``.nv.info.NAME`` and ``.nv.info`` are lists of attributes: format byte, attribute byte, two bytes of value or of size;
- ``.nv.shared.NAME`` is as large as the static shared memory, on sm_90 and newer including the driver's reserved part.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ptxkit.compiler.image import FunctionResources
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.targets import TARGETS, Target

_MACHINE_CUDA = 190
_SHT_NOBITS = 8

# Attributes of .nv.info, by the numbers that cuobjdump -elf names.
_MAX_THREADS, _REQNTID = 0x05, 0x10
_FRAME_SIZE, _REGCOUNT = 0x11, 0x2F
_CTA_PER_CLUSTER, _MAX_CLUSTER_RANK = 0x3D, 0x3F
_NUM_BARRIERS = 0x4C
_SIZED = 4  # the format whose two bytes are the size of the following value


@dataclass(frozen=True)
class Section:
    """One section: its position, size and links."""

    index: int
    name: str
    type: int
    offset: int
    size: int
    flags: int
    info: int


@dataclass(frozen=True)
class Symbol:
    """One symbol: its section's index, and value and size in bytes."""

    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class LaunchBounds:
    """The launch bounds from a kernel's directives; None for those that are absent.

    Attributes:
        block: ``.reqntid``, the block it must be launched with.
        max_threads: of a CTA, ``.maxntid``'s product.
        cluster: ``.reqnctapercluster``.
    """

    block: tuple[int, int, int] | None = None
    max_threads: int | None = None
    cluster: tuple[int, int, int] | None = None


class Cubin:
    """A cubin's bytes, read on demand.

    Args:
        data: the file.
        name: what to call it in messages.

    Raises:
        UsageError: this is not a cubin, or it is truncated.
        UnavailableError: its architecture is not known to ptxkit.
    """

    def __init__(self, data: bytes, name: str = "cubin") -> None:
        self.data = data
        self.name = name
        if not is_cubin(data):
            raise UsageError(f"{name} is not a cubin: {_what_it_is(data)}")
        try:
            self.sections = tuple(self._sections())
            self.symbols = tuple(self._symbols())
        except (struct.error, LookupError, ValueError, OverflowError) as error:
            raise damaged(name) from error
        if not self.texts:
            raise UsageError(f"{name} has no code: no section .text.*")

    @cached_property
    def target(self) -> Target:
        """The target it was made for, with its ``a`` or ``f`` where the file says."""
        flags = int(struct.unpack_from("<I", self.data, 48)[0])
        abi = self.data[8]
        capability, specific = (
            ((flags >> 8) & 0xFF, bool(flags & 8)) if abi >= 8 else (flags & 0xFF, bool(flags & 0x800))
        )
        written = self._option_arch()
        if written in TARGETS and TARGETS[written].cc == capability:
            return TARGETS[written]
        name = f"sm_{capability}{'a' if specific else ''}"
        found = TARGETS.get(name) or TARGETS.get(f"sm_{capability}")
        if found is None:
            raise UnavailableError(f"{self.name} is for sm_{capability}, which is not among {', '.join(TARGETS)}")
        return found

    @cached_property
    def release(self) -> tuple[int, int]:
        """The CUDA release of the ptxas that made it; (0, 0) when the file does not say."""
        note = self.section(".note.nv.tkinfo")
        match = re.search(rb"release (\d+)\.(\d+)", self.content(note)) if note else None
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def _option_arch(self) -> str:
        """The ``-arch`` that ptxas recorded, which has the ``f`` that the flags lack."""
        note = next((s for s in self.sections if s.name == ".note.nv.tkinfo"), None)
        match = re.search(rb"-arch[= ](sm_\w+)", self.content(note)) if note else None
        return match[1].decode() if match else ""

    @cached_property
    def texts(self) -> dict[str, Section]:
        """Kernel name -> the section with its code, in the order of the file's addresses."""
        found = [s for s in self.sections if s.name.startswith(".text.") and s.size]
        return {s.name.removeprefix(".text."): s for s in found}

    def section(self, name: str) -> Section | None:
        """The section called ``name``, or None."""
        return next((s for s in self.sections if s.name == name), None)

    def content(self, section: Section) -> bytes:
        """A section's bytes."""
        return b"" if section.type == _SHT_NOBITS else self.data[section.offset : section.offset + section.size]

    def encodings(self, function: str) -> list[int]:
        """The 128-bit words of a kernel's code, in order."""
        code = self.content(self.texts[function])
        pairs = struct.iter_unpack("<QQ", code[: len(code) // 16 * 16])
        return [low | high << 64 for low, high in pairs]

    def relocations(self, section: Section) -> dict[int, tuple[str, int]]:
        """Byte offset -> (name of the section that the address lies in, offset there), for ``section``."""
        found = {}
        for prefix, form in ((".rela", "<QQq"), (".rel", "<QQ")):  # up to sm_89 without addends
            table = self.section(f"{prefix}{section.name}")
            for offset, info, *addend in struct.iter_unpack(form, self.content(table)) if table else ():
                symbol = self.symbols[info >> 32] if info >> 32 < len(self.symbols) else None
                if symbol and symbol.section < len(self.sections):
                    found[offset] = (self.sections[symbol.section].name, symbol.value + sum(addend))
        return found

    @cached_property
    def ptx(self) -> str:
        """The PTX from which ptxas compiled, line for line, if line information was kept, else ``""``."""
        section = self.section(".nv_debug_ptx_txt")
        if section is None:
            return ""
        return self.content(section).decode(errors="replace").replace("\0", "\n").rstrip("\n") + "\n"

    def resources(self, function: str) -> FunctionResources:
        """A kernel's resources, without its spills, which are found in the code only."""
        text = self.texts[function]
        registers, frame = self._of_function(_REGCOUNT), self._of_function(_FRAME_SIZE)
        index = next((i for i, s in enumerate(self.symbols) if s.name == function), -1)
        own = dict(self._attributes(f".nv.info.{function}"))
        barriers = own[_NUM_BARRIERS][0] if _NUM_BARRIERS in own else (text.flags >> 20) & 0x7F
        constants = sum(
            s.size for s in self.sections if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(function)}", s.name)
        )
        return FunctionResources(
            registers=registers.get(index, text.info >> 24),
            shared_bytes=self._shared_bytes(function),
            local_bytes=frame.get(index, 0),
            barriers=barriers,
            constant_bytes=constants,
        )

    def bounds(self, function: str) -> LaunchBounds:
        """The requirements of the kernel's directives on a launch."""
        own = dict(self._attributes(f".nv.info.{function}"))

        def triple(attribute: int) -> tuple[int, int, int] | None:
            value = own.get(attribute, b"")
            return struct.unpack("<3I", value[:12]) if len(value) >= 12 else None

        most = triple(_MAX_THREADS)
        threads = most[0] * most[1] * most[2] if most else None
        return LaunchBounds(triple(_REQNTID), threads, triple(_CTA_PER_CLUSTER))

    def _shared_bytes(self, function: str) -> int:
        section = self.section(f".nv.shared.{function}")
        size = section.size if section else 0
        # Since sm_90 the first KiB is reserved for the driver, and the kernel's variables follow it.
        return max(0, size - self.target.limits.reserved_bytes) if self.target.cc >= 90 and size else size

    def _of_function(self, attribute: int) -> dict[int, int]:
        """Symbol index -> value, of an attribute that ``.nv.info`` contains once per function."""
        pairs = [value for kind, value in self._attributes(".nv.info") if kind == attribute and len(value) >= 8]
        return dict(struct.unpack("<II", value[:8]) for value in pairs)

    def _attributes(self, section_name: str) -> Iterator[tuple[int, bytes]]:
        section = self.section(section_name)
        data = self.content(section) if section else b""
        position = 0
        while position + 4 <= len(data):
            form, kind, value = struct.unpack_from("<BBH", data, position)
            size = value if form == _SIZED else 0
            yield kind, data[position + 4 : position + 4 + size] if size else data[position + 2 : position + 4]
            position += 4 + size

    def _sections(self) -> Iterator[Section]:
        start = struct.unpack_from("<Q", self.data, 40)[0]
        entry, count, names_index = struct.unpack_from("<HHH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, start + i * entry) for i in range(count)]
        names = headers[names_index]
        for index, (name, kind, flags, _, offset, size, _, info, _, _) in enumerate(headers):
            if kind != _SHT_NOBITS and offset + size > len(self.data):
                raise ValueError("a section ends past the file")
            yield Section(index, self._string(names[4], name), kind, offset, size, flags, info)

    def _symbols(self) -> Iterator[Symbol]:
        table, strings = self.section(".symtab"), self.section(".strtab")
        if table is None or strings is None:
            return
        for name, _, _, section, value, size in struct.iter_unpack("<IBBHQQ", self.content(table)):
            yield Symbol(self._string(strings.offset, name), section, value, size)

    def _string(self, table: int, offset: int) -> str:
        end = self.data.index(b"\0", table + offset)
        return self.data[table + offset : end].decode(errors="replace")


def damaged(name: str) -> UsageError:
    """The error to raise for a cubin with invalid tables."""
    return UsageError(f"{name} is a damaged cubin: its tables point past its end")


def is_elf(data: bytes) -> bool:
    """Whether these are an ELF file's bytes."""
    return data[:4] == b"\x7fELF"


def is_cubin(data: bytes) -> bool:
    """Whether these are a cubin's bytes."""
    return len(data) >= 64 and is_elf(data) and data[4] == 2 and struct.unpack_from("<H", data, 18)[0] == _MACHINE_CUDA


def _what_it_is(data: bytes) -> str:
    if not data:
        return "it is empty"
    if is_elf(data):
        return "it is an ELF file, but not for a GPU" if len(data) >= 64 else "it is truncated"
    return f"it starts with {data[:4].hex(' ')}"


# Sections that do not affect execution. Cubins for sm_100 and newer repeat theirs with the prefix .nv.merc.
BESIDE_CODE = re.compile(r"(\.nv\.merc)?\.(rela?\.)?((nv_)?debug|note|(sh)?strtab|symtab)")


def machine_code(cubin: bytes) -> bytes:
    """Hash of a cubin's code, constants and attributes, without its line information."""
    digest = hashlib.sha256()
    read = Cubin(cubin)
    for section in read.sections:
        if not BESIDE_CODE.match(section.name):
            digest.update(f"{section.name} {section.type} {section.size}\0".encode())
            digest.update(read.content(section))
    return digest.digest()
