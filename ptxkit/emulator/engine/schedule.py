"""The interfaces between the scheduler (``Wave``), the modules that it consists of, and its launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.entry import EntryCode
from ptxkit.emulator.observer import Observer
from ptxkit.emulator.racecheck.hazards import Hazards
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.state import Dim, LaunchState, MachineState
from ptxkit.emulator.simt.threads import Group, Synchroniser, WaveState


class RunningLaunch(LaunchState, Protocol):
    """A launch as its waves see it.

    Attributes:
        params: the parameter buffer.
        observer: follows and steers the execution; None for none.
        hazards: where the race check reports to; None where nothing is checked.
        limited: each wave checks ``stopped`` and the limit of instructions before each block.
        stopped: why every wave has to end with a StoppedError, an interrupt or a time limit; "" while none has to.
        tallies: the counts of every worker.
        start_ns: time of the launch.
    """

    params: bytes
    settings: EmulatorSettings
    observer: Observer | None
    hazards: Hazards | None
    limited: bool
    stopped: str
    tallies: list[Tally]
    start_ns: int
    write_output: Callable[[str], None]

    @property
    def code(self) -> EntryCode:
        """The bound kernel."""

    def cta_coordinates(self, linear: int) -> Dim:
        """Grid coordinates of a CTA."""

    def count(self, instructions: int) -> int:
        """Add to the thread instructions that count for ``max_instructions``; the sum so far, over all waves."""

    def waits_for_earlier(self, number: int) -> bool:
        """Whether a wave before this one is still being executed, so that its stores may yet come."""

    def on_machine(self, machine: MachineState) -> RunningLaunch:
        """The same launch on another machine."""


class Schedule(WaveState, Protocol):
    """A wave with its groups.

    Attributes:
        running: the group that is executing, and its block; None before the first.
        ready: groups that may run, by serial number of the frame, block, and :attr:`Group.resume`.
        synchronisers: what groups wait on, in the order in which the wave made them.
    """

    tally: Tally
    blocks: list[BasicBlock]
    ready: dict[tuple[int, int, int], Group]
    synchronisers: list[Synchroniser]
    running: tuple[Group, int] | None

    @property
    def launch(self) -> RunningLaunch:
        """The launch that it is part of."""

    def step(self, group: Group, block: BasicBlock) -> None:
        """``group`` executes ``block``, or as much of it as it may execute now."""

    def standing(self) -> list[tuple[Group, int]]:
        """Every group that waits or is ready, with its block."""

    def waits_for(self, group: Group, block: BasicBlock) -> str:
        """What ``group``, at ``block``, waits for, for a message."""

    def force(self) -> bool:
        """No thread can go on: perform asynchronous operations that one waits for. False if there are none."""

    def time_out(self) -> bool:
        """No thread can go on: end the waits that hardware ends after a time limit. False if there are none."""
