"""Finds lanes that wait in a collective for lanes that execute it with another mask.

PTX ISA, "shfl.sync" and its like: the non-exited threads that a mask names execute the instruction "with the same qualifiers
and same membermask value". A lane that has executed it with another mask may still execute it with this one, for example in a
loop. It is an error if the lane exits without that, or if no thread can continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ptxkit.emulator.arrays import Mask, Words
from ptxkit.emulator.simt.threads import Synchroniser, WaveState
from ptxkit.emulator.simt.where import Where, lanes_text
from ptxkit.errors import TrapError

_LANES = np.arange(32)


@dataclass(frozen=True)
class _Waiting:
    """A lane that waits at ``where`` with ``mask``, which names ``lanes`` (bits) that passed at ``there`` with ``other``."""

    where: Where
    mask: int
    lanes: int
    there: Where
    other: int


class MemberMasks(Synchroniser):
    """The waiting lanes of one wave, by CTA, warp and lane."""

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.found: dict[tuple[int, int, int], _Waiting] = {}

    def released(self, passing: Mask) -> None:
        """The lanes ``passing`` (wave shape) no longer wait.

        Raises:
            TrapError: one of them passes only because lanes in its mask have exited after using another mask.
        """
        live = self.wave.live
        for key in [k for k in self.found if passing[k]]:
            waiting = self.found[key]
            if live is not None and waiting.lanes & ~_bits(live[key[:2]]):
                self._fail(key, waiting)
            del self.found[key]

    def passed(self, passing: Mask, masks: Words, there: Where, waiting: Words, where: Where) -> None:
        """Lanes pass at ``there`` while others wait at ``where``; the masks (wave shape) are 0 for all other lanes."""
        for c, w in np.argwhere(passing.any(-1) & waiting.any(-1)).tolist():
            for lane in np.flatnonzero(waiting[c, w]).tolist():
                mask = int(waiting[c, w, lane])
                others = passing[c, w] & (masks[c, w] != mask) & (mask >> _LANES & 1 == 1)
                if others.any():
                    first = int(masks[c, w, np.argmax(others)])
                    same = others & (masks[c, w] == first)
                    self.found[c, w, lane] = _Waiting(where, mask, _bits(same), there, first)

    def waits(self, waiting: Words, where: Where) -> None:
        """Lanes wait at ``where``, each with its mask; wave shape, 0 for the rest.

        Raises:
            TrapError: two lanes of a warp wait for each other with different masks.
        """
        for c, w in np.argwhere(waiting.any(-1)).tolist():
            masks = waiting[c, w]
            names = (
                masks[:, None] >> _LANES.astype(np.uint32) & np.uint32(1) == 1
            )  # for each lane, the lanes in its mask
            clash = names & names.T & (masks[:, None] != masks) & (masks != 0)
            if clash.any():
                lane, other = (int(k[0]) for k in np.nonzero(clash))
                there = masks == masks[other]
                self.found = {
                    (c, w, k): self._mutual(where, masks, k, there, other)
                    for k in np.flatnonzero(masks == masks[lane]).tolist()
                }
                self._fail((c, w, lane), self.found[c, w, lane])

    @staticmethod
    def _mutual(where: Where, masks: Words, lane: int, there: Mask, other: int) -> _Waiting:
        return _Waiting(where, int(masks[lane]), _bits(there), where, int(masks[other]))

    def deadlocked(self) -> None:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`.

        Raises:
            TrapError: a lane waits for lanes whose instruction has another member mask.
        """
        for key, waiting in self.found.items():
            self._fail(key, waiting)

    def _fail(self, key: tuple[int, int, int], first: _Waiting) -> NoReturn:
        c, w, _ = key
        same = [k[2] for k, v in self.found.items() if k[:2] == (c, w) and v.mask == first.mask] + [key[2]]
        here = np.isin(_LANES, same)
        there = first.lanes >> _LANES & 1 == 1
        place = "" if first.there is first.where else f" at {first.there}"
        self.wave.flush_output()
        raise TrapError(
            f"{first.where}: {lanes_text(here)} of warp {w} of CTA {self.wave.cta_coordinates(c)} execute it with the mask "
            f"{first.mask:#010x}, but {lanes_text(there)}{place} with the mask {first.other:#010x}; all lanes that a mask "
            "names must execute it with the same mask"
        )


def _bits(lanes: Mask) -> int:
    return int((lanes.astype(np.uint64) << _LANES.astype(np.uint64)).sum())
