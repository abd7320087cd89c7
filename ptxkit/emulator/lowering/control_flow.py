"""The basic blocks of a function, and the straight run of instructions in each.

Labels, branches and instructions that can block divide a function into blocks. An instruction that can block begins a block
of its own, so that a group that has to wait has completed everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxkit.emulator.instructions import branches
from ptxkit.emulator.lowering.register_sets import RegisterSets, register_sets
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.simt.blocks import BasicBlock, Linkable, Terminator
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.errors import UnsupportedError


@dataclass(frozen=True)
class StraightRun:
    """A basic block, the instructions that it executes between its gate and its terminator, and their registers."""

    block: BasicBlock
    instructions: tuple[TypedInstruction, ...]
    registers: RegisterSets


def build_blocks(
    code: FunctionCode,
    typed: Sequence[TypedInstruction],
    base: int,
    program: Linkable,
    stepping: bool,
    unsupported: list[str],
) -> list[StraightRun]:
    """Divide a function into basic blocks, and resolve the targets of their terminators.

    Args:
        base: index of the first block; the others follow.
        stepping: every instruction gets a block of its own.
        unsupported: receives a line for each name that cannot be linked.
    """
    function, end_of_text = code.function, len(typed)
    # one more block for the end of the function: execution that reaches it returns
    leaders = {0, end_of_text, *function.labels.values()}
    if stepping:
        leaders.update(range(end_of_text))
    for n, t in enumerate(typed):
        if t.terminator is not None:
            leaders.add(n + 1)
        elif t.gated is not None:
            leaders |= {n, n + 1}
    starts = sorted(leaders)
    labels = {name: base + starts.index(position) for name, position in function.labels.items()}
    code.entry = base
    found = []
    for k, start in enumerate(starts):
        run = list(typed[start : starts[k + 1]]) if k + 1 < len(starts) else list(typed[start:])
        instructions = [(t.number, t.instruction) for t in run]
        terminator: Terminator = branches.FallThrough()
        if start == end_of_text:
            terminator = branches.Exit(None) if function.is_entry else branches.Return(function, None)
        elif run and run[-1].terminator is not None:
            terminator = run.pop().terminator or terminator
        try:
            terminator.link(labels, program)
        except UnsupportedError as e:
            unsupported.append(str(e))
        following = base + k + 1
        block = BasicBlock(base + k, code, instructions, terminator, following)
        block.successors = terminator.successors(following)
        if run and run[0].gated is not None:
            block.gate = run[0].gated.gate
            if run[0].step is None:
                run = []
        found.append(StraightRun(block, tuple(run), register_sets(run, block, code)))
    return found
