"""The verdicts same, faster, slower and ambiguous, and impossible times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.judge import alarms, judge, machine_difference
from ptxkit.bench.results.results import Timed

ROOFS = Roofs(4000.0, 6000.0, {"f32": 60.0})


def at(median, spread=0.0):
    return Timed(median, median, 0, (median, median), spread, 30)


@pytest.mark.parametrize(
    ("after", "word"),
    [(100.4, "same"), (99.6, "same"), (101.0, "ambiguous"), (102.0, "slower"), (98.0, "faster")],
)
def test_without_spread_half_a_percent_is_noise(after, word):
    assert judge(at(100), at(after)).word == word


def test_spread_widens_the_noise():
    assert judge(at(100, 3), at(104, 4)).word == "same"
    assert judge(at(100, 3), at(110, 4)).word == "ambiguous"


def test_known_difference_of_machines_is_noise():
    assert judge(at(100), at(102.5), extra=0.03).word == "same"


@pytest.mark.parametrize(
    ("after", "word"), [(103.4, "same"), (104.4, "ambiguous"), (104.6, "slower"), (95.4, "faster")]
)
def test_the_difference_of_machines_is_added_once(after, word):
    """The allowance is not added three times, with which a kernel could become 9% slower without a report."""
    assert judge(at(100), at(after), extra=0.03).word == word


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 0.1))
def test_nothing_is_both_faster_and_slower(a, b, spread):
    there, back = judge(at(a, a * spread), at(b, b * spread)), judge(at(b, b * spread), at(a, a * spread))
    assert (there.word, back.word) not in {("faster", "faster"), ("slower", "slower")}


def test_a_time_below_the_bandwidth_floor_is_an_alarm():
    (alarm,) = alarms(100.0, 800_000_000, 1, "f32", False, ROOFS)
    assert "800,000,000 bytes" in alarm
    assert not alarms(200.0, 800_000_000, 1, "f32", False, ROOFS)


def test_what_fits_into_l2_is_compared_with_the_l2_bandwidth():
    assert alarms(2.2, 10_000_000, 1, "f32", False, ROOFS)
    assert not alarms(2.2, 10_000_000, 1, "f32", True, ROOFS)


def test_more_than_the_peak_is_an_alarm_only_for_a_unit_with_a_peak():
    assert "TFLOP/s" in alarms(1.0, 1, 100_000_000, "f32", False, ROOFS)[0]
    assert not alarms(1.0, 1, 100_000_000, "bf16", False, ROOFS)


def test_other_machines_are_named():
    earlier = {"gpu": "A", "cuda_driver": "13.0"}  # the version of the kernel driver is not recorded
    assert machine_difference(earlier, {**earlier, "kernel_driver": "580.95.05"}) == ""
    assert (
        machine_difference({**earlier, "kernel_driver": "1"}, {**earlier, "kernel_driver": "2"})
        == "kernel_driver 1 and 2"
    )
    assert machine_difference({"gpu": "A", "cuda_driver": "1"}, {"gpu": "B", "cuda_driver": "1"}) == "gpu A and B"
    assert machine_difference({"gpu": "A"}, {"gpu": "A"}) == ""


def test_another_gpu_of_the_model_is_another_machine():
    one = {"gpu": "A", "gpu_uuid": "GPU-1", "cuda_driver": "13.0"}
    assert machine_difference(one, {**one, "gpu_uuid": "GPU-2"}) == "gpu_uuid GPU-1 and GPU-2"
    assert machine_difference(one, {"gpu": "A", "cuda_driver": "13.0"}) == ""  # written by a version that did not record it
