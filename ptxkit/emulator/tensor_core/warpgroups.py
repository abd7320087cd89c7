"""The warpgroups of a group of threads: which warps they are, and values that are the same for all threads of one."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Elements, Lanes, Mask
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.collective import WARPGROUP, require_whole
from ptxkit.errors import TrapError


class Warpgroups:
    """E warpgroups that execute one instruction together.

    Attributes:
        rows: (4 E,) index of their warps among all that the selection holds, four after the other, or ``slice(None)``.
        cta: (E,) index of the CTA in the wave.
        warp: (E,) index of the first warp in its CTA.
        owner: (E,) wave-wide index of the first thread.
    """

    def __init__(self, x: Group) -> None:
        s0, s1, _ = x.shape
        self.rows: Elements = slice(None)
        if x.mask is not None:
            active = x.mask.any(-1).reshape(-1)
            if not active.all():
                self.rows = np.flatnonzero(active)
        self.selected = s0 * s1
        self.cta = np.broadcast_to(x.cta, (s0, s1, 1)).reshape(-1)[self.rows][::WARPGROUP]
        self.warp = np.broadcast_to(x.warp, (s0, s1, 1)).reshape(-1)[self.rows][::WARPGROUP]
        self.owner = (self.cta * x.wave.shape[1] + self.warp) * 32
        self.count = len(self.cta)

    def uniform(self, x: Group, lanes: Lanes, what: str, where: Where) -> Lanes:
        """(E,) values of an operand that all threads of a warpgroup must agree on.

        Raises:
            TrapError: they do not.
        """
        if lanes.size == 1:
            return np.full(self.count, lanes.flat[0], lanes.dtype)
        values = np.broadcast_to(lanes, x.shape).reshape(self.selected, 32)[self.rows].reshape(self.count, -1)
        first = values[:, 0]
        if lanes.shape[1:] != (1, 1):
            different = values != first[:, None]
            if different.any():
                e, t = (int(k[0]) for k in np.nonzero(different))
                cta = x.wave.cta_coordinates(int(self.cta[e]))
                thread = x.wave.thread_coordinates(int(self.warp[e]) * 32 + t)
                raise TrapError(
                    f"{where}: {what} is {_shown(values[e, t])} in thread {thread} of CTA {cta} and {_shown(first[e])} in the "
                    "first thread of its warpgroup; it must be the same in all"
                )
        return first

    def spread(self, x: Group, picked: Lanes, dtype: DTypeLike) -> tuple[Lanes, ...]:
        """Lane arrays in the selection's shape from registers of the active warps, (4 E, registers, 32)."""
        if not isinstance(self.rows, slice):
            full = np.zeros((self.selected, *picked.shape[1:]), picked.dtype)
            full[self.rows] = picked
            picked = full
        picked = picked.view(dtype)
        return tuple(picked[:, k].reshape(x.shape) for k in range(picked.shape[1]))


class Fences:
    """Which warpgroups of a wave have executed wgmma.fence: (warps of the wave,) bool, by the first warp of a warpgroup."""

    def __init__(self, wave: WaveState) -> None:
        self.executed = np.zeros(wave.shape[0] * wave.shape[1], np.bool_)


def fence(x: Group, where: Where) -> None:
    """wgmma.fence: notes that the warpgroups of ``x`` have executed one."""
    groups = of(x, where)
    _fenced(x)[groups.owner // 32] = True


def require_fence(x: Group, groups: Warpgroups, where: Where) -> None:
    """PTX requires a fence before the first wgmma.mma_async of a warpgroup.

    Raises:
        TrapError: there was none.
    """
    seen = _fenced(x)[groups.owner // 32]
    if not seen.all():
        e = int(np.argmin(seen))
        cta = x.wave.cta_coordinates(int(groups.cta[e]))
        thread = x.wave.thread_coordinates(int(groups.warp[e]) * 32)
        raise TrapError(
            f"{where}: the warpgroup of thread {thread} of CTA {cta} has not executed wgmma.fence.sync.aligned, which must "
            "stand before its first wgmma.mma_async"
        )


def _fenced(x: Group) -> Mask:
    """(warps of the wave,) bool, by the first warp of a warpgroup."""
    return x.wave.part(Fences).executed


def of(x: Group, where: Where) -> Warpgroups:
    """The warpgroups of ``x``, which must be whole; remembered while the group lives."""
    found = x.memo.get("warpgroups")
    if not isinstance(found, Warpgroups):
        require_whole(x, where, WARPGROUP)
        found = x.memo["warpgroups"] = Warpgroups(x)
    return found


def _shown(value: Lanes) -> str:
    return str(bool(value)) if value.dtype == np.bool_ else hex(int(value))
