"""Hands the lanes back to the scheduler of the wave, after machine code has returned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Mask, distinct
from ptxkit.emulator.native.context import NOWHERE, PENDING, Field, Status
from ptxkit.emulator.native.frames import Frames
from ptxkit.emulator.native.host import HostWave
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.native.warps import Warps
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.threads import Frame, Group


class Handover:
    """What the scheduler needs to know of the lanes that machine code has executed.

    Args:
        c: the context.
    """

    def __init__(self, wave: HostWave, c: NDArray[np.int64], warps: Warps, frames: Frames) -> None:
        self.wave = wave
        self.c = c
        self.warps = warps
        self.frames = frames
        self._base = 0  # the highest Group.yielded before machine code has executed

    def finish(self, groups: Sequence[tuple[Group, int]], status: int) -> None:
        """Hand back the lanes of the groups that took part, each with its first block.

        Args:
            status: how machine code ended; not ``FAILED``.
        """
        self._base = self.wave.yields
        self.wave.yields += self.warps.new_yields
        if self.c[Field.LEVEL]:
            self._unwind(groups, status)
        else:
            self._leave(groups, status)

    def _new_group(self, frame: Frame, lanes: Mask, outermost: bool = True) -> Group:
        """A group of lanes of the warps that take part; in the outermost one they may have yielded."""
        group = self.wave.new_group(frame, self.warps.mask(lanes))
        if outermost:
            group.yielded = self.warps.yielded(lanes, self._base)
        return group

    def _leave(self, groups: Sequence[tuple[Group, int]], status: int) -> None:
        """Hand the lanes back to the scheduler."""
        wave, warps = self.wave, self.warps
        rows = warps.count
        standing = warps.standing[:rows]
        block = wave.blocks[int(self.c[Field.BLOCK])] if status != Status.STOPPED else None
        active = warps.active(0) if block is not None else None
        if active is not None:
            standing[warps.active_row[: len(active)]] = np.where(
                active, np.uint32(NOWHERE), standing[warps.active_row[: len(active)]]
            )
        places = [p for p in distinct(standing) if p not in (NOWHERE, PENDING)]
        pending = standing == PENDING
        if len(groups) == 1 and active is None and len(places) == 1:
            groups[0][0].yielded = warps.yielded(standing == places[0], self._base)
            wave.go(groups[0][0], places[0])
            return
        if len(groups) == 1 and active is not None and not places and not pending.any():
            wave.executed(groups[0][0])
            self._finish(groups[0][0], block, status)
            return
        frame = groups[0][0].frame
        for group, _ in groups:
            wave.retire(group)
        moved = [(self._new_group(frame, standing == p), p) for p in places]
        if active is not None:
            full = np.zeros((rows, LANES), np.bool_)
            full[warps.active_row[: len(active)]] = active
            mine = wave.new_group(frame, warps.mask(full))
            rest = wave.new_group(frame, warps.mask(pending)) if pending.any() else None
            for group, place in moved:
                wave.go(group, place)
            wave.executed(mine)
            self._finish(mine, block, status)
            if rest is not None:
                self._finish(rest, block, status)
            return
        for group, place in moved:
            wave.go(group, place)

    def _unwind(self, groups: Sequence[tuple[Group, int]], status: int) -> None:
        """Hand the lanes back to the scheduler, of which some are in calls that machine code has made."""
        wave, warps = self.wave, self.warps
        rows, depth = warps.count, int(self.c[Field.LEVEL])
        frames = [self.frames.at(level) for level in range(depth + 1)]
        for group, _ in groups:
            wave.retire(group)
        inside = np.zeros((rows, LANES), np.bool_)
        block, mine = None, None
        if status != Status.STOPPED:
            block = wave.blocks[int(self.c[Field.BLOCK])]
            active = warps.active(0)
            inside[warps.active_row[: len(active)]] = active
            mine = wave.new_group(frames[-1], warps.mask(inside))
        calling: list[tuple[Group, BasicBlock]] = []  # lanes that have not yet called
        following = block
        for level in range(depth, -1, -1):
            standing = self.frames.calls[level].standing[:rows] if level else warps.standing[:rows]
            standing[inside] = NOWHERE
            for place in distinct(standing):
                if place == NOWHERE:
                    continue
                group = self._new_group(frames[level], standing == place, level == 0)
                if place == PENDING:
                    assert following is not None
                    calling.append((group, following))
                else:
                    wave.go(group, place)
            inside |= standing != NOWHERE
            following = self.frames.caller(level)
        self.frames.detach(frames)
        if mine is not None:
            wave.executed(mine)
            self._finish(mine, block, status)
        for group, ending in calling:
            self._finish(group, ending, Status.TERMINATOR)

    def _finish(self, group: Group, block: BasicBlock | None, status: int) -> None:
        """``group`` has executed ``block`` except for its terminator."""
        assert block is not None
        predicate = self._predicate(group, block)
        if status == Status.TERMINATOR:
            if self.wave.instrumentation is not None:
                self.wave.instrumentation.decides(group, block)
            block.terminator.execute(group, block, predicate)
            return
        assert predicate is not None
        assert block.reconverges is not None
        wave = self.wave
        taken, other = wave.split(group, predicate)
        if taken is not None and other is not None:
            wave.divergence.opened(taken, other, group.frame.serial, block.index, block.reconverges)
        if other is not None:
            wave.go(other, block.next)
        if taken is not None:
            wave.go(taken, block.terminator.successors(block.next)[0])

    @staticmethod
    def _predicate(group: Group, block: BasicBlock) -> Mask | None:
        p = block.terminator.predicate
        if p is None or block.gate is not None:
            return None
        lanes = group.fetch(group.frame.function.register_index[p.register.name])
        assert lanes is not None
        return ~lanes if p.negated else lanes.copy()
