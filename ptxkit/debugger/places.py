"""The positions of a wave's threads: the group of each lane, its next instruction, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Frame, Group
    from ptxkit.isa.model import Function, Instruction


@dataclass(frozen=True)
class Lane:
    """A thread of a wave: index of its CTA in the wave, of its warp in the CTA, and of its lane in the warp."""

    cta: int
    warp: int
    lane: int

    @property
    def thread(self) -> int:
        """Linear index of the thread in its CTA."""
        return self.warp * 32 + self.lane


@dataclass(frozen=True)
class Place:
    """The position of a group of threads.

    Attributes:
        group: the threads.
        block: the block of the instruction that they execute next.
        waiting: they wait for others, or for an mbarrier.
    """

    group: Group
    block: BasicBlock
    waiting: bool = False

    @property
    def function(self) -> Function:
        """The function that the threads are in."""
        return self.block.function.function

    @property
    def instruction(self) -> Instruction | None:
        """The instruction executed next; None at the end of the function's text."""
        return self.block.instructions[0][1] if self.block.instructions else None

    @property
    def position(self) -> int:
        """Index of that instruction in its function."""
        return position_in(self.block)

    @property
    def frame(self) -> Frame:
        """The innermost call."""
        return self.group.frame


def position_in(block: BasicBlock) -> int:
    """Index in its function of the instruction that is a block of its own."""
    return block.index - block.function.entry


def holds(group: Group, lane: Lane) -> bool:
    """Whether the thread is one of the group's."""
    if not group.rows:
        return group.mask is None or bool(group.mask[lane.cta, lane.warp, lane.lane])
    rows = np.flatnonzero((group.c == lane.cta) & (group.w == lane.warp))
    if not len(rows):
        return False
    return group.mask is None or bool(group.mask[rows[0], 0, lane.lane])


class Places:
    """The groups of one wave, including those that the debugger has suspended.

    Attributes:
        held: groups taken out of ``wave.ready``, with their blocks.
        failed: the group whose instruction raised a fault, and its block.
    """

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.held: list[tuple[Group, int]] = []
        self.failed: tuple[Group, BasicBlock] | None = None

    def all(self) -> Iterator[Place]:
        """Every group of threads that have not exited."""
        blocks = self.wave.blocks
        for key, group in self.wave.ready.items():
            yield Place(group, blocks[key[1]])
        for group, block in self.held:
            yield Place(group, blocks[block])
        for group, block in self.wave.parked_groups():
            yield Place(group, blocks[block], waiting=True)
        if self.failed is not None:
            yield Place(*self.failed)

    def find(self, lane: Lane) -> Place | None:
        """The position of a thread; None when it has exited."""
        if not self.alive(lane):
            return None
        return next((place for place in self.all() if holds(place.group, lane)), None)

    def alive(self, lane: Lane) -> bool:
        """Whether the thread exists and has not exited."""
        wave = self.wave
        if wave.live_lanes == 0 or lane.thread >= wave.launch.threads:
            return False
        return wave.live is None or bool(wave.live[lane.cta, lane.warp, lane.lane])

    # -- keeping groups from running --------------------------------------------------------------------------------------

    def isolate(self, cta: int, warp: int) -> None:
        """Prevent every ready group except those of one warp from running; a group of several warps is split."""
        wave = self.wave
        mine = np.zeros(wave.shape, np.bool_)
        mine[cta, warp] = True
        for key, group in list(wave.ready.items()):
            del wave.ready[key]
            inside, outside = wave.split(group, group.select(mine))
            if inside is not None:
                wave.ready[key] = inside
            if outside is not None:
                self.held.append((outside, key[1]))

    def release(self) -> bool:
        """Let the groups that were kept run again; False if there are none."""
        held, self.held = self.held, []
        for group, block in held:
            self.wave.enter(group, block)
        return bool(held)


def only_of(group: Group, cta: int, warp: int) -> bool:
    """Whether all threads of a group are of one warp."""
    if group.rows:
        return len(group.c) == 1 and int(group.c[0]) == cta and int(group.w[0]) == warp
    if group.shape[0] * group.shape[1] == 1:
        return True
    if group.mask is None:
        return False
    rows = np.any(group.mask, -1)
    return int(np.count_nonzero(rows)) == 1 and bool(rows[cta, warp])


def lanes_of(group: Group) -> Any:
    """The group's threads as an index of the wave's shape: arrays of CTA, warp and lane."""
    return np.nonzero(group.full_mask())
