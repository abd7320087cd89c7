"""The warps that execute a collective tcgen05 instruction, and the threads that issue one of a single thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Elements, Lanes
from ptxkit.emulator.simt.step import Binding
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.collective import require_whole
from ptxkit.errors import TrapError
from ptxkit.targets import FEATURES, needs

TARGETS = frozenset((100, 101, 103, 107, 110))
"""Architectures with tensor memory. PTX ISA, "Target ISA Notes" of tcgen05.alloc."""


def require_target(b: Binding) -> None:
    """Refuse the instruction if the target has no tensor memory.

    Raises:
        UnsupportedError: the target has none.
    """
    if b.target not in TARGETS:
        raise b.fail(f"needs {needs(FEATURES['tcgen05'].rule)}; other targets have no tensor memory")


class Warps:
    """W whole warps that execute one instruction.

    Attributes:
        rows: (W,) index among all warps that the selection holds, or ``slice(None)`` for all of them.
        cta, warp: (W,) index of the CTA in the wave, and of the warp in its CTA.
    """

    def __init__(self, x: Group, where: Where) -> None:
        require_whole(x, where)
        self.x, self.where = x, where
        s0, s1, _ = x.shape
        self.total = s0 * s1
        self.rows: Elements = slice(None)
        if x.mask is not None:
            active = x.mask.any(-1).reshape(-1)
            if not active.all():
                self.rows = np.flatnonzero(active)
        self.cta: NDArray[np.int64] = np.broadcast_to(x.cta, (s0, s1, 1)).reshape(-1)[self.rows]
        self.warp: NDArray[np.int64] = np.broadcast_to(x.warp, (s0, s1, 1)).reshape(-1)[self.rows]

    def __len__(self) -> int:
        return len(self.cta)

    def uniform(self, lanes: Lanes, what: str) -> NDArray[np.int64]:
        """(W,) values of an operand that must be the same in all threads of a warp.

        Raises:
            TrapError: they differ.
        """
        values = np.broadcast_to(lanes, self.x.shape).reshape(self.total, 32)[self.rows]
        first = values[:, 0]
        if lanes.shape[-1] != 1 and (values != first[:, None]).any():
            w = int(np.argmax((values != first[:, None]).any(1)))
            raise TrapError(
                f"{self.where}: {what} differs among the threads of {self.name(w)}; it must be the same in all"
            )
        return np.asarray(first, np.int64)

    def name(self, w: int) -> str:
        """The text that names a warp in messages."""
        return warp_name(self.x, int(self.cta[w]), int(self.warp[w]))

    def gather(self, lanes: Lanes) -> Lanes:
        """The values of an operand, (W, 32)."""
        return np.broadcast_to(lanes, self.x.shape).reshape(self.total, 32)[self.rows]

    def spread(self, values: Lanes) -> tuple[Lanes, ...]:
        """Lane arrays in the selection's shape from (W, registers, 32)."""
        if not isinstance(self.rows, slice):
            full = np.zeros((self.total, *values.shape[1:]), values.dtype)
            full[self.rows] = values
            values = full
        return tuple(values[:, k].reshape(self.x.shape) for k in range(values.shape[1]))


def warp_threads(row: int) -> NDArray[np.int64]:
    """The threads of warp number ``row`` of the wave."""
    return np.arange(32 * row, 32 * row + 32, dtype=np.int64)


def warp_name(x: Group, cta: int, warp: int) -> str:
    """The text that names a warp in messages."""
    return f"warp {warp} of CTA {x.wave.cta_coordinates(cta)}"


class Issuers:
    """E threads that each issue one operation.

    Attributes:
        cta: (E,) index in the wave.
        thread: (E,) index in the wave.
    """

    def __init__(self, x: Group) -> None:
        self.x = x
        self.active = x.active()
        self.cta: NDArray[np.int64] = np.broadcast_to(x.cta, x.shape)[self.active]
        self.thread: NDArray[np.int64] = x.thread[self.active]

    def __len__(self) -> int:
        return len(self.cta)

    def values(self, lanes: Lanes) -> list[int]:
        """The value of an operand for each thread."""
        if lanes.size == 1:
            return [int(lanes.flat[0])] * len(self)
        return [int(v) for v in np.broadcast_to(lanes, self.x.shape)[self.active]]

    def name(self, e: int) -> str:
        """The text that names a thread in messages."""
        cta = int(self.cta[e])
        linear = int(self.thread[e]) - cta * self.x.wave.shape[1] * 32
        return f"thread {self.x.wave.thread_coordinates(linear)} of CTA {self.x.wave.cta_coordinates(cta)}"


def pair(x: Group, cta: int, where: Where) -> list[int]:
    """Both CTAs of the pair of ``cta``, the even one first. PTX ISA, "CTA Pair".

    Raises:
        TrapError: its cluster has an odd number of CTAs.
    """
    if x.wave.launch.cluster_size % 2:
        raise TrapError(
            f"{where}: .cta_group::2 needs clusters of an even number of CTAs; the kernel was launched with "
            f"{x.wave.launch.cluster_size}"
        )
    even = cta - int(x.wave.cluster_rank[cta]) % 2
    return [even, even + 1]
