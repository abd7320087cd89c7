"""Sweeps on worker processes of this machine, with the emulator as the measured device, and their faults."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("distributed", reason="clusters need Dask")

from ptxkit_clusters import pids, wait_for
from ptxkit_processes import Command, run

from ptxkit.cluster import connection, roster, tasks
from ptxkit.cluster.connection import connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.cluster.security import write_keys
from ptxkit.errors import UnavailableError
from ptxkit.sweep import search
from ptxkit.sweep.journal import Journal, read
from ptxkit.sweep.problem import explore
from ptxkit.sweep.run import Sweep

THREADS = [32, 64, 128, 256, 512]


def sweep(problem, path, cluster=None, said=None):
    """A sweep of all tiles, on a cluster or in processes of this machine."""
    tiles = explore(problem).tiles
    executor = cluster and ClusterExecutor(cluster, problem, 0, 30.0, timed=False, say=said.append)
    journal = Journal(path, problem, "a device")
    return Sweep(problem, search.exhaustive(tiles), journal, len(tiles), timed=False, workers=1, executor=executor)


def once(action, condition=lambda line: not line.startswith("0 of")):
    """A function for lines of progress, which does something at the first one for which a condition holds."""
    done = []

    def say(line):
        if not done and condition(line):
            done.append(line)
            action()

    return say


@pytest.fixture(scope="module")
def alone():
    """The costs that processes of this machine find: the same for every sweep of the description."""
    found = {}

    def costs(problem, folder):
        if not found:
            found.update((e.tile["THREADS"], e.cost) for e in sweep(problem, folder / "alone").run())
        return found

    return costs


def test_a_cluster_finds_what_this_machine_finds_and_either_goes_on(cluster, problem, tmp_path, said, alone):
    want = alone(problem(), tmp_path)
    entries = sweep(problem(), tmp_path / "j", cluster, said).run()
    assert [(e.tile["THREADS"], e.cost) for e in entries] == list(want.items())
    assert {e.measured_on["worker"] for e in entries} <= {"emulator0", "emulator1"}
    wait_for(lambda: not any(w["sweeps"] for w in cluster.workers().values()), 20)  # workers keep no process of it
    again = sweep(problem(), tmp_path / "j")
    again.run()
    assert again.reused == len(THREADS)
    assert said == []


def test_a_worker_that_differs_is_refused_by_name(cluster, problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(roster, "identity", lambda *kernels: {**tasks.identity(*kernels), "nvrtc": "1.0"})
    with pytest.raises(UnavailableError, match=r"the worker emulator0 on .* is not used: nvrtc .* there, 1\.0 here"):
        sweep(problem(), tmp_path / "j", cluster, said)
    assert len(said) == 2


def test_workers_are_listed_whatever_the_client_asks_meanwhile(cluster):
    """A client of Dask asks for the scheduler without its workers every two seconds, and keeps that answer."""
    cluster.client.sync(cluster.client._update_scheduler_info)
    assert len(connection.listed_workers(cluster.client)) == 2


def test_images_travel_to_the_worker_that_measures(cluster, problem, tmp_path):
    swept = problem()
    order = tasks.Order("ticket", swept, 0, 30.0, timed=False)
    tile = explore(swept).tiles[0]
    first, second = cluster.workers()
    caches = cluster.client.run(os.environ.get, "PTXKIT_CACHE_DIR")

    def use(address, folder):
        cluster.client.run(os.environ.__setitem__, "PTXKIT_CACHE_DIR", str(folder), workers=[address])

    try:
        use(first, tmp_path / "0")
        use(second, tmp_path / "1")
        at = {"pure": False, "allow_other_workers": False}
        compiled = cluster.client.submit(tasks.compile_tile, order, dict(tile), workers=[first], **at).result()
        arguments = (order, dict(tile), compiled, first, float("inf"))
        entry = cluster.client.submit(tasks.measure_tile, *arguments, workers=[second], **at).result()
    finally:
        for address, folder in caches.items():
            use(address, folder)
        cluster.client.run(tasks.held.release, "ticket")
    assert entry.status == "ok"
    assert compiled.images
    for key in compiled.images:
        assert (tmp_path / "1" / f"{key}.bin").read_bytes() == (tmp_path / "0" / f"{key}.bin").read_bytes()


def test_a_hung_worker_is_left_out(cluster, problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(roster, "HUNG_S", 4.0)
    first, _ = pids(cluster)
    swept = sweep(problem(), tmp_path / "j", cluster, said)
    try:
        entries = swept.run(once(lambda: os.kill(first, signal.SIGSTOP), lambda line: "2 workers" in line))
    finally:
        os.kill(first, signal.SIGCONT)
    assert {e.status for e in entries} == {"ok"}
    assert any("no sign of life" in line for line in said)


def test_a_killed_worker_costs_nothing_but_time(cluster, problem, tmp_path, said, alone):
    first, _ = pids(cluster)
    swept = sweep(problem(), tmp_path / "j", cluster, said)
    entries = swept.run(once(lambda: os.kill(first, signal.SIGKILL)))
    assert [(e.tile["THREADS"], e.cost) for e in entries] == list(alone(problem(), tmp_path).items())
    assert sorted(e.tile["THREADS"] for e in read(tmp_path / "j").entries) == THREADS


def test_a_configuration_that_kills_workers_is_quarantined_after_two(cluster, problem, tmp_path, said):
    entries = sweep(problem(fatal=128), tmp_path / "j", cluster, said).run()
    found = {e.tile["THREADS"]: e for e in entries}
    assert {t: e.status for t, e in found.items()} == {t: "fault" if t == 128 else "ok" for t in THREADS}
    assert "quarantined: the worker" in found[128].error
    assert sum("has ended" in line for line in said) == 2


def test_a_lost_scheduler_stops_the_sweep_which_goes_on_elsewhere(no_thread_left, problem, tmp_path, said, monkeypatch):
    monkeypatch.setattr(roster, "LOST_S", 3.0)
    monkeypatch.setattr(connection, "CONNECT_S", 6.0)
    keys = str(tmp_path / "keys")
    write_keys(keys)
    scheduler = Command(["cluster", "scheduler", "--port", "0", "--tls", keys])
    address = scheduler.stdout.readline().split()[-1]
    worker = Command(["cluster", "worker", address, "--no-gpu", "--jobs", "1", "--tls", keys])
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
        scheduler.wait()
        scheduler = Command(["cluster", "scheduler", "--port", address.rpartition(":")[2], "--tls", keys])
        assert "with the emulator" in worker.stdout.readline()  # it has connected to the one that was started again
    finally:
        scheduler.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGTERM)
        scheduler.wait()
        worker.wait()
    known = len(read(tmp_path / "j").entries)
    assert 0 < known < len(THREADS)
    again = sweep(problem(), tmp_path / "j")
    again.run()
    assert again.reused == known
    assert sorted(e.tile["THREADS"] for e in read(tmp_path / "j").entries) == THREADS


def test_a_scheduler_that_is_not_there_is_one_error(monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_S", 1.0)
    with pytest.raises(UnavailableError, match="does not answer"), connected("127.0.0.1:9", None, False):
        pass
