"""Summaries of samples. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95%, by degrees of freedom 1 to 30; beyond, 1.96 + 2.5/dof is within 0.1%.
# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """The summary of a sample, in its unit.

    Attributes:
        median: the figure to quote, because times have a long right tail, which shifts the mean.
        mean, std: arithmetic mean; standard deviation with n-1 in the denominator (0 for one sample).
        ci95: 95% confidence interval of the mean by Student's t, (low, high).
        spread: half the interquartile range, what "±" stands for in a table.
        samples: number of samples.
    """

    median: float
    mean: float
    std: float
    ci95: tuple[float, float]
    spread: float
    samples: int

    @property
    def relative_spread(self) -> float:
        """The spread over the median (0 for a median of 0)."""
        return self.spread / self.median if self.median else 0.0


def summarize(samples: Sequence[float]) -> Summary:
    """Summarize at least one finite sample.

    Raises:
        ValueError: no samples, or one that is not finite.
    """
    if not samples:
        raise ValueError("no samples")
    if not all(math.isfinite(s) for s in samples):
        raise ValueError("a sample is not finite")
    n = len(samples)
    mean = statistics.fmean(samples)
    std = statistics.stdev(samples) if n > 1 else 0.0
    half = student_t95(n - 1) * std / math.sqrt(n) if n > 1 else 0.0
    return Summary(
        median=statistics.median(samples),
        mean=mean,
        std=std,
        ci95=(mean - half, mean + half),
        spread=(quantile(samples, 0.75) - quantile(samples, 0.25)) / 2,
        samples=n,
    )


def student_t95(degrees_of_freedom: int) -> float:
    """Two-sided 95% point of Student's t distribution."""
    if degrees_of_freedom < 1:
        raise ValueError("degrees_of_freedom starts at 1")
    if degrees_of_freedom <= len(_T95):
        return _T95[degrees_of_freedom - 1]
    return 1.96 + 2.5 / degrees_of_freedom


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile, 0 <= q <= 1, linear between order statistics."""
    if not samples or not 0 <= q <= 1:
        raise ValueError("quantile requires samples and 0 <= q <= 1")
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median_standard_error(samples: Sequence[float]) -> float:
    """Standard error of the median from the interquartile range: 1.253 * (IQR / 1.349) / sqrt(n) for a normal sample.

    It uses the interquartile range instead of the standard deviation, so that a single outlier does not double it.
    """
    spread = quantile(samples, 0.75) - quantile(samples, 0.25)
    return 1.253 * spread / 1.349 / math.sqrt(len(samples))
