"""The parameters of a measurement and its number of samples; docs/benchmarking.md gives the reasons. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptxkit.bench.results.json_values import Positive
from ptxkit.bench.results.results import Mode
from ptxkit.bench.results.statistics import median_standard_error, quantile

QUICK_BUDGET_S = 0.25
QUICK_MINIMUM = 16
SLOW_S = 0.2
FRESH_SEED = 0x5EED  # added to the seed, for the inputs of the check after timing
LONG_ROTATION_US = 40_000.0
"""A rotation of calls that take longer is cut, because calls of milliseconds on a few kilobytes would take minutes."""
FEW_SETS = 8
"""Rotations over so few sets are never cut."""


@dataclass(frozen=True)
class Method:
    """The parameters of a measurement.

    Attributes:
        budget_s: seconds after which a case's measurement ends, once there are ``minimum`` samples of each candidate.
        precision: relative half-width of the median's 95% interval at which a candidate needs no more samples.
        minimum: minimum number of samples of each candidate, unless they take longer than ``limit_s``. maximum: maximum number.
        few: minimum number for a candidate whose samples have taken :data:`SLOW_S` together.
        iterations: exact number of samples instead, regardless of the time; None for the rule above.
        batch: samples of a candidate in one round.
        sample_us: duration of a sample, for which several calls are combined in one graph.
        calls: maximum number of calls in a sample.
        cache_factor: minimum total size of the sets of buffers in multiples of the L2 cache.
        order_seed: seed for the random order within a round.
        modes: the times to measure.
        fresh_inputs: verify outputs with other inputs after the timing, not only with another poison.
        percentiles: record the distribution of the errors, not only the largest ones.
    """

    budget_s: Positive = 2.0
    precision: Positive = 0.005
    minimum: int = 20
    maximum: int = 2000
    few: int = 5
    iterations: int | None = None
    batch: int = 4
    sample_us: Positive = 500.0
    calls: int = 400
    cache_factor: Positive = 3.0
    order_seed: int = 0
    modes: Sequence[Mode] = ("cold", "hot")
    fresh_inputs: bool = True
    percentiles: bool = True

    @classmethod
    def quick(cls, iterations: int | None = None, candidates: int = 1) -> Method:
        """The method of ``ptxkit run``: cold times only and a shorter budget; the stopping rule is the same."""
        return cls(
            budget_s=QUICK_BUDGET_S * candidates,
            minimum=QUICK_MINIMUM,
            iterations=iterations,
            modes=("cold",),
            fresh_inputs=False,
            percentiles=False,
        )

    def seeds(self, seed: int) -> list[int]:
        """The seeds of a case's inputs in the order of their use: before the timing, and after it if they are fresh."""
        return [seed, seed + FRESH_SEED] if self.fresh_inputs else [seed]

    @property
    def limit_s(self) -> float:
        """Seconds after which a measurement ends with fewer than ``minimum`` samples."""
        return 10 * self.budget_s + 60

    def sets(self, moved_bytes: int, needed_bytes: int, l2_bytes: int, free_bytes: int) -> int:
        """Number of sets of buffers over which cold calls rotate: at least two if memory allows.

        Args:
            moved_bytes: what a call reads and writes at least. Temporaries, which some variants do not use, do not count, so
                that the arrays that all candidates use do not stay in the cache.
            needed_bytes: of a set, with the temporaries of all variants. l2_bytes: of the cache. free_bytes: of the device.
        """
        wanted = max(2, math.ceil(self.cache_factor * l2_bytes / max(1, moved_bytes)) + 1)
        return max(1, min(wanted, self.calls, int(free_bytes // max(1, 2 * needed_bytes))))

    def rotation(self, call_us: float, sets: int) -> int:
        """Number of sets over which the calls of one sample rotate: all, unless that takes longer than ``LONG_ROTATION_US``;
        then as many as take that long, and at least two. The L2 cache is flushed before each sample, so that no call finds
        its data there, as long as no set is used twice in a sample.
        """
        return min(sets, max(2, int(LONG_ROTATION_US / max(call_us, 0.1))))

    def calls_for(self, call_us: float, sets: int) -> int:
        """Calls in one sample: complete rotations that take about ``sample_us``."""
        rotations = max(1, round(self.sample_us / max(call_us, 0.1) / sets))
        return sets * min(rotations, max(1, self.calls // sets))

    def needed(self, samples: Sequence[float], calls: int = 1) -> int:
        """Minimum number of samples of a candidate.

        Args:
            samples: those that there are, in microseconds per call. calls: in a sample.
        """
        return min(self.few, self.minimum) if slow(samples, calls) else self.minimum

    def wants(self, samples: Sequence[float], calls: int = 1) -> int:
        """Number of samples of a candidate to take in this round; 0 if its median is known to ``precision``.

        Args:
            samples, calls: see :meth:`needed`.
        """
        n = len(samples)
        if self.iterations is not None:
            return min(self.batch, self.iterations - n) if n < self.iterations else 0
        needed = self.needed(samples, calls)
        if n < needed:
            return min(self.batch, needed - n)
        if n >= self.maximum or known(samples, self.precision):
            return 0
        return self.batch

    def counts(
        self, samples: Sequence[Sequence[float]], calls: Sequence[int], *, together: bool = False
    ) -> list[int]:
        """Number of samples of each candidate to take in this round.

        Args:
            samples, calls: of each candidate, see :meth:`needed`.
            together: those whose median is known take as many as the others need. At the power cap the clock depends on the
                load, and rises when fewer candidates are left: medians of different rounds cannot be compared. Candidates
                whose samples have taken :data:`SLOW_S` take what they need themselves.
        """
        own = [self.wants(*one) for one in zip(samples, calls, strict=True)]
        if not together or self.iterations is not None:
            return own
        most = max(own, default=0)
        return [
            n if slow(s, count) else max(n, min(most, self.maximum - len(s)))
            for n, s, count in zip(own, samples, calls, strict=True)
        ]

    def over(
        self, samples: Sequence[Sequence[float]], elapsed_s: float, calls: Sequence[int] | None = None
    ) -> bool:
        """Whether to stop: all have enough samples; or the budget is spent and each has those that it needs; or after
        ``limit_s``.

        Args:
            samples, calls: of each candidate, see :meth:`needed`; None for one call in each sample.
        """
        every = list(zip(samples, calls or [1] * len(samples), strict=True))
        if not any(self.wants(*one) for one in every):
            return True
        if self.iterations is not None:
            return False
        return elapsed_s >= self.limit_s or (
            elapsed_s >= self.budget_s and all(len(s) >= self.needed(s, count) for s, count in every)
        )

    def progress(self, samples: Sequence[Sequence[float]], elapsed_s: float) -> str:
        """The remaining work of the measurement, as a message."""
        fewest = min(map(len, samples), default=0)
        if self.iterations is not None:
            return f"{fewest} of {self.iterations} samples"
        if elapsed_s < self.budget_s:
            return f"at most {self.budget_s - elapsed_s:.0f} s more"
        return f"{fewest} of at least {self.minimum} samples"

    def rounds(self, candidates: int) -> Iterator[list[int]]:
        """An infinite sequence of random orders of the candidates, reproducible with ``order_seed``."""
        generator = random.Random(self.order_seed)
        while True:
            yield generator.sample(range(candidates), candidates)


def slow(samples: Sequence[float], calls: int) -> bool:
    """Whether the samples, in microseconds per call, have taken :data:`SLOW_S` together."""
    return sum(samples) * calls >= SLOW_S * 1e6


def known(samples: Sequence[float], precision: float) -> bool:
    """Whether the median is known: the half-width of its 95% interval is within ``precision`` of it."""
    if len(samples) < 2:
        return False
    middle = quantile(samples, 0.5)
    return 1.96 * median_standard_error(samples) <= precision * middle


HARD = ("hardware slowdown", "thermal", "hardware thermal slowdown", "power brake")
POWER_CAP = "power cap"
SLOW_CLOCK = 0.75  # fraction of the highest observed clock below which the GPU counts as throttled


def throttled(reasons: Sequence[str], clock_mhz: int | None, highest_mhz: int) -> bool:
    """Whether samples taken now must be discarded.

    A power cap is not a reason to discard them: matrix kernels with random data always reach it, as in applications.

    Args:
        reasons: the driver's reasons for a reduced clock. clock_mhz: current clock of the SMs.
        highest_mhz: highest clock since the measurement began, 0 if there is none. The clock of the data sheet is not used,
            because locked clocks and boards that never reach it are not throttled.
    """
    if any(reason in HARD for reason in reasons):
        return True
    if POWER_CAP in reasons:
        return False
    return bool(clock_mhz and clock_mhz < SLOW_CLOCK * highest_mhz)
