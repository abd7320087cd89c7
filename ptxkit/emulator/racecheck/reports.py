"""The part of the race check that names instructions, actors and addresses, and turns conflicts into hazards."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Index
from ptxkit.emulator.memory.layout import SHARED_BASE, plain
from ptxkit.emulator.racecheck.clocks import Clocks
from ptxkit.emulator.racecheck.hazards import UNFENCED, Hazard, Hazards
from ptxkit.emulator.racecheck.operations import Operations
from ptxkit.emulator.racecheck.shadow import SITES, Access, Conflict, Shadow
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where, named

BARRIER = "put __syncthreads() (bar.sync), or an arrival at an mbarrier and a wait for it, between them"
WARP = "put __syncwarp() (bar.warp.sync) between them"
PROXY = (
    "let each writing thread execute fence.proxy.async between its writes and the synchronisation, or the thread that issues "
    "the operation execute it after the synchronisation"
)
SCOPE = (
    "let the arrival at the other CTA's mbarrier be mbarrier.arrive.release.cluster and the wait for it .acquire.cluster: the "
    "scope .cta, which is the default, makes no writes visible to other CTAs"
)
CLUSTER = "put barrier.cluster, or an arrival at an mbarrier and a wait for it, between them"


class RaceReports:
    """Maps instructions to the numbers in records, and turns conflicts into hazards.

    Attributes:
        actors: number of actors (warps or threads) of a CTA.
    """

    wave: WaveState
    hazards: Hazards
    clocks: Clocks
    shadow: Shadow
    operations: Operations
    actors: int

    def __init__(self) -> None:
        self._sites: list[Where] = []
        self._numbers: dict[int, int] = {}

    def site(self, where: Where) -> int:
        """The number that stands for an instruction in records."""
        number = self._numbers.get(id(where))
        if number is None:
            number = self._numbers[id(where)] = len(self._sites)
            self._sites.append(where)
        return number

    def report(self, where: Where, a: Access, found: list[Conflict], threads: Index) -> None:
        """Add the conflicts to the hazards; ``threads`` are the threads that made the access, one for each cell of it."""
        wave, clocks = self.wave, self.clocks
        for c in found:
            kinds, first, counts = np.unique(c.records & SITES, return_index=True, return_counts=True)
            for kind, k, count in zip(kinds.tolist(), first.tolist(), counts.tolist(), strict=True):
                at = int(c.at[k])
                byte = int(a.cells[at]) * self.shadow.unit
                home, address = divmod(byte, wave.shared_stride)
                thread = int(threads[at])
                cta, linear = divmod(thread, wave.shape[1] * 32)
                mine = home // clocks.size * clocks.size
                their_rank, number = int(c.agents[k]) >> 16, int(c.agents[k]) & 0xFFFF
                earlier, fix = self.agent(mine + their_rank, number)
                if c.what == UNFENCED:
                    fix = PROXY
                elif c.what == "read-after-write" and self._ordered(a, at, their_rank, number, int(c.records[k])):
                    fix = SCOPE
                elif not fix:
                    fix = BARRIER if mine + their_rank == cta else CLUSTER
                    if mine + their_rank == cta and clocks.shift == 0 and number % self.actors >> 5 == linear >> 5:
                        fix = WARP
                coordinates = wave.cta_coordinates(cta)
                who = f"thread {wave.thread_coordinates(linear)} (warp {linear // 32}) of CTA {coordinates}"
                if int(a.number[at]) >= clocks.actors_and_initialisers:
                    who = f"what {who} has started"
                hazard = Hazard(
                    c.what,
                    named(where),
                    who,
                    named(self._sites[kind]),
                    earlier,
                    address,
                    self.place(address),
                    fix,
                    count,
                )
                self.hazards.add(hazard, where, self._sites[kind])

    def _ordered(self, a: Access, at: int, rank: int, number: int, record: int) -> bool:
        """Whether an earlier write was performed before the access ``at`` of ``a``, which only does not have to see it."""
        return bool(self.clocks.seen) and int(a.view[a.rows[at], rank * self.clocks.width + number]) >= record

    def agent(self, cta: int, number: int) -> tuple[str, str]:
        """The text that names an agent, and the wait that orders a thread after it; the latter is "" for a warp."""
        coordinates = self.wave.cta_coordinates(cta)
        if number < self.clocks.actors_and_initialisers:
            return f"{self.name(number % self.actors)} of CTA {coordinates}", ""
        who, fix = self.operations.describe(number)
        return f"{who} of CTA {coordinates}", fix

    def name(self, actor: int) -> str:
        """The text that names an actor in messages."""
        return f"warp {actor}" if self.clocks.shift else f"thread {self.wave.thread_coordinates(actor)}"

    def instruction(self, record: int) -> Where:
        """The instruction that made a record."""
        return self._sites[record & SITES]

    def place(self, address: int) -> str:
        """The text that names an address in shared memory, with its variable."""
        layout = self.wave.launch.code.layout
        below = [(base, name) for name, base in layout.shared.items() if base <= address]
        text = f"shared memory at {address:#x}"
        if not below:
            return f"{text} ({address - SHARED_BASE} bytes in)"
        base, name = max(below)
        return f"{text} ({plain(name)}{f'+{address - base}' if address > base else ''})"
