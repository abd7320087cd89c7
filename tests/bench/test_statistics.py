import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.bench.results.statistics import (
    median_standard_error,
    quantile,
    student_t95,
    summarize,
)

samples = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60)


def test_summary_of_a_known_sample():
    s = summarize([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert (s.median, s.mean, s.samples) == (4.5, 5.0, 8)
    assert s.std == pytest.approx(2.13809, abs=1e-5)
    half = 2.365 * 2.13809 / math.sqrt(8)
    assert s.ci95 == pytest.approx((5 - half, 5 + half), abs=1e-4)
    assert s.spread == pytest.approx((5.5 - 4.0) / 2)


@given(samples)
def test_summary_is_ordered_and_scales(values):
    s = summarize(values)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= s.median <= max(values) + slack
    assert s.ci95[0] <= s.mean <= s.ci95[1]
    assert s.spread >= 0 and s.std >= 0
    doubled = summarize([2 * v for v in values])
    assert doubled.median == pytest.approx(2 * s.median)
    assert doubled.spread == pytest.approx(2 * s.spread)


def test_one_sample_has_no_width():
    s = summarize([3.0])
    assert (s.median, s.std, s.ci95, s.spread) == (3.0, 0.0, (3.0, 3.0), 0.0)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_bad_samples_are_refused(bad):
    with pytest.raises(ValueError):
        summarize(bad)


@given(samples, st.floats(0, 1))
def test_quantile_lies_between_neighbours(values, q):
    ordered = sorted(values)
    place = q * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    slack = 1e-9 * high
    assert low - slack <= quantile(values, q) <= high + slack


@given(samples)
def test_half_quantile_is_the_median(values):
    assert quantile(values, 0.5) == pytest.approx(statistics.median(values))


def test_student_t_falls_towards_the_normal():
    values = [student_t95(d) for d in range(1, 2000)]
    assert values == sorted(values, reverse=True)
    assert student_t95(60) == pytest.approx(2.000, abs=0.003)
    assert values[-1] == pytest.approx(1.96, abs=0.002)


def test_one_outlier_does_not_move_the_standard_error_of_the_median():
    quiet = [1.0 + 0.001 * (i % 5) for i in range(50)]
    assert median_standard_error([*quiet, 1000.0]) == pytest.approx(median_standard_error(quiet), rel=0.2)
