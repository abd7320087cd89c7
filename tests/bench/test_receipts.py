"""Running a receipt again: which peers, by which method, and what is said of what is missing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from ptxkit_bench_samples import make_results, timed

from ptxkit.bench.measure.method import Method
from ptxkit.bench.results import rerun as receipts
from ptxkit.bench.results.results import Row
from ptxkit.errors import UnavailableError, UsageError

GPU = SimpleNamespace(kind="gpu", name="NVIDIA H200")


def receipt(*peers, **changes):
    """Of saxpy, with a time of each of these peers."""
    results = make_results(**changes)
    (target,) = results.targets
    ours = [replace(row, name={"unfused": "scalar", "fused": "vectorized"}[row.name]) for row in target.rows[:2]]
    rows = (*ours, *(Row(name, kind="peer", cold=timed(40.0)) for name in peers))
    return replace(results, targets=(replace(target, options={}, rows=rows),))


class Run:
    """In place of BenchRun: keeps what it was given, answers with what the test says."""

    def __init__(self, monkeypatch, answer, usable=("torch", "triton")):
        self.answer = answer
        monkeypatch.setattr(receipts, "BenchRun", self.made)
        monkeypatch.setattr(receipts, "peer_names", lambda: ("cupy", "torch", "triton"))
        monkeypatch.setattr(
            receipts,
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
    """Of running it again on a GPU."""
    return list(receipts.changes(before, receipts.again(before, GPU), receipts.peers_of(before)))


def test_the_peers_of_the_receipt_run_again_where_the_receipt_has_them(monkeypatch):
    before = receipt("torch", "triton")
    run = Run(monkeypatch, before)
    told = changes(before)
    assert run.peers == ["torch", "triton"]
    assert run.plans[0].peers == ("torch", "triton")
    assert run.plans[0].variants == ("scalar", "vectorized")
    assert told == []


def test_an_absent_package_and_an_unknown_peer_are_said(monkeypatch):
    before = receipt("torch", "cupy", "theirs")
    run = Run(monkeypatch, receipt("torch"))
    told = changes(before)
    assert run.peers == ["torch"]
    assert sorted(told) == [
        "cupy: not run again, not installed",
        "theirs: not run again, there is no such peer; it came from a plugin, or from another version",
    ]


def test_a_peer_that_ran_into_an_error_or_offers_it_no_more_is_said(monkeypatch):
    before = receipt("torch", "triton")
    (target,) = receipt("torch").targets
    failed = replace(target, rows=(*target.rows[:2], Row("torch", kind="peer", error="out of memory")))
    Run(monkeypatch, replace(before, targets=(failed,)))
    told = changes(before)
    assert "saxpy n=1000 torch: no time, out of memory" in told
    assert "saxpy n=1000 triton: not run again, it does not offer this any more" in told


def test_some_of_its_peers_or_none(monkeypatch):
    before = receipt("torch", "triton")
    run = Run(monkeypatch, before)
    receipts.again(before, GPU, peers=["triton"])
    assert run.peers == ["triton"]
    receipts.again(before, GPU, peers=[])
    assert run.peers == []
    with pytest.raises(UsageError, match="has no peer 'cupy'; it has torch, triton"):
        receipts.again(before, GPU, peers=["cupy"])


def test_the_method_is_the_receipts(monkeypatch):
    before = receipt(method={"budget_s": 7.0, "order_seed": 3, "iterations": 50, "of_another_version": True})
    run = Run(monkeypatch, before)
    receipts.again(before, GPU)
    assert run.method == Method(budget_s=7.0, order_seed=3, iterations=50)
    receipts.again(before, GPU, budget_s=1.0)
    assert run.method == Method(budget_s=1.0, order_seed=3)
    with pytest.raises(UsageError, match="method.budget_s must be a number above 0"):
        receipts.again(receipt(method={"budget_s": "long"}), GPU)


def test_a_receipt_of_a_gpu_needs_one():
    with pytest.raises(UnavailableError, match="on a GPU only"):
        receipts.again(receipt(), SimpleNamespace(kind="emulator", name="ptxkit emulator"))


def test_each_target_is_handed_over_when_it_is_measured(monkeypatch):
    found = []
    Run(monkeypatch, receipt("torch"))
    receipts.again(receipt("torch"), GPU, done=found.append)
    assert [results.partial for results in found] == [True]


def test_a_receipt_of_a_run_that_was_stopped_is_called_that(monkeypatch):
    Run(monkeypatch, receipt())
    assert changes(receipt(partial=True)) == [
        "the receipt is of a run that was stopped, and has not all of its targets"
    ]


def test_counts_that_have_changed_are_named():
    (target,) = make_results().targets
    more = replace(target.rows[0].counted, load_bytes=1600)
    rows = (replace(target.rows[0], counted=more), *target.rows[1:])
    before = make_results(device_kind="emulator", roofs=None)
    after = replace(before, targets=(replace(target, rows=rows),))
    assert list(receipts.changes(before, after)) == [
        "saxpy n=1000 unfused: other counts: load bytes 800 then, 1,600 now",
        "saxpy n=1000 fused: same counts",
    ]


@pytest.mark.parametrize(("code", "rest"), [("m", ", its machine code has not"), ("n", "")])
def test_ptx_that_has_changed_may_be_the_same_machine_code(code, rest):
    before, after = make_results(code="m"), make_results(code=code)
    (target,) = after.targets
    rows = (target.rows[0], replace(target.rows[1], source_sha256="t"), *target.rows[2:])
    after = replace(after, targets=(replace(target, rows=rows),))
    assert list(receipts.changes(before, after)) == [f"saxpy n=1000 fused: its PTX has changed{rest}"]
