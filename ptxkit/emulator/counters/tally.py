"""Counts of one worker thread by block and instruction, which are added up at the end of the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.memory.pattern import Pattern

BYTES, UNITS, WAVEFRONTS, CONFLICTS, LANES = range(5)
"""Columns of a memory instruction's counts: bytes requested, sectors, wavefronts, wavefronts beyond the minimum, lanes."""

UNWRITTEN = "unwritten"
"""Counter of elements that were read, and of bulk operations that read or updated memory, while it held the sentinel value of
uninitialised memory."""

SPACES = ("global", "shared", "local", "remote", "global.loop", "shared.loop")
"""Kinds of accesses: ``remote`` is shared memory of another CTA of the cluster; ``.loop`` is an atomic that the GPU performs as
a loop of compare-and-swap, so that its traffic depends on the number of iterations."""


class Executing(Protocol):
    """The threads that execute something: how many lanes and warps, and which of the selected lanes (None for all)."""

    lanes: int
    warps: int
    mask: Mask | None


class Tally:
    """Counts of what one worker has executed so far."""

    __slots__ = (
        "block_lanes",
        "block_warps",
        "branches",
        "divergent",
        "extra",
        "memory",
        "patterns",
        "predicated_lanes",
        "traffic",
    )

    def __init__(self, blocks: int, traffic: bool) -> None:
        self.traffic = traffic
        self.block_lanes = [0] * blocks
        self.block_warps = [0] * blocks
        self.predicated_lanes: dict[int, int] = {}
        self.branches: dict[int, int] = {}
        self.divergent: dict[int, int] = {}
        self.memory: dict[str, dict[int, list[int]]] = {space: {} for space in SPACES}
        self.extra: dict[tuple[int, str], int] = {}
        self.patterns: dict[int, Pattern] = {}

    def block(self, group: Executing, index: int) -> None:
        """``group`` executes a block."""
        self.block_lanes[index] += group.lanes
        self.block_warps[index] += group.warps

    def executed(self, sizes: Sequence[int]) -> int:
        """Thread instructions so far, including lanes with a false predicate; ``sizes`` are the instructions of each block."""
        return sum(n * size for n, size in zip(self.block_lanes, sizes, strict=True))

    def lanes(self, group: Executing, number: int) -> None:
        """``group`` is the part of a group for which the predicate of instruction ``number`` holds."""
        self.predicated_lanes[number] = self.predicated_lanes.get(number, 0) + group.lanes

    def predicated(self, group: Executing, number: int, predicate: Mask) -> None:
        """A pure instruction was executed under ``predicate``."""
        if predicate.size == 1:
            n = group.lanes if predicate.flat[0] else 0
        elif group.mask is None:
            n = int(np.count_nonzero(predicate)) * (group.warps * 32 // predicate.size)
        else:
            n = int(np.count_nonzero(predicate & group.mask))
        self.predicated_lanes[number] = self.predicated_lanes.get(number, 0) + n

    def branch(self, number: int, warps: int, divergent: int) -> None:
        """A branch was executed by ``warps`` warps, ``divergent`` of which went both ways."""
        self.branches[number] = self.branches.get(number, 0) + warps
        if divergent:
            self.divergent[number] = self.divergent.get(number, 0) + divergent

    def access(
        self, number: int, space: str, nbytes: int, units: int, wavefronts: int, conflicts: int, lanes: int
    ) -> None:
        """A memory instruction was executed; one with generic addresses can access several of :data:`SPACES`."""
        rows = self.memory[space]
        row = rows.get(number)
        if row is None:
            rows[number] = [nbytes, units, wavefronts, conflicts, lanes]
        else:
            row[0] += nbytes
            row[1] += units
            row[2] += wavefronts
            row[3] += conflicts
            row[4] += lanes

    def add(self, number: int, what: str, amount: int) -> None:
        """Add to the counter ``name`` of an instruction, such as ``flops.tensor.f16`` or ``misaligned``."""
        key = (number, what)
        self.extra[key] = self.extra.get(key, 0) + amount
