"""The sixteen barriers of each CTA, which bar and barrier use. PTX ISA, "bar, barrier"."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxkit.emulator.arrays import Index, Mask
from ptxkit.emulator.simt.threads import Group, Synchroniser, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import TrapError


@dataclass
class _Barrier:
    """One barrier number, in every CTA of the wave.

    Attributes:
        mask: lanes that wait, wave shape.
        extra: number of threads of each CTA that have arrived without waiting (bar.arrive), in whole warps.
        partial: lanes that have arrived without waiting, whose warp has not arrived as a whole, wave shape.
        count: expected threads of each CTA, 0 for all that have not exited; the first arrival sets it.
        votes: predicate of the waiting lanes (barrier.red).
        result: of the last barrier.red of each warp, (2, C, W): the number of true predicates, and whether all are true.
    """

    mask: Mask
    partial: Mask
    extra: Index
    count: Index
    votes: Mask | None = None
    groups: list[tuple[Group, int]] = field(default_factory=list)
    result: Index | None = None


class CtaBarriers(Synchroniser):
    """The sixteen barriers of each CTA of a wave."""

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.barriers: dict[int, _Barrier] = {}

    def get(self, number: int) -> _Barrier:
        """The barrier with this number."""
        b = self.barriers.get(number)
        if b is None:
            n = self.wave.shape[0]
            none = np.zeros(self.wave.shape, np.bool_)
            b = self.barriers[number] = _Barrier(none, none.copy(), np.zeros(n, np.int64), np.zeros(n, np.int64))
        return b

    def result(self, number: int, row: int) -> Index:
        """The results of each warp's last barrier.red, (C, W, 1): row 0 is the number of true predicates, row 1 whether all
        are true."""
        found = self.get(number).result
        assert found is not None
        return found[row][:, :, None]

    def arrive(
        self, group: Group, number: int, count: int, block: int | None, votes: Mask | None, where: Where
    ) -> bool:
        """``group`` arrives, and waits at ``block`` unless that is None. True if it can continue immediately.

        Args:
            count: threads the barrier expects, 0 for every live thread of the CTA.
            votes: the predicate to reduce, or None.
        """
        wave = self.wave
        b = self.get(number)
        whole = group.lanes == wave.live_lanes and not b.groups
        if whole and block is not None and (count == 0 or (count == wave.shape[1] * 32 and not b.extra.any())):
            if votes is not None:
                self._reduce(b, np.broadcast_to(votes, group.shape) & group.active(), np.ones(wave.shape[0], np.bool_))
            for races in wave.races:
                races.met(group)
            return True
        mask = group.full_mask()
        ctas = mask.any((1, 2))
        clash = ctas & (b.count != 0) & (b.count != count) & (b.mask.any((1, 2)) | (b.extra != 0))
        if clash.any():
            c = int(np.nonzero(clash)[0][0])
            raise TrapError(
                f"{where}: barrier {number} of CTA {wave.cta_coordinates(c)} is used with {count} threads "
                f"while others wait for {int(b.count[c])}"
            )
        if count and (first := self._expected(b, mask, count)) is not None:
            # the barrier completes with some of the warps, and the others are the first ones at the reinitialised barrier
            lanes = group.select(first)
            parts = (group.narrow(lanes), group.narrow(~lanes)) if block is None else wave.split(group, lanes)
            every = None if votes is None else self._in_wave(group, votes)
            for part in parts:
                if part is not None:
                    self.arrive(part, number, count, block, None if every is None else part.select(every), where)
            return False
        b.count[ctas] = count
        for races in wave.races:
            races.arrived(number, group)
        if block is None:
            b.partial |= mask
            arrived = self._whole(b.partial) & ~b.mask.any(-1)
            b.extra += 32 * arrived.sum(-1)
            b.partial &= ~arrived[:, :, None]
        else:
            b.mask |= mask
            b.groups.append((group, block))
            if votes is not None:
                full = self._in_wave(group, votes)
                b.votes = full & mask if b.votes is None else np.where(mask, full, b.votes)
        self._complete(number, b)
        wave.launch.machine.version += 1
        return False

    def _in_wave(self, group: Group, votes: Mask) -> Mask:
        """The lanes ``votes`` of the group's selection, in the shape of the wave."""
        full = np.zeros(self.wave.shape, np.bool_)
        if group.rows:
            full[group.c, group.w] = np.broadcast_to(votes, group.shape)[:, 0]
        else:
            full[:] = votes
        return full

    def _whole(self, mask: Mask) -> Mask:
        """The warps with lanes in ``mask`` that contain all that have not exited, (C, W)."""
        live = np.ones(self.wave.shape, np.bool_) if self.wave.live is None else self.wave.live
        return np.asarray((mask | ~live).all(-1) & mask.any(-1), np.bool_)

    def _expected(self, b: _Barrier, mask: Mask, count: int) -> Mask | None:
        """Of the warps that arrive with ``mask``, in the order of their numbers, those that complete the barrier, and those
        of other CTAs, (C, W, 1); None if it expects all of them."""
        here = self._whole(b.mask | b.partial)
        arriving = self._whole(b.mask | b.partial | mask) & ~here
        lacking = (count - b.extra) // 32 - here.sum(-1)
        fits = ~arriving | (arriving.cumsum(-1) <= lacking[:, None])
        return None if np.all(fits) else np.asarray(fits[:, :, None], np.bool_)

    def _complete(self, number: int, b: _Barrier) -> None:
        wave = self.wave
        live = np.ones(wave.shape, np.bool_) if wave.live is None else wave.live
        someone = b.mask.any((1, 2)) | (b.extra != 0)
        whole = self._whole(b.mask | b.partial)
        all_here = (b.mask | ~live).all((1, 2)) & b.mask.any((1, 2))
        done = someone & np.where(b.count == 0, all_here, 32 * whole.sum(-1) + b.extra >= b.count)
        if not done.any():
            return
        if b.votes is not None:
            self._reduce(b, b.votes & b.mask, done)
        for races in wave.races:
            races.complete(number, done, b.mask)
        b.mask[done] = False
        b.partial &= ~(done[:, None] & whole)[:, :, None]
        b.extra[done] = 0
        b.count[done] = 0
        groups, b.groups = b.groups, []
        for group, block in groups:
            lanes = done[group.cta]
            out, left = wave.split(group, lanes)
            if left is not None:
                b.groups.append((left, block))
            if out is not None:
                wave.wake(out, block, passed=True)

    def _reduce(self, b: _Barrier, votes: Mask, ctas: Mask) -> None:
        """Number of true predicates per CTA, and whether all of the participants' are true, for the warps that take part."""
        live = np.ones(self.wave.shape, np.bool_) if self.wave.live is None else self.wave.live
        if b.result is None:
            b.result = np.zeros((2, *self.wave.shape[:2]), np.int64)
        # b.mask is not set if one group with every live lane arrives
        part = b.mask if b.mask.any() else live
        warps = part.any(-1) & ctas[:, None]
        b.result[0] = np.where(warps, votes.sum((1, 2))[:, None], b.result[0])
        b.result[1] = np.where(warps, np.all(votes | ~part, (1, 2))[:, None], b.result[1])

    def threads_left(self) -> None:
        """Some threads have exited: barriers may be complete without them."""
        for number, b in self.barriers.items():
            if b.groups:
                self._complete(number, b)

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that waits at a barrier, with its block."""
        return [place for b in self.barriers.values() for place in b.groups]

    def note(self, group: Group, instructions: list[int]) -> str:
        """For the deadlock report: how many threads have not arrived at a barrier."""
        for number, b in self.barriers.items():
            for g, _ in b.groups:
                if g is group:
                    c = int(group.c[0]) if group.rows else int(np.nonzero(b.mask.any((1, 2)))[0][0])
                    here = int(b.mask[c].sum() + b.extra[c])
                    want = int(b.count[c]) or self.wave.launch.threads
                    return f", at barrier {number} with {here} of {want} threads there"
        return ""
