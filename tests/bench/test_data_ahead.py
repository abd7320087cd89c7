"""Inputs and references from other processes: the same values as here, no process left, and a result if one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.bench.cases import Plan
from ptxkit.bench.measure import data_ahead
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.bench.measure.data_ahead import DataAhead
from ptxkit.runtime.device import emulating_device
from ptxkit.workload import registry
from ptxkit.workload.data import Data

SEEDS = [3, 4]
KERNELS = ["saxpy", "quantize_int8", "attention_e4m3", "moe_routed", "sparse_compress"]


@pytest.fixture(autouse=True)
def every_case_is_worth_it(monkeypatch):
    monkeypatch.setattr(data_ahead, "LONG_S", -1.0)


def small(name):
    return registry.get(name).make((), None, small=True).on(emulating_device().facts_for(None))


def same(a, b):
    """Whether two mappings have equal values of equal types, bit for bit."""
    for name in {*a, *b}:
        x, y = np.asarray(a[name]), np.asarray(b[name])
        assert (x.dtype, x.shape, type(a[name])) == (y.dtype, y.shape, type(b[name])), name
        assert x.tobytes() == y.tobytes(), name


def test_the_values_are_those_that_would_be_computed_here(started):
    workloads = [small(name) for name in KERNELS]
    with DataAhead([(workload, SEEDS) for workload in workloads], processes=2) as ahead:
        for workload in workloads:
            here, there = Data(workload, SEEDS[0]), Data(workload, SEEDS[0], prepared=ahead.take)
            same(here.inputs, there.inputs)
            same(here.expected, there.expected)
            for data in (here, there):
                data.renew(SEEDS[1])
            same(here.inputs, there.inputs)
            same(here.expected, there.expected)
    assert len(started) == len(workloads)
    assert all(process.poll() is not None for process in started)


def test_the_reference_is_not_computed_here_when_it_is_prepared(monkeypatch):
    workload = small("saxpy")
    with DataAhead([(workload, SEEDS)]) as ahead:
        data = Data(workload, SEEDS[0], prepared=ahead.take)
        monkeypatch.setattr(type(workload), "reference", lambda *arguments, **named: pytest.fail("computed here"))
        assert data.expected["y"].size == workload.n


def test_a_reference_whose_products_are_left_to_the_library_is_computed_here(monkeypatch):
    every = "import ptxkit.workload.products as products; products.WORTH_S = -1.0; products.BYTES_PER_S = 1e30; "
    monkeypatch.setattr(data_ahead, "ENTRY", every + data_ahead.ENTRY)
    workload = small("swiglu_ffn")
    with DataAhead([(workload, SEEDS)], leave_products=True) as ahead:
        data = Data(workload, SEEDS[0], prepared=ahead.take)
        inputs, reference = ahead.take(workload, SEEDS[1])
        same(data.inputs, Data(workload, SEEDS[0]).inputs)
        same(data.expected, Data(workload, SEEDS[0]).expected)
    assert inputs.keys() == data.inputs.keys()
    assert reference is None


def test_a_case_that_nobody_wanted_is_computed_here():
    with DataAhead([(small("saxpy"), SEEDS)]) as ahead:
        assert ahead.take(small("swiglu"), SEEDS[0]) is None
        assert ahead.take(small("saxpy"), 17) is None


def test_cases_that_are_passed_over_are_given_up(started):
    first, second = small("saxpy"), small("swiglu")
    with DataAhead([(first, SEEDS), (second, SEEDS)], processes=1) as ahead:
        assert ahead.take(second, SEEDS[0]) is not None
        assert ahead.take(first, SEEDS[0]) is None


@pytest.mark.parametrize("entry", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)", "print('no answer')"])
def test_a_process_that_fails_leaves_the_case_to_the_measurement_and_says_so(monkeypatch, entry):
    monkeypatch.setattr(data_ahead, "ENTRY", entry)
    said = []
    with DataAhead([(small("saxpy"), SEEDS)], say=said.append) as ahead:
        assert [ahead.take(small("saxpy"), seed) for seed in SEEDS] == [None, None]
    assert len(said) == 1
    assert "computing them here" in said[0]
    assert ("signal 9" in said[0]) == ("kill" in entry)


@pytest.mark.parametrize("name", ["memfd_create", "Popen"])
def test_no_process_can_be_started(monkeypatch, name):
    def refuse(*arguments, **options):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os if name == "memfd_create" else data_ahead.subprocess, name, refuse)
    said = []
    with DataAhead([(small("saxpy"), SEEDS)], say=said.append) as ahead:
        assert ahead.take(small("saxpy"), SEEDS[0]) is None
    assert said[0].endswith("no process for inputs and reference: Too many open files; computing them here")


def test_a_process_that_ends_between_the_seeds_leaves_the_second_to_the_measurement(monkeypatch):
    fail_at_the_second = "from ptxkit.workload.data import Data; Data.renew = lambda self, seed: exit(5); "
    monkeypatch.setattr(data_ahead, "ENTRY", fail_at_the_second + data_ahead.ENTRY)
    workload, said = small("saxpy"), []
    with DataAhead([(workload, SEEDS)], say=said.append) as ahead:
        assert ahead.take(workload, SEEDS[0]) is not None
        assert ahead.take(workload, SEEDS[1]) is None
    assert "failed" in said[0]


def test_no_process_is_left_after_an_interrupt(started, monkeypatch):
    monkeypatch.setattr(data_ahead, "ENTRY", "import time; time.sleep(60)")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), DataAhead([(small("saxpy"), SEEDS)]) as ahead:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        ahead.take(small("saxpy"), SEEDS[0])
    assert all(process.poll() is not None for process in started)


def test_a_process_ends_when_the_measuring_one_is_killed():
    measuring = (
        "import time; from ptxkit.bench.measure import data_ahead as d; d.LONG_S = -1\n"
        "from ptxkit.workload import registry; w = registry.get('saxpy')(n=100)\n"
        "slow = 'from ptxkit.bench.measure import data_ahead as d; import time; d.Data = lambda *a: time.sleep(60);'\n"
        "d.ENTRY = slow + d.ENTRY\n"
        "a = d.DataAhead([(w, [0])]).__enter__()\n"
        "while not a._jobs[0].process: time.sleep(0.01)\n"
        "time.sleep(1.5); print(a._jobs[0].process.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", measuring], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    os.kill(child, 0)
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while time.monotonic() < end and _is_running(child):
        time.sleep(0.05)
    assert not _is_running(child)


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_memory_limits_what_is_computed_ahead(started, monkeypatch):
    monkeypatch.setattr(data_ahead, "free_host_bytes", lambda: 1)
    first, second = small("saxpy"), small("swiglu")
    with DataAhead([(first, SEEDS), (second, SEEDS)], processes=2) as ahead:
        assert ahead.take(first, SEEDS[0]) is not None
        assert ahead.take(first, SEEDS[1]) is not None
        assert len(started) == 1
        assert ahead.take(second, SEEDS[0]) is not None
    assert len(started) == 2


def test_results_are_the_same_with_and_without():
    plans = [Plan(registry.get(name).make((), None, small=True)) for name in ("saxpy", "add_gelu")]
    runs = [Benchmark(emulating_device(), ahead=ahead).run(plans).cases for ahead in (False, True)]
    assert runs[0] == runs[1]
    assert all(row.verified for case in runs[1] for row in case.rows if not row.skipped)


def test_small_cases_are_computed_here(monkeypatch):
    monkeypatch.undo()
    assert not data_ahead.is_worth_it(registry.get("saxpy")(n=1000))
    assert data_ahead.is_worth_it(registry.get("attention")(batch=2, q=8192, k=8192))


@given(st.integers(1, 200), st.integers(1, 4))
def test_processes_share_no_core_where_there_are_enough(cores, count):
    every = list(range(3, 3 + cores))
    parts = data_ahead._shares(every, count)
    assert len(parts) == count
    if cores >= count:
        assert [core for part in parts for core in part] == every
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert parts == [every] * count
