"""Registers of one thread, taken from the emulator's arrays, which store a value common to many threads once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.ctypes import CType, named_ptx_type, ptx_type
from ptxkit.emulator.simt.opcode_patterns import CARRY
from ptxkit.emulator.simt.special import SPECIAL_TYPES, static_lanes
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.isa.model import Function, Instruction, Pair, Register, Vector
from ptxkit.isa.types import PtxType

if TYPE_CHECKING:
    from ptxkit.debugger.places import Lane
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Frame, Group

_UNTYPED = frozenset(("mov", "selp", "and", "or", "xor", "not", "shl", "prmt", "lop3", "shf", "bfi", "shfl", "phi"))


class Written:
    """Records which threads have written which registers; a register without a write has no value for a thread.

    Args:
        wave: whose registers.
    """

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self._masks: dict[tuple[int, int], Any] = {}  # (frame's serial, register) -> lanes that have written it

    def note(self, frame: Frame, bits: int, lanes: Any) -> None:
        """``lanes``, a mask of the wave's shape, have written the registers in the bit set ``bits`` of ``frame``."""
        while bits:
            low = bits & -bits
            key = frame.serial, low.bit_length() - 1
            known = self._masks.get(key)
            self._masks[key] = lanes.copy() if known is None else known | lanes
            bits ^= low

    def holds(self, frame: Frame, index: int, lane: Lane) -> bool:
        """Whether the thread has written the register."""
        mask = self._masks.get((frame.serial, index))
        return mask is not None and bool(mask[lane.cta, lane.warp, lane.lane])


def executing(group: Group, block: BasicBlock) -> Any:
    """The lanes of ``group`` whose guard lets them execute the instruction of ``block``, as a mask of the wave's shape."""
    mask = group.full_mask()
    guard = block.instructions[0][1].predicate if block.instructions else None
    if guard is None:
        return mask
    value = group.frame.registers[block.function.register_index[guard.register.name]]
    if value is None:
        value = np.zeros((1, 1, 1), np.bool_)
    return mask & (~value if guard.negated else value)


def lane_of(values: Any, lane: Lane) -> Any:
    """One thread's element of a lane array, which has the size 1 along every axis that it does not vary along."""
    c, w, k = values.shape
    return values[lane.cta if c > 1 else 0, lane.warp if w > 1 else 0, lane.lane if k > 1 else 0]


def register_bytes(frame: Frame, index: int, lane: Lane) -> bytes | None:
    """The bytes of a thread's register, or None where no thread has written it."""
    values = frame.registers[index]
    return None if values is None else bytes(np.asarray(lane_of(values, lane)).tobytes())


class _SpecialLanes:
    """The special registers of a wave that do not change, by name."""

    def __init__(self, wave: WaveState) -> None:
        self.known: dict[str, Any] = {}


def special_value(wave: Wave, group: Group | None, name: str, lane: Lane) -> tuple[CType, bytes]:
    """A special register as the thread would read it. Reading a clock here does not advance it."""
    made = ptx_type(SPECIAL_TYPES[name])
    if name.startswith(("%clock", "%globaltimer")):
        now = wave.ticks if name.startswith("%clock") else wave.launch.start_ns + wave.ticks
        return made, made.encode(now >> 32 if name.endswith("_hi") else now)
    known = wave.part(_SpecialLanes).known
    if name not in known:
        known[name] = static_lanes(wave, name)
    return made, bytes(np.asarray(lane_of(known[name], lane)).tobytes())


def visible_registers(function: Function) -> dict[str, PtxType]:
    """The registers that the PTX declares, in its order."""
    return {name: t for name, t in function.registers.items() if name != CARRY}


_INFERRED: dict[int, tuple[Function, dict[str, str]]] = {}  # by the function's identity: its hash takes too long


def _types_of(function: Function) -> dict[str, str]:
    """Register -> the type as which every typed instruction writes it; "" where they differ."""
    known = _INFERRED.get(id(function))
    if known is not None and known[0] is function:
        return known[1]
    found: dict[str, str] = {}
    _INFERRED[id(function)] = function, found
    for i in function.instructions:
        name = None if i.name in _UNTYPED else _result_type(i)
        if name is None or not i.operands:
            continue
        for register in _destinations(i.operands[0]):
            found[register] = name if found.get(register, name) == name else ""
    return found


def register_type(function: Function, name: str) -> CType:
    """The type to show a register as: its own, or of untyped bits the one as which all instructions write it."""
    declared = ptx_type(function.registers[name])
    if declared.kind != "bits":
        return declared
    named = named_ptx_type(_types_of(function).get(name, ""))
    return named if named is not None and named.size == declared.size and named.kind != "bits" else declared


def _result_type(i: Instruction) -> str | None:
    types = [m for m in i.modifiers if named_ptx_type(m)]
    if not types:
        return None
    if i.name in ("mul", "mad") and "wide" in i.modifiers:
        return types[0][0] + str(int(types[0][1:]) * 2)
    if i.name in ("st", "red", "setp", "call"):
        return None
    return types[0]


def _destinations(operand: Any) -> Iterable[str]:
    match operand:
        case Register():
            yield operand.name
        case Pair():
            yield from _destinations(operand.first)
        case Vector():
            for item in operand.items:
                yield from _destinations(item)
