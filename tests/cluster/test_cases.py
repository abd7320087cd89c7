"""Cases of ``bench`` and seeds of ``run --seeds`` on worker processes of this machine, in the emulator, and their faults."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("distributed", reason="clusters need Dask")
pytest.importorskip("cryptography", reason="connections of local clusters are encrypted")

from ptxkit_processes import run

from ptxkit.bench.cases import plans
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.cluster.case_tasks import CaseOrder
from ptxkit.cluster.cases import ClusterBenchmark, check_seeds, order_of
from ptxkit.exit_codes import ExitCode
from ptxkit.runtime.device import emulating_device
from ptxkit.workload import registry
from ptxkit.workload.seeds import SeedChecks, check_seed

DESCRIPTION = """
import os
import signal
import time

import numpy as np

from ptxkit import Launch, Work, Workload, variant


class Seeded(Workload):
    source = "k.cu"
    n: int = 1024

    def inputs(self, rng):
        return {"x": np.full(self.n, rng.integers(0, 2), np.float32)}

    def reference(self, x):
        return {"x": 2 * x + (x[0] if WRONG else 0)}

    def work(self):
        return Work(flops=self.n, bytes=8 * self.n)

    @variant
    def first(self, tile):
        FATE
        return [Launch("k", self.n // 64, 64, ("x",), template=(64,))]

    @variant
    def second(self, tile):
        return [Launch("k", self.n // 64, 64, ("x",), template=(64,))]
"""


@pytest.fixture
def described(tmp_path):
    """A function that writes a description, whose result is wrong for seeds that draw a 1, or that does something else in a
    process of a worker, and returns its path."""

    def write(name, wrong=False, fate="pass"):
        (tmp_path / "k.cu").write_text(
            "template <int T> __global__ void k(float* x) { x[blockIdx.x * T + threadIdx.x] *= 2; }\n"
        )
        path = tmp_path / f"{name}.py"
        in_worker = f"if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:\n            {fate}"
        path.write_text(DESCRIPTION.replace("WRONG", str(wrong)).replace("FATE", in_worker))
        return str(path)

    return write


def benchmark(**given):
    return Benchmark(emulating_device(), counts=False, **given)


def measured(cluster, words, said, limit_s=60.0, done=lambda results: None):
    bench = benchmark()
    there = ClusterBenchmark(cluster, bench, order_of(bench, limit_s, (), {}), said.append)
    return there.run(plans(words, small=True), lambda what: None, done)


def counts(results):
    return [(case.key, row.name, row.verified, row.counted) for case in results.cases for row in case.rows]


def test_a_cluster_counts_what_this_machine_counts(cluster, described):
    words = [described("seeded"), "saxpy:scalar"]
    said = []
    partial = []
    there = measured(cluster, words, said, done=lambda results: partial.append(results.partial))
    here = benchmark().run(plans(words, small=True))
    assert counts(there) == counts(here)
    assert [case.description for case in there.cases] == [case.description for case in here.cases]
    assert (there.environment["nvrtc"], there.target) == (here.environment["nvrtc"], here.target)
    assert {case.measured_on["worker"] for case in there.cases} <= {"emulator0", "emulator1"}
    assert (partial, said) == ([True, False], [])


def test_a_case_that_never_ends_is_recorded_and_the_others_are_measured(cluster, described):
    there = measured(cluster, [described("hanging", fate="time.sleep(600)"), "saxpy:scalar"], [], limit_s=10.0)
    (hanging, saxpy) = there.cases
    assert {row.exit_code for row in hanging.rows} == {int(ExitCode.TIME_LIMIT)}
    assert "not done within 10 s" in hanging.rows[0].error
    assert saxpy.rows[0].verified


def test_a_case_that_kills_its_process_is_quarantined_after_two(cluster, described):
    (case,) = measured(cluster, [described("fatal", fate="os.kill(os.getpid(), signal.SIGKILL)")], []).cases
    assert "quarantined: the worker" in case.rows[0].error
    assert case.exit_code == ExitCode.FAULT


def test_a_killed_worker_loses_no_case_and_counts_none_twice(cluster, described):
    words = [described("seeded"), "saxpy:scalar", "saxpy:vectorized"]
    victim = next(iter(cluster.workers().values()))["pid"]
    killed = []

    def kill(results):
        if not killed:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    assert counts(measured(cluster, words, [], done=kill)) == counts(benchmark().run(plans(words, small=True)))


def test_many_seeds_are_verified_and_the_wrong_ones_are_found(cluster, described):
    workload = registry.load_file(described("wrong", wrong=True)).make(())
    checks = SeedChecks(workload, "emulator", "emulator", "sm_90a", first=3, count=6)
    check_seeds(cluster, CaseOrder("", timed=False), checks, (), lambda what: None, lambda line: None)
    here = [row for seed in range(3, 9) for row in check_seed(workload, emulating_device(), seed)]
    assert sorted(checks.rows, key=lambda row: (row.seed, row.variant)) == here
    assert {row.verified for row in here} == {True, False}
    assert (checks.partial, checks.exit_code) == (False, ExitCode.WRONG)
    assert set(checks.measured_on) == set(range(3, 9))


def test_run_with_seeds_names_the_failing_seeds_and_how_to_repeat_one(described):
    path = described("wrong", wrong=True)
    done = run("run", path, "--seeds", "6", "--json", "--device", "emulator")
    found = json.loads(done.stdout)
    assert done.returncode == ExitCode.WRONG
    assert (found["schema"], found["partial"]) == ("ptxkit.seeds/1", False)
    first = found["variants"][0]
    failing = [failure["seed"] for failure in first["failures"]]
    assert 0 < len(failing) < 6 == first["checked"] == first["verified"] + len(failing)
    assert f"--seed {failing[0]} runs this one alone" in done.stderr
    alone = run("run", path, "--seed", failing[0], "--device", "emulator")
    assert alone.returncode == ExitCode.WRONG


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "saxpy", "100", "5", "--seeds", "2"], "ITERATIONS"),
        (["run", "./k.cu", "--seeds", "2"], "--seeds is for kernels with a description"),
        (["run", "saxpy", "--seeds", "2", "--dry-run"], "leave out --dry-run"),
        (["run", "saxpy", "--seeds", "0"], "not in the range"),
        (["run", "saxpy", "--cluster", "local"], "--cluster ADDRESS is for --seeds COUNT"),
        (["run", "saxpy", "--tls", "."], "--seeds COUNT with --cluster"),
        (["bench", "run", "saxpy", "--tls", "."], "for --cluster ADDRESS"),
        (["bench", "run", "saxpy", "--timeout", "5"], "--timeout is for the cases of --cluster"),
        (["bench", "run", "saxpy", "--cluster", "node1:1"], "--insecure"),
        (["bench", "run", "nosuch", "--cluster", "local"], "there is no kernel 'nosuch'"),
        (["bench", "run", "saxpy:nosuch", "--cluster", "local"], "has no variant 'nosuch'"),
        (["bench", "run", "saxpy", "--cluster", "local", "--peers", "nosuch"], "there is no peer 'nosuch'"),
        (["bench", "run", "saxpy", "--cluster", "local", "--profile", "ncu"], "--profile runs on this machine only"),
        (["run", "saxpy", "--seeds", "2", "--cluster", "local", "--variant", "nosuch"], "has no variant 'nosuch'"),
        (["bench", "shapes", "--list", "--cluster", "local"], "leave it out with --list"),
    ],
)
def test_wrong_uses_are_one_line(words, said):
    done = run(*words, "--device", "emulator") if "--list" not in words else run(*words)
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr
    assert done.stderr.count("\n") <= 3
