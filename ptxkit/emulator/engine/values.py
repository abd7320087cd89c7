"""Values that depend on where a thread is: special registers, addresses of variables, coordinates."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Shape, Words
from ptxkit.emulator.engine.schedule import RunningLaunch
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT
from ptxkit.emulator.simt.special import static_lanes
from ptxkit.emulator.simt.threads import Group, WaveState


class WaveValues:
    """The part of a wave that computes these values. Those that do not change are computed once.

    Attributes:
        shape: (CTAs, warps a CTA, 32).
        ctas: linear index in the grid of each CTA.
        cluster_rank: rank of each CTA in its cluster; the CTAs of a cluster are consecutive.
        ranked: addresses in shared memory contain the rank of the CTA.
        ticks: time, as the clock registers show it.
        changes: number of printed texts, which change no memory but are progress.
        clock_reads: number of times that a group has read a clock.
    """

    launch: RunningLaunch
    shape: Shape
    ctas: Index
    cluster_rank: Index
    ranked: bool
    ticks: int
    changes: int
    clock_reads: int

    def __init__(self) -> None:
        self._specials: dict[str, Lanes] = {}
        self._addresses: dict[int, Addresses] = {}
        self._shared_addresses: dict[tuple[int, DTypeLike], Lanes] = {}

    def special(self, group: Group, name: str) -> Lanes:
        """Lanes of a special register under ``group``'s selection."""
        lanes = self._specials.get(name)
        if lanes is None:
            if name.startswith(("%clock", "%globaltimer")):
                return self._clock(name)
            lanes = self._specials[name] = static_lanes(cast(WaveState, self), name)
        return group.select(lanes)

    def _clock(self, name: str) -> Lanes:
        self.ticks += 1  # consecutive reads give different times
        self.clock_reads += 1
        now = self.ticks if name.startswith("%clock") else self.launch.start_ns + self.ticks
        if name.endswith("_hi"):
            now >>= 32
        wide = name in ("%clock64", "%globaltimer")
        return np.full((1, 1, 1), now if wide else now & 0xFFFFFFFF, np.uint64 if wide else np.uint32)

    def thread_index(self, axis: int) -> Words:
        """%tid along an axis, shape (1, warps, 32)."""
        bx, by, _ = self.launch.block
        linear = np.arange(self.shape[1] * 32).reshape(1, self.shape[1], 32)
        return (linear % bx, linear // bx % by, linear // (bx * by))[axis].astype(np.uint32)

    def local_address(self, group: Group, offset: int) -> Addresses:
        """Address in local memory of a variable of the group's frame."""
        return self._uniform(group.frame.local_base + offset)

    def bound_address(self, group: Group, name: str, offset: int) -> Addresses:
        """Address in local memory of a parameter of the function that ``group`` is in."""
        return self._uniform(group.frame.bindings[name] + offset)

    def shared_address(self, group: Group, offset: int, dtype: DTypeLike) -> Lanes:
        """Address of a byte of shared memory, with the CTA's rank in its cluster."""
        key = offset, dtype
        lanes = self._shared_addresses.get(key)
        if lanes is None:
            lanes = np.full((1, 1, 1), offset, dtype)
            if self.ranked:
                lanes = lanes | (self.cluster_rank << CLUSTER_RANK_SHIFT).astype(lanes.dtype)[:, None, None]
            self._shared_addresses[key] = lanes
        return group.select(lanes)

    def param_address(self, offset: int) -> Addresses:
        """Generic address of a byte of the kernel's parameters."""
        return self._uniform(self.launch.param_allocation.base + offset)

    def _uniform(self, value: int) -> Addresses:
        lanes = self._addresses.get(value)
        if lanes is None:
            lanes = self._addresses[value] = np.full((1, 1, 1), value, np.uint64)
        return lanes

    def cta_coordinates(self, index: int) -> tuple[int, int, int]:
        """Grid coordinates of a CTA of this wave."""
        return self.launch.cta_coordinates(int(self.ctas[index]))

    def thread_coordinates(self, linear: int) -> tuple[int, int, int]:
        """Coordinates of a thread in its CTA."""
        bx, by, _ = self.launch.block
        return linear % bx, linear // bx % by, linear // (bx * by)
