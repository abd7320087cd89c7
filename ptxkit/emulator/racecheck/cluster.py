"""What barrier.cluster puts in order. PTX ISA, "barrier.cluster", "Release and Acquire Patterns".

An arrival with ``.release``, the default, releases all that its thread has done. A ``.relaxed`` arrival releases what precedes
the last fence of its thread: for the threads of its own CTA a fence of any scope, for the other CTAs one of the scope
``.cluster`` or wider. A wait always acquires.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.racecheck.clocks import Clocks, Rows, Table


class ClusterOrder:
    """The clocks that threads release at the barrier of their cluster in its current phase and in the last one."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._each = clocks.actors * clocks.size
        clusters = clocks.ctas // clocks.size
        self._arrived, self._done = clocks.table(clusters), clocks.table(clusters)
        self._within: tuple[Table, Table] | None = None  # what is released to threads of the same CTA only

    def arrived(self, rows: Rows, relaxed: bool) -> None:
        """The actors ``rows`` have executed barrier.cluster.arrive."""
        clocks = self.clocks
        clocks.release(self._arrived, rows // self._each, rows, relaxed, within_cta=False)
        if relaxed and clocks.has_fenced:
            if self._within is None:
                self._within = clocks.table(clocks.ctas), clocks.table(clocks.ctas)
            clocks.release(self._within[0], rows // clocks.actors, rows, relaxed)

    def complete(self, clusters: Mask) -> None:
        """A phase of barrier.cluster has completed; ``clusters`` is (clusters,) bool."""
        self._done.copy(clusters, self._arrived)
        self._arrived.clear(clusters)
        if self._within is not None:
            arrived, done = self._within
            ctas = np.repeat(clusters, self.clocks.size)
            done.copy(ctas, arrived)
            arrived.clear(ctas)

    def waited(self, rows: Rows) -> None:
        """The actors ``rows`` have completed barrier.cluster.wait."""
        self.clocks.acquire(self._done, rows // self._each, rows)
        if self._within is not None:
            self.clocks.acquire(self._within[1], rows // self.clocks.actors, rows)
