"""Running a result file again: the peers, the method, and the messages about missing candidates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from ptxkit_bench_samples import make_results, timed

from ptxkit.bench.measure import rerun
from ptxkit.bench.measure.method import Method
from ptxkit.bench.results.results import Row
from ptxkit.errors import UnavailableError, UsageError

GPU = SimpleNamespace(kind="gpu", name="NVIDIA H200")


def earlier(*peers, **changes):
    """Results of saxpy, with a time of each of these peers."""
    results = make_results(**changes)
    (case,) = results.cases
    ours = [replace(row, name={"unfused": "scalar", "fused": "vectorized"}[row.name]) for row in case.rows[:2]]
    rows = (*ours, *(Row(name, kind="peer", cold=timed(40.0)) for name in peers))
    return replace(results, cases=(replace(case, options={}, rows=rows),))


class Run:
    """Replaces Benchmark: records its arguments and returns the results that the test chose."""

    def __init__(self, monkeypatch, answer, usable=("torch", "triton")):
        self.answer = answer
        monkeypatch.setattr(rerun, "Benchmark", self.made)
        monkeypatch.setattr(rerun, "peer_names", lambda: ("cupy", "torch", "triton"))
        monkeypatch.setattr(
            rerun,
            "usable_peers",
            lambda names: ([n for n in names if n in usable], [(n, "not installed") for n in names if n not in usable]),
        )

    def made(self, device, peers, absent, method, **more):
        self.peers, self.absent, self.method, self.more = peers, absent, method, more
        return self

    def run(self, plans, say, done):
        self.plans = plans
        done(replace(self.answer, absent=self.absent, partial=True))
        return replace(self.answer, absent=self.absent)


def changes(before):
    """The results of running a case again on a GPU."""
    return list(rerun.changes(before, rerun.again(before, GPU), rerun.peers_of(before)))


def test_the_peers_of_the_result_run_again_where_the_result_has_them(monkeypatch):
    before = earlier("torch", "triton")
    run = Run(monkeypatch, before)
    told = changes(before)
    assert run.peers == ["torch", "triton"]
    assert run.plans[0].peers == ("torch", "triton")
    assert run.plans[0].variants == ("scalar", "vectorized")
    assert told == []


def test_an_absent_package_and_an_unknown_peer_are_said(monkeypatch):
    before = earlier("torch", "cupy", "theirs")
    run = Run(monkeypatch, earlier("torch"))
    told = changes(before)
    assert run.peers == ["torch"]
    assert sorted(told) == [
        "cupy: not run again, not installed",
        "theirs: not run again, no such peer; it came from a plugin, or from another version",
    ]


def test_a_peer_that_ran_into_an_error_or_offers_it_no_more_is_said(monkeypatch):
    before = earlier("torch", "triton")
    (case,) = earlier("torch").cases
    failed = replace(case, rows=(*case.rows[:2], Row("torch", kind="peer", error="out of memory")))
    Run(monkeypatch, replace(before, cases=(failed,)))
    told = changes(before)
    assert "saxpy n=1000 torch: no time, out of memory" in told
    assert "saxpy n=1000 triton: not run again, it does not support this case any more" in told


def test_some_of_its_peers_or_none(monkeypatch):
    before = earlier("torch", "triton")
    run = Run(monkeypatch, before)
    rerun.again(before, GPU, peers=["triton"])
    assert run.peers == ["triton"]
    rerun.again(before, GPU, peers=[])
    assert run.peers == []
    with pytest.raises(UsageError, match="have no peer 'cupy'; they have torch, triton"):
        rerun.again(before, GPU, peers=["cupy"])


def test_the_method_is_the_results(monkeypatch):
    before = earlier(method={"budget_s": 7.0, "order_seed": 3, "iterations": 50, "of_another_version": True})
    run = Run(monkeypatch, before)
    rerun.again(before, GPU)
    assert run.method == Method(budget_s=7.0, order_seed=3, iterations=50)
    rerun.again(before, GPU, budget_s=1.0)
    assert run.method == Method(budget_s=1.0, order_seed=3)
    with pytest.raises(UsageError, match="method.budget_s must be a number above 0"):
        rerun.again(earlier(method={"budget_s": "long"}), GPU)


def test_a_result_of_a_gpu_needs_one():
    with pytest.raises(UnavailableError, match="on a GPU only"):
        rerun.again(earlier(), SimpleNamespace(kind="emulator", name="ptxkit emulator"))


def test_each_target_is_handed_over_when_it_is_measured(monkeypatch):
    found = []
    Run(monkeypatch, earlier("torch"))
    rerun.again(earlier("torch"), GPU, done=found.append)
    assert [results.partial for results in found] == [True]


def test_a_result_of_a_run_that_was_stopped_is_called_that(monkeypatch):
    Run(monkeypatch, earlier())
    assert changes(earlier(partial=True)) == ["the earlier run was stopped, and has not all of its cases"]


def test_counts_that_have_changed_are_named():
    (case,) = make_results().cases
    more = replace(case.rows[0].counted, load_bytes=1600)
    rows = (replace(case.rows[0], counted=more), *case.rows[1:])
    before = make_results(device_kind="emulator", roofs=None)
    after = replace(before, cases=(replace(case, rows=rows),))
    assert list(rerun.changes(before, after)) == [
        "saxpy n=1000 unfused: other counts: load bytes 800 before, 1,600 now",
        "saxpy n=1000 fused: same counts",
    ]


@pytest.mark.parametrize(("code", "rest"), [("m", ", its machine code has not"), ("n", "")])
def test_ptx_that_has_changed_may_be_the_same_machine_code(code, rest):
    before, after = make_results(code="m"), make_results(code=code)
    (case,) = after.cases
    rows = (case.rows[0], replace(case.rows[1], source_sha256="t"), *case.rows[2:])
    after = replace(after, cases=(replace(case, rows=rows),))
    assert list(rerun.changes(before, after)) == [f"saxpy n=1000 fused: its PTX has changed{rest}"]
