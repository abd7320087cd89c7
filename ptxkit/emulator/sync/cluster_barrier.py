"""The barrier of each cluster. PTX ISA, "barrier.cluster"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Index, Mask
from ptxkit.emulator.simt.threads import Group, Synchroniser, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import TrapError


class ClusterBarrier(Synchroniser):
    """State of barrier.cluster: the phase of each cluster, and the lanes that have arrived in it."""

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.size = wave.launch.cluster_size
        clusters = wave.shape[0] // self.size
        self.phase = np.zeros(clusters, np.int64)
        self.arrived: Mask = np.zeros(wave.shape, np.bool_)
        self.open: Mask = np.zeros(wave.shape, np.bool_)  # lanes that have arrived and not waited yet
        self.arrived_phase: Index = np.full(wave.shape, -1, np.int64)
        self.sleepers: list[tuple[Group, int]] = []

    def arrive(self, group: Group, where: Where, relaxed: bool = False) -> None:
        """The lanes of ``group`` arrive; a ``relaxed`` arrival releases only what precedes the last fence of each lane."""
        wave = self.wave
        mask = group.full_mask()
        twice = mask & self.open
        if twice.any():
            cta, thread = group.first(group.select(twice) if group.rows else twice)
            raise TrapError(f"{where}: thread {thread} of CTA {cta} arrives twice without waiting in between")
        phases = np.repeat(self.phase, self.size)[:, None, None]
        self.arrived |= mask
        self.open |= mask
        np.copyto(self.arrived_phase, phases, where=mask)
        for races in wave.races:
            races.cluster_arrived(group, relaxed)
        self._complete()
        wave.launch.machine.version += 1

    def _complete(self) -> None:
        wave = self.wave
        here = self.arrived if wave.live is None else self.arrived | ~wave.live
        clusters = len(self.phase)
        done: Mask = np.all(here.reshape(clusters, -1), -1) & np.any(self.arrived.reshape(clusters, -1), -1)
        if not done.any():
            return
        self.phase[done] += 1
        for races in wave.races:
            races.cluster_complete(done)
        self.arrived[np.repeat(done, self.size)] = False
        sleepers, self.sleepers = self.sleepers, []
        for group, block in sleepers:
            wave.wake(group, block, passed=False)

    def enter(self, group: Group, block: int, where: Where) -> Group | None:
        """barrier.cluster.wait: returns the lanes whose phase is complete; the others wait."""
        phases = np.repeat(self.phase, self.size)[:, None, None]
        mine = group.select(self.arrived_phase)
        active = group.active()
        if (active & (mine < 0)).any():
            raise TrapError(f"{where}: waits without having arrived")
        done, left = self.wave.split(group, mine < (group.select(phases) if group.rows else phases))
        if left is not None:
            self.sleepers.append((left, block))
        if done is not None:
            self.open &= ~done.full_mask()
            for races in done.wave.races:
                races.cluster_waited(done)
        return done

    def threads_left(self) -> None:
        """Exited threads count as arrived."""
        if self.arrived.any():
            self._complete()

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that waits, with its block."""
        return list(self.sleepers)

    def note(self, group: Group, instructions: list[int]) -> str:
        """For the deadlock report: how many threads of the cluster have arrived."""
        if not any(g is group for g, _ in self.sleepers):
            return ""
        first = int(group.c[0]) if group.rows else int(np.nonzero(group.active())[0][0])
        ctas = slice(first // self.size * self.size, (first // self.size + 1) * self.size)
        live = self.size * self.wave.launch.threads if self.wave.live is None else int(self.wave.live[ctas].sum())
        return f", at barrier.cluster with {int(self.arrived[ctas].sum())} of {live} threads of the cluster there"
