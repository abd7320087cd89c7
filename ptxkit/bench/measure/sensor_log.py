"""Readings of the GPU's sensors during a measurement. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxkit.bench.measure.method import POWER_CAP
from ptxkit.bench.results.conditions import Conditions, Span

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Sensors


class SensorLog:
    """Collects sensor readings for a :class:`Conditions`."""

    def __init__(self) -> None:
        self._readings = 0
        self._kept: list[Sensors] = []
        self._throttle_reasons: Counter[str] = Counter()
        self._dropped = 0
        self._launches_us: list[float] = []

    def keep(self, now: Sensors) -> None:
        """Record a reading after samples that are kept."""
        self._kept.append(now)
        self._read(now)

    def drop(self, now: Sensors, samples: int) -> None:
        """Record a reading after samples that were discarded."""
        self._dropped += samples
        self._read(now)

    @property
    def power_capped(self) -> bool:
        """Whether the driver has reported a clock that the power limit reduces."""
        return POWER_CAP in self._throttle_reasons

    def launched(self, time_us: float) -> None:
        """Record the time of a plain launch."""
        self._launches_us.append(time_us)

    def conditions(self) -> Conditions:
        """The summary of all readings."""
        return Conditions(
            readings=self._readings,
            sm_clock_mhz=_span([s.sm_clock_mhz for s in self._kept]),
            power_w=_span([s.power_w for s in self._kept]),
            temperature_c=_span([s.temperature_c for s in self._kept]),
            throttle_reasons=dict(sorted(self._throttle_reasons.items())),
            dropped=self._dropped,
            plain_launch_us=_span(self._launches_us),
        )

    def _read(self, now: Sensors) -> None:
        self._readings += 1
        self._throttle_reasons.update(now.throttled)


def _span(values: Sequence[float | None]) -> Span | None:
    known = [float(value) for value in values if value is not None]
    return Span(min(known), statistics.median(known), max(known)) if known else None
