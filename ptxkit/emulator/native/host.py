"""What machine code needs of the wave that it executes for."""

from __future__ import annotations

from typing import Protocol

from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.instrumentation import Instrumentation
from ptxkit.emulator.observer import StepHooks
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.state import LaunchState
from ptxkit.emulator.simt.threads import CallSite, Frame, Group, WaveState


class HostLaunch(LaunchState, Protocol):
    """The launch of the wave."""

    settings: EmulatorSettings


class HostWave(WaveState, Protocol):
    """A wave with its groups and its checks. See :class:`ptxkit.emulator.engine.wave.Wave`."""

    tally: Tally
    blocks: list[BasicBlock]
    ready: dict[tuple[int, int, int], Group]
    instrumentation: Instrumentation | None
    steps: StepHooks | None
    spinning: bool
    yields: int

    def called(self, caller: Frame, code: FunctionCode, site: CallSite, back: int) -> Frame:
        """The frame of a call that machine code has made, whose parameters are all in local memory."""

    def executed(self, group: Group) -> None:
        """See :meth:`~ptxkit.emulator.engine.wave.Wave.executed`."""

    @property
    def launch(self) -> HostLaunch:
        """The launch that the wave belongs to."""
