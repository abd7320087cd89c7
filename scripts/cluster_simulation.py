"""Simulates sweeps on 1 to 1,000 GPUs from the times of a measured sweep, and names what limits each.

    python scripts/cluster_simulation.py [JOURNAL] [--gpus 1,2,4,...] [--each 150] [--cores 16] [--measure-ms 31,500]

The model has three kinds of servers. The client, with the scheduler, does one thing at a time: ``--task-ms`` for each task of
Dask, ``--answer-ms`` for each of the two answers of a configuration, and ``--record-ms`` to record it and choose another one.
``scripts/cluster_tasks.py --costs`` measures the first two, and its column ``main ms`` has the third. The class
:class:`~ptxkit.cluster.placing.Placing` itself decides which worker gets how many configurations at a time, and when, on the
clock of the simulation; the processor time that it takes on this machine, which grows with the workers, is time of the
client, too. The ``--cores`` of each worker compile, and its GPU measures one configuration at a time, in the order of their
arrival. Times of compiling and of measuring are drawn from the journal of a sweep on a GPU, or have an exponential
distribution with the means ``--compile-ms`` and ``--measure-ms``. As in :class:`ptxkit.sweep.run.Sweep`, at most 3
configurations for each compiling process, or 1,000, are in flight. Measuring processes start at once, in ``--start-s`` seconds.
Images travel in ``--image-ms`` unless the worker that measures has compiled them.

Each sweep has ``--each`` configurations for each GPU, and at least 2,000. Rate and shares are those of the time in which the
second to the ninth tenth of them are measured, so that neither the start of the processes nor the end, when GPUs become
idle, is part of them; ``seconds`` is the time of the whole sweep. ``limit`` names the server with the highest share of busy
time: ``client``, ``compile`` or ``GPU``; it is ``none`` below 80%, where messages and times that vary are what is waited for.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxkit.cluster import jobs as cluster_jobs
from ptxkit.cluster import placing
from ptxkit.cluster.dispatch import PLACE_S
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState
from ptxkit.cluster.placing import Placing
from ptxkit.sweep.journal import read
from ptxkit.sweep.run import AHEAD, COMPILED_AHEAD

LEAST = 2000  # configurations of a simulated sweep
LIMITS = 0.8  # share of busy time from which on a server is the limit
Draw = Callable[[], float]


class Clock:
    """Stands for the module time: the clock of the simulation, so that :mod:`ptxkit.cluster.placing` decides as it would."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """The simulated time in seconds."""
        return self.now


@dataclass
class Simulation:
    """A sweep of ``count`` configurations on ``gpus`` workers; see the docstring of this file. Times in seconds."""

    gpus: int
    count: int
    cores: int
    task: float
    answer: float
    record: float
    image: float
    start: float
    compiling: Draw
    measuring: Draw
    clock: Clock
    busy: dict[str, float] = field(default_factory=lambda: {"client": 0.0, "compile": 0.0, "GPU": 0.0})
    tasks: int = 0
    policy: float = 0.0  # seconds of the client that are not counted yet
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def run(self) -> float:
        """The seconds until the last configuration is measured; then ``steady`` has the time and the busy seconds of servers
        at the second and after the ninth tenth of the configurations."""
        self.steady: list[tuple[float, dict[str, float]]] = []
        self.left, self.flight, self.done = self.count, 0, 0
        self.requests: list[tuple[float, Callable[[], None]]] = []  # that wait for the client, with what each takes
        self.serving = self.waking = False
        self.placing = Placing()
        self.workers = [WorkerState(str(n), str(n), "host", {CPU: self.cores, GPU: 1}, {}) for n in range(self.gpus)]
        self.idle = {CPU: [self.cores] * self.gpus, GPU: [1] * self.gpus}
        self.queues: dict[str, list[deque[Job]]] = {name: [deque() for _ in self.workers] for name in (CPU, GPU)}
        self._ask()
        self._place()
        while self._events:
            self.clock.now, _, event = heapq.heappop(self._events)
            event()
        assert self.done == self.count
        return self.clock.now

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.clock.now + seconds, self._number, event))

    def _client(self, seconds: float, request: Callable[[], None]) -> None:
        """Let the client do something, after what it was asked for before."""
        self.requests.append((seconds, request))
        if not self.serving:
            self._serve()

    def _serve(self) -> None:
        """Do all that the client was asked for, and then place jobs, as the dispatcher does."""
        self.serving = bool(self.requests)
        if self.serving:
            requests, self.requests = self.requests, []
            seconds = sum(each for each, _ in requests) + self.policy
            self.policy = 0.0
            self.busy["client"] += seconds
            self._after(seconds, lambda: self._served([request for _, request in requests]))

    def _served(self, requests: Sequence[Callable[[], None]]) -> None:
        for request in requests:
            request()
        self._place()
        self._serve()

    def _ask(self) -> None:
        """Hand out tiles to be compiled."""
        while self.left and self.flight < max(AHEAD * self.gpus * self.cores, COMPILED_AHEAD):
            self.left -= 1
            self.flight += 1
            self.placing.accept(Job("compiling", CPU, divmod, tuple))

    def _place(self) -> None:
        """Send jobs to workers, as many and as often as the policy of the cluster says."""
        begin = time.thread_time()
        chosen = []
        for worker, jobs in self.placing.next(self.workers):
            chosen.append((worker, jobs))
            for job in jobs:
                worker.give(job, None)  # type: ignore[arg-type]  # nothing asks for its bundle
        self.policy += time.thread_time() - begin  # is taken with the next request
        for worker, jobs in chosen:
            self._client(self.task, lambda worker=worker, jobs=jobs: self._arrive(worker, jobs))  # type: ignore[misc]
        self.tasks += len(chosen)
        if self.placing.hurried and not self.waking:
            self.waking = True
            self._after(PLACE_S, self._woken)

    def _woken(self) -> None:
        self.waking = False
        self._place()

    def _arrive(self, worker: WorkerState, jobs: Sequence[Job]) -> None:
        worker = int(worker.address)
        self.queues[jobs[0].resource][worker].extend(jobs)
        self._begin(jobs[0].resource, worker)

    def _begin(self, resource: str, worker: int) -> None:
        """Let a worker execute what waits there."""
        waiting = self.queues[resource][worker]
        while waiting and self.idle[resource][worker]:
            self.idle[resource][worker] -= 1
            job = waiting.popleft()
            if resource == CPU:
                job.seconds = self.compiling()
                self.busy["compile"] += job.seconds / self.cores
                extra = 0.0
            else:
                job.seconds = self.measuring()
                self.busy["GPU"] += job.seconds
                extra = 0.0 if job.prefers == str(worker) else self.image
                extra += max(0.0, self.start - self.clock.now)
            self._after(job.seconds + extra, lambda job=job: self._ended(job, worker))  # type: ignore[misc]

    def _ended(self, job: Job, worker: int) -> None:
        self.idle[job.resource][worker] += 1
        self._begin(job.resource, worker)
        self._client(self.answer, lambda: self._answered(job, worker))

    def _answered(self, job: Job, worker: int) -> None:
        self.workers[worker].take(job)
        self.placing.took(job)
        if job.resource == CPU:
            self.placing.accept(Job("measuring", GPU, divmod, tuple, prefers=str(worker)))
            return
        self.done += 1
        self.flight -= 1
        if self.done in (self.count // 10, self.count * 9 // 10):
            self.steady.append((self.clock.now, dict(self.busy)))
        self._client(self.record, self._ask)


def drawn(values: Sequence[float], mean: float, generator: random.Random) -> Draw:
    """Draws from measured values, or from an exponential distribution where there are none."""
    return (lambda: generator.choice(values)) if values else (lambda: generator.expovariate(1 / mean))


def simulated(gpus: int, given: argparse.Namespace, compiling: Draw, measuring: Draw, clock: Clock) -> Simulation:
    """A sweep that has been simulated."""
    clock.now = 0.0
    costs = (each / 1e3 for each in (given.task_ms, given.answer_ms, given.record_ms, given.image_ms))
    made = Simulation(gpus, max(given.each * gpus, LEAST), given.cores, *costs, given.start_s, compiling, measuring, clock)
    made.run()
    return made


def row(found: Simulation, linear: float | None) -> tuple[str, float]:
    """The line of a simulated sweep, and its configurations a second for each GPU."""
    (begin, before), (end, after) = found.steady
    steady = end - begin
    shares = {name: (after[name] - before[name]) / steady for name in found.busy}
    shares = {name: share / (1 if name == "client" else found.gpus) for name, share in shares.items()}
    limit = max(shares, key=lambda name: shares[name])
    rate = (found.count * 9 // 10 - found.count // 10) / steady
    busy = f"{shares['client']:11.0%}  {shares['compile']:12.0%}  {shares['GPU']:8.0%}"
    over = rate / found.gpus / (linear or rate / found.gpus)
    text = f"{found.gpus:4}  {found.count:14}  {found.clock.now:7.1f}  {rate:8.1f}  {over:11.2f}  {busy}  {found.tasks:6}"
    return f"{text}  {limit if shares[limit] >= LIMITS else 'none'}", rate / found.gpus


def main() -> None:
    """Print a table for each time of measuring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", nargs="?", type=Path, help="of a sweep on a GPU")
    parser.add_argument("--gpus", default="1,2,4,8,16,64,256,1000", help="numbers of GPUs, separated by commas")
    parser.add_argument("--each", type=int, default=150, help="configurations for each GPU")
    parser.add_argument("--cores", type=int, default=16, help="compiling processes of each GPU's worker")
    parser.add_argument("--task-ms", type=float, default=5.0, help="of the client and the scheduler for a task of Dask")
    parser.add_argument("--answer-ms", type=float, default=0.1, help="of the client and the scheduler for an answer")
    parser.add_argument("--record-ms", type=float, default=0.4, help="of the client to record a configuration")
    parser.add_argument("--image-ms", type=float, default=5.0, help="for the image of a configuration to travel")
    parser.add_argument("--start-s", type=float, default=6.0, help="for a measuring process to start")
    parser.add_argument("--compile-ms", type=float, default=315.0)
    parser.add_argument("--measure-ms", default="31,500", help="one or several, separated by commas")
    given = parser.parse_args()
    entries = read(given.journal).entries if given.journal else []
    timed = [e for e in entries if e.status in ("ok", "slow")]
    compiles = [e.compile_s for e in timed]
    measures = [e.prepare_s + e.verify_s + e.time_s for e in timed]
    clock = Clock()
    placing.time = cluster_jobs.time = clock  # type: ignore[assignment]
    for measure_ms in map(float, given.measure_ms.split(",") if not measures else ["0"]):
        means = [statistics.fmean(v) if v else m / 1e3 for v, m in ((compiles, given.compile_ms), (measures, measure_ms))]
        costs = f"{given.task_ms:g} ms a task, {given.answer_ms:g} ms an answer, {given.record_ms:g} ms a configuration"
        print(f"compile {1e3 * means[0]:.0f} ms, measure {1e3 * means[1]:.0f} ms; client: {costs}")
        print("GPUs  configurations  seconds  a second  over linear  client busy  compile busy  GPU busy   tasks  limit")
        linear = None
        for gpus in map(int, given.gpus.split(",")):
            generator = random.Random(gpus)
            draws = [drawn(values, mean, generator) for values, mean in zip((compiles, measures), means, strict=True)]
            text, each = row(simulated(gpus, given, draws[0], draws[1], clock), linear)
            linear = linear or each
            print(text, flush=True)


if __name__ == "__main__":
    main()
