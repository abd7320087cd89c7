"""``ptxkit run`` on a device whose results are scripted."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.bench.measure import benchmark, roofs, session
from ptxkit.bench.measure.run import Run
from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.results import Counted, Row
from ptxkit.errors import CompileError, MemoryFault, UnavailableError, UsageError
from ptxkit.runtime.abilities import Sensors
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload.verify import Verdict

RIGHT = Verdict(True, 1e-7, 2e-7, 1.0, 100, 0)
WRONG = Verdict(False, 1.0, 2.0, 9.0, 100, 3, "y[3] is 7, the reference says 8")


class Scaled(Workload):
    source = "scaled.cu"
    n: int = 1000

    def inputs(self, rng):
        return {"x": np.ones(self.n, np.float32)}

    def reference(self, x):
        return {"y": x}

    def work(self):
        return Work(flops=self.n, bytes=8 * self.n)

    @variant
    def unfused(self):
        return [Launch("a", 1, 32), Launch("b", 1, 32)]

    @variant(tile={"THREADS": [256, 128]})
    def fused(self, t):
        return [Launch("c", 4, t.THREADS, template=(t.THREADS,))]

    @variant(requires=["sm_100a"])
    def newest(self):
        return [Launch("d", 1, 32)]


class Scripted:
    """A GPU on which each variant takes the time in ``times_us``, or a device that counts if ``times_us`` is None."""

    name, memory_bytes, lacks, lost, l2_bytes = "scripted", 1 << 40, frozenset(), None, 1 << 20

    def __init__(self, times_us=None, target="sm_90a"):
        self.kind, self.times = ("emulator", False) if times_us is None else ("gpu", True)
        self.emulates = not self.times
        self.times_us = times_us
        self.target = Target.parse(target) if target else None
        self.order = []
        self.timing = SimpleNamespace(replays=self.replays)

    def facts_for(self, target):
        return reference_facts(self.target or "sm_90a")

    def sensors(self):
        return Sensors(1900)

    def reset_persisting_l2(self):
        pass

    def synchronize(self):
        pass

    def replays(self, graph, samples, warm):
        name, calls = graph
        self.order.append(name)
        return [self.times_us[name] * calls] * samples


class Candidate:
    """Replaces VariantCandidate: its verdict is the scripted one."""

    def __init__(self, outcome, sets, variant, tile, target):
        self.verdict = outcome.get(variant.name, RIGHT)
        if isinstance(self.verdict, CompileError):
            raise self.verdict
        target = target or sets.device.target
        chosen = variant.select_tile(sets.workload, target, tile)
        launches = len(variant.launches(sets.workload, chosen))
        self.row = Row(variant.name, target=target.name, tile=dict(chosen), launches=launches)

    def check(self, percentiles):
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict, None

    def replay(self, order):
        return (self.row.name, len(order))

    def check_graph(self, run, which):
        return RIGHT


@pytest.fixture
def script(monkeypatch):
    """Variant name -> the Verdict or error that replaces the result of a device."""
    outcome = {}

    def emulated(self, plan, case, variant):
        reason = self._skipped(plan, variant, case.workload)
        if reason:
            return Row(variant.name, skipped=reason)
        return Row(variant.name, verified=True, counted=Counted(7, 0, 0, 0, 0, 0, 0, None), target="sm_100a")

    monkeypatch.setattr(session, "WARM_UP_S", 0.0)
    monkeypatch.setattr(benchmark, "VariantCandidate", partial(Candidate, outcome))
    monkeypatch.setattr(benchmark.Benchmark, "_emulated", emulated)
    monkeypatch.setattr(roofs, "roofs", lambda device, works: Roofs(4000.0, 6000.0, {}, {"f32": 60.0}))
    return outcome


def ran(device, **options):
    """The results of running every variant, and its only case."""
    results = Run(Scaled(), device, **options).run()
    return results, results.cases[0]


def test_timed_variants_have_bandwidth_roof_and_speedup(script):
    results, case = ran(Scripted({"unfused": 4.0, "fused": 2.0}), iterations=48)
    unfused, fused, newest = case.rows
    assert (unfused.launches, fused.launches) == (2, 1)
    assert fused.cold.median_us == pytest.approx(2.0) and fused.cold.samples == 48
    assert fused.hot is None
    assert fused.bandwidth_gbs == pytest.approx(8 * 1000 / 2.0 / 1e3)
    assert (case.ceiling.bound, case.ceiling.value, case.ceiling.source) == ("memory", 4000.0, "measured")
    assert fused.roof_fraction == pytest.approx(fused.bandwidth_gbs / 4000)
    assert case.ratio(case.row("unfused"), fused, "cold") == pytest.approx(2.0)
    assert "sm_100a" in newest.skipped and newest.cold is None
    assert case.exit_code == 0 and results.target == "sm_90a"
    assert fused.tile == {"THREADS": 256}


def test_an_impossible_time_is_an_alarm_and_a_failure(script, monkeypatch):
    monkeypatch.setattr(roofs, "roofs", lambda device, works: Roofs(1.0, 1.0, {}, {}))
    _, case = ran(Scripted({"fused": 2.0}), variants=["fused"])
    assert "below the minimum" in case.rows[0].alarms[0] and case.exit_code == 1


def test_without_a_clock_there_are_counts_and_no_times(script):
    device = Scripted(target=None)
    results, case = ran(device, iterations=50)
    assert device.order == []
    fused = case.row("fused")
    assert fused.counted.instructions == 7
    assert (fused.cold, fused.bandwidth_gbs, results.roofs) == (None, None, None)
    assert results.target == "sm_90a" and case.row("newest").target == "sm_100a"


def test_no_speedup_without_the_baseline(script):
    _, case = ran(Scripted({"fused": 2.0}), variants=["fused"])
    assert [row.name for row in case.rows] == ["fused"]
    assert case.ratio(case.row("unfused"), case.rows[0], "cold") is None


def test_a_wrong_result_is_not_timed(script):
    script["fused"] = WRONG
    device = Scripted({"unfused": 4.0, "fused": 2.0})
    fused = ran(device)[1].rows[1]
    assert fused.verified is False and fused.worst.startswith("y[3]") and fused.cold is None
    assert "fused" not in device.order


def test_an_error_in_one_variant_leaves_the_others(script):
    script["unfused"] = CompileError("scaled.cu:3: no", "scaled.cu:3: no\n    here\n")
    _, case = ran(Scripted({"fused": 2.0}))
    unfused = case.row("unfused")
    assert (unfused.error, unfused.diagnostics) == ("scaled.cu:3: no", "scaled.cu:3: no\n    here")
    assert case.row("fused").verified and case.exit_code == 4


def test_after_a_fault_the_other_variants_run_where_the_device_still_works(script):
    script["unfused"] = MemoryFault("out of bounds")
    _, case = ran(Scripted({"fused": 2.0}))
    assert case.exit_code == 5
    assert case.row("unfused").error is not None and case.row("fused").verified


def test_after_a_fault_with_which_the_device_is_lost_nothing_runs(script):
    device = Scripted({"fused": 2.0})

    script["unfused"] = MemoryFault("out of bounds")
    check = Candidate.check

    def losing(self, percentiles):
        device.lost = "unfused failed"
        return check(self, percentiles)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Candidate, "check", losing)
        _, case = ran(device)
    assert case.exit_code == 5
    assert case.row("fused").skipped.startswith("not run: the fault in unfused ended this process's use of")


@pytest.mark.parametrize("times", [{}, None])
def test_a_variant_asked_for_by_name_is_not_skipped(script, times):
    with pytest.raises(UnavailableError, match="sm_100a"):
        ran(Scripted(times), variants=["newest"])


def test_a_tile_parameter_is_fixed_where_it_exists(script):
    _, case = ran(Scripted({"unfused": 1.0, "fused": 1.0}), tile={"THREADS": "128"})
    assert [row.tile for row in case.rows[:2]] == [{}, {"THREADS": 128}]
    with pytest.raises(UsageError, match="no tile parameter NOPE; there are THREADS"):
        Run(Scaled(), Scripted({}), tile={"NOPE": "1"})


def test_a_variant_that_is_stuck_is_reported_with_what_was_known(script):
    found = []
    run = Run(Scaled(), Scripted({"unfused": 1.0, "fused": 1.0}), timeout_s=100.0, stuck=found.append)
    run.run()
    run.benchmark._stuck("fused")
    case = found[0].cases[-1]
    assert case.row("fused").error.startswith("not done within 100 s") and case.exit_code == 8
    assert case.row("unfused").cold is not None and case.row("newest").skipped


def test_the_plan_lists_launches_and_touches_nothing(script, monkeypatch, tmp_path):
    (tmp_path / "scaled.cu").touch()
    monkeypatch.setattr(Scaled, "directory", classmethod(lambda cls: tmp_path))
    device = Scripted({})
    plan = Run(Scaled(), device, tile={"THREADS": "128"}).launches()
    assert device.order == []
    assert [len(v["launches"]) for v in plan["variants"]] == [2, 1, 0]
    assert plan["variants"][1]["launches"][0] == {
        "entry": "c<128>", "source": "scaled.cu", "grid": (4, 1, 1), "block": (128, 1, 1), "shared_bytes": 0,
        "cluster": None, "cooperative": False,
    }  # fmt: skip


def test_too_large_for_the_device_is_said_before_anything_is_made(script):
    device = Scripted({})
    device.memory_bytes = 100
    for attempt in (Run(Scaled(), device).run, Run(Scaled(), device).launches):
        with pytest.raises(UnavailableError, match="needs .* on scripted"):
            attempt()


def test_progress_names_every_variant(script):
    said = []
    Run(Scaled(), Scripted({"unfused": 1.0, "fused": 1.0})).run(said.append)
    assert [s for s in said if "verifying" in s and "fused:" in s] == [
        "scaled n=1000: unfused: verifying", "scaled n=1000: fused: verifying"
    ]  # fmt: skip


def test_the_copy_roof_counts_both_directions_and_respects_the_memory():
    device = Scripted({})
    asked = []
    device.measure_copy = lambda nbytes, samples: asked.append(nbytes) or [2 * nbytes / 1e3 / 100] * samples
    assert roofs.copy_bandwidth_gbs(device) == pytest.approx(100)
    device.memory_bytes = 1 << 20
    assert roofs.copy_bandwidth_gbs(device) == pytest.approx(100)
    assert asked == [1 << 30, 1 << 18]


@pytest.mark.parametrize(
    ("work", "documented", "needed"),
    [
        (Work(0, 1000), {}, False),  # a copy
        (Work(1000, 1000), {}, True),  # no documented peak
        (Work(1000, 1000), {"f32": 60.0}, False),  # 4 of 60 TFLOP/s
        (Work(10_000, 1000), {"f32": 60.0}, True),  # 40 of 60
        (Work(10_000, 1000, unit="s8"), {"f32": 60.0}, True),
    ],
)
def test_only_peaks_that_may_bound_the_work_are_measured(work, documented, needed):
    assert roofs.may_be_bound(work, 4000.0, documented) is needed
