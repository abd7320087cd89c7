"""The arithmetic of the stopping rule, the rotation of buffer sets, and throttling."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.bench.measure.method import LONG_ROTATION_US, Method, known, throttled

MB = 1 << 20


@given(st.integers(1, 1 << 40))
def test_rotated_buffers_exceed_twice_the_cache(footprint):
    method, l2 = Method(calls=10**9), 50 * MB
    sets = method.sets(footprint, 4 * footprint, l2, 1 << 60)
    assert sets >= 2
    assert (sets - 1) * footprint >= 2 * l2  # all other sets are used between two uses of a set


def test_sets_are_limited_by_memory():
    assert Method().sets(1 << 20, 10 << 30, 50 * MB, 15 << 30) == 1


@given(st.floats(0.5, 1e5), st.integers(1, 200))
def test_a_sample_is_whole_rotations(call_us, sets):
    method = Method()
    calls = method.calls_for(call_us, sets)
    assert calls % sets == 0
    assert sets <= calls <= max(sets, method.calls)


@given(st.floats(0.5, 1e6), st.integers(1, 400))
def test_a_rotation_is_cut_where_it_takes_long(call_us, sets):
    rotation = Method().rotation(call_us, sets)
    assert 1 <= rotation <= sets
    assert rotation == sets or rotation <= 2 or rotation * call_us <= LONG_ROTATION_US


def test_short_calls_are_put_together():
    assert Method(sample_us=500, calls=1000).calls_for(5.0, 1) == 100


def test_a_steady_candidate_stops_at_the_minimum():
    method = Method(minimum=20)
    assert method.wants([10.0] * 19) == 1
    assert method.wants([10.0] * 20) == 0


def test_a_noisy_candidate_goes_on_until_the_maximum():
    noisy = [10.0, 20.0] * 500
    assert Method(maximum=2000).wants(noisy[:100]) > 0
    assert Method(maximum=100).wants(noisy[:100]) == 0


def test_medians_at_the_power_cap_are_of_the_same_rounds():
    method, noisy = Method(batch=4), [10.0, 20.0] * 10
    assert method.counts([[10.0] * 20, noisy], [1, 1]) == [0, 4]
    assert method.counts([[10.0] * 20, noisy], [1, 1], together=True) == [4, 4]


def test_a_candidate_whose_samples_took_long_is_not_measured_on_for_others():
    assert Method(batch=4).counts([[50_000.0] * 5, [10.0, 20.0] * 10], [1, 1], together=True) == [0, 4]


def test_no_candidate_is_measured_beyond_the_maximum_for_others():
    method = Method(batch=4, maximum=21)
    assert method.counts([[10.0] * 21, [10.0] * 20, [10.0, 20.0] * 10], [1, 1, 1], together=True) == [0, 1, 4]


def test_exact_iterations_override_precision_and_budget():
    method = Method(iterations=6, batch=4)
    assert [method.wants([1.0] * n) for n in (0, 4, 6)] == [4, 2, 0]
    assert not method.over([[1.0] * 5], elapsed_s=1e9)
    assert method.over([[1.0] * 6], elapsed_s=0)


def test_the_budget_ends_a_noisy_run_but_not_below_the_minimum():
    method = Method(minimum=20, budget_s=1)
    noisy = [10.0, 20.0] * 10
    assert not method.over([noisy], 0.5)
    assert method.over([noisy], 1.5)
    assert not method.over([noisy, noisy[:10]], 1.5)


def test_few_samples_of_a_slow_candidate_suffice():
    method = Method(minimum=20, few=5, budget_s=1)
    slow, noisy = [50_000.0] * 5, [50_000.0, 100_000.0] * 3
    assert (method.wants(slow[:4]), method.wants(slow), method.needed(slow)) == (1, 0, 5)
    assert method.wants(noisy) > 0  # within the budget, for the precision
    assert method.over([slow, noisy], 1.5)
    assert not method.over([slow, [10.0] * 19], 1.5)
    assert method.needed([50.0] * 10, calls=400) == 5  # 0.2 s together
    assert method.needed([50.0] * 10) == 20
    assert Method(minimum=3, few=5).needed(slow) == 3


def test_rounds_are_random_orders_that_can_be_repeated():
    first = list(itertools.islice(Method(order_seed=3).rounds(5), 6))
    assert all(sorted(order) == list(range(5)) for order in first)
    assert len({tuple(order) for order in first}) > 1
    assert first == list(itertools.islice(Method(order_seed=3).rounds(5), 6))


def test_one_sample_says_nothing():
    assert not known([1.0], 0.5)


@pytest.mark.parametrize(
    ("reasons", "clock", "bad"),
    [
        ((), 1980, False),
        (("power cap",), 1500, False),
        (("power cap",), 900, False),  # boards that cannot hold half of their clock under load
        (("power cap", "thermal"), 1500, True),
        (("thermal",), 1980, True),
        ((), 1000, True),
        ((), None, False),
    ],
)
def test_throttled(reasons, clock, bad):
    assert throttled(reasons, clock, 1980) is bad


def test_nothing_is_slow_before_a_clock_was_seen():
    assert not throttled((), 300, 0)


def test_the_limit_ends_even_a_run_below_the_minimum():
    method = Method(minimum=20, budget_s=1)
    assert not method.over([[10.0] * 5], method.limit_s - 1)
    assert method.over([[10.0] * 5], method.limit_s)
    assert not Method(iterations=20, budget_s=1).over([[10.0] * 5], 1e9)


def test_progress_says_what_is_waited_for():
    assert Method(budget_s=2).progress([[1.0]], 0.5) == "at most 2 s more"
    assert Method(budget_s=2, minimum=20).progress([[1.0] * 30, [1.0] * 7], 3) == "7 of at least 20 samples"
    assert Method(iterations=50).progress([[1.0] * 8, [1.0] * 4], 9) == "4 of 50 samples"
