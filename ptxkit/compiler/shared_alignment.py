"""Finds kernels whose dynamic shared memory is not aligned as their PTX demands.

nvJitLink before 13.1 drops the ``.align`` of ``.extern .shared`` arrays: they begin right after the static shared memory of the
kernel, at a multiple of 16 bytes. Where this is not a multiple of the alignment, tensor copies and wgmma descriptors address
other bytes than the PTX says. In the cubin of nvJitLink 13.0.88 the section ``.nv.shared.NAME`` ends where the array begins; it
has the alignment 16, that of nvJitLink 13.1.80 the one of the array. NVRTC 13.0.88 keeps the alignment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxkit.compiler.elf import Cubin
from ptxkit.isa.model import Function, Module, symbols_in
from ptxkit.isa.parser import parse

_ALIGNED = re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)")
_ALWAYS = 16


@dataclass(frozen=True)
class Misplaced:
    """A dynamic shared array at the wrong address.

    Attributes:
        kernel: its mangled name.
        name, align, line: of the array, in the PTX; the alignment is in bytes.
        offset: bytes of static shared memory before the array.
    """

    kernel: str
    name: str
    align: int
    line: int
    offset: int


def misplaced(text: str, cubin: bytes, name: str) -> Misplaced | None:
    """The first array in ``text`` that is not at a multiple of its alignment in ``cubin``, which was made of it."""
    if all(int(m[1]) <= _ALWAYS for m in _ALIGNED.finditer(text)):
        return None
    module, read = parse(text, name), Cubin(cubin)
    arrays = [v for v in module.variables.values() if v.space == "shared" and v.bytes == 0]
    for kernel in module.entries.values():
        section = read.section(f".nv.shared.{kernel.name}")
        size = 0 if section is None else section.size
        used = names_used(module, kernel)
        for array in sorted(arrays, key=lambda v: -v.align):
            if array.name in used and size % max(array.align, 1):
                reserved = read.target.limits.reserved_bytes if read.target.cc >= 90 else 0
                return Misplaced(kernel.name, array.name, array.align, array.line, size - reserved)
    return None


def names_used(module: Module, kernel: Function) -> set[str]:
    """The names that a kernel uses, and those that the functions use which it can call."""
    found: set[str] = set()
    todo = [kernel]
    while todo:
        function = todo.pop()
        names = {name for i in function.instructions for o in i.operands for name in symbols_in(o)} - found
        found |= names
        todo += [module.functions[n] for n in names if n in module.functions]
    return found
