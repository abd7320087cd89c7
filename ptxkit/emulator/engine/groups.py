"""The groups of a wave: how threads that execute together are split, joined, and made ready or waiting at a block."""

from __future__ import annotations

from typing import cast

import numpy as np

from ptxkit.emulator.arrays import Mask, Shape
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.divergence import Divergence
from ptxkit.emulator.simt.threads import Frame, Group, WaveState


class WaveGroups:
    """The part of a wave that manages its groups.

    Attributes:
        shape: (CTAs, warps a CTA, 32).
        live: lanes that have not exited, or None while all run; ``live_lanes`` is their number.
        ready: groups that may run, by serial number of the frame, block, and :attr:`Group.resume`.
        waiting: groups that wait for others of their warps, by serial number of the frame and block.
        divergence: lanes of one warp that branches have separated.
        spinning: the wait of the running group has failed.
    """

    shape: Shape
    tally: Tally
    live: Mask | None
    live_lanes: int
    ready: dict[tuple[int, int, int], Group]
    waiting: dict[tuple[int, int], Group]
    divergence: Divergence
    spinning: bool

    def new_group(self, frame: Frame, mask: Mask | None) -> Group:
        """A new group of the lanes in ``mask`` (wave shape; None means all). With few warps it selects them by rows."""
        f: Frame | None = frame
        while f is not None:
            f.groups += 1
            f = f.parent
        if mask is not None:
            rows = mask.any(-1)
            count = int(np.count_nonzero(rows))
            if count * 2 <= rows.size and rows.size > 1:
                c, w = np.nonzero(rows)
                part: Mask | None = mask[c, w][:, None]
                if part is not None and part.all():
                    part = None
                return Group(cast(WaveState, self), frame, c, w, part, self.tally)
            if count == rows.size and mask.all():
                mask = None
        return Group(cast(WaveState, self), frame, None, None, mask, self.tally)

    def retire(self, group: Group) -> None:
        """Remove ``group``, which was split or joined, has returned or has exited."""
        f: Frame | None = group.frame
        while f is not None:
            f.groups -= 1
            f = f.parent

    def split(self, group: Group, lanes: Mask) -> tuple[Group | None, Group | None]:
        """The lanes of ``group`` for which ``lanes`` (in its selection) holds, and the others; None for an empty part."""
        if lanes.size == 1:
            return (group, None) if lanes.flat[0] else (None, group)
        if group.mask is None:
            if lanes.all():
                return group, None
            if not lanes.any():
                return None, group
            yes = np.broadcast_to(lanes, group.shape)
            no = ~yes
        else:
            yes = lanes & group.mask
            count = int(np.count_nonzero(yes))
            if count == group.lanes:
                return group, None
            if count == 0:
                return None, group
            no = ~lanes & group.mask
        parts = []
        for part in (yes, no):
            full = part
            if group.rows:
                full = np.zeros(self.shape, np.bool_)
                full[group.c, group.w] = part[:, 0]
            g = self.new_group(group.frame, full)
            g.yielded, g.resume = group.yielded, group.resume
            parts.append(g)
        self.retire(group)
        return parts[0], parts[1]

    def join(self, a: Group, b: Group) -> Group:
        """Replace two groups by one with the lanes of both."""
        mask = a.full_mask() | b.full_mask()
        frame = a.frame
        joined = self.new_group(frame, mask)
        if joined.mask is not None and not joined.rows and self.live is not None and joined.lanes == self.live_lanes:
            joined.mask = self.live
        joined.yielded = min(a.yielded, b.yielded)
        joined.resume = a.resume
        self.retire(a)
        self.retire(b)
        return joined

    def go(self, group: Group, block: int) -> None:
        """Make ``group`` ready to execute ``block``; a group that is ready there already is joined with it."""
        if self.divergence.open:
            self.divergence.reach(group, group.frame.serial, block)
        group.resume = 0
        self.enter(group, block)

    def wake(self, group: Group, block: int, passed: bool) -> None:
        """Make a waiting group ready at ``block``: past its gate if ``passed``, else to try the gate once more."""
        group.resume = 1 if passed else 2
        group.yielded = 0
        self.enter(group, block)

    def enter(self, group: Group, block: int) -> None:
        """Make ``group`` ready at ``block``, in the state that ``group.resume`` specifies."""
        key = (group.frame.serial, block, group.resume)
        other = self.ready.pop(key, None)
        self.ready[key] = group if other is None else self.join(other, group)

    def spin(self) -> None:
        """The wait of the running group has failed: execute all other groups before it."""
        self.spinning = True

    def park(self, group: Group, block: int) -> None:
        """Let ``group`` wait at ``block`` until the other lanes of its warps arrive there."""
        key = (group.frame.serial, block)
        other = self.waiting.pop(key, None)
        self.waiting[key] = group if other is None else self.join(other, group)

    def parked(self, group: Group, block: int) -> Group | None:
        """Remove and return the group that waits at ``block``, where ``group`` has arrived; None if there is none."""
        return self.waiting.pop((group.frame.serial, block), None)
