"""Threads that wait for phases of mbarriers, asleep or polling, and what happens when no other thread can continue.

A failed try_wait puts its threads to sleep until the phase completes. When no other thread is ready, the operations
that they wait for are performed (not in eager mode); if there are none, the wait times out and gives false, as on hardware.
PTX ISA, "mbarrier.test_wait, mbarrier.try_wait".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask
from ptxkit.emulator.simt.asynchronous import MBARRIER
from ptxkit.emulator.simt.threads import Group, WaveState


@dataclass(eq=False)
class _Sleeper:
    """Threads whose try_wait has failed: they wait until the phase of parity ``phase`` of the mbarriers ``index`` completes."""

    group: Group
    block: int
    index: Index
    phase: Addresses


class Phases(Protocol):
    """The interface to the mbarriers for which threads wait."""

    def completed(self, index: Index, phase: Addresses) -> Mask:
        """Lanes for which the phase with parity ``phase`` of ``index`` has completed."""

    def lacks(self, at: Index) -> tuple[Index, Index]:
        """The arrivals and the bytes that the current phases of the mbarriers ``at`` lack."""

    def describe(self, at: int) -> str:
        """The text that names an mbarrier, and the arrivals and bytes that its current phase lacks."""


class Waiters:
    """The threads that wait for the mbarriers of one wave.

    Attributes:
        sleepers: groups whose try_wait has failed.
        polled: number of a test_wait or try_wait instruction -> the mbarriers for which it last returned false.
    """

    def __init__(self, wave: WaveState, barriers: Phases) -> None:
        self.wave = wave
        self.barriers = barriers
        self.sleepers: list[_Sleeper] = []
        self.polled: dict[int, Index] = {}

    def sleep(self, group: Group, block: int, index: Index, phase: Addresses) -> None:
        """``group`` waits at the gate of ``block`` for the phase with parity ``phase`` of ``index`` to complete."""
        self.sleepers.append(_Sleeper(group, block, index, phase))

    def wake(self) -> None:
        """A phase has completed: make the threads that wait for it ready."""
        sleepers, self.sleepers = self.sleepers, []
        for s in sleepers:
            done = self.barriers.completed(s.index, s.phase)
            if not done.any():
                self.sleepers.append(s)
                continue
            out, left = self.wave.split(s.group, done)
            if left is not None:
                if left is not s.group:
                    s = _Sleeper(left, s.block, *self._select(s, left))
                self.sleepers.append(s)
            if out is not None:
                self.wave.wake(out, s.block, passed=True)

    def _select(self, s: _Sleeper, part: Group) -> tuple[Index, Addresses]:
        """The mbarrier and phase of the lanes of ``part``, which is a part of a sleeper's group."""

        def select(lanes: Lanes) -> Lanes:
            if s.group.rows == part.rows and s.group.shape == part.shape:
                return lanes
            full = np.broadcast_to(lanes, s.group.shape)
            if s.group.rows:
                wide = np.zeros(self.wave.shape, full.dtype)
                wide[s.group.c, s.group.w] = full[:, 0]
                full = wide
            return part.select(full)

        return select(s.index), select(s.phase)

    def force(self) -> bool:
        """No thread can continue: perform the operations that complete the phases for which threads wait.

        False if none is pending on their mbarriers.
        """
        queue = self.wave.queue
        if not queue.of(MBARRIER).operations:
            return False
        wanted = [np.broadcast_to(s.index, s.group.shape)[s.group.active()] for s in self.sleepers]
        wanted += self.polled.values()
        self.polled = {}
        return bool(wanted) and queue.force(np.unique(np.concatenate(wanted)), self.barriers.lacks)

    def time_out(self) -> bool:
        """Let every suspended try_wait return false, as on hardware after its time limit. False if there is none."""
        sleepers, self.sleepers = self.sleepers, []
        for s in sleepers:
            self.wave.wake(s.group, s.block, passed=True)
        return bool(sleepers)

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that sleeps, with its block."""
        return [(s.group, s.block) for s in self.sleepers]

    def note(self, group: Group, numbers: list[int]) -> str:
        """For the deadlock report: the barrier that ``group``, at a block with these instructions, waits for."""
        for s in self.sleepers:
            if s.group is group:
                return f", waits for {self.barriers.describe(int(np.broadcast_to(s.index, group.shape)[group.active()][0]))}"
        for n in numbers:
            if n in self.polled:
                return f", waits for {self.barriers.describe(int(self.polled[n][0]))}"
        return ""
