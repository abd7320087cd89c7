"""Sweeps on worker processes of this machine, with the emulator or pretended GPUs as the measured device, and their faults."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

pytest.importorskip("distributed", reason="clusters need Dask")
pytest.importorskip("cryptography", reason="connections of local clusters are encrypted")

from ptxkit_clusters import end_threads
from ptxkit_processes import Command, run

from ptxkit.cluster import connection, dispatch, start, tasks
from ptxkit.cluster.connection import connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.cluster.gpus import ClusterGpu, hold
from ptxkit.cluster.security import write_keys
from ptxkit.errors import UnavailableError
from ptxkit.sweep import search
from ptxkit.sweep.journal import Journal, read
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import Sweep

THREADS = [32, 64, 128, 256, 512]


@pytest.fixture(autouse=True)
def no_thread_left():
    """Leave nothing to the next test."""
    yield
    end_threads()


@pytest.fixture
def problem(description, monkeypatch):
    """A function that gives the problem of the description; see :func:`description`."""
    monkeypatch.setenv("PTXKIT_EMULATOR_THREADS", "1")
    return lambda fatal=0: Problem(str(description(fatal)), "plain", {"n": 1024}, {}, "sm_90a")


@pytest.fixture
def said():
    return []


def sweep(problem, path, cluster=None, said=None, timed=False):
    """A sweep of all tiles, on a cluster or in processes of this machine."""
    tiles = explore(problem).tiles
    executor = cluster and ClusterExecutor(
        cluster, problem, 0, 30.0, timed=timed, say=said.append, gpu=GPU if timed else None
    )
    journal = Journal(path, problem, "a device")
    return Sweep(problem, search.exhaustive(tiles), journal, len(tiles), timed=timed, workers=1, executor=executor)


def workers(cluster):
    return {w["pid"] for w in cluster.workers().values()}


def once(action, condition=lambda line: not line.startswith("0 of")):
    """A function for lines of progress, which does something at the first one for which a condition holds."""
    done = []

    def say(line):
        if not done and condition(line):
            done.append(line)
            action()

    return say


def test_a_cluster_finds_what_this_machine_finds_and_either_goes_on(problem, tmp_path, said):
    alone = sweep(problem(), tmp_path / "alone").run()
    with connected("local", None, False, 2) as cluster:
        entries = sweep(problem(), tmp_path / "j", cluster, said).run()
    assert [(e.tile["THREADS"], e.cost) for e in entries] == [(e.tile["THREADS"], e.cost) for e in alone]
    assert {e.measured_on["worker"] for e in entries} <= {"emulator0", "emulator1"}
    again = sweep(problem(), tmp_path / "j")
    again.run()
    assert again.reused == len(THREADS)
    assert said == []


def test_a_killed_worker_costs_nothing_but_time(problem, tmp_path, said):
    alone = sweep(problem(), tmp_path / "alone").run()
    with connected("local", None, False, 2) as cluster:
        first, second = workers(cluster)
        swept = sweep(problem(), tmp_path / "j", cluster, said)
        entries = swept.run(once(lambda: os.kill(first, signal.SIGKILL)))
    assert [(e.key, e.cost) for e in entries] == [(e.key, e.cost) for e in alone]
    assert sorted(e.tile["THREADS"] for e in read(tmp_path / "j").entries) == THREADS


def test_a_hung_worker_is_left_out(problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(dispatch, "HUNG_S", 8.0)
    with connected("local", None, False, 2) as cluster:
        first, _ = workers(cluster)
        swept = sweep(problem(), tmp_path / "j", cluster, said)
        try:
            entries = swept.run(once(lambda: os.kill(first, signal.SIGSTOP), lambda line: "2 workers" in line))
        finally:
            os.kill(first, signal.SIGCONT)
    assert {e.status for e in entries} == {"ok"}
    assert any("no sign of life" in line for line in said)


def test_a_configuration_that_kills_workers_is_quarantined_after_two(problem, tmp_path, said, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with connected("local", None, False, 2) as cluster:
        entries = sweep(problem(fatal=128), tmp_path / "j", cluster, said).run()
    found = {e.tile["THREADS"]: e for e in entries}
    assert {t: e.status for t, e in found.items()} == {t: "fault" if t == 128 else "ok" for t in THREADS}
    assert "quarantined: the workers emulator" in found[128].error
    assert sum("has ended" in line for line in said) == 2


def test_a_lost_scheduler_stops_the_sweep_which_goes_on_elsewhere(problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(dispatch, "LOST_S", 8.0)
    monkeypatch.setattr(connection, "CONNECT_S", 6.0)
    keys = str(tmp_path / "keys")
    write_keys(keys)
    scheduler = Command(["cluster", "scheduler", "--port", "0", "--tls", keys])
    address = scheduler.stdout.readline().split()[-1]
    worker = Command(["cluster", "worker", address, "--no-gpu", "--workers", "1", "--tls", keys])
    try:
        assert "with the emulator" in worker.stdout.readline()
        status = run("cluster", "status", address, "--tls", keys, "--json")
        (row,) = json.loads(status.stdout)["workers"]
        assert (row["refused"], row["gpu"], row["slots"]) == ("", None, 1)
        with pytest.raises(UnavailableError, match="does not answer"), connected(address.replace("tls", "tcp"), None, False):
            pass
        with connected(address, keys, False) as cluster:
            swept = sweep(problem(), tmp_path / "j", cluster, said)
            with pytest.raises(UnavailableError, match="does not answer any more|cannot be used any more"):
                swept.run(once(lambda: scheduler.send_signal(signal.SIGKILL)))
    finally:
        worker.send_signal(signal.SIGTERM)
        scheduler.wait()
        worker.wait()
    known = len(read(tmp_path / "j").entries)
    assert 0 < known < len(THREADS)
    again = sweep(problem(), tmp_path / "j")
    again.run()
    assert again.reused == known
    assert sorted(e.tile["THREADS"] for e in read(tmp_path / "j").entries) == THREADS


def test_a_worker_that_differs_is_refused_by_name(problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(dispatch, "identity", lambda *kernels: {**tasks.identity(*kernels), "nvrtc": "1.0"})
    with (
        connected("local", None, False, 1) as cluster,
        pytest.raises(UnavailableError, match=r"the worker emulator0 on .* is not used: nvrtc .* there, 1\.0 here"),
    ):
        sweep(problem(), tmp_path / "j", cluster, said)
    assert len(said) == 1


def test_workers_are_listed_whatever_the_client_asks_meanwhile():
    """A client of Dask asks for the scheduler without its workers every two seconds, and keeps that answer."""
    with connected("local", None, False, 1) as cluster:
        cluster.client.sync(cluster.client._update_scheduler_info)
        assert len(connection.listed_workers(cluster.client)) == 1


def test_a_scheduler_that_is_not_there_is_one_error(monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_S", 1.0)
    with pytest.raises(UnavailableError, match="does not answer"), connected("127.0.0.1:9", None, False):
        pass


def test_images_travel_to_the_worker_that_measures(problem, tmp_path):
    swept = problem()
    order = tasks.Order("ticket", swept, 0, 30.0, timed=False)
    tile = explore(swept).tiles[0]
    with connected("local", None, False, 2) as cluster:
        first, second = cluster.workers()
        for number, address in enumerate((first, second)):
            cluster.client.run(
                os.environ.__setitem__, "PTXKIT_CACHE_DIR", str(tmp_path / str(number)), workers=[address]
            )
        at = {"pure": False, "allow_other_workers": False}
        compiled = cluster.client.submit(tasks.compile_tile, order, dict(tile), workers=[first], **at).result()
        arguments = (order, dict(tile), compiled, first, float("inf"))
        entry = cluster.client.submit(tasks.measure_tile, *arguments, workers=[second], **at).result()
    assert entry.status == "ok"
    assert compiled.images
    for key in compiled.images:
        assert (tmp_path / "1" / f"{key}.bin").read_bytes() == (tmp_path / "0" / f"{key}.bin").read_bytes()


GPU = "pretended GPU"
PRETENDED = """
import os

from ptxkit.sweep.canary import Reading
from ptxkit.sweep.measuring import BUILT, Measured

HEAT = [1]


def serve(pipe, problem, seed):
    '''128 threads are the fastest at first, 256 when the best are measured again on the first GPU, 128 on the second.'''
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    second = uuid.endswith("1")
    fate = os.environ.get("PRETENDED_FATE", "") if second else ""
    pipe.send("ready")
    while True:
        what, argument, number = pipe.recv()
        pipe.send(BUILT)
        hot = fate == "hot" and what == "measure" and HEAT and HEAT.pop()
        here = {"uuid": uuid, "throttled": ["thermal"] if hot else []}
        if what == "canary":
            wrong = "canary case saxpy: 1.0 is not 2.0" if fate == "wrong" else ""
            pipe.send(Reading(wrong, {"saxpy": 12.0 if fate == "slow" else 10.0}, {"saxpy": "digest"}))
        elif what == "leaders":
            best = 128 if second else 256
            rows = [{"median_us": 10.0 - (t["THREADS"] == best), "spread_us": 0.0, "samples": 50} for t in argument]
            pipe.send([{"cold": r, "verified": True, "error": "", "worst": "", "measured_on": here} for r in rows])
        else:
            threads = argument["THREADS"]
            slow = {128: 10.0, 256: 10.1}.get(threads, 20.0)
            pipe.send(Measured("ok", "", slow, 0.0, 10, measured_on=here))
"""


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Two pretended GPUs, which differ in nothing but their identifiers, and the path that workers import PRETENDED from."""
    found = [ClusterGpu(GPU, f"GPU-{os.getpid()}-{i}", "580.1", "sm_90a", 132, 50 << 20, 80 << 30) for i in range(2)]
    monkeypatch.setattr(start, "visible_gpus", lambda: found)
    (tmp_path / "pretended.py").write_text(PRETENDED)
    return found


def pretend(cluster, folder):
    """Replace the measuring process on every worker."""

    def replace(folder):
        import sys

        sys.path.insert(0, folder)
        import pretended

        from ptxkit.sweep import measuring

        measuring.serve = pretended.serve

    cluster.client.run(replace, str(folder))


def test_gpus_share_a_sweep_and_one_of_them_decides(problem, tmp_path, said, gpus):
    with connected("local-gpus", None, False, 2) as cluster:
        pretend(cluster, tmp_path)
        assert cluster.gpu().name == GPU
        swept = sweep(problem(), tmp_path / "j", cluster, said, timed=True)
        entries = swept.run()
        with pytest.raises(UnavailableError, match="is measured by another worker"):
            hold(gpus[1])
    first = entries[0].measured_on["worker"]
    best = {"gpu0": [256, 128], "gpu1": [128, 256]}[first]
    assert [(e.tile["THREADS"], e.time_us) for e in entries[:2]] == [(best[0], 9.0), (best[1], 10.0)]
    kept = read(tmp_path / "j")
    assert (len(kept.leaders), len(kept.entries)) == (2, len(THREADS))
    assert {e.measured_on["uuid"] for e in kept.entries} <= {gpu.uuid for gpu in gpus}
    agreement = swept.agreement
    assert (len(agreement.gpus), agreement.agreeing) == (2, 1)
    assert {gpu.measured_on["uuid"] for gpu in agreement.gpus} == {gpu.uuid for gpu in gpus}
    assert agreement.regret(agreement.gpus[1]) == pytest.approx(10 / 9 - 1)
    assert "on 1 of 2 GPUs; where another is, it takes at most 11.11% longer" in agreement.text
    hold(gpus[1]).close()


@pytest.mark.parametrize(
    ("fate", "what"),
    [
        ("wrong", "the worker gpu1 on .* is not used any more: its GPU computes wrong: canary case saxpy"),
        ("slow", "the worker gpu1 on .* only compiles from now on: its GPU takes 1.20 times as long"),
        ("hot", r"the worker gpu1 on .* measures nothing for 1 s: its GPU throttles \(thermal\)"),
    ],
)
def test_a_gpu_that_is_not_like_the_others_spoils_nothing(problem, tmp_path, said, gpus, monkeypatch, fate, what):
    monkeypatch.setenv("PRETENDED_FATE", fate)
    monkeypatch.setattr(dispatch, "REST_S", 1)
    with connected("local-gpus", None, False, 2) as cluster:
        pretend(cluster, tmp_path)
        entries = sweep(problem(), tmp_path / "j", cluster, said, timed=True).run()
    for found in (entries, read(tmp_path / "j").entries):
        assert sorted(e.tile["THREADS"] for e in found) == THREADS
    assert {e.status for e in entries} == {"ok"}
    assert not any(e.measured_on.get("throttled") for e in entries)
    assert any(re.search(what, line) for line in said)


def test_workers_keep_no_process_of_a_sweep_that_has_ended(problem, tmp_path, said):
    with connected("local", None, False, 1) as cluster:
        sweep(problem(), tmp_path / "j", cluster, said).run()
        deadline = time.monotonic() + 20
        while any(w["sweeps"] for w in cluster.workers().values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [w["sweeps"] for w in cluster.workers().values()] == [0]
