"""Follows the blocks that a wave executes while no memory changes but clocks are read.

:mod:`ptxkit.emulator.lowering.time_dependence` finds which registers of these blocks depend on the clock, and whether the clock
can influence more than these.
"""

from __future__ import annotations

from ptxkit.emulator.engine.schedule import Schedule
from ptxkit.emulator.simt.function import FunctionCode

SETTLE = 32
"""Steps of each group for which the executed blocks are only collected."""

WINDOW = 512
"""Steps of each group after which an unsuccessful comparison ends: the blocks are executed one by one during this time."""

LEAST = 2048
"""The least number of steps for which a comparison is attempted."""


class Timed:
    """The blocks that a wave executes from a point in time on.

    Attributes:
        began: the number of steps without a change at that time.
        registers: the bit set of the registers that depend on the clock, by first block of their function; None if the
            clock can influence more.
    """

    def __init__(self, wave: Schedule, steps: int) -> None:
        self.wave = wave
        self.began = steps
        self.registers: dict[int, int] | None = {}
        self._blocks: set[int] = set()
        self._known = 0
        groups = len(wave.standing())
        self._settled = steps + SETTLE * groups
        self._end = steps + max(LEAST, WINDOW * groups)

    def executed(self, block: int) -> bool:
        """Note that a block was executed; whether it is the first time."""
        new = block not in self._blocks
        self._blocks.add(block)
        return new

    def settled(self, steps: int) -> bool:
        """Whether enough blocks are known to compare states; finds :attr:`registers` for them."""
        if steps >= self._settled and self._known != len(self._blocks):
            self._known = len(self._blocks)
            functions = {b.function.entry: b.function for b in (self.wave.blocks[k] for k in self._blocks)}
            found = {entry: code.find_timed(self._blocks) for entry, code in functions.items()}
            self.registers = None if None in found.values() else {k: v for k, v in found.items() if v is not None}
        return steps >= self._settled and self.registers is not None

    def ends(self, steps: int) -> bool:
        """Whether to stop: the clock can influence more than registers, or no state has repeated for a long time."""
        return self.registers is None or steps >= self._end

    def of(self, function: FunctionCode) -> int:
        """The bit set of the registers of a function that depend on the clock."""
        return 0 if self.registers is None else self.registers.get(function.entry, 0)
