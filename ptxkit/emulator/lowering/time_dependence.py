"""What the clock can influence in a loop: which registers, and whether it is more than registers.

A loop that polls may read a clock only to choose how long it sleeps between two polls, as the waits of libcu++ do. Its
threads then wait in the same way for every value of the clock, so that a repeated state of everything else proves a deadlock.
A loop with a time limit is different: a comparison with the clock decides whether its threads leave it.

A value depends on the clock if it is read from it, computed from such a value, or written in blocks between a branch that such
a value decides and the block where the ways of that branch meet. The clock influences more than registers if such a value
reaches memory, an address, a call or a collective, if a branch that it decides may lead out of a loop or to the end of the
function, or if the blocks that such a branch selects do more than compute and sleep.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.reconvergence import decided_blocks
from ptxkit.emulator.lowering.register_sets import registers_in
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.isa.model import Operand, Predicate, Register, SpecialRegister

CLOCKS = ("%clock", "%globaltimer")
"""How the names of the special registers that show the time begin."""


def timed_registers(runs: Sequence[StraightRun], code: FunctionCode, executed: Set[int]) -> int | None:
    """The bit set of the registers whose values depend on the clock while only the blocks ``executed`` are executed.

    Args:
        runs: of the function, in the order of their blocks.
        executed: indices of the blocks in the program; those of other functions are ignored.

    Returns:
        None if the clock can influence more than registers, or where threads continue.
    """
    first = runs[0].block.index
    inside = {k - first for k in executed if first <= k < first + len(runs)}
    if not any(_reads_clock(t) for k in inside for t in runs[k].instructions):
        return 0
    regions = decided_blocks([run.block for run in runs])
    timed, selected = 0, 0
    while True:
        before = timed, selected
        for k in inside | set(members(selected)):
            found = _through(runs[k], code, timed, bool(selected >> k & 1))
            if found is None:
                return None
            timed |= found
            terminator = runs[k].block.terminator
            if timed & registers_in((terminator.predicate, *terminator.decides()), code.register_index):
                region = regions[k]
                if region is None or region >> k & 1 or terminator.calls or terminator.ends:
                    return None  # the clock decides whether threads leave a loop, or end
                selected |= region
        if (timed, selected) == before:
            returned = [Register(v.name) for v in code.function.returns if v.space == "reg"]
            return None if timed & registers_in(returned, code.register_index) else timed


def _through(run: StraightRun, code: FunctionCode, timed: int, selected: bool) -> int | None:
    """``timed`` after one block; None if the clock reaches more. ``selected``: the clock decides whether it is executed."""
    block, index = run.block, code.register_index
    terminator = block.terminator
    if selected and (block.gate is not None or terminator.calls or terminator.ends):
        return None
    gate: tuple[Operand | Predicate | None, ...] = ()
    if block.gate is not None:
        waits = block.instructions[0][1]
        gate = (*block.gate.reads, waits.predicate, *(() if run.instructions else waits.operands))
    if timed & registers_in((*terminator.reads(), *gate), index):
        return None
    for typed in run.instructions:
        step, instruction = typed.step, typed.instruction
        if step is None:
            return None
        targets = registers_in((o for o, _ in step.destinations), index)
        used = registers_in((*(o for o, _ in step.sources), instruction.predicate), index)
        if step.pure:
            if selected or timed & used or _reads_clock(typed):
                timed |= targets
        elif instruction.name != "nanosleep":
            named = registers_in((*instruction.operands, instruction.predicate), index) & ~targets
            if selected or timed & (used | named) or _reads_clock(typed):
                return None
    return timed


def _reads_clock(typed: TypedInstruction) -> bool:
    operands: list[Operand | None] = list(typed.instruction.operands)
    if typed.step is not None:
        operands += [o for o, _ in typed.step.sources]
    return any(isinstance(o, SpecialRegister) and o.name.startswith(CLOCKS) for o in operands)
