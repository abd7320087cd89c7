"""The interface of back ends, which turn straight runs of typed instructions into functions that execute them.

A run consists of a list of :class:`~ptxkit.emulator.lowering.typed.TypedInstruction` and the sets of registers that it reads
and writes. A back end either calls the steps of the instructions (``step.call`` on the lane arrays of ``step.sources``), as the
numpy back end does, or it implements instructions itself by their form and operands, in any representation of values. It
exchanges values with the rest of the emulator in two places: registers, which :meth:`Group.fetch` and :meth:`Group.store` give
and take as lane arrays, and the predicate of the terminator, which the function returns. Control flow, gates, divergence and
calls are outside of runs. Where an instruction has a predicate and the block has no gate, the instruction is executed for the
lanes for which the predicate holds, and counted with :meth:`Tally.predicated` or :meth:`Tally.lanes`.
"""

from __future__ import annotations

from typing import Protocol

from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.blocks import InstrumentedRun, Run
from ptxkit.emulator.simt.function import FunctionCode


class Translation(Protocol):
    """One straight run, translated except for what depends on liveness.

    ``live`` is the set of the registers, as the bits of an integer, whose values are needed after the run.
    """

    def compile_fast(self, live: int) -> Run:
        """The function for a group that is alone in its frame and contains all threads of the wave: it may replace registers.

        Registers that are not in ``live`` need not be written.
        """

    def compile_general(self, live: int) -> Run:
        """The function for all other groups: it writes registers for the lanes of the group only."""

    def compile_instrumented(self, live: int) -> InstrumentedRun:
        """The function that reports every instruction to an instrumentation."""


class BackEnd(Protocol):
    """Executes straight runs."""

    def translate(self, run: StraightRun, code: FunctionCode, layout: Layout) -> Translation:
        """Translate one run.

        Raises:
            UnsupportedError: an operand that cannot be read or written as the instruction needs it.
        """
