"""A failed kernel is that of the candidate during whose step it was launched, and the others are measured without it."""

from __future__ import annotations

from functools import partial

import pytest
from ptxkit_faulty_gpu import CUDA_ERROR, METHOD, named, scripted

from ptxkit.bench.cases import Plan
from ptxkit.bench.measure import new_process
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.bench.measure.faults import step_of
from ptxkit.bench.results.results import Row
from ptxkit.errors import FaultError, PtxkitError, TimeLimitError, UsageError
from ptxkit.processes.child import Child, ChildDied
from ptxkit.workload import registry


def plan(n, **more):
    return Plan(registry.find("saxpy")(n=n), ("scalar", "vectorized"), **more)


class Inline(Child):
    """Executes the functions here, on the GPU of a new process."""

    def ask(self, function, *arguments, take):
        return function(self._make(*self._arguments), *arguments, take)


@pytest.fixture
def measured(monkeypatch):
    """Measures cases with scripted faults; the results, those after each case, and what was told."""
    monkeypatch.setattr(new_process, "Child", Inline)

    def measure(faults, plans, peers=("one", "two"), **options):
        steps, told = [], []
        bench = Benchmark(
            scripted(faults, monkeypatch.setattr),
            named(peers)[0],
            method=METHOD,
            counts=False,
            recorded=False,
            tell=told.append,
            open_device=partial(scripted, faults, monkeypatch.setattr),
            **{"when_lost": new_process.in_new_process, **options},
        )
        return bench.run(plans, done=steps.append), steps, told

    return measure


def times(results):
    """For each case, the names of the candidates with times, and of those with errors."""
    return [([r.name for r in c.rows if r.cold], [r.name for r in c.rows if r.error]) for c in results.cases]


EVERY = ["scalar", "vectorized", "one", "two"]


@pytest.mark.parametrize("name", ["vectorized", "one"])
@pytest.mark.parametrize("step", ["prepared", "verified", "timed"])
def test_a_fault_is_of_its_candidate_and_all_others_are_measured(measured, name, step):
    results, _, _ = measured({name: step}, [plan(1000), plan(2000)])
    others = [other for other in EVERY if other != name]
    assert times(results) == [(others, [name]), (others, [name])]
    row = results.cases[0].row(name)
    assert f"failed while it was {step}: " in row.error and CUDA_ERROR in row.error
    assert row.exit_code == 5 and "\n" not in row.error


def test_rows_are_in_order_and_results_are_kept_after_each_case(measured):
    results, steps, told = measured({"vectorized": "timed"}, [plan(n) for n in (1000, 2000, 3000)])
    assert [[row.name for row in case.rows] for case in results.cases] == [EVERY] * 3
    assert [(len(r.cases), r.partial) for r in steps] == [(1, True), (2, True), (3, False)]
    assert [line.partition(": ")[0] for line in told] == ["saxpy n=1000", "saxpy n=2000", "saxpy n=3000"]
    assert told[0].endswith("; a new process measures what is left, without vectorized")


def test_several_candidates_of_a_case_may_fail(measured):
    results, _, _ = measured({"scalar": "timed", "vectorized": "verified", "one": "prepared"}, [plan(1000)])
    assert times(results) == [(["two"], ["scalar", "vectorized", "one"])]


def test_the_other_cases_have_the_candidate_again(measured):
    """A fault of one case is none of the others."""
    faults = {"one": "prepared"}
    results, _, _ = measured(faults, [plan(1000), plan(2000, peers=("two",)), plan(3000, peers=("two",))])
    assert times(results) == [(["scalar", "vectorized", "two"], ["one"]), *[(["scalar", "vectorized", "two"], [])] * 2]


def test_no_case_begins_after_the_time_in_the_new_process_either(measured):
    results, _, _ = measured({"one": "prepared"}, [plan(1000), plan(2000)], stop_after_s=0.0)
    assert times(results) == [(["scalar", "vectorized", "two"], ["one"])] and results.partial


def test_a_variant_without_which_none_is_left_does_not_hide_the_case(measured):
    only = Plan(registry.find("saxpy")(n=1000), ("scalar",), chosen="scalar")
    results, _, _ = measured({"scalar": "verified"}, [only], leave_out=True)
    assert times(results) == [(["one", "two"], ["scalar"])]
    assert results.cases[0].chosen == "scalar" and results.absent == {}


def test_without_a_new_process_the_rest_is_not_run(measured):
    with pytest.raises(FaultError, match="a GPU was lost"):
        measured({"one": "prepared"}, [plan(1000), plan(2000)], when_lost=None)


def test_the_fault_of_a_peer_is_not_that_of_a_variant(measured):
    results, _, _ = measured({"one": "raised"}, [plan(1000)], when_lost=None)
    rows = {row.name: row for row in results.cases[0].rows}
    expected = f"one of its kernels failed while it was prepared: {CUDA_ERROR} (RuntimeError: internal error)"
    assert rows["one"].error == expected
    for name in ("scalar", "vectorized", "two"):
        assert rows[name].error is None
        assert rows[name].skipped == "not run: the fault in one ended this process's use of a GPU"


def in_a_process(monkeypatch, faults, there):
    """A benchmark of which a process in fact measures what is left, with the faults ``there``."""
    return Benchmark(
        scripted(faults, monkeypatch.setattr),
        named(["one"])[0],
        method=METHOD,
        counts=False,
        recorded=False,
        when_lost=new_process.in_new_process,
        open_device=partial(scripted, there),
    )


def test_a_new_process_that_ends_is_named_with_its_case(monkeypatch):
    bench = in_a_process(monkeypatch, {"one": "verified"}, {"scalar": "ended"})
    with pytest.raises(ChildDied, match="^saxpy n=1000 in a new process: its process ended with exit code 3"):
        bench.run([plan(1000)])


def test_a_new_process_measures_what_is_left(monkeypatch):
    faults, tell, said = {"one": "verified"}, [], []
    bench = in_a_process(monkeypatch, faults, faults)
    bench.tell = tell.append
    results = bench.run([plan(1000), plan(2000, peers=())], said.append)
    assert times(results) == [(["scalar", "vectorized"], ["one"]), (["scalar", "vectorized"], [])]
    assert "[2/2" in said[-1] and len(tell) == 1


@pytest.mark.parametrize("error", [UsageError("no such size"), PtxkitError("RuntimeError: no")])
def test_an_error_without_a_failed_kernel_stays_as_it_is(error):
    device = scripted({}, lambda *_: None)
    with pytest.raises(type(error), match=f"^{error}$"), step_of(device, Row("a", kind="peer"), "it was prepared"):
        raise error
    assert device.lost is None


def test_what_exceeds_its_time_is_not_waited_for():
    device = scripted({}, lambda *_: None)
    device.failed = True
    with pytest.raises(TimeLimitError), step_of(device, Row("a"), "it was timed"):
        raise TimeLimitError("too long")
