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
    """The interface of a launch to its waves.

    Attributes:
        params: the parameter buffer.
        observer: follows and steers the execution; None for none.
        hazards: collects what the race check finds; None if races are not checked.
        limited: each wave checks ``stopped`` and the limit of instructions before each block.
        stopped: the reason why all waves must end with a StoppedError (an interrupt or a time limit); "" without one.
        tallies: the counts of each worker thread.
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
        """Add to the thread instructions that ``max_instructions`` limits; returns the sum over all waves."""

    def waits_for_others(self, number: int, version: int) -> bool:
        """Whether another wave may still set a flag that wave ``number`` polls in memory of this ``version``."""

    def ctas_after(self, number: int) -> int:
        """Number of CTAs after wave ``number`` in waves that are not being executed either."""

    def on_machine(self, machine: MachineState) -> RunningLaunch:
        """The same launch on another machine."""


class Schedule(WaveState, Protocol):
    """A wave with its groups.

    Attributes:
        number: of the wave, in the order of the grid.
        running: the group that is executing, and its block; None before the first.
        clock_reads: number of times that a group has read a clock.
        ready: groups that may run, by serial number of the frame, block, and :attr:`Group.resume`.
        synchronisers: the objects on which groups wait, in the order in which the wave made them.
    """

    number: int
    tally: Tally
    blocks: list[BasicBlock]
    ready: dict[tuple[int, int, int], Group]
    synchronisers: list[Synchroniser]
    running: tuple[Group, int] | None
    clock_reads: int

    @property
    def launch(self) -> RunningLaunch:
        """The launch that the wave belongs to."""

    def step(self, group: Group, block: BasicBlock) -> None:
        """``group`` executes ``block``, or as much of it as it may execute now."""

    def standing(self) -> list[tuple[Group, int]]:
        """Every group that waits or is ready, with its block."""

    def waits_for(self, group: Group, block: BasicBlock) -> str:
        """The text for messages that names what ``group``, at ``block``, waits for."""

    def force(self) -> bool:
        """No thread can continue: perform asynchronous operations that threads wait for. False if there are none."""

    def time_out(self) -> bool:
        """No thread can continue: end the waits that hardware ends after a time limit. False if there are none."""
