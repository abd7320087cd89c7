"""Checks that a CTA of the cluster has not exited when other CTAs access its shared memory.

The shared memory of a CTA exists until its last thread has exited, and all CTAs of a cluster have to exist while it is accessed
(CUDA C++ Programming Guide, "Distributed Shared Memory"). An access is safe if synchronisation orders it before the exit. The
last access of every agent to every other CTA is recorded. When a CTA exits, the vector clocks of its threads must include all
of these accesses.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.racecheck.clocks import Clocks
from ptxkit.emulator.racecheck.hazards import EXIT, Hazard, Hazards
from ptxkit.emulator.racecheck.shadow import SITES
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where, named

FIX = "put barrier.cluster (cluster.sync()) between the access and the end of the kernel"


class Reporter(Protocol):
    """The interface for the texts of messages; ``Races`` implements it."""

    wave: WaveState
    hazards: Hazards
    clocks: Clocks

    def agent(self, cta: int, number: int) -> tuple[str, str]:
        """The text that names an agent of a CTA, and the wait that orders a thread after it."""

    def place(self, address: int) -> str:
        """The text that names an address in shared memory."""

    def instruction(self, record: int) -> Where:
        """The instruction that made a record."""


class Lifetimes:
    """The accesses of one wave's CTAs to each other's shared memory."""

    def __init__(self, races: Reporter) -> None:
        self.races = races
        clocks = races.clocks
        self._last = clocks.table(clocks.ctas)  # for each accessed CTA, the last access of every agent
        self._address = clocks.table(clocks.ctas)
        self._any = np.zeros(clocks.ctas, np.bool_)

    def accessed(
        self,
        cta: NDArray[np.int64],
        address: NDArray[np.int64],
        rank: NDArray[np.int64],
        number: NDArray[np.int64],
        record: NDArray[np.int64],
    ) -> None:
        """Agents (``rank``, ``number``) access ``address`` in the shared memory of another CTA, ``cta``; all (E,)."""
        agents = rank * self.races.clocks.width + number
        self._last.flat[cta, agents] = record
        self._address.flat[cta, agents] = address
        self._any[cta] = True

    def ended(self, ctas: NDArray[np.bool_]) -> None:
        """The last threads of ``ctas`` (by index in the wave) have exited."""
        clocks = self.races.clocks
        for cta in np.flatnonzero(ctas & self._any).tolist():
            known = clocks.now.flat[cta * clocks.actors : (cta + 1) * clocks.actors].max(0)
            last = self._last.flat[cta]
            for agent in np.flatnonzero(last > known).tolist():
                self._report(cta, agent, int(last[agent]))

    def _report(self, cta: int, agent: int, record: int) -> None:
        races = self.races
        rank, number = divmod(agent, races.clocks.width)
        home = cta // races.clocks.size * races.clocks.size + rank
        who, _ = races.agent(home, number)
        where = races.instruction(record & SITES)
        address = int(self._address.flat[cta, agent])
        owner = f"CTA {races.wave.cta_coordinates(cta)}"
        hazard = Hazard(
            EXIT, named(where), who, "the exit of its threads", owner, address, races.place(address), FIX, 1
        )
        races.hazards.add(hazard, where, where)
