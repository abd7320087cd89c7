"""Sensor readings of a measurement, summarised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ptxkit.bench.measure.sensor_log import SensorLog
from ptxkit.bench.results.conditions import Conditions, Span
from ptxkit.runtime.abilities import Sensors


def test_spans_are_of_what_was_kept_and_reasons_of_all():
    log = SensorLog()
    log.keep(Sensors(1980, 3201, 400.0, 40))
    log.keep(Sensors(1935, 3201, 650.5, 44, ("power cap",)))
    log.keep(Sensors(1950, 3201, 600.0, 45, ("power cap",)))
    log.drop(Sensors(1200, 3201, 300.0, 90, ("thermal",)), 4)
    found = log.conditions()
    assert found == Conditions(
        readings=4,
        sm_clock_mhz=Span(1935, 1950, 1980),
        power_w=Span(400.0, 600.0, 650.5),
        temperature_c=Span(40, 44, 45),
        throttle_reasons={"power cap": 2, "thermal": 1},
        dropped=4,
    )
    assert str(found) == (
        "SM clock 1935 to 1980 MHz (median 1950); 400 to 650 W (median 600); 40 to 45 °C (median 44); "
        "clock reduced by power cap in 2, thermal in 1 of 4 readings; 4 samples dropped for throttling"
    )


def test_what_cannot_be_read_is_left_out():
    log = SensorLog()
    log.keep(Sensors(sm_clock_mhz=1980))
    log.keep(Sensors(sm_clock_mhz=1980))
    assert log.conditions().power_w is None
    assert str(log.conditions()) == "SM clock 1980 MHz; no samples dropped for throttling"


@given(st.lists(st.integers(200, 2000), min_size=1))
def test_the_median_lies_between(clocks):
    log = SensorLog()
    for clock in clocks:
        log.keep(Sensors(clock))
    span = log.conditions().sm_clock_mhz
    assert min(clocks) == span.minimum <= span.median <= span.maximum == max(clocks)


def test_without_sensors_the_throttling_status_is_unavailable():
    log = SensorLog()
    log.keep(Sensors())
    assert str(log.conditions()) == "throttling status unavailable: the sensors cannot be read"
