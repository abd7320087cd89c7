"""Preparing the peers of many cases in several processes: all cases are given out, and no process is left."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from queue import Empty
from types import SimpleNamespace

import pytest

from ptxkit.bench import peers
from ptxkit.bench.cases import Plan
from ptxkit.bench.measure import peers_ahead
from ptxkit.runtime.device import emulating_device
from ptxkit.workload import registry

PLANS = [Plan(registry.get("saxpy")(n=n)) for n in range(1, 8)]
PEERS = [SimpleNamespace(name="all", packages=(), offers=lambda workload: True)]
ANSWER = "import sys\nfor line in sys.stdin: print('[]', flush=True)"


@pytest.fixture(autouse=True)
def four_cores_and_enough_memory(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("ptxkit.workload.memory.free_host_bytes", lambda: 1 << 40)
    monkeypatch.setattr(peers_ahead, "ENTRY", ANSWER)
    monkeypatch.setenv("TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE", "1")  # which prepare_ahead sets


def test_every_case_is_prepared_once_and_no_process_is_left(started):
    assert peers_ahead.prepare_ahead(PLANS, PEERS) == len(PLANS)
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)


def test_the_cases_with_the_most_peers_come_first(started, monkeypatch):
    """A case that takes long would be computed last, with all other processes idle."""
    given, lock = [], threading.Lock()

    def feed(process, waiting, done):
        with lock, suppress(Empty):
            while True:
                given.append(json.loads(waiting.get_nowait()))

    monkeypatch.setattr(peers_ahead, "_feed", feed)
    for_large = SimpleNamespace(name="large", packages=(), offers=lambda workload: workload.n > 4)
    peers_ahead.prepare_ahead(PLANS, [*PEERS, for_large])
    assert [(job["fields"]["n"], job["peers"]) for job in given] == [
        *((n, ["all", "large"]) for n in (5, 6, 7)),
        *((n, ["all"]) for n in (1, 2, 3, 4)),
    ]


def test_packages_of_peers_are_imported_meanwhile(started, monkeypatch, tmp_path):
    for name in ("for_a_peer", "for_no_case"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    used = SimpleNamespace(name="used", packages=("for_a_peer", "not_installed"), offers=lambda workload: True)
    unused = SimpleNamespace(name="unused", packages=("for_no_case",), offers=lambda workload: False)
    assert peers_ahead.prepare_ahead(PLANS, [unused, used]) == len(PLANS)
    assert {"for_a_peer", "for_no_case"} & sys.modules.keys() == {"for_a_peer"}


def test_processes_that_end_leave_the_cases_to_the_measurement(started, monkeypatch):
    monkeypatch.setattr(peers_ahead, "ENTRY", "raise SystemExit(1)")
    assert peers_ahead.prepare_ahead(PLANS, PEERS) == 0


def test_the_time_is_limited(started, monkeypatch):
    monkeypatch.setattr(peers_ahead, "ENTRY", "import sys; sys.stdin.read()")
    monkeypatch.setattr(peers_ahead, "LIMIT_S", 0.5)
    assert peers_ahead.prepare_ahead(PLANS, PEERS) == 0
    assert all(process.poll() is not None for process in started)


def test_few_cases_start_no_processes(started):
    assert peers_ahead.prepare_ahead(PLANS[: peers_ahead.FEW], PEERS) == 0
    assert peers_ahead.prepare_ahead(PLANS, []) == 0  # whose variants alone are compiled
    assert not started


def test_a_peer_is_prepared_without_the_results_of_another_kernel(monkeypatch):
    kernel = registry.get("attention_backward")
    monkeypatch.setattr(kernel, "inputs", lambda *arguments: pytest.fail("the forward kernel was computed"))
    seen = {}

    def prepare(workload, inputs):
        seen.update({name: array.shape for name, array in inputs.items()})
        return SimpleNamespace(note="", launches=1)

    peer = SimpleNamespace(name="fake", offers=lambda workload: True, prepare=prepare, version=str)
    fields = {"batch": 1, "heads": 2, "q": 32, "k": 32, "d": 64}
    job = {"kernel": kernel.name, "fields": fields, "variants": ["unfused"], "tile": {}, "tiles": {}, "peers": ["fake"]}
    monkeypatch.setattr("ptxkit.workload.build.compiled", lambda resolved: None)
    assert peers_ahead._prepare(job, emulating_device(), {"fake": peer}) == []
    assert seen["o"] == (32, 2, 64)


def test_peers_whose_code_is_not_kept_are_not_prepared():
    """They would be imported and prepared in each process for nothing."""
    kept = {peer.name for peer in peers.every() if peer.keeps_code}
    assert {"compile", "triton", "flex_attention", "cutlass"} <= kept
    assert not {"torch", "cublas", "cudnn_attention"} & kept
