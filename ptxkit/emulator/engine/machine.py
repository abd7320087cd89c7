"""An emulated device: its hardware, and loading of modules."""

from __future__ import annotations

from ptxkit.emulator.engine.hardware import Hardware
from ptxkit.emulator.engine.program import Program
from ptxkit.emulator.lowering.backend import BackEnd
from ptxkit.isa.model import Module


class Machine(Hardware):
    """An emulated device. See :class:`~ptxkit.emulator.engine.hardware.Hardware` for its arguments."""

    def load(self, module: Module, target: str = "sm_90a", back_end: BackEnd | None = None) -> Program:
        """Load a module: allocate its variables. Its kernels are bound when they are used first.

        Args:
            target: the emulated target, for instructions whose results depend on it.
            back_end: executes the straight runs of basic blocks; None for the numpy back end.
        """
        return Program(self, module, target, back_end)
