"""Undefined bytes that a kernel may store to global memory, because it copies structures with their padding.

A structure is copied in words, in which some bytes are padding that nothing has written. The copy is no use of these bytes. A
store is therefore accepted if the undefined value has only been moved since it was loaded, and it is a part of a copy in which
other bytes are defined. The bytes are marked in the allocation, so that the comparison of outputs finds them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Addresses, Lanes, Mask
from ptxkit.emulator.initcheck.check import InitCheck
from ptxkit.emulator.initcheck.origins import COMPUTED, EXTENDED, FIELD
from ptxkit.emulator.simt.instrumented import Instrumented
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import named
from ptxkit.isa.model import Address, Instruction, Operand, Register, Vector

Sources = list[Shadow | None]
CHUNK = 16  # bytes: the widest store that all targets have
NEAR = 32
"""Bytes: padding is nearer to a member of its structure, unless its alignment is larger than that of any vector type. Elements
of an array that an unrolled loop copies are usually farther apart, because the threads of a block take turns."""


def refused(check: InitCheck, w: Instrumented, sources: Sources, k: int) -> Shadow | None:
    """The lanes of source ``k`` of a store to global memory whose undefined value is more than the copy of padding."""
    s = sources[k]
    if s is None:
        return None
    moved = (s.origin & (COMPUTED | FIELD)) == 0
    size = s.bits.dtype.itemsize
    for number in np.unique(s.origin[moved & (s.bits != 0)]).tolist() if moved.any() else ():
        origin = check.origins.find(number)
        if number & EXTENDED and (origin is None or origin.size < size):
            moved = moved & (s.origin != number)
    allowed = moved & (_has_defined_byte(s.bits) | _is_part_of_copy(check, w, s, moved))
    bits = np.where(allowed, s.bits.dtype.type(0), s.bits)
    return Shadow(bits, s.origin) if bits.any() else None


def _has_defined_byte(bits: Lanes) -> Mask:
    octets = np.ascontiguousarray(bits).view(np.uint8).reshape(*bits.shape, -1)
    found: Mask = (octets != 0xFF).any(-1)
    return found


def _is_part_of_copy(check: InitCheck, w: Instrumented, s: Shadow, moved: Mask) -> Mask:
    """The lanes in which other bytes of the same structure, which the same block copies, are defined."""
    out: Mask = np.zeros((1, 1, 1), np.bool_)
    lanes = moved & ~_has_defined_byte(s.bits)
    if not lanes.any():
        return out
    for number in np.unique(np.broadcast_to(s.origin, lanes.shape)[lanes]).tolist():
        origin = check.origins.find(number)
        if origin is None or origin.where is None or origin.is_result:
            continue
        for register in _copied_together(check, w, origin.where.instruction):
            other = check.registers.get(register)
            defined = np.ones((1, 1, 1), np.bool_) if other is None else _has_defined_byte(other.bits)
            out = out | ((s.origin == number) & defined)
    return out


def _copied_together(check: InitCheck, w: Instrumented, load: Instruction) -> Iterator[int]:
    """Registers that the block of the store ``w`` copies with the same distance, as it copies what ``load`` has loaded."""
    base, _ = _place(load)
    block = check.block
    if base is None or block is None:
        return
    to, _ = _place(w.instruction)
    loaded = {}
    for _, i in check.wave.launch.code.instructions:
        if i.name == "ld" and _place(i)[0] == base:
            loaded.update(_elements(i))
    index = check.register_index
    own = {name: at for name, at in _elements(w.instruction).items() if name in loaded}
    distances = {at - loaded[name] for name, at in own.items()}
    for _, i in block.instructions:
        if i.name != "st" or _place(i)[0] != to or i.modifiers[:1] != w.instruction.modifiers[:1]:
            continue
        for name, offset in _elements(i).items():
            near = any(abs(offset - at) < NEAR for at in own.values())
            if near and name in loaded and offset - loaded[name] in distances:
                yield index[name]


def _place(i: Instruction) -> tuple[Operand | None, int]:
    """Base and offset of the address of a load or store."""
    for o in i.operands:
        if isinstance(o, Address):
            return o.base, o.offset
    return None, 0


def _elements(i: Instruction) -> dict[str, int]:
    """The registers that a load writes, or a store reads, with their offsets from the base of the address."""
    _, start = _place(i)
    given = i.operands[0] if i.name == "ld" else i.operands[-1]
    items = given.items if isinstance(given, Vector) else (given,)
    size = int("".join(c for c in i.modifiers[-1] if c.isdigit()) or 0) // 8
    return {o.name: start + n * size for n, o in enumerate(items) if isinstance(o, Register)}


def mark(check: InitCheck, w: Instrumented, x: Group, addresses: Addresses, sources: Sources) -> None:
    """Note the undefined bytes that ``w`` writes to global memory: one element of each source, in order."""
    offset = 0
    for s, source in zip(sources, w.sources[1:], strict=True):
        size = source.type.bits // 8
        if s is not None:
            bits = np.broadcast_to(s.bits, x.shape)
            octets = np.ascontiguousarray(bits).view(np.uint8).reshape(*x.shape, -1)[..., :size] != 0
            octets &= x.active()[..., None]
            if octets.any():
                lane = tuple(int(v[0]) for v in np.nonzero(octets.any(-1)))
                whole = (
                    np.broadcast_to(addresses, x.shape)[..., None]
                    + np.arange(size, dtype=np.uint64)
                    + np.uint64(offset)
                )
                text = f"{named(w.where)} copies {check.source_of(x, s, lane)}"
                mark_bytes(check, whole[octets], text)
        offset += size


def mark_bytes(check: InitCheck, addresses: NDArray[np.uint64], text: str) -> None:
    """Note that the bytes at these addresses of global memory are undefined."""
    memory = check.mirror.memory.real
    for a, which in memory.partition(addresses):
        a.holding_undefined().mark((addresses[which] - np.uint64(a.base)).view(np.int64), text)


def is_padding(undefined: NDArray[np.uint8]) -> bool:
    """Whether the undefined bytes of a bulk copy, bits by byte of the destination, are only between defined ones."""
    chunks = undefined[: len(undefined) // CHUNK * CHUNK].reshape(-1, CHUNK)
    return not (chunks != 0).all(1).any()
