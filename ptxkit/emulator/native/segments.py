"""Segments: the parts of a straight run, each of machine code for one warp after the other, or of instructions for numpy.

All warps execute a segment before the next one. If a lane needs numpy's checks, such as the message of a fault, numpy executes
the whole segment for its warp and the ones after it. An access to memory, which may need them, is therefore the first
instruction of its segment: the warp has changed nothing before. So is an atomic, and an
instruction whose result may be uncertain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.accesses import Access, access_of
from ptxkit.emulator.native.atomics import Atomic, atomic_of
from ptxkit.emulator.native.collectives import Collective, collective
from ptxkit.emulator.native.exponential import Exponential, exponential
from ptxkit.emulator.native.operands import Places, can_translate_operands, width
from ptxkit.emulator.native.scalar import Emit, emitter, packing

Code = Emit | Access | Atomic | Collective | Exponential
"""What writes the machine code of an instruction."""


@dataclass(frozen=True)
class Segment:
    """A part of a straight run.

    Attributes:
        block: index of the block. first: number of the first instruction, within the run.
        code: what writes each instruction; None for a segment that numpy executes.
    """

    block: int
    first: int
    instructions: tuple[TypedInstruction, ...]
    code: tuple[Code, ...] | None

    @property
    def accesses(self) -> tuple[Access | Atomic, ...]:
        """The loads, stores and atomics."""
        return tuple(c for c in self.code or () if _is_access(c))


def _is_access(code: Code | None) -> TypeGuard[Access | Atomic]:
    return isinstance(code, Atomic) or (isinstance(code, Access) and code.at < 0)


def segments(run: StraightRun, places: Places) -> list[Segment]:
    """Divide a run."""
    found: list[Segment] = []
    pending: list[tuple[TypedInstruction, Code | None]] = []
    first = 0

    def flush(end: int) -> None:
        nonlocal first
        if pending:
            code = tuple(c for _, c in pending if c is not None)
            instructions = tuple(i for i, _ in pending)
            found.append(
                Segment(run.block.index, first, instructions, code if len(code) == len(instructions) else None)
            )
        pending.clear()
        first = end

    for n, typed in enumerate(run.instructions):
        code = _code(typed, places)
        if pending:
            other = (code is None) != (pending[-1][1] is None)
            if other or _is_access(code) or isinstance(code, Exponential):
                flush(n)
        pending.append((typed, code))
    flush(len(run.instructions))
    return found


def _code(typed: TypedInstruction, places: Places) -> Code | None:
    if typed.instruction.predicate is not None and places.register(typed.instruction.predicate.register) is None:
        return None
    found = access_of(typed, places) or atomic_of(typed, places) or exponential(typed, places)
    if found is not None:
        return found
    step = typed.step
    if step is not None and not step.pure:
        return collective(typed, places)
    if step is None or not can_translate_operands(typed, places):
        return None
    if typed.instruction.name == "mov":
        sources, destinations = (tuple(width(t) for _, t in side) for side in (step.sources, step.destinations))
        if len(sources) > 1 or len(destinations) > 1:
            return packing(sources, destinations)
    return emitter(typed.instruction.opcode if typed.form is None else typed.form.opcode)
