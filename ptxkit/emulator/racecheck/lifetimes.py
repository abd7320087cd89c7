"""Checks that a CTA of the cluster has started and has not exited when other CTAs access its shared memory.

The shared memory of a CTA exists from its start until its last thread has exited, and all CTAs of a cluster have to exist while
it is accessed (CUDA C++ Programming Guide, "Distributed Shared Memory").

An access is safe if synchronisation orders it before the exit: the last access of every agent to every other CTA is recorded,
and when a CTA exits, the vector clocks of its threads must include all of these accesses. An access that is issued after the
exit is reported at once, whether it is ever performed or not.

It must also be ordered after the start: the accessing thread must have completed a wait at the barrier of the cluster, or have
synchronised in another way with a thread of the CTA that it accesses.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.racecheck.clocks import Clocks
from ptxkit.emulator.racecheck.hazards import EXIT, START, Hazard, Hazards
from ptxkit.emulator.racecheck.shadow import SITES
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where, named

FIX = "put barrier.cluster (cluster.sync()) between the access and the end of the kernel"

FIRST = "put barrier.cluster (cluster.sync()) before the first access to another CTA's shared memory"


class Reporter(Protocol):
    """The interface for the texts of messages; ``Races`` implements it."""

    wave: WaveState
    hazards: Hazards
    clocks: Clocks

    def agent(self, cta: int, number: int) -> tuple[str, str]:
        """The text that names an agent of a CTA, and the wait that orders a thread after it."""

    def name(self, actor: int) -> str:
        """The text that names an actor."""

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
        self._met = np.zeros(len(clocks.interval), np.bool_)  # which actors have waited at the barrier of their cluster

    def accessed(
        self,
        rows: NDArray[np.int64],
        cta: NDArray[np.int64],
        address: NDArray[np.int64],
        rank: NDArray[np.int64],
        number: NDArray[np.int64],
        record: NDArray[np.int64],
    ) -> None:
        """Agents (``rank``, ``number``) access ``address`` in the shared memory of another CTA, ``cta``; all (E,).

        The actors ``rows`` have executed the instruction. If ``cta`` is their own, the mbarrier of the operation is in another.
        """
        if not self._met[rows].all():
            own = rows // self.races.clocks.actors
            other = np.where(cta == own, own - own % self.races.clocks.size + rank, cta)
            self._require_started(rows, other, address, record)
        agents = rank * self.races.clocks.width + number
        self._last.flat[cta, agents] = record
        self._address.flat[cta, agents] = address
        self._any[cta] = True
        ended = self.races.wave.ended
        if ended is not None and ended[cta].any():
            pairs = np.unique(np.stack((cta, agents))[:, ended[cta]], axis=1)
            for home, agent in pairs.T.tolist():
                self._report(home, agent, int(self._last.flat[home, agent]))

    def waited(self, rows: NDArray[np.int64]) -> None:
        """The actors ``rows`` have completed a wait at the barrier of their cluster, all of whose CTAs have thus started."""
        self._met[rows] = True

    def _require_started(
        self, rows: NDArray[np.int64], cta: NDArray[np.int64], address: NDArray[np.int64], record: NDArray[np.int64]
    ) -> None:
        """The actors must have synchronised with a thread of ``cta``: their clocks contain one of its intervals."""
        races, clocks = self.races, self.races.clocks
        known = clocks.now.data[rows, cta % clocks.size, : clocks.actors].any(-1)
        late = np.flatnonzero(~(known | self._met[rows] | (cta == rows // clocks.actors)))
        if not len(late):
            return
        k = int(late[0])
        own, actor = divmod(int(rows[k]), clocks.actors)
        who = f"{races.name(actor)} of CTA {races.wave.cta_coordinates(own)}"
        owner = f"CTA {races.wave.cta_coordinates(int(cta[k]))}"
        where, at = races.instruction(int(record[k]) & SITES), int(address[k])
        hazard = Hazard(
            START, named(where), who, "the start of its threads", owner, at, races.place(at), FIRST, len(late)
        )
        races.hazards.add(hazard, where, where)

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
