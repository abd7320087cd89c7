"""Sweeps on workers with pretended GPUs: several GPUs share a sweep, and one that is not like the others spoils nothing."""

from __future__ import annotations

import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed", reason="clusters need Dask")
pytest.importorskip("cryptography", reason="connections of local clusters are encrypted")

from ptxkit_clusters import no_command_left, wait_for

from ptxkit.cluster import dispatch, start, tasks
from ptxkit.cluster.connection import connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.cluster.gpus import ClusterGpu, hold
from ptxkit.errors import UnavailableError
from ptxkit.sweep import search
from ptxkit.sweep.canary import Reading
from ptxkit.sweep.journal import Journal, read
from ptxkit.sweep.problem import explore
from ptxkit.sweep.run import Sweep

THREADS = [32, 64, 128, 256, 512]
GPU = "pretended GPU"
GPUS = [ClusterGpu(GPU, f"GPU-{os.getpid()}-{i}", "580.1", "sm_90a", 132, 50 << 20, 80 << 30) for i in range(2)]
PRETENDED = """
import fcntl
import os
import time
from contextlib import contextmanager

from ptxkit.sweep.canary import Reading
from ptxkit.sweep.measuring import BUILT, Measured

HEAT = [1]


@contextmanager
def measuring(uuid):
    with open(os.path.join(os.path.dirname(__file__), uuid), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield "another process measures at the same time"
        else:
            time.sleep(0.02)
            yield ""


def meet(second):
    '''Let the first GPU wait until the second one measures.'''
    there = os.path.join(os.path.dirname(__file__), "there")
    if second:
        open(there, "w").close()
    end = time.monotonic() + 30
    while not os.path.exists(there) and time.monotonic() < end:
        time.sleep(0.01)


def serve(pipe, problem, seed):
    '''128 threads are the fastest at first, 256 when the best are measured again on the first GPU, 128 on the second.'''
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    second = uuid.endswith("1")
    both = os.environ.get("PRETENDED_FATE", "")
    fate = both if second else ""
    pipe.send("ready")
    while True:
        what, argument, given = pipe.recv()
        pipe.send(BUILT)
        hot = fate == "hot" and what == "measure" and HEAT and HEAT.pop()
        here = {"uuid": uuid, "throttled": ["thermal"] if hot else []}
        if what == "canary":
            wrong = "canary case saxpy: 1.0 is not 2.0" if fate == "wrong" else ""
            pipe.send(Reading(wrong, {"saxpy": 12.0 if fate == "slow" else 10.0}, {"saxpy": "digest"}))
        elif what == "leaders":
            best = 128 if second else 256
            time.sleep(0.5 * (both == "late" and not second))
            if fate == "unable":
                pipe.send("too little memory")
                continue
            rows = [{"median_us": 10.0 - (t["THREADS"] == best), "spread_us": 0.0, "samples": 50} for t in argument]
            pipe.send([{"cold": r, "verified": True, "error": "", "worst": "", "measured_on": here} for r in rows])
        else:
            threads = argument["THREADS"]
            if both == "hot":
                meet(second)
            slow = {128: 10.0, 256: 10.1}.get(threads, 20.0)
            with measuring(uuid) as wrong:
                measured = Measured("wrong" if wrong else "ok", wrong, slow, 0.0, 10, measured_on=here)
            pipe.send(measured)  # the next measurement may begin as soon as this arrives
"""


@pytest.fixture(scope="module")
def two_gpus(no_thread_left, tmp_path_factory):
    """Two workers whose pretended GPUs differ in nothing but their identifiers."""
    folder = tmp_path_factory.mktemp("pretended")
    (folder / "pretended.py").write_text(PRETENDED)

    def pretend(folder):
        import sys

        sys.path.insert(0, folder)
        import pretended

        from ptxkit.sweep import measuring

        measuring.serve = pretended.serve

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(start, "visible_gpus", lambda: GPUS)
        with connected("local-gpus", None, False, 2) as made:
            made.client.run(pretend, str(folder))
            yield made
    hold(GPUS[1]).close()  # nobody has it any more


def test_the_lock_of_a_gpu_that_another_user_left_can_be_taken_once(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"ptxkit-{GPUS[0].uuid}.lock"
    path.write_text("1")

    def foreign(name, flags, mode=0o777, *, opened=os.open):
        if name == path and flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, os.strerror(13))
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", foreign)
    with hold(GPUS[0]), pytest.raises(UnavailableError, match="is measured by another worker, process 1"):
        hold(GPUS[0])
    hold(GPUS[0]).close()


@pytest.fixture
def fated(two_gpus):
    """A function that decides what is wrong with the second GPU."""
    yield lambda fate: two_gpus.client.run(os.environ.__setitem__, "PRETENDED_FATE", fate)
    no_command_left()


def sweep(problem, path, cluster, said):
    tiles = explore(problem).tiles
    executor = ClusterExecutor(cluster, problem, 0, 30.0, timed=True, say=said.append, gpu=GPU)
    journal = Journal(path, problem, "a device")
    return Sweep(problem, search.exhaustive(tiles), journal, len(tiles), timed=True, executor=executor)


def test_gpus_share_a_sweep_and_one_of_them_decides(two_gpus, fated, problem, tmp_path, said):
    fated("")
    assert two_gpus.gpu().name == GPU
    swept = sweep(problem(), tmp_path / "j", two_gpus, said)
    entries = swept.run()
    with pytest.raises(UnavailableError, match="is measured by another worker"):
        hold(GPUS[1])
    first = entries[0].measured_on["worker"]
    best = {"gpu0": [256, 128], "gpu1": [128, 256]}[first]
    assert [(e.tile["THREADS"], e.time_us) for e in entries[:2]] == [(best[0], 9.0), (best[1], 10.0)]
    kept = read(tmp_path / "j")
    assert (len(kept.leaders), len(kept.entries)) == (2, len(THREADS))
    assert {e.measured_on["uuid"] for e in kept.entries} <= {gpu.uuid for gpu in GPUS}
    agreement = swept.agreement
    assert (len(agreement.gpus), agreement.agreeing) == (2, 1)
    assert {gpu.measured_on["uuid"] for gpu in agreement.gpus} == {gpu.uuid for gpu in GPUS}
    assert agreement.regret(agreement.gpus[1]) == pytest.approx(10 / 9 - 1)
    assert "on 1 of 2 GPUs; where another is, it takes at most 11.11% longer" in agreement.text


@pytest.mark.parametrize(
    ("fate", "what"),
    [
        ("wrong", "the worker gpu1 on .* is not used any more: its GPU computes wrong: canary case saxpy"),
        ("slow", "the worker gpu1 on .* only compiles from now on: its GPU takes 1.20 times as long"),
        ("hot", r"the worker gpu1 on .* measures nothing for 1 s: its GPU throttles \(thermal\)"),
    ],
)
def test_a_gpu_that_is_not_like_the_others_spoils_nothing(two_gpus, fated, problem, tmp_path, said, monkeypatch, fate, what):
    fated(fate)
    monkeypatch.setattr(dispatch, "REST_S", 1)
    entries = sweep(problem(), tmp_path / "j", two_gpus, said).run()
    for found in (entries, read(tmp_path / "j").entries):
        assert sorted(e.tile["THREADS"] for e in found) == THREADS
    assert {e.status for e in entries} == {"ok"}
    assert not any(e.measured_on.get("throttled") for e in entries)
    assert any(re.search(what, line) for line in said)


def test_the_first_gpu_that_has_measured_the_leaders_decides(two_gpus, fated, problem, tmp_path, said):
    fated("late")
    swept = sweep(problem(), tmp_path / "j", two_gpus, said)
    assert swept.run()[0].measured_on["worker"] == "gpu1"
    assert [gpu.measured_on["worker"] for gpu in swept.agreement.gpus] == ["gpu1", "gpu0"]


def test_a_gpu_that_cannot_measure_the_leaders_leaves_the_decision_to_another(two_gpus, fated, problem, tmp_path, said):
    fated("unable")
    swept = sweep(problem(), tmp_path / "j", two_gpus, said)
    assert swept.run()[0].measured_on["worker"] == "gpu0"
    assert (swept.agreement, swept.trouble) == (None, "")
    (line,) = said
    assert "the best are not compared on gpu1" in line
    assert "too little memory" in line


def test_measuring_processes_start_before_anything_is_compiled(two_gpus, fated, problem, said):
    fated("wrong")
    executor = ClusterExecutor(two_gpus, problem(), 0, 30.0, timed=True, say=said.append, gpu=GPU)
    try:
        assert executor.start().result(60) <= time.perf_counter()
        wait_for(lambda: any("its GPU computes wrong" in line for line in said))
        assert [worker.name for worker in executor._with_gpu()] == ["gpu0"]
    finally:
        executor.end()


def test_commands_at_the_same_time_measure_one_after_another(two_gpus, fated, problem, tmp_path, said):
    fated("")
    sweeps = [sweep(problem(), tmp_path / name, two_gpus, said) for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(Sweep.run, sweeps))
    for entries in found:
        assert sorted((e.tile["THREADS"], e.status, e.error) for e in entries) == [(t, "ok", "") for t in THREADS]
    assert said == []


def test_canary_cases_of_one_command_do_not_make_another_repeat_its_own(monkeypatch):
    monkeypatch.setattr(tasks, "_canaries", {})
    read = []
    executor = SimpleNamespace(process=SimpleNamespace(canary=lambda: read.append(1) or Reading("", {}, {})))
    for ticket in "abab":
        tasks._canary(SimpleNamespace(ticket=ticket), executor)
    assert len(read) == 2
