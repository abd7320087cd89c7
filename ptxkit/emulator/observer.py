"""The interface through which a debugger follows and steers the execution of a launch.

The observer is a setting of the launch (:class:`~ptxkit.emulator.settings.EmulatorSettings`). An observed launch runs on the
thread that launches alone, its functions are bound with one block for each instruction, and every register keeps its value to
the end of its function. Without an observer a wave's loop is unchanged.
"""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Controls the waves of a launch. Every method is called on the thread that launched.

    ``wave`` is a :class:`~ptxkit.emulator.engine.wave.Wave`, ``group`` a :class:`~ptxkit.emulator.simt.threads.Group` and
    ``block`` a :class:`~ptxkit.emulator.simt.blocks.BasicBlock`; settings, which name this interface, are below all of them.
    """

    def run(self, wave: Any) -> None:
        """Called in place of :meth:`WaveState.run`, which it must call."""

    def step(self, wave: Any, group: Any, block: Any) -> None:
        """Called in place of :meth:`WaveState.step` for a group that has been taken out of ``wave.ready``.

        It either calls :meth:`WaveState.step` or puts the group back with :meth:`WaveState.enter`.
        """

    def idle(self, wave: Any) -> bool:
        """Called before a deadlock is looked for: put back groups kept out of ``wave.ready``; False if there are none."""
