"""Finds lanes that wait at a barrier or collective for lanes of their warp that have taken another branch.

PTX ISA, "bar, barrier": "all threads in the warp must execute the same barrier instruction"; of the collectives with a member
mask ("shfl.sync" and its like): "until all non-exited threads corresponding to membermask have executed" them. Threads that
have exited do not count, as NVIDIA's Volta tuning guide has it for compute capability 7.0 and higher ("until reached by all
non-exited threads").

A branch is recorded when it separates lanes of one warp, and only if a barrier or collective lies between the branch and the
block where its lanes meet again (:mod:`ptxkit.emulator.lowering.reconvergence`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Mask, Words
from ptxkit.emulator.engine.schedule import Schedule
from ptxkit.emulator.engine.whereabouts import place
from ptxkit.emulator.lowering.reconvergence import RETURN
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import lanes_text
from ptxkit.errors import TrapError

_BIT = (np.uint64(1) << np.arange(32, dtype=np.uint64)).astype(np.uint32)


@dataclass(eq=False)
class _Split:
    """Lanes of the same warps that a branch has separated.

    Attributes:
        block: index of the branch's block.
        inside: lanes that have not reached the block where they meet again, wave shape.
        reached: lanes of these warps that have reached it.
    """

    block: int
    inside: Mask
    reached: Mask


class Divergence:
    """The branches of one wave whose lanes have not met again."""

    def __init__(self, wave: Schedule) -> None:
        self.wave = wave
        self.open: dict[tuple[int, int], list[_Split]] = {}

    def opened(self, one: Selection, other: Selection, serial: int, block: int, meet: int) -> None:
        """The branch of ``block``, in the frame ``serial``, has separated two groups that meet again at ``meet``."""
        a, b = one.full_mask(), other.full_mask()
        warps: Mask = np.any(a, -1) & np.any(b, -1)
        if not warps.any():
            return
        inside = (a | b) & warps[..., None]
        splits = self.open.setdefault((serial, meet), [])
        for split in splits:
            if split.block == block and not (split.reached & inside).any():
                split.inside = split.inside | inside
                return
        splits.append(_Split(block, inside, np.zeros_like(inside)))

    def reach(self, group: Group, serial: int, block: int) -> None:
        """``group`` reaches ``block``, or, if that is :data:`RETURN`, returns from the frame ``serial``."""
        splits = self.open.get((serial, block))
        if not splits:
            return
        mask = group.full_mask()
        met = False
        for split in splits:
            now = split.inside & mask
            if now.any():
                met = True
                split.reached = split.reached | now
                split.inside = split.inside & ~now
        if met:
            self._close((serial, block))
            for (_, b), waiting in list(self.wave.waiting.items()):
                gate = self.wave.blocks[b].gate
                if gate is not None and gate.aligned:
                    self.check(waiting.full_mask(), b)

    def exited(self, gone: Mask) -> None:
        """The lanes ``gone`` have exited; those that had reached the block where they meet stay recorded."""
        for key, splits in list(self.open.items()):
            for split in splits:
                split.inside = split.inside & ~gone
            self._close(key)

    def _close(self, key: tuple[int, int]) -> None:
        left = []
        for split in self.open[key]:
            split.reached = split.reached & split.inside.any(-1, keepdims=True)
            if split.inside.any():
                left.append(split)
        if left:
            self.open[key] = left
        else:
            del self.open[key]

    def check(self, here: Mask, block: int, members: Words | None = None) -> None:
        """The lanes ``here`` (wave shape) wait at, or are about to pass, the gate of ``block``.

        Args:
            members: mask of the lanes that each needs, wave shape; None needs the whole warp.

        Raises:
            TrapError: they wait for lanes that have taken another branch.
        """
        live = self.wave.live
        for (_, meet), splits in self.open.items():
            for split in splits:
                gone = split.reached if members is None or live is None else split.reached & ~live
                if members is not None and live is None:
                    continue
                bits = np.where(gone, _BIT, np.uint32(0)).sum(-1, dtype=np.uint32)[..., None]
                missing = bits if members is None else bits & members
                bad = here & split.inside & (missing != 0)
                if bad.any():
                    self._fail(bad, missing, split, meet, block, members is None)

    def _fail(self, bad: Mask, missing: Words, split: _Split, meet: int, block: int, whole: bool) -> None:
        wave = self.wave
        c, w = (int(k[0]) for k in np.nonzero(bad.any(-1)))
        lane = int(np.argmax(bad[c, w]))
        bits = int(np.broadcast_to(missing, wave.shape)[c, w, lane])
        gone = np.array([bits >> n & 1 for n in range(32)], np.bool_)
        rule = (
            "all lanes of a warp must execute it together" if whole else "all lanes that its mask names must execute it"
        )
        to = "returned" if meet == RETURN else f"gone on to {place(wave, meet)}"
        wave.flush_output()
        raise TrapError(
            f"{place(wave, block)}: divergent: {lanes_text(bad[c, w])} of warp {w} of CTA {wave.cta_coordinates(c)} are here, "
            f"but {lanes_text(gone)} have {to} without it since {branch(wave, split.block)}; {rule}"
        )

    def crossing(self, here: Mask, serial: int, block: int) -> None:
        """The lanes ``here`` wait at an aligned instruction: the other lanes of their warps must not wait at a different one.

        Raises:
            TrapError: they do.
        """
        wave = self.wave
        for (other_serial, b), waiting in wave.waiting.items():
            gate = wave.blocks[b].gate
            if (other_serial, b) == (serial, block) or gate is None or not gate.aligned:
                continue
            there = waiting.full_mask()
            both = here.any(-1) & there.any(-1)
            if both.any():
                c, w = (int(k[0]) for k in np.nonzero(both))
                wave.flush_output()
                raise TrapError(
                    f"{place(wave, block)}: divergent: {lanes_text(here[c, w])} of warp {w} of CTA {wave.cta_coordinates(c)} "
                    f"are here, but {lanes_text(there[c, w])} at {place(wave, b)}; "
                    "all lanes of a warp must execute each of them together"
                )


def branch(wave: Schedule, block: int) -> str:
    """The branch instruction at the end of a block, for messages."""
    b = wave.blocks[block]
    number = b.instructions[0 if b.gate is not None else -1][0]
    return str(wave.launch.code.instructions[number][0])
