"""How the GPU was while a target was measured: clock, power, temperature, and what was thrown away for throttling. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Sensors


@dataclass(frozen=True)
class Span:
    """The least, the median and the most of some readings."""

    least: float
    median: float
    most: float

    def text(self, unit: str) -> str:
        """``"1935 to 1980 MHz (median 1965)"``; ``"1980 MHz"`` where all readings are the same."""
        if self.least == self.most:
            return f"{self.least:.0f} {unit}"
        return f"{self.least:.0f} to {self.most:.0f} {unit} (median {self.median:.0f})"


@dataclass(frozen=True)
class Conditions:
    """Of one target's measurement.

    Attributes:
        looks: at the sensors, one after each few samples.
        sm_clock_mhz, power_w, temperature_c: what they said after samples that were kept; None where the sensor cannot be
            read. Power is what the driver averages, over about a second on recent boards.
        held_down: what held the clock down -> in how many looks.
        dropped: samples thrown away for throttling, of all contenders.
        plain_launch_us: of a small kernel launched plainly, one after another in a graph
            (:mod:`ptxkit.bench.measure.plain_launch`); None where nobody measured it, and in earlier files.
    """

    looks: int = 0
    sm_clock_mhz: Span | None = None
    power_w: Span | None = None
    temperature_c: Span | None = None
    held_down: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0
    plain_launch_us: Span | None = None

    def __str__(self) -> str:
        """One line for a report."""
        spans = ((self.sm_clock_mhz, "SM clock ", "MHz"), (self.power_w, "", "W"), (self.temperature_c, "", "°C"))
        words = [name + span.text(unit) for span, name, unit in spans if span]
        if self.held_down:
            looks = ", ".join(f"{reason} in {count}" for reason, count in self.held_down.items())
            words.append(f"clock held down by {looks} of {self.looks} looks")
        if not words:
            words.append("the sensors cannot be read: nobody knows whether the GPU throttled")
        else:
            words.append(f"{self.dropped or 'no'} samples dropped for throttling")
        if self.plain_launch_us:
            words.append(f"a plain launch {self.plain_launch_us.median:.2f} us")
        return "; ".join(words)


class Log:
    """Collects what :class:`Conditions` sums up."""

    def __init__(self) -> None:
        self._looks = 0
        self._kept: list[Sensors] = []
        self._held_down: Counter[str] = Counter()
        self._dropped = 0
        self._launches_us: list[float] = []

    def keep(self, now: Sensors) -> None:
        """A look after samples that count."""
        self._kept.append(now)
        self._look(now)

    def drop(self, now: Sensors, samples: int) -> None:
        """A look after samples that were thrown away."""
        self._dropped += samples
        self._look(now)

    def launched(self, time_us: float) -> None:
        """What a plain launch took just now."""
        self._launches_us.append(time_us)

    def conditions(self) -> Conditions:
        """The sum."""
        return Conditions(
            looks=self._looks,
            sm_clock_mhz=_span([s.sm_clock_mhz for s in self._kept]),
            power_w=_span([s.power_w for s in self._kept]),
            temperature_c=_span([s.temperature_c for s in self._kept]),
            held_down=dict(sorted(self._held_down.items())),
            dropped=self._dropped,
            plain_launch_us=_span(self._launches_us),
        )

    def _look(self, now: Sensors) -> None:
        self._looks += 1
        self._held_down.update(now.throttled)


def _span(values: Sequence[float | None]) -> Span | None:
    known = [float(value) for value in values if value is not None]
    return Span(min(known), statistics.median(known), max(known)) if known else None
