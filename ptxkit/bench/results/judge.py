"""Whether two times are the same, and whether a time is physically possible. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.results import Timed

Word = Literal["same", "faster", "slower", "ambiguous"]

SMALLEST = 0.005  # minimum relative noise: the repeatability of a binary on a GPU without locked clocks
CERTAIN = 3.0  # times the combined spread, beyond which a difference is significant
OVERSHOOT = 1.08  # of a measured bandwidth: the copy that measures it does not reach the maximum itself
OVERSHOOT_IN_L2 = 1.5
"""Of the bandwidth of a copy within L2, which kernels that read more than they write exceed: saxpy 1.14 times on an H200."""


@dataclass(frozen=True)
class Judgement:
    """How a second time compares with a first.

    Attributes:
        word: ``"same"``, ``"faster"``, ``"slower"``, or ``"ambiguous"`` where the spread is too large to tell.
        change: relative, negative where the second is faster. noise: the relative difference that is not significant.
    """

    word: Word
    change: float
    noise: float

    def __str__(self) -> str:
        return f"{self.word} ({self.change:+.1%}, noise {self.noise:.1%})"


def judge(before: Timed, after: Timed, extra: float = 0.0) -> Judgement:
    """Compare two medians, considering their spreads.

    The noise is the square root of the sum of the squares of both relative spreads (half the interquartile range), and
    at least 0.5%. A difference of up to the noise is not significant. One of more than three times the noise is
    significant. In between, more samples are needed.

    Args:
        extra: relative difference between two machines or days that is to be expected, added to each of the two limits.
    """
    noise = max(SMALLEST, combined_spread(before, after))
    return _judged(after.median_us / before.median_us - 1, noise, extra)


def judge_ratio(before: tuple[Timed, Timed], after: tuple[Timed, Timed]) -> Judgement:
    """Compare the ratio of a pair of times before and after: whether the first has become faster relative to the second.

    The noise is that of :func:`judge`, of all four times.
    """
    shares = [mine.median_us / theirs.median_us for mine, theirs in (before, after)]
    return _judged(shares[1] / shares[0] - 1, max(SMALLEST, combined_spread(*before, *after)))


def combined_spread(*times: Timed) -> float:
    """The relative spread of a product or quotient of independent times."""
    return math.sqrt(sum((t.spread_us / t.median_us) ** 2 for t in times))


def _judged(change: float, noise: float, extra: float = 0.0) -> Judgement:
    if abs(change) <= noise + extra:
        return Judgement("same", change, noise + extra)
    if abs(change) <= CERTAIN * noise + extra:
        return Judgement("ambiguous", change, noise + extra)
    return Judgement("faster" if change < 0 else "slower", change, noise + extra)


def alarms(cold_us: float, nbytes: int, flops: int, unit: str, in_l2: bool, roofs: Roofs) -> list[str]:
    """Why a time is physically impossible, as sentences; none when it is possible.

    Args:
        cold_us: time of one call with nothing in the L2 cache.
        nbytes, flops, unit: the minimum work.
        in_l2: the working set fits into L2, so that writes need not reach device memory within the time.
        roofs: measured in the same run.
    """
    found = []
    roof = roofs.l2_gbs if in_l2 else roofs.copy_gbs
    factor = OVERSHOOT_IN_L2 if in_l2 else OVERSHOOT
    floor_us = nbytes / (roof * 1e3) / factor
    if cold_us < floor_us:
        found.append(
            f"{cold_us:.4g} us is below the minimum: {floor_us:.4g} us for {nbytes:,} bytes at {factor} x {roof:.0f} GB/s"
        )
    peak = roofs.peak_tflops.get(unit)
    if peak and cold_us < flops / (peak * 1e6) / OVERSHOOT:
        rate = flops / cold_us / 1e6
        found.append(f"{rate:.4g} TFLOP/s is more than the {unit} peak of this run, {peak:.4g} TFLOP/s")
    return found


def machine_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """The difference between two environments that makes their times incomparable, in words; "" if there is none."""
    # earlier files lack some
    recorded = [k for k in ("gpu_uuid", "cuda_driver", "kernel_driver") if k in before and k in after]
    known = ["gpu", *recorded]
    return ", ".join(f"{k} {before.get(k)} and {after.get(k)}" for k in known if before.get(k) != after.get(k))
