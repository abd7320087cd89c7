"""The runner over a device that answers from a script."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.bench.measure import roofs, runner
from ptxkit.bench.measure.cold import WARM_UP, cold_times_us
from ptxkit.bench.measure.statistics import FixedSamples, TimeBudget
from ptxkit.emulator.counters.counters import Counters
from ptxkit.errors import CompileError, MemoryFault, UnavailableError, UsageError
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute
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
    """A device with a clock when ``times_us`` says what each variant takes, else one that counts."""

    kind, name, memory_bytes, lacks, lost = "gpu", "scripted", 1 << 40, frozenset(), None

    def __init__(self, times_us=None, target="sm_90a"):
        self.times_us = times_us
        self.target = Target.parse(target) if target else None
        self.passes = []

    def facts_for(self, target):
        return reference_facts(self.target or "sm_90a")

    def measure(self, launch, samples):
        self.passes.append((launch(), samples))
        return SimpleNamespace(times_us=[self.times_us[launch()]] * samples, counters=None)

    def measure_copy(self, nbytes, samples):
        return [2 * nbytes / 1e3 / 4000] * samples  # 4000 GB/s


@pytest.fixture
def script(monkeypatch):
    """Variant name -> Verdict or error, in place of what a device would find."""
    outcome = {}

    def run(case, variant, target, tile, *, explicit):
        from ptxkit.workload.resolve import target_for, unavailable

        reason = unavailable(variant, target)
        if reason and explicit:
            raise UnavailableError(reason)
        if reason:
            return execute.VariantResult(variant.name, skipped=reason)
        found = outcome.get(variant.name, RIGHT)
        if isinstance(found, Exception):
            raise found
        chosen = target_for(variant, target)
        selected = variant.select_tile(case.workload, chosen, tile)
        build = SimpleNamespace(images=[SimpleNamespace(log="x.cu:1: warning: spills")])
        prepared = SimpleNamespace(launch=lambda: variant.name, build=build, tile_note="", again=lambda: None)
        counters = Counters(instructions=7) if case.device.times_us is None else None
        launches = len(variant.launches(case.workload, selected))
        return execute.VariantResult(variant.name, None, chosen.name, selected, launches, found, counters, prepared)

    monkeypatch.setattr(execute, "run", run)
    return outcome


def test_timed_variants_have_bandwidth_roof_and_speedup(script):
    device = Scripted({"unfused": 4.0, "fused": 2.0})
    report = runner.Runner(Scaled(), device, iterations=50).run()
    unfused, fused, newest = report.variants
    assert (unfused.launches, fused.launches) == (2, 1)
    assert fused.time_us.median == 2.0 and fused.time_us.samples == 50
    assert fused.bandwidth_gbs == pytest.approx(8 * 1000 / 2.0 / 1e3)
    assert report.roof_gbs == pytest.approx(4000)
    assert fused.roof_fraction == pytest.approx(fused.bandwidth_gbs / 4000)
    assert (unfused.speedup, fused.speedup) == (1.0, 2.0)
    assert "sm_100a" in newest.skipped and newest.time_us is None
    assert report.exit_code == 0 and report.target == "sm_90a"
    assert fused.tile == {"THREADS": 256}


def test_without_a_clock_there_are_counts_and_no_times(script):
    device = Scripted(target=None)
    report = runner.Runner(Scaled(), device, iterations=50).run()
    assert device.passes == []  # the verifying launch was counted
    unfused, fused, newest = report.variants
    assert fused.counters.instructions == 7
    assert (fused.time_us, fused.bandwidth_gbs, fused.speedup, report.roof_gbs) == (None, None, None, None)
    assert report.target == "sm_90a" and newest.target == "sm_100a"


def test_no_speedup_without_the_baseline(script):
    report = runner.Runner(Scaled(), Scripted({"fused": 2.0}), variants=["fused"]).run()
    assert [v.name for v in report.variants] == ["fused"]
    assert report.variants[0].speedup is None


def test_a_wrong_result_is_not_timed(script):
    script["fused"] = WRONG
    device = Scripted({"unfused": 4.0, "fused": 2.0})
    fused = runner.Runner(Scaled(), device).run().variants[1]
    assert fused.verified is False and fused.worst.startswith("y[3]") and fused.time_us is None
    assert "fused" not in [name for name, _ in device.passes]


def test_an_error_in_one_variant_leaves_the_others(script):
    script["unfused"] = CompileError("scaled.cu:3: no")
    report = runner.Runner(Scaled(), Scripted({"fused": 2.0})).run()
    assert str(report.variants[0].error) == "scaled.cu:3: no"
    assert report.variants[1].verified and report.exit_code == 4


def test_after_a_fault_the_other_variants_run_where_the_device_still_works(script):
    script["unfused"] = MemoryFault("out of bounds")
    report = runner.Runner(Scaled(), Scripted({"fused": 2.0})).run()
    assert report.exit_code == 5
    assert report.variants[0].error is not None and report.variants[1].verified


def test_after_a_fault_with_which_the_device_is_lost_nothing_runs(script):
    script["unfused"] = MemoryFault("out of bounds")
    device = Scripted({"fused": 2.0})
    device.lost = "unfused failed"
    rows = runner.Runner(Scaled(), device)
    rows.rows = []
    device.lost = None
    run_variant = rows._run_variant

    def losing(case, variant):
        row = run_variant(case, variant)
        device.lost = "unfused failed"
        return row

    rows._run_variant = losing
    report = rows.run()
    assert report.exit_code == 5
    assert report.variants[1].skipped.startswith("not run: the fault in unfused ended this process's use of")


def test_a_variant_asked_for_by_name_is_not_skipped(script):
    with pytest.raises(UnavailableError, match="sm_100a"):
        runner.Runner(Scaled(), Scripted({}), variants=["newest"]).run()


def test_tile_is_held_where_it_exists(script):
    report = runner.Runner(Scaled(), Scripted({"unfused": 1.0, "fused": 1.0}), tile={"THREADS": "128"}).run()
    assert [v.tile for v in report.variants[:2]] == [{}, {"THREADS": 128}]
    with pytest.raises(UsageError, match="no tile parameter NOPE; there are THREADS"):
        runner.Runner(Scaled(), Scripted({}), tile={"NOPE": "1"})


def test_plan_lists_launches_and_touches_nothing(script, monkeypatch, tmp_path):
    (tmp_path / "scaled.cu").touch()
    monkeypatch.setattr(Scaled, "directory", classmethod(lambda cls: tmp_path))
    device = Scripted({})
    plan = runner.Runner(Scaled(), device, tile={"THREADS": "128"}).plan()
    assert device.passes == []
    assert [len(v["launches"]) for v in plan["variants"]] == [2, 1, 0]
    assert plan["variants"][1]["launches"][0] == {
        "entry": "c<128>", "source": "scaled.cu", "grid": (4, 1, 1), "block": (128, 1, 1), "shared_bytes": 0,
        "cluster": None, "cooperative": False,
    }  # fmt: skip


def test_too_large_for_the_device_is_said_before_anything_is_made(script):
    device = Scripted({})
    device.memory_bytes = 100
    for attempt in (runner.Runner(Scaled(), device).run, runner.Runner(Scaled(), device).plan):
        with pytest.raises(UsageError, match="needs .* on scripted"):
            attempt()


def test_progress_names_every_variant(script):
    said = []
    runner.Runner(Scaled(), Scripted({"unfused": 1.0, "fused": 1.0})).run(said.append)
    assert [s for s in said if "fused on" in s] == ["scaled unfused on scripted", "scaled fused on scripted"]


def test_measuring_throws_the_first_samples_away_and_keeps_the_rule():
    device = Scripted({"k": 3.0})
    prepared = SimpleNamespace(launch=lambda: "k")
    assert cold_times_us(device, prepared, FixedSamples(300)) == [3.0] * 300
    assert [samples for _, samples in device.passes] == [WARM_UP, 256, 44]
    assert len(cold_times_us(device, prepared, TimeBudget())) == TimeBudget().minimum


def test_the_copy_roof_counts_both_directions_and_respects_the_memory():
    device = Scripted({})
    asked = []
    device.measure_copy = lambda nbytes, samples: asked.append(nbytes) or [2 * nbytes / 1e3 / 100] * samples
    assert roofs.copy_bandwidth_gbs(device) == pytest.approx(100)
    device.memory_bytes = 1 << 20
    assert roofs.copy_bandwidth_gbs(device) == pytest.approx(100)
    assert asked == [1 << 30, 1 << 18]
