"""How long the steps of a measurement take."""

from __future__ import annotations

from ptxkit.bench.measure.stopwatch import Stopwatch


def test_a_step_lasts_until_the_next_one_and_may_go_on_later():
    times = iter([0.0, 1.0, 3.0, 7.0, 8.5, 9.0])
    watch = Stopwatch(lambda: next(times))
    for step in ("prepared", "timed", "prepared", "timed"):
        watch.step(step)
    assert watch.seconds() == {"prepared": 3.5, "timed": 4.5}
