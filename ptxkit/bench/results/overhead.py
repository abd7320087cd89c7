"""What a launch costs the host and the device."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.bench.results.statistics import Summary

GROUP = 100
"""Launches between two synchronizations, and in the graph."""


@dataclass(frozen=True)
class Cost:
    """What one way to launch costs, in microseconds for a launch.

    Attributes:
        launch: the way, in words.
        host: of the host.
        device: of the device; None where the host is too slow to queue launches while the device is busy.
    """

    launch: str
    host: Summary
    device: Summary | None = None
