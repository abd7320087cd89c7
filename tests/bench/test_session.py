"""The measuring loop on a device whose results are scripted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.bench.measure import session as module
from ptxkit.bench.measure.method import Method
from ptxkit.bench.results.results import Row
from ptxkit.errors import FaultError, LaunchError
from ptxkit.runtime.abilities import Sensors
from ptxkit.workload.verify import Verdict

ROUNDED = Verdict(True, 0, 0, 0, 10, 0, less_accurate="3 of 10 elements of y exceed the tolerance")
RIGHT, WRONG = Verdict(True, 0, 0, 0, 10, 0), Verdict(False, 1, 1, 1, 10, 1, "y[3] is 7, the reference says 8")


class Copied(Workload):
    source = "copied.cu"
    n: int = 1 << 20

    def inputs(self, rng):
        return {"x": np.ones(self.n, np.float32)}

    def reference(self, x):
        return {"y": x}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant
    def unfused(self):
        return [Launch("a", 1, 32)]


class Script:
    """A GPU whose graphs are (candidate, calls), with scripted times."""

    lost = None
    l2_bytes = 1 << 20

    def __init__(self, times, sensors=Sensors(1900)):
        self.times, self.now, self.order, self.reset = times, sensors, [], 0
        self.timing = SimpleNamespace(replays=self.replays)

    def replays(self, graph, samples, warm):
        name, calls = graph
        self.order.append(name)
        return [self.times[name] * calls] * samples

    def facts(self):
        return SimpleNamespace(clock_mhz=1980)

    def sensors(self):
        return self.now

    def synchronize(self):
        pass

    def reset_persisting_l2(self):
        self.reset += 1


class Scripted:
    def __init__(self, name, *verdicts, error=None):
        self.row, self.verdicts, self.error, self.checked = Row(name), list(verdicts), error, []

    def replay(self, order):
        if self.error:
            raise self.error
        return (self.row.name, len(order))

    def verdict(self):
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def check(self, percentiles):
        return (None, None) if not self.verdicts else (self.verdict(), None)

    def restart(self):
        self.restarts = getattr(self, "restarts", 0) + 1

    def check_graph(self, run, which):
        self.checked.append((run, which))
        return self.verdict()


class Sets:
    workload = Copied()

    def __init__(self):
        self.data, self.renewed, self.changed = SimpleNamespace(seed=0), [], []

    def __len__(self):
        return 2

    def renew(self, seed):
        self.renewed.append(seed)

    def overwritten(self):
        return self.changed


def measured(device, *candidates, **method):
    sets = Sets()
    s = module.Session(device, sets, Method(**{"iterations": 8, **method}))
    return s.measure(candidates, lambda what: None), sets


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch):
    monkeypatch.setattr(module, "WARM_UP_S", 0.0)


def test_times_are_of_one_call():
    (row,), sets = measured(Script({"a": 4.0}), Scripted("a", RIGHT, RIGHT))
    assert row.cold.median_us == pytest.approx(4.0)
    assert row.cold.samples == row.hot.samples == 8
    assert row.cold.sets == 2
    assert row.hot.sets == 1
    assert row.verified
    assert sets.renewed  # other inputs


def test_the_steps_are_told_to_a_stopwatch():
    told, device = [], Script({"a": 4.0})
    watch = SimpleNamespace(step=told.append)
    s = module.Session(device, Sets(), Method(iterations=8), watch=watch)
    s.measure([Scripted("a", RIGHT, RIGHT)], lambda what: None)
    after = ["verification", "inputs and references", "verification"]
    assert told == ["verification", "warm-up", "samples", *after]


def test_long_calls_on_little_data_rotate_over_few_sets():
    """400 sets of 30 ms each would take 12 s for one sample; the cache is flushed before each sample anyway."""
    times, queued = {"slow": 30_000.0, "fast": 4.0}, []

    class Many(Sets):
        def __len__(self):
            return 400

    class Counted(Script):
        def replays(self, graph, samples, warm):
            queued.append(graph[1] * samples)
            return super().replays(graph, samples, warm)

    for name, sets in (("slow", 2), ("fast", 400)):
        queued.clear()
        session = module.Session(Counted(times), Many(), Method(iterations=8))
        (row,) = session.measure([Scripted(name, RIGHT, RIGHT)], lambda what: None)
        assert row.cold.sets == row.cold.calls == sets
        assert row.cold.median_us == pytest.approx(times[name])
        if name == "slow":
            assert sum(queued) < 64


def test_samples_of_candidates_are_interleaved():
    device = Script({"a": 4.0, "b": 4.0})
    measured(device, Scripted("a", RIGHT, RIGHT), Scripted("b", RIGHT, RIGHT), iterations=40)
    switches = sum(x != y for x, y in zip(device.order, device.order[1:]))
    assert switches > 10
    assert device.reset


@pytest.mark.parametrize(("throttled", "samples"), [((), (16, 32)), (("power cap",), (32, 32))])
def test_all_are_measured_equally_often_while_the_power_cap_sets_the_clock(throttled, samples):
    class Noisy(Script):
        def replays(self, graph, samples, warm):
            times = super().replays(graph, samples, warm)
            return times if graph[0] == "steady" else [t * (1 + i % 2) for i, t in enumerate(times)]

    device = Noisy({"steady": 4.0, "noisy": 5.0}, Sensors(1500, throttled=throttled))
    rows, _ = measured(
        device, Scripted("steady", RIGHT), Scripted("noisy", RIGHT), iterations=None, minimum=16, maximum=32, modes=("cold",)
    )
    assert tuple(row.cold.samples for row in rows) == samples


def test_a_wrong_result_is_not_timed():
    (row,), _ = measured(Script({"a": 4.0}), Scripted("a", WRONG))
    assert row.verified is False
    assert row.cold is None
    assert row.worst == WRONG.worst


@pytest.mark.parametrize("verdicts", [(ROUNDED, RIGHT, RIGHT), (RIGHT, RIGHT, ROUNDED)], ids=["before", "after"])
def test_a_less_accurate_result_is_timed_and_marked(verdicts):
    (row,), _ = measured(Script({"a": 4.0}), Scripted("a", *verdicts))
    assert (row.verified, row.less_accurate) == (True, ROUNDED.less_accurate)
    assert row.cold and row.hot


def test_wrong_on_fresh_inputs_is_wrong():
    (row,), _ = measured(Script({"a": 4.0}), Scripted("a", RIGHT, WRONG))
    assert row.verified is False
    assert row.worst.startswith("on fresh inputs after timing, cold: y[3]")


def test_the_graphs_that_were_timed_are_the_ones_that_are_verified():
    a = Scripted("a", RIGHT, RIGHT, RIGHT)
    measured(Script({"a": 4.0}), a)
    calls = round(500 / 4 / 2) * 2  # complete rotations over two sets for half a millisecond
    assert a.checked == [(("a", calls), 1), (("a", 125), 0)]


def test_a_hot_graph_that_is_wrong_is_said():
    (row,), _ = measured(Script({"a": 4.0}), Scripted("a", RIGHT, RIGHT, WRONG))
    assert (row.verified, row.worst) == (False, f"on fresh inputs after timing, hot: {WRONG.worst}")


def test_random_outputs_are_neither_right_nor_wrong():
    (row,), _ = measured(Script({"a": 4.0}), Scripted("a", None, None))
    assert row.verified is None
    assert row.cold


def test_throttled_samples_are_dropped(monkeypatch):
    device = Script({"a": 4.0}, Sensors(1900, throttled=("thermal",)))
    s = module.Session(device, Sets(), Method(iterations=8))
    tracks = [module.Track(0, "cold", ("a", 1), 1, 1)]
    s._take(tracks[0], 4)
    assert tracks[0].samples == []
    assert tracks[0].dropped == 4
    device.now = Sensors(1900)
    s._take(tracks[0], 4)
    assert len(tracks[0].samples) == 4
    assert tracks[0].timed().dropped == 4
    assert (s.conditions().dropped, s.conditions().throttle_reasons) == (4, {"thermal": 1})
    assert s.conditions().sm_clock_mhz.maximum == 1900


def test_one_that_cannot_run_does_not_stop_the_others():
    rows, _ = measured(
        Script({"b": 4.0}), Scripted("a", error=LaunchError("too many threads")), Scripted("b", RIGHT, RIGHT)
    )
    assert rows[0].error == "too many threads"
    assert rows[1].cold


class Losing(Scripted):
    """Loses the device when it is called for the given time: 0 is its verification, 1 its first samples."""

    def __init__(self, name, device, when):
        super().__init__(name, RIGHT)
        self.device, self.when = device, when

    def check(self, percentiles):
        if self.when == 0:
            self.lose()
        return super().check(percentiles)

    def lose(self):
        self.device.lost = "a failed"
        raise FaultError("an illegal address")


def test_a_fault_is_of_the_one_that_caused_it_and_nothing_runs_after_it():
    device = Script({"b": 4.0})
    device.name = "a GPU"
    rows, _ = measured(device, Losing("a", device, 0), Scripted("b", RIGHT))
    assert (rows[0].error, rows[0].exit_code) == ("failed while it was verified: an illegal address", 5)
    assert rows[1].skipped == "not run: the fault in a ended this process's use of a GPU"
    assert device.order == [] and rows[1].cold is None


def test_a_fault_while_sampling_leaves_no_time_that_could_not_be_verified():
    device = Script({"a": 4.0, "b": 4.0})
    device.name = "a GPU"
    replays = device.replays

    def faulting(graph, samples, warm):
        if graph[0] == "b" and device.order.count("b") >= 6:
            device.lost = "b failed"
            raise FaultError("an illegal address")
        return replays(graph, samples, warm)

    device.timing.replays = faulting
    rows, _ = measured(device, Scripted("a", RIGHT), Scripted("b", RIGHT), iterations=1000)
    assert rows[1].error == "failed while it warmed the GPU up: an illegal address"
    assert rows[0].cold is None and rows[0].skipped.startswith("not run: the fault in b")


def test_a_limit_ends_one_candidate_and_counts_all_its_time():
    from ptxkit.bench.measure.time_limit import TimeLimit

    class Hanging(Scripted):
        def check(self, percentiles):
            import time

            time.sleep(5)

    device = Script({"b": 4.0})
    sets = Sets()
    s = module.Session(device, sets, Method(iterations=8), limit=TimeLimit(0.1))
    rows = s.measure([Hanging("a", RIGHT), Scripted("b", RIGHT)], lambda what: None)
    assert "not done within 0.1 s" in rows[0].error and rows[0].exit_code == 8
    assert rows[1].cold is not None


def test_without_fresh_inputs_the_graphs_are_verified_on_the_same_ones():
    a = Scripted("a", RIGHT, WRONG)
    (row,), sets = measured(Script({"a": 4.0}), a, fresh_inputs=False, modes=("cold",))
    assert sets.renewed == [] and row.hot is None
    assert row.worst.startswith("once more after timing, cold: y[3]")


class Clock:
    """A clock that advances with sleeps and with samples."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.wait)

    def wait(self, seconds):
        self.now += seconds


class Slow(Script):
    """Every sample advances the clock by one second."""

    def __init__(self, clock, *args, **more):
        super().__init__(*args, **more)
        self.clock = clock

    def replays(self, graph, samples, warm):
        self.clock.wait(samples)
        return super().replays(graph, samples, warm)


def test_a_gpu_that_throttles_for_good_gives_no_time_and_says_so(monkeypatch):
    clock = Clock(monkeypatch)
    device = Slow(clock, {"a": 4.0}, Sensors(1900, throttled=("thermal",)))
    (row,), _ = measured(device, Scripted("a", RIGHT))
    assert row.cold is row.hot is None
    assert row.error.startswith("no time: no sample of 8, ")
    assert row.error.endswith(" dropped for throttling")
    assert module.PATIENCE_S < clock.now < 2 * module.PATIENCE_S


def test_iterations_are_exactly_so_many_however_long_they_take(monkeypatch):
    clock = Clock(monkeypatch)
    (row,), _ = measured(Slow(clock, {"a": 4.0}), Scripted("a", RIGHT), iterations=200, budget_s=0.01)
    assert (row.cold.samples, row.hot.samples, row.error, row.note) == (200, 200, None, "")
    assert clock.now > 400


def test_a_kernel_too_slow_for_the_minimum_has_fewer_samples_and_says_so(monkeypatch):
    clock = Clock(monkeypatch)
    (row,), _ = measured(Slow(clock, {"a": 4.0}), Scripted("a", RIGHT), iterations=None, minimum=100, budget_s=1.0)
    assert 0 < row.cold.samples < 100
    assert row.error is None
    assert f"{row.cold.samples} samples of 100, 0 dropped for throttling" in row.note


def test_a_clock_that_is_locked_low_is_no_throttling():
    """1200 of 1980 MHz from the beginning, because it is locked; and a clock that falls to that in the middle."""
    (row,), _ = measured(Script({"a": 4.0}, Sensors(1200)), Scripted("a", RIGHT))
    assert row.cold.samples == 8
    device = Script({"a": 4.0}, Sensors(1980))
    s = module.Session(device, Sets(), Method(iterations=8))
    track = module.Track(0, "cold", ("a", 1), 1, 1)
    s._take(track, 4)
    device.now = Sensors(1200)
    s._take(track, 4)
    assert (len(track.samples), track.dropped) == (4, 4)


class Failing(Scripted):
    """The sensor is read immediately before the timing; it is not available afterwards."""

    def check_graph(self, run, which):
        raise LaunchError("out of memory")


def test_one_that_fails_after_timing_has_no_place_among_the_right_ones():
    bad, good = measured(Script({"a": 4.0, "b": 4.0}), Failing("a", RIGHT), Scripted("b", RIGHT))[0]
    assert bad.error == "out of memory"
    assert (good.error, good.verified) == (None, True)


def test_a_plain_launch_is_timed_in_every_round():
    made = []

    def plain(device):
        made.append(device)
        return lambda: 1.08

    device = Script({"a": 4.0})
    s = module.Session(device, Sets(), Method(iterations=8), plain=plain)
    s.measure([Scripted("a", RIGHT)], lambda what: None)
    assert made == [device]
    assert s.conditions().plain_launch_us.median == 1.08


class Overwriting(Script):
    """A GPU on which a candidate changes an input in its third replay, as counted from a restart that restores its module."""

    def __init__(self, times, name, restartable=True):
        super().__init__(times)
        self.name, self.count, self.restartable, self.sets = name, 0, restartable, Sets()

    def replays(self, graph, samples, warm):
        before = self.count
        self.count += samples if graph[0] == self.name else 0
        if before < 3 <= self.count:
            self.sets.changed = ["input x was overwritten"]
        return super().replays(graph, samples, warm)

    def candidate(self, name):
        made = Scripted(name, RIGHT)
        made.restart = self.restart
        return made

    def restart(self):
        self.sets.changed = []
        if self.restartable:
            self.count = 0

    def measured(self, *names):
        candidates = [self.candidate(name) for name in names]
        return module.Session(self, self.sets, Method(iterations=8)).measure(candidates, lambda what: None)


def test_the_candidate_that_changes_an_input_while_samples_are_taken_is_named():
    a, b, c = Overwriting({"a": 4.0, "b": 4.0, "c": 4.0}, "b").measured("a", "b", "c")
    assert (a.verified, b.verified, c.verified) == (True, False, True)
    assert b.worst == "while samples were taken, input x was overwritten"
    assert a.note == c.note == "timed on inputs that b changed"


def test_all_variants_are_wrong_where_the_one_that_changed_an_input_is_not_known():
    a, b = Overwriting({"a": 4.0, "b": 4.0}, "b", restartable=False).measured("a", "b")
    assert (a.verified, b.verified) == (False, False)
    assert a.worst == "one of the variants or peers changed an input while samples were taken: input x was overwritten"
