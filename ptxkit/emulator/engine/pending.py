"""The clusters of a launch that have not started, in the waves that they will be executed in."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ptxkit.emulator.arrays import Index

REFUSED = 4
"""If ``refuses`` is set, one of this many requests fails."""


class Pending:
    """Waves that no worker has taken. They are made when they are taken: a grid may have billions of CTAs.

    Args:
        order: gives the linear indices of the CTAs at positions from a first one up to a last one, which it excludes, in the
            order in which CTAs become resident; those of a cluster are one after the other.
        ctas: number of CTAs of the grid.
        per_wave: CTAs of a wave; a multiple of the cluster size.
        cluster_size: CTAs of a cluster.
        refuses: some requests to cancel a cluster fail although clusters are pending, as on hardware.
    """

    def __init__(
        self, order: Callable[[int, int], Index], ctas: int, per_wave: int, cluster_size: int, refuses: bool
    ) -> None:
        self._order = order
        self._ctas = ctas
        self._per_wave = per_wave
        self._size = cluster_size
        self._refuses = refuses
        self._next = 0  # position of the first CTA that is pending
        self._taken = 0
        self._requests = 0
        self._lock = threading.Lock()

    def take(self) -> tuple[int, Index] | None:
        """The number and the CTAs of the next wave; None if no wave is left."""
        with self._lock:
            first = self._next
            if first >= self._ctas:
                return None
            self._next = min((first // self._per_wave + 1) * self._per_wave, self._ctas)
            self._taken += 1
            return self._taken - 1, self._order(first, self._next)

    def cancel(self) -> int | None:
        """Cancel a pending cluster; returns the linear index of its first CTA, or None if the request fails."""
        with self._lock:
            self._requests += 1
            first = self._next
            if first >= self._ctas or (self._refuses and self._requests % REFUSED == 0):
                return None
            self._next += self._size
            return int(self._order(first, first + 1)[0])
