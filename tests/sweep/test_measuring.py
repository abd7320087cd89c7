"""The measuring process: its hangs, faults and exits are results of configurations."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ptxkit.errors import UnavailableError
from ptxkit.sweep import measuring
from ptxkit.sweep.problem import Problem

PROBLEM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 1024}, {"eps": 1e-12}, "sm_90a")


def scripted(pipe, problem, seed):
    """Returns the result that the tile names."""
    pipe.send("ready")
    while True:
        _, tile, _ = pipe.recv()
        if tile["DO"] == "refuse":
            pipe.send(measuring.Measured("launch", "the launch does not fit"))
            continue
        if tile["DO"] == "compile":
            time.sleep(1)
        pipe.send(measuring.BUILT)
        if tile["DO"] == "hang":
            time.sleep(60)
        if tile["DO"] == "die":
            os._exit(1)
        if tile["DO"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if tile["DO"] == "killed once" and not (mark := Path(tile["MARK"])).exists():
            mark.mkdir()
            os.kill(os.getpid(), signal.SIGKILL)
        status = "fault" if tile["DO"] == "fault" else "ok"
        pipe.send(measuring.Measured(status, time_us=float(os.getpid())))


def unready(pipe, problem, seed):
    pipe.send("there is no GPU here")


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr(measuring, "serve", scripted)
    p = measuring.MeasuringProcess(PROBLEM, 0, timeout_s=20)
    yield p
    p.close()


def ask(process, what):
    return process.measure({"DO": what}, 1.0)


def test_one_process_answers_many(process):
    assert ask(process, "ok").time_us == ask(process, "ok").time_us


@pytest.mark.parametrize("what", ["fault", "die"])
def test_a_fault_costs_the_process_not_the_sweep(process, what):
    first = ask(process, "ok")
    assert ask(process, what).status == "fault"
    again = ask(process, "ok")
    assert again.status == "ok"
    assert again.time_us != first.time_us


def test_a_configuration_whose_process_was_killed_is_measured_once_more(process, tmp_path):
    assert process.measure({"DO": "killed once", "MARK": str(tmp_path / "mark")}, 1.0).status == "ok"
    twice = ask(process, "killed")
    assert (twice.status, twice.error) == ("fault", "the measuring process died, killed; is there enough memory?")
    assert ask(process, "die").error == "the measuring process died"


def test_a_hang_ends_in_time(process):
    assert ask(process, "ok").status == "ok"
    process.timeout_s = 0.3
    assert ask(process, "hang").status == "timeout"
    process.timeout_s = 20
    assert ask(process, "ok").status == "ok"


def test_compiling_is_not_part_of_the_limit(process):
    assert ask(process, "ok").status == "ok"
    process.timeout_s = 0.3
    assert ask(process, "compile").status == "ok"


def test_what_is_refused_before_it_is_built_is_an_answer(process):
    assert (ask(process, "refuse").status, ask(process, "ok").status) == ("launch", "ok")


class Building:
    """A Bench that compiles and returns results."""

    def __init__(self, problem, seed):
        self.measure = self.leaders = self.canary = lambda argument, given, built: built() or argument


@pytest.mark.parametrize("what", ["measure", "leaders", "canary"])
def test_the_process_says_when_it_has_built(monkeypatch, what):
    monkeypatch.setattr(measuring, "Bench", Building)
    monkeypatch.setattr(measuring.signal, "signal", lambda *_: None)
    monkeypatch.setattr(measuring, "end_with", lambda parent: None)
    ours, theirs = multiprocessing.Pipe()
    ours.send((what, "the answer", 1.0))
    server = threading.Thread(target=measuring.serve, args=(theirs, PROBLEM, 0))
    server.start()
    assert [ours.recv() for _ in range(3)] == ["ready", measuring.BUILT, "the answer"]
    ours.close()
    server.join()


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(measuring, "serve", unready)
    with pytest.raises(UnavailableError, match="no GPU here"):
        measuring.MeasuringProcess(PROBLEM, 0, 5).measure({}, 1.0)


def taken(*values):
    """A source of samples, whose last value repeats, and the number of samples taken."""
    count = 0

    def take(wanted):
        nonlocal count
        found = [values[min(count + i, len(values) - 1)] for i in range(wanted)]
        count += wanted
        return found

    return take


def test_a_configuration_much_slower_than_the_best_is_given_up_after_the_first_samples():
    times, hopeless = measuring.screened(taken(2.0), best_us=1.0)
    assert (times, hopeless) == ([2.0, 2.0], True)


def test_one_slow_sample_gives_up_nothing():
    times, hopeless = measuring.screened(taken(2.0, 1.0), best_us=1.0)
    assert not hopeless
    assert len(times) == measuring.SCREENING.minimum


def test_scattered_samples_are_followed_by_more_until_the_budget_is_spent(monkeypatch):
    monkeypatch.setattr(measuring, "SCREENING", replace(measuring.SCREENING, budget_s=60.0))
    times, _ = measuring.screened(taken(*(1.0 + 0.2 * (i % 5) for i in range(100))), best_us=1.0)
    assert len(times) == measuring.SCREENING.maximum
