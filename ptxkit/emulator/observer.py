"""The interfaces through which a debugger steers, and a timeline follows, the execution of a launch.

The observer is a setting of the launch (:class:`~ptxkit.emulator.settings.EmulatorSettings`). An observed launch runs on the
thread of the caller, without worker threads; its functions have one block for each instruction, and every register keeps its
value until its function returns. Without an observer the scheduler is unchanged.
"""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Controls the waves of a launch. Every method is called on the thread that launched.

    ``wave`` is a :class:`~ptxkit.emulator.engine.wave.Wave`, ``group`` a :class:`~ptxkit.emulator.simt.threads.Group` and
    ``block`` a :class:`~ptxkit.emulator.simt.blocks.BasicBlock`. Their types are not imported here, because their modules
    import the settings, which contain the observer.
    """

    def run(self, wave: Any) -> None:
        """Called in place of :meth:`WaveState.run`, which it must call."""

    def step(self, wave: Any, group: Any, block: Any) -> None:
        """Called in place of :meth:`WaveState.step` for a group that has been taken out of ``wave.ready``.

        It either calls :meth:`WaveState.step` or puts the group back with :meth:`WaveState.enter`.
        """

    def idle(self, wave: Any) -> bool:
        """Called before a deadlock is looked for: put back groups kept out of ``wave.ready``; False if there are none."""


class StepHooks(Protocol):
    """Follows what a wave executes, also as one of its race hooks: :class:`~ptxkit.emulator.timeline.steps.WaveSteps`."""

    def enters(self, group: Any, block: Any) -> None:
        """``group`` comes to the gate of ``block`` for the first time."""

    def executes(self, group: Any, block: Any) -> None:
        """``group`` is about to execute ``block`` after its gate."""


class Recorder(Protocol):
    """Makes a timeline of launches: :class:`~ptxkit.emulator.timeline.recorder.Timeline`."""

    def follow(self, wave: Any) -> Any | None:
        """Called when a wave is made: its :class:`StepHooks`, or None where nothing of it is recorded."""
