"""The time of a launch of an empty kernel, with which small times are compared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.measure import plain_launch as module
from ptxkit.bench.measure.sensor_log import SensorLog
from ptxkit.bench.report import tables
from ptxkit.bench.results.conditions import Conditions, Span
from ptxkit.runtime.device import device
from ptxkit.targets import Target


def test_the_kernel_runs_and_the_time_is_of_one_launch():
    """Launches on the emulator, with the graphs and the clock of a GPU that reports 250 us for each graph."""
    emulator = device("emulator")
    found = []
    gpu = SimpleNamespace(
        target=Target.parse("sm_90a"),
        upload=lambda array, name: found.append(emulator.upload(array, name)) or found[-1],
        load=emulator.load,
        graph=lambda launches: launches,
        timing=SimpleNamespace(replays=lambda graph, samples, warm: [graph() or 250.0] * samples),
    )
    saved, module.LAUNCHES = module.LAUNCHES, 2
    try:
        assert module.plain_launch(gpu)() == pytest.approx(125.0)
    finally:
        module.LAUNCHES = saved
    assert np.all(found[0].numpy() == 2.0)


def test_it_stands_in_the_conditions():
    log = SensorLog()
    for time_us in (1.08, 1.25, 1.24):
        log.launched(time_us)
    conditions = log.conditions()
    assert conditions.plain_launch_us == Span(1.08, 1.24, 1.25)
    assert str(conditions).endswith("a plain launch 1.24 us")


def test_results_of_other_launches_say_so():
    def at(launch_us):
        results = make_results()
        conditions = Conditions(plain_launch_us=Span(launch_us, launch_us, launch_us))
        return replace(results, cases=(replace(results.cases[0], conditions=conditions),))

    (note,) = tables.compare_table(at(1.25), at(1.08)).notes
    assert note.startswith("saxpy n=1000: a plain launch took 1.25 us, then 1.08")
    assert tables.compare_table(at(1.08), at(1.10)).notes == []
    assert tables.compare_table(make_results(), at(1.10)).notes == []
