"""Calls the checks for uninitialised values and arithmetic traps around each instruction that a wave executes.

An instrumented block runs as generated code that calls :meth:`Instrumentation.before` and :meth:`Instrumentation.after` around
each instruction.
Other blocks are executed as usual, so that a launch only pays for the checks that it requests.
"""

from __future__ import annotations

from ptxkit.emulator.arrays import Index, Lanes, Mask
from ptxkit.emulator.initcheck import effects
from ptxkit.emulator.initcheck.check import InitCheck
from ptxkit.emulator.initcheck.effects import Found
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.simt.blocks import BasicBlock, InstrumentedRun
from ptxkit.emulator.simt.instrumented import Instrumented
from ptxkit.emulator.simt.threads import Frame, Group, WaveState
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.traps import Traps
from ptxkit.isa.model import Register


class Instrumentation:
    """The checks of one wave."""

    def __init__(self, wave: WaveState, check: InitCheck | None, traps: Traps | None) -> None:
        self.wave = wave
        self.check = check
        self.traps = traps

    @staticmethod
    def of(
        wave: WaveState, settings: EmulatorSettings, has_stack: bool, reads_undefined: bool
    ) -> Instrumentation | None:
        """The instrumentation that a wave needs with these settings, or None.

        Args:
            has_stack: the kernel or a function that it calls uses local memory.
            reads_undefined: on some path, the kernel or such a function reads a register before it is written.
        """
        check = None
        if settings.initcheck or has_stack or reads_undefined:
            check = InitCheck(wave, settings.initcheck, has_stack)
        traps = Traps(settings.trap) if settings.trap else None
        return None if check is None and traps is None else Instrumentation(wave, check, traps)

    # -- the wave ----------------------------------------------------------------------------------------------------

    def wants(self, x: Group, block: BasicBlock) -> bool:
        """Whether the block must be executed by :meth:`run`, with the checks."""
        return self.traps is not None or (self.check is not None and self.check.wants(x.frame, block))

    def run(self, x: Group, block: BasicBlock) -> Mask | None:
        """Execute the instructions of the block with the checks; returns the predicate of its branch."""
        check = self.check
        if check is None:
            return block.instrumented(x.frame.registers, x, self)
        check.begin(x, block)
        predicate = block.instrumented(x.frame.registers, x, self)
        check.end(x, block)
        if check.registers:
            self.decides(x, block)
        return predicate

    def decides(self, x: Group, block: BasicBlock) -> None:
        """``x`` is about to execute the terminator of the block: what decides where its threads continue must be defined."""
        check, terminator = self.check, block.terminator
        if check is None or terminator.where is None:
            return
        index = x.frame.function.register_index
        if terminator.predicate is not None:
            check.register(terminator.where, x, index[terminator.predicate.register.name], "branches on")
        for operand in terminator.decides():
            if isinstance(operand, Register):
                check.register(terminator.where, x, index[operand.name], "jumps to a target given by")

    def part(self, x: Group, block: BasicBlock, run: InstrumentedRun) -> None:
        """Execute some instructions of the block with the checks."""
        assert self.check is not None
        self.check.begin(x, block)
        run(x.frame.registers, x, self)
        self.check.end(x, block)

    def gate(self, x: Group, block: BasicBlock) -> None:
        """``x`` is about to execute an instruction that can block: the operands that decide about that must be defined."""
        check, gate = self.check, block.gate
        if check is None or gate is None or not x.frame.undefined_bits:
            return
        number, instruction = block.instructions[0]
        where = self.wave.launch.code.instructions[number][0]
        index = x.frame.function.register_index
        if instruction.predicate is not None:
            what = "executes it or not depending on"
            check.register(where, x, index[instruction.predicate.register.name], what)
        for operand in gate.reads:
            if isinstance(operand, Register):
                check.register(where, x, index[operand.name], "synchronises with")

    def entered(self, frame: Frame) -> None:
        """A function has been entered."""
        if self.check is not None:
            self.check.entered(frame)

    def called(self, x: Group, start: int, nbytes: int) -> None:
        """The threads of ``x`` have called a function, whose stack is at ``start``."""
        if self.check is not None:
            self.check.called(x, start, nbytes)

    def passed(self, x: Group, source: Frame, register: int, target: Frame, into: int) -> None:
        """A call or a return has copied a register of the frame ``source`` into one of ``target`` for ``x``."""
        if self.check is not None:
            self.check.passed(x, source, register, target, into)

    def written(self, x: Group, register: int, undefined: Shadow | None = None) -> None:
        """Something other than generated code has written a register for ``x``, with these undefined bits (wave shape)."""
        if self.check is not None:
            self.check.written(x, register, undefined)

    def lost(self, x: Group, register: int, lanes: Mask, where: Where) -> None:
        """The instruction ``where`` has written a register; its value is undefined in ``lanes`` (wave shape)."""
        if self.check is None:
            self.check = InitCheck(self.wave, False, False)
        self.check.lost(x, register, lanes, where)

    def returned(self, threads: Index, start: int, nbytes: int) -> None:
        """A function that the driver provides, such as malloc, has written its result to the stack."""
        if self.check is not None:
            self.check.returned(threads, start, nbytes)

    # -- generated code ----------------------------------------------------------------------------------------------

    def guard(self, w: Instrumented, x: Group) -> None:
        """The predicate of an instruction with a side effect is about to be used."""
        if self.check is not None:
            self.check.guard(w, x)

    def before(self, w: Instrumented, x: Group, values: tuple[Lanes, ...], guard: Mask | None) -> Found | None:
        """``x`` is about to execute an instruction, under ``guard`` if that is pure; the result is passed to :meth:`after`."""
        if self.traps is not None:
            self.traps.before(w, x, values, guard)
        return None if self.check is None else effects.results(self.check, w, x, values)

    def after(
        self,
        w: Instrumented,
        x: Group,
        values: tuple[Lanes, ...],
        results: tuple[Lanes, ...],
        guard: Mask | None,
        found: Found | None,
    ) -> None:
        """The instruction has computed ``results``; ``found`` is what :meth:`before` returned."""
        if self.traps is not None:
            self.traps.after(w, x, values, results, guard if w.step.pure else None)
        if self.check is not None:
            self.check.after(w, found, guard)
