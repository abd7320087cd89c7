"""The interface through which a debugger follows and steers the execution of a launch.

The observer is a setting of the launch (:class:`~ptxkit.emulator.settings.EmulatorSettings`). An observed launch runs on the
thread that launches alone, its functions are bound with one block for each instruction, and every register keeps its value to
the end of its function. Without an observer a wave's loop is unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ptxkit.emulator.engine.code import Block
    from ptxkit.emulator.engine.threads import Group
    from ptxkit.emulator.engine.wave import Wave


class Observer(Protocol):
    """Controls the waves of a launch. Every method is called on the thread that launched."""

    def run(self, wave: Wave) -> None:
        """Called in place of :meth:`Wave.run`, which it must call."""

    def step(self, wave: Wave, group: Group, block: Block) -> None:
        """Called in place of :meth:`Wave.step` for a group that has been taken out of ``wave.ready``.

        It either calls :meth:`Wave.step` or puts the group back with :meth:`Wave.enter`.
        """

    def idle(self, wave: Wave) -> bool:
        """Called before a deadlock is looked for: put back groups kept out of ``wave.ready``; False if there are none."""
