"""Watchpoints: detect that a watched value has changed, and which thread's store changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.evaluate import evaluate
from ptxkit.debugger.memory import Location, located
from ptxkit.debugger.places import Lane
from ptxkit.debugger.show import value_text
from ptxkit.errors import UsageError
from ptxkit.isa.model import Address, Immediate, Register, Symbol

if TYPE_CHECKING:
    from ptxkit.debugger.breakpoints import Watchpoint
    from ptxkit.debugger.thread import Thread
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Group

_WRITES = frozenset(("st", "red", "atom", "stmatrix", "multimem"))


class Stores:
    """The addresses that the lanes of a group are about to access with one instruction.

    Attributes:
        is_store: the instruction writes memory at these addresses.
        where: the instruction as text.
    """

    def __init__(self, wave: Wave, group: Group, block: BasicBlock, mask: Any) -> None:
        self.wave = wave
        self.block = block
        self.mask = mask
        number, instruction = block.instructions[0] if block.instructions else (-1, None)
        self.where = str(wave.launch.code.instructions[number][0]) if number >= 0 else "the end of a function"
        self.is_store = instruction is not None and instruction.name in _WRITES
        self.opcode = instruction.opcode if instruction is not None else ""
        self.addresses: Any = None
        operand = (
            next((o for o in instruction.operands if isinstance(o, Address)), None) if instruction is not None else None
        )
        if operand is not None and (self.is_store or self.opcode.startswith("mbarrier.init")):
            self.addresses = self._base(group, operand)

    def _base(self, group: Group, operand: Address) -> Any:
        wave, function = self.wave, self.block.function
        base: Any = None
        match operand.base:
            case Register():
                base = group.frame.registers[function.register_index[operand.base.name]]
            case Symbol():
                layout = wave.launch.code.layout
                name = operand.base.name
                if name in layout.shared:
                    base = np.full((1, 1, 1), layout.shared[name] + operand.base.offset, np.uint64)
                elif name in layout.globals:
                    base = np.full((1, 1, 1), layout.globals[name][0] + operand.base.offset, np.uint64)
                elif name in function.frame_offsets:
                    start = group.frame.local_base + function.frame_offsets[name] + operand.base.offset
                    base = np.full((1, 1, 1), start, np.uint64)
            case None | Immediate():
                base = np.zeros((1, 1, 1), np.uint64)
        return None if base is None else base.astype(np.uint64) + np.uint64(operand.offset & 0xFFFF_FFFF_FFFF_FFFF)

    def writer(self, watch: Watchpoint) -> Lane | None:
        """The thread whose store overlaps the watched memory, the last one if there are several; None if there is
        none."""
        if not self.is_store or self.addresses is None or not watch.nbytes:
            return None
        full = np.broadcast_to(self.addresses, self.wave.shape)
        space = next(
            (s for s in ("global", "shared", "local") if s in self.opcode.split(".") or f"{s}::cta" in self.opcode), ""
        )
        for c, w, k in reversed(np.argwhere(self.mask)):
            where = located(int(full[c, w, k]), space)
            if where.space == watch.space and watch.address - 16 < where.address < watch.address + watch.nbytes:
                if where.space != "global" and not self._same_cta(watch, int(c)):
                    continue
                if where.address + self._width() > watch.address:
                    return Lane(int(c), int(w), int(k))
        return None

    def _same_cta(self, watch: Watchpoint, cta: int) -> bool:
        return int(self.wave.ctas[cta]) == watch.owner[0]

    def _width(self) -> int:
        from ptxkit.debugger.ctypes import named_ptx_type

        parts = self.opcode.split(".")
        element = next((t.size for p in parts if (t := named_ptx_type(p)) is not None), 4)
        vector = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
        return element * vector

    def shared_words(self) -> list[int]:
        """The 8-byte words of the wave's shared memory at these addresses."""
        if self.addresses is None:
            return []
        wave = self.wave
        full = np.broadcast_to(self.addresses, wave.shape)
        found = set()
        for c, w, k in np.argwhere(self.mask):
            where = located(int(full[c, w, k]), "shared")
            offset = where.address & ((1 << 24) - 1) if wave.ranked else where.address
            found.add((int(c) * wave.shared_stride + offset) // 8)
        return sorted(found)


def changed(watch: Watchpoint, wave: Wave | None, owner: Callable[[], Thread | None]) -> str:
    """A description of the change; ``""`` without a change or without a value. The first check only records the value.

    Args:
        wave: that is executed. owner: gives the thread of the watchpoint; None where it is not part of the wave.
    """
    try:
        raw = _bytes(watch, wave, owner)
    except UsageError:
        return ""
    old, seen = watch.old, watch.seen
    watch.old, watch.seen = raw, True
    if not seen or raw == old:
        return ""
    before = "<not written>" if old is None else value_text(watch.type, old)
    return f"{watch.text}: {before} -> {'<not written>' if raw is None else value_text(watch.type, raw)}"


def _bytes(watch: Watchpoint, wave: Wave | None, owner: Callable[[], Thread | None]) -> bytes | None:
    """The bytes of the watched value. The address of a value in memory is computed at the first check only."""
    if watch.nbytes and watch.space == "global" and wave is not None:
        return bytes(wave.launch.machine.memory.slice(watch.address, watch.nbytes))
    thread = owner()
    if thread is None:
        raise UsageError("the thread is not resident")
    if watch.nbytes:
        return thread.memory(Location(watch.space, watch.address), watch.nbytes)
    value = evaluate(watch.node, thread)
    watch.type = value.type
    if value.location is not None and value.raw is not None:
        watch.space, watch.address, watch.nbytes = value.location.space, value.location.address, len(value.raw)
    return value.raw
