"""What machine code counts, and how that is added to the counts of the wave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.counters.tally import UNWRITTEN, Tally
from ptxkit.emulator.native import context
from ptxkit.emulator.native.context import SPACES, Field
from ptxkit.emulator.native.traffic_code import Memory


class CountedSite(NamedTuple):
    """How an instruction that accesses memory is counted.

    Attributes:
        size: bytes of a lane.
        spaces: as what its accesses to each of :data:`SPACES` count, of :data:`ptxkit.emulator.counters.tally.SPACES`.
    """

    size: int
    spaces: tuple[str, ...]


class Counts:
    """The counters of one wave, to which machine code adds.

    Args:
        blocks: number of blocks. instructions: number of instructions of the kernel and the functions that it calls.

    Attributes:
        sites: number of an access -> how it is counted.
    """

    def __init__(self, blocks: int, instructions: int) -> None:
        self.block_lanes = np.zeros(blocks, np.int64)
        self.block_warps = np.zeros(blocks, np.int64)
        self.predicated = np.zeros(instructions, np.int64)
        self.branches = np.zeros(instructions, np.int64)
        self.divergent = np.zeros(instructions, np.int64)
        self.unwritten = np.zeros(instructions, np.int64)
        self.traffic = np.zeros((instructions, len(SPACES), 4), np.int64)
        self.memory = np.zeros((instructions * len(SPACES), Memory.SIZE), np.int64)
        self.sites: dict[int, CountedSite] = {}

    def fields(self) -> Iterable[tuple[Field, NDArray[np.generic]]]:
        """The arrays, each with the field of the context that holds its address."""
        return (
            (Field.BLOCK_LANES, self.block_lanes),
            (Field.BLOCK_WARPS, self.block_warps),
            (Field.PREDICATED, self.predicated),
            (Field.BRANCHES, self.branches),
            (Field.DIVERGENT, self.divergent),
            (Field.UNWRITTEN, self.unwritten),
            (Field.TRAFFIC, self.traffic),
            (Field.MEMORY, self.memory),
        )

    def add_to(self, tally: Tally, sites: Iterable[Mapping[int, CountedSite]]) -> None:
        """Add what was counted since the last call to the counts of the wave.

        Args:
            tally: of the wave. sites: of the functions that have machine code now.
        """
        for found in sites:
            self.sites.update(found)
        for b in np.flatnonzero(self.block_warps).tolist():
            tally.block_lanes[b] += int(self.block_lanes[b])
            tally.block_warps[b] += int(self.block_warps[b])
        for n in np.flatnonzero(self.predicated).tolist():
            tally.predicated_lanes[n] = tally.predicated_lanes.get(n, 0) + int(self.predicated[n])
        for n in np.flatnonzero(self.branches).tolist():
            tally.branch(n, int(self.branches[n]), int(self.divergent[n]))
        for n in np.flatnonzero(self.unwritten).tolist():
            tally.add(n, UNWRITTEN, int(self.unwritten[n]))
        for n, s in np.argwhere(self.traffic[..., context.LANES]).tolist():
            lanes, units, fronts, conflicts = (int(v) for v in self.traffic[n, s])
            site = self.sites[n]
            tally.access(n, site.spaces[s], lanes * site.size, units, fronts, conflicts, lanes)
        counts = (self.block_lanes, self.block_warps, self.predicated, self.branches, self.divergent, self.unwritten)
        for array in (*counts, self.traffic):
            array[...] = 0
