"""The clusters of a launch that have not started, in the waves that they will be executed in."""

from __future__ import annotations

import threading

from ptxkit.emulator.arrays import Index

REFUSED = 4
"""If ``refuses`` is set, one of this many requests fails."""


class Pending:
    """Waves that no worker has taken.

    Args:
        waves: linear indices of CTAs, those of a cluster one after the other.
        cluster_size: CTAs of a cluster.
        refuses: some requests to cancel a cluster fail although clusters are pending, as on hardware.
    """

    def __init__(self, waves: list[Index], cluster_size: int, refuses: bool) -> None:
        self._waves = waves
        self._size = cluster_size
        self._refuses = refuses
        self._taken = 0
        self._requests = 0
        self._lock = threading.Lock()

    def take(self) -> tuple[int, Index] | None:
        """The number and the CTAs of the next wave; None if no wave is left."""
        with self._lock:
            if not self._waves:
                return None
            self._taken += 1
            return self._taken - 1, self._waves.pop(0)

    def cancel(self) -> int | None:
        """Cancel a pending cluster; returns the linear index of its first CTA, or None if the request fails."""
        with self._lock:
            self._requests += 1
            if not self._waves or (self._refuses and self._requests % REFUSED == 0):
                return None
            first = self._waves[0]
            cta = int(first[0])
            if len(first) > self._size:
                self._waves[0] = first[self._size :]
            else:
                self._waves.pop(0)
            return cta
