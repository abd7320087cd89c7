"""An emulated device: hardware, and the modules that are loaded into it."""

from __future__ import annotations

from ptxkit.emulator.engine.hardware import Hardware
from ptxkit.emulator.engine.program import Program
from ptxkit.isa.model import Module


class Machine(Hardware):
    """An emulated device. See :class:`~ptxkit.emulator.engine.hardware.Hardware` for its arguments."""

    def load(self, module: Module, target: str = "sm_90a") -> Program:
        """Place a module's variables; its kernels are bound when first used.

        Args:
            target: what the machine pretends to be, for what depends on it.
        """
        return Program(self, module, target)
