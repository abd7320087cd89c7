"""Basic blocks: an optional gate, a sequence of instructions (the run), and a terminator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.step import Gate
from ptxkit.emulator.simt.threads import Group, Registers
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Instruction, Module, Operand, Predicate

Run: TypeAlias = Callable[[Registers, Group], Mask | None]
"""Executes the straight run of a block for a group; returns the predicate of the terminator, or None if it has none."""

InstrumentedRun: TypeAlias = Callable[[Registers, Group, object], Mask | None]
"""The same with a :class:`~ptxkit.emulator.instrumentation.Instrumentation`, to which every instruction is reported."""


class Linkable(Protocol):
    """The program for which terminators are linked: its functions by name, and the layout of its variables."""

    module: Module
    layout: Layout
    functions: dict[str, FunctionCode]


class Terminator:
    """Ends a block: determines where the threads of its group continue.

    Attributes:
        predicate: the predicate of the instruction; the run returns its value.
        ends: threads may exit, or return from the function, here.
        calls: whether it calls a function of the program.
    """

    ends = False
    calls = False

    def __init__(self, where: Where | None, predicate: Predicate | None = None, number: int = -1) -> None:
        self.where = where
        self.predicate = predicate
        self.number = number

    def link(self, labels: Mapping[str, int], program: Linkable) -> None:
        """Resolve labels to blocks, and names to functions."""

    def successors(self, following: int) -> tuple[int, ...]:
        """Blocks of the same function that control can reach from here."""
        return (following,)

    @property
    def splits(self) -> bool:
        """Whether it can separate lanes although it has a single successor."""
        return False

    def reads(self) -> tuple[Operand | Predicate | None, ...]:
        """The operands that it reads, besides the predicate, which the run evaluates."""
        return ()

    def writes(self) -> tuple[Operand | None, ...]:
        """Registers that it always writes before control reaches the block that follows."""
        return ()

    def decides(self) -> tuple[Operand | None, ...]:
        """The operands that determine where threads continue, besides the predicate."""
        return ()

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        """Move ``group`` on. ``predicate`` holds the guard's lanes, or None."""
        raise NotImplementedError

    def guarded(self, group: Group, block: BasicBlock, predicate: Mask | None) -> Group | None:
        """Send the lanes for which the predicate fails to the next block; returns the others, or None if there are none."""
        if predicate is None:
            return group
        taken, other = group.wave.split(group, predicate)
        if taken is not None:
            group.tally.lanes(taken, self.number)
        if other is not None:
            if taken is not None and block.reconverges is not None:
                group.wave.divergence.opened(taken, other, group.frame.serial, block.index, block.reconverges)
            group.wave.go(other, block.next)
        return taken


@dataclass
class BasicBlock:
    """A sequence of instructions without branches, and its terminator.

    Attributes:
        index: position in the program; schedule order.
        instructions: (number in the program, instruction) of the run and the terminator.
        next: the block that follows in the text.
        gate: decides which threads may execute the run; None for a block whose instructions cannot block.
        fast, general: the run, ``(registers, group) -> predicate of the branch or None``; None for an empty run;
            compiled at their first call.
        written: bit set of the registers that the run writes.
        registers: bit set of the registers that the run and the terminator read or write.
        accesses_local: whether the run can access local memory.
        make_instrumented: compiles the run with its instructions reported to an
            :class:`~ptxkit.emulator.instrumentation.Instrumentation`.
        reconverges: where lanes of one warp that the block separates meet again, if they may have to execute something
            together before; see :mod:`ptxkit.emulator.lowering.reconvergence`.
    """

    index: int
    function: FunctionCode
    instructions: list[tuple[int, Instruction]]
    terminator: Terminator
    next: int
    successors: tuple[int, ...] = ()
    gate: Gate | None = None
    fast: Run | None = None
    general: Run | None = None
    written: int = 0
    registers: int = 0
    accesses_local: bool = False
    make_instrumented: Callable[[], InstrumentedRun] | None = None
    _instrumented: InstrumentedRun | None = None
    reconverges: int | None = None

    @property
    def instrumented(self) -> InstrumentedRun:
        """The run as ``(registers, group, instrumentation) -> predicate``, compiled when it is first needed."""
        if self._instrumented is None:
            assert self.make_instrumented is not None
            self._instrumented = self.make_instrumented()
        return self._instrumented

    @property
    def converges(self) -> bool:
        """Whether it contains an instruction that lanes of a warp execute together."""
        return self.gate is not None and self.gate.converges
