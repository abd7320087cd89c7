"""State of the GPU while a case was measured: clock, power, temperature, and samples discarded for throttling. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """Minimum, median and maximum of some readings."""

    minimum: float
    median: float
    maximum: float

    def text(self, unit: str) -> str:
        """``"1935 to 1980 MHz (median 1965)"``; ``"1980 MHz"`` where all readings are the same."""
        if self.minimum == self.maximum:
            return f"{self.minimum:.0f} {unit}"
        return f"{self.minimum:.0f} to {self.maximum:.0f} {unit} (median {self.median:.0f})"


@dataclass(frozen=True)
class Conditions:
    """State of the GPU during one case's measurement.

    Attributes:
        readings: how often the sensors were read, once after each few samples.
        sm_clock_mhz, power_w, temperature_c: readings after samples that were kept; None where the sensor cannot be read.
            Power is averaged by the driver, over about a second on recent boards.
        throttle_reasons: reason for a reduced clock -> in how many readings.
        dropped: samples of all candidates that were discarded because the GPU throttled.
        plain_launch_us: of a small kernel launched without attributes, one after another in a graph
            (:mod:`ptxkit.bench.measure.plain_launch`); None where it was not measured, and in earlier files.
    """

    readings: int = 0
    sm_clock_mhz: Span | None = None
    power_w: Span | None = None
    temperature_c: Span | None = None
    throttle_reasons: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0
    plain_launch_us: Span | None = None

    def __str__(self) -> str:
        """One line for a report."""
        spans = ((self.sm_clock_mhz, "SM clock ", "MHz"), (self.power_w, "", "W"), (self.temperature_c, "", "°C"))
        words = [name + span.text(unit) for span, name, unit in spans if span]
        if self.throttle_reasons:
            reasons = ", ".join(f"{reason} in {count}" for reason, count in self.throttle_reasons.items())
            words.append(f"clock reduced by {reasons} of {self.readings} readings")
        if not words:
            words.append("throttling status unavailable: the sensors cannot be read")
        else:
            words.append(f"{self.dropped or 'no'} samples dropped for throttling")
        if self.plain_launch_us:
            words.append(f"a plain launch {self.plain_launch_us.median:.2f} us")
        return "; ".join(words)
