"""The interface through which asynchronous operations reach the rest of the race check; ``Races`` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Bytes, Index, Mask
from ptxkit.emulator.racecheck.clocks import Clocks
from ptxkit.emulator.racecheck.hazards import Hazards
from ptxkit.emulator.racecheck.lifetimes import Lifetimes
from ptxkit.emulator.racecheck.shadow import Access, Conflict, Shadow
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where


class ProxyReads(Protocol):
    """Finds what operations read through the async proxy and may not see; ``Visibility`` implements it."""

    def unseen(self, a: Access) -> Conflict | None:
        """Writes through the generic proxy that ``a`` may not see."""


class ProxyAgents(Protocol):
    """Tells the agents of the generic proxy from those of the async proxy; ``Operations`` implements it."""

    def generic(self, numbers: Index) -> Mask:
        """Which agents, by their numbers in a CTA, access memory through the generic proxy."""


class Recorder(Protocol):
    """Compares accesses to shared memory with earlier ones, and records them.

    Attributes:
        generation: (CTAs,) number of barriers that all warps of each CTA have completed together.
    """

    wave: WaveState
    hazards: Hazards
    clocks: Clocks
    shadow: Shadow
    lifetimes: Lifetimes
    generation: NDArray[np.int32]

    @property
    def operations(self) -> ProxyAgents:
        """The asynchronous agents."""

    @property
    def visibility(self) -> ProxyReads | None:
        """The check of proxy fences; None if no operation reads shared memory through the async proxy."""

    def site(self, where: Where) -> int:
        """The number that stands for an instruction in records."""

    def touch(
        self,
        x: Selection,
        where: Where,
        elements: Index,
        size: int,
        write: bool,
        *,
        values: Callable[[], Bytes] | None = None,
        initialises: bool = False,
    ) -> None:
        """The active lanes of ``x`` access one element each; ``values`` gives the (lanes, size) bytes that they write."""

    def per_actor(self, x: Selection, index: Index, lanes: Mask | None = None) -> tuple[Index, Index]:
        """Distinct pairs of an actor's row and the value of ``index`` (lanes, int64) in one of its active lanes."""

    def compare(self, a: Access, write: bool) -> list[Conflict]:
        """Compare an access with earlier ones and record it."""

    def report(self, where: Where, a: Access, found: list[Conflict], threads: Index) -> None:
        """Report conflicts; ``threads`` are the threads that made the access, one for each cell of it."""

    def name(self, actor: int) -> str:
        """The text that names an actor in messages."""

    def remote_barriers(self, where: Where, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Record that actors use mbarriers, of which some may be in other CTAs."""
