"""What lowering asks of a back end: to turn straight runs of typed instructions into functions that execute them."""

from __future__ import annotations

from typing import Protocol

from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.blocks import InstrumentedRun, Run
from ptxkit.emulator.simt.function import FunctionCode


class Translation(Protocol):
    """One straight run, translated but for what depends on liveness. Sets of registers are the bits of an integer.

    Attributes:
        loaded: registers that it needs: those that it reads, and those whose old value a predicated write may keep.
        defs: registers that it always writes.
        written: registers that it may write.
    """

    loaded: int
    defs: int
    written: int

    def compile_fast(self, live: int) -> Run:
        """``(registers, group) -> predicate of the branch``, for groups that own their frame alone and span the whole wave.

        Only registers in ``live`` are written back.
        """

    def compile_general(self, live: int) -> Run:
        """The same for all other groups."""

    def compile_instrumented(self, live: int) -> InstrumentedRun:
        """``(registers, group, instrumentation) -> predicate``, which reports every instruction to it."""


class BackEnd(Protocol):
    """Executes straight runs."""

    def translate(self, run: StraightRun, code: FunctionCode, layout: Layout) -> Translation:
        """Translate one run.

        Raises:
            UnsupportedError: an operand that cannot be read or written as the instruction needs it.
        """
