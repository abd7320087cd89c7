"""Compiles the variants and peers of many cases before they are measured, in several processes on the same GPU.

torch.compile and Triton compile for some seconds for each case, one case at a time, while the other cores are idle. The
processes here prepare the peers that compile once for every case. What they compile stays in the caches of ptxkit, torch and
Triton on disk, where the measurement finds it. Nothing is timed, and no configuration that a peer chose by timing is kept,
because the processes disturb each other: the measurement chooses again.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.bench.cases import description_of
from ptxkit.errors import FaultError, PtxkitError
from ptxkit.workload.data import Prepared

if TYPE_CHECKING:
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.peers.base import Peer
    from ptxkit.workload.workload import Workload

PROCESS_BYTES = 3e9  # memory of a process with torch and a CUDA context
MOST = 12  # processes: more contexts on a GPU slow each other down
LIMIT_S = 150.0  # after which the measurement begins; it compiles the rest itself
SHARE = 0.25  # of a given time for all cases, after which it begins
ENTRY = "from ptxkit.bench.measure.peers_ahead import prepare_from_stdin; prepare_from_stdin()"
FEW = 3  # cases for which starting the processes takes as long as it saves
FEW_WITHOUT_PEERS = 10  # the same, where only variants are compiled, which the measurement does on all cores, too
CHOSEN_AGAIN = {"TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0"}
"""Variables of the environment, also of the measurement, with which torch.compile keeps code, but no choice by timing."""

Say = Callable[[str], None]


def prepare_ahead(
    plans: Sequence[Plan],
    peers: Sequence[Peer],
    say: Say = lambda what: None,
    *,
    tile: Mapping[str, Any] | None = None,
    stop_after_s: float | None = None,
) -> int:
    """Fill the caches for these cases; the measurement reports the errors of those that fail.

    Args:
        peers: the peers to prepare, whose code is kept for other processes.
        say: called with a line about the progress.
        tile: tile parameters that the measurement fixes. stop_after_s: the time for preparation and measurement, or None.

    Returns:
        How many cases were prepared.
    """
    from ptxkit.workload.memory import free_host_bytes

    free = free_host_bytes()
    fitting = MOST if free is None else int(free / PROCESS_BYTES)
    count = min(MOST, fitting, len(os.sched_getaffinity(0)) - 1, len(plans))
    of_plans = [_peers_of(plan, peers) for plan in plans]
    if len(plans) <= (FEW if any(of_plans) else FEW_WITHOUT_PEERS) or count < 2:
        return 0
    os.environ.update(CHOSEN_AGAIN)
    waiting: Queue[str] = Queue()
    # those with many peers take the longest: last, they would leave all but a few processes without work
    for plan, names in sorted(zip(plans, of_plans, strict=True), key=lambda pair: -len(pair[1])):
        w = plan.workload
        job = {
            "kernel": description_of(type(w)) or w.name,
            "fields": {**w.sizes, **w.options},
            "variants": plan.variants,
            "tile": dict(tile or {}),
            "tiles": {name: dict(fixed) for name, fixed in plan.tiles.items()},
            "peers": names,
        }
        waiting.put(json.dumps(job))
    limit_s = LIMIT_S if stop_after_s is None else min(LIMIT_S, SHARE * stop_after_s)
    done: list[str] = []
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as beside, _processes(count) as processes:
        beside.submit(_import_packages, [peer for peer in peers if any(peer.name in names for names in of_plans)])
        threads = [threading.Thread(target=_feed, args=(process, waiting, done), daemon=True) for process in processes]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and time.monotonic() - begin < limit_s:
            say(f"preparing peers: {len(done)} of {len(plans)} cases, {time.monotonic() - begin:.0f} s")
            threads[0].join(0.2)
            time.sleep(0.2)
    return len(done)


def _import_packages(peers: Sequence[Peer]) -> None:
    """Import the packages of peers, which takes seconds, in this process; what fails is reported when the peer is prepared."""
    for package in dict.fromkeys(package for peer in peers for package in peer.packages):
        importlib.import_module(package)


def _peers_of(plan: Plan, peers: Sequence[Peer]) -> list[str]:
    """The names of those that are measured with a case."""
    wanted = [peer for peer in peers if plan.peers is None or peer.name in plan.peers]
    return [peer.name for peer in wanted if peer.name not in plan.without and peer.offers(plan.workload)]


def _feed(process: subprocess.Popen[str], waiting: Queue[str], done: list[str]) -> None:
    """Give cases to a process until there are none left or it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(Empty, OSError, ValueError):  # ValueError: its files were closed, because the time is over
        while True:
            process.stdin.write(waiting.get_nowait() + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                return
            done.append(line)


@contextmanager
def _processes(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    environment = {**os.environ, **CHOSEN_AGAIN, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    processes = []
    try:
        for _ in range(count):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", ENTRY],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def prepare_from_stdin() -> None:
    """Entry point of a process: prepare the cases of the lines of stdin; one line on stdout for each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    from ptxkit.runtime.device import timed_device

    device = timed_device()
    peers: dict[str, Any] = {}
    for line in sys.stdin:
        failed = _prepare(json.loads(line), device, peers)
        print(json.dumps(failed), file=answers, flush=True)
        with suppress(FaultError):
            device.synchronize()
        if device.lost:
            os._exit(0)  # a kernel of a peer failed: this process can prepare nothing more, and the others take what is left


def _prepare(job: Mapping[str, Any], device: Any, known: dict[str, Any]) -> list[str]:
    """Compile the variants of a case and prepare its peers; the errors."""
    from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate
    from ptxkit.bench.peers import peers as peers_named
    from ptxkit.workload import registry
    from ptxkit.workload.build import compiled

    _free_memory()
    errors = []
    try:
        workload = registry.find(job["kernel"])(**job["fields"])
        sets = BufferSets(workload, device, 1, 0, prepared=_shaped)
    except PtxkitError as error:
        return [str(error)]
    variants = workload.variants()
    for name in job["variants"] or variants:
        tile = {**job["tile"], **job["tiles"].get(name, {})}
        fixed = {parameter: value for parameter, value in tile.items() if parameter in variants[name].tile}
        try:
            compiled(sets.cases[0].resolve(variants[name], tile=fixed))
        except PtxkitError as error:
            errors.append(str(error))
    for name in job["peers"]:
        if name not in known:
            known[name] = next(iter(peers_named([name])[0]), None)
        peer = known[name]
        try:
            if peer is not None and peer.offers(workload):
                PeerCandidate(sets, peer)
        except PtxkitError as error:
            errors.append(str(error))
    return errors


def _shaped(workload: Workload, seed: int) -> Prepared:
    """Inputs without a reference; see :meth:`Workload.shaped_inputs`."""
    return dict(workload.shaped_inputs(np.random.default_rng(seed))), None


def _free_memory() -> None:
    """Give the device memory of the case before back, which torch keeps otherwise: the other processes need it."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
