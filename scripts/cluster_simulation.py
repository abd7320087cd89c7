"""Simulates sweeps on 1 to 1,000 GPUs from the times of a measured sweep, and names what limits each.

    python scripts/cluster_simulation.py [JOURNAL] [--gpus 1,2,4,...] [--configurations 10000] [--cores 16]

The model has three kinds of servers. The client, with the scheduler, does one thing at a time: ``--answer-ms`` for each of
the two answers of a configuration, and ``--bundle-ms`` for each task of Dask. The class
:class:`~ptxkit.cluster.placing.Placing` itself decides which worker gets how many configurations at a time, and when, on the
clock of the simulation. The ``--cores`` of each worker compile, and its GPU measures one configuration at a time, in the
order of their arrival. Times of compiling and of measuring are drawn from the journal of a sweep on a GPU, or have an
exponential distribution with the means ``--compile-ms`` and ``--measure-ms``. As in :class:`ptxkit.sweep.run.Sweep`, at most
3 configurations for each compiling process are in flight. A measuring process starts in ``--start-s`` seconds. Images travel
in ``--image-ms`` unless the worker that measures has compiled them. What the policy itself takes, which grows with the
workers and with what waits, is not part of the model.

``limit`` names the server with the highest share of busy time: ``client``, ``compile`` or ``GPU``; or ``start`` where the
processes start for more than half of the time.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxkit.cluster import placing, workers
from ptxkit.cluster.dispatch import PLACE_S
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState
from ptxkit.cluster.placing import Placing
from ptxkit.sweep.journal import read
from ptxkit.sweep.run import AHEAD


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
    answer: float
    bundle: float
    image: float
    start: float
    compiling: Callable[[], float]
    measuring: Callable[[], float]
    clock: Clock
    busy: dict[str, float] = field(default_factory=lambda: {"client": 0.0, "compile": 0.0, "GPU": 0.0})
    bundles: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def run(self) -> float:
        """The seconds until the last configuration is measured."""
        self.left, self.flight, self.done = self.count, 0, 0
        self.requests: list[tuple[float, Callable[[], None]]] = []  # that wait for the client, with what each takes
        self.serving = False
        self.placing = Placing()
        self.workers = [WorkerState(str(n), str(n), "host", {CPU: self.cores, GPU: 1}, {}) for n in range(self.gpus)]
        self.idle = {CPU: [self.cores] * self.gpus, GPU: [1] * self.gpus}
        self.queues: dict[str, list[deque[Job]]] = {name: [deque() for _ in self.workers] for name in (CPU, GPU)}
        self.begun = [False] * self.gpus
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
            seconds = sum(each for each, _ in requests)
            self.busy["client"] += seconds
            self._after(seconds, lambda: self._served([request for _, request in requests]))

    def _served(self, requests: Sequence[Callable[[], None]]) -> None:
        for request in requests:
            request()
        self._place()
        self._serve()

    def _ask(self) -> None:
        """Hand out tiles to be compiled."""
        while self.left and self.flight < AHEAD * self.gpus * self.cores:
            self.left -= 1
            self.flight += 1
            self.placing.accept(Job("compiling", CPU, divmod, tuple))

    def _place(self) -> None:
        """Send jobs to workers, as many and as often as the policy of the cluster says."""
        for worker, jobs in self.placing.next(self.workers):
            self.bundles += 1
            for job in jobs:
                worker.give(job, None)  # type: ignore[arg-type]  # nothing asks for its bundle
            self._client(self.bundle, lambda worker=worker, jobs=jobs: self._arrive(worker, jobs))  # type: ignore[misc]
        if self.placing.hurried:
            self._after(PLACE_S, self._place)

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
                extra += 0.0 if self.begun[worker] else self.start
                self.begun[worker] = True
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
        self._ask()


def drawn(values: Sequence[float], mean: float, generator: random.Random) -> Callable[[], float]:
    """Draws from measured values, or from an exponential distribution where there are none."""
    return (lambda: generator.choice(values)) if values else (lambda: generator.expovariate(1 / mean))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", nargs="?", type=Path, help="of a sweep on a GPU")
    parser.add_argument("--gpus", default="1,2,4,8,16,64,256,1000", help="numbers of GPUs, separated by commas")
    parser.add_argument("--configurations", type=int, default=10_000)
    parser.add_argument("--cores", type=int, default=16, help="compiling processes of each GPU's worker")
    parser.add_argument("--answer-ms", type=float, default=1.0, help="of the client and the scheduler for an answer")
    parser.add_argument("--bundle-ms", type=float, default=4.0, help="of the client and the scheduler for a task of Dask")
    parser.add_argument("--image-ms", type=float, default=5.0, help="for the image of a configuration to travel")
    parser.add_argument("--start-s", type=float, default=6.0, help="for a measuring process to start")
    parser.add_argument("--compile-ms", type=float, default=315.0)
    parser.add_argument("--measure-ms", type=float, default=32.0)
    given = parser.parse_args()
    entries = read(given.journal).entries if given.journal else []
    timed = [e for e in entries if e.status in ("ok", "slow")]
    compiles = [e.compile_s for e in timed]
    measures = [e.prepare_s + e.verify_s + e.time_s for e in timed]
    means = [statistics.fmean(v) if v else m / 1e3 for v, m in ((compiles, given.compile_ms), (measures, given.measure_ms))]
    print(f"{given.configurations} configurations: compile {1e3 * means[0]:.0f} ms, measure {1e3 * means[1]:.0f} ms, ", end="")
    print(f"client {given.answer_ms:g} ms an answer and {given.bundle_ms:g} ms a task, ", end="")
    print(f"{given.cores} compiling processes for each GPU")
    print("GPUs  seconds  a second  over linear  client busy  compile busy  GPU busy  tasks  limit")
    first = 0.0
    clock = Clock()
    placing.time = workers.time = clock  # type: ignore[assignment]
    for gpus in map(int, given.gpus.split(",")):
        generator = random.Random(gpus)
        compiling, measuring = (
            drawn(values, mean, generator) for values, mean in zip((compiles, measures), means, strict=True)
        )
        clock.now = 0.0
        milliseconds = (given.answer_ms, given.bundle_ms, given.image_ms)
        simulation = Simulation(
            gpus,
            given.configurations,
            given.cores,
            *(each / 1e3 for each in milliseconds),
            given.start_s,
            compiling,
            measuring,
            clock,
        )
        seconds = simulation.run()
        shares = {"client": simulation.busy["client"] / seconds}
        shares |= {name: simulation.busy[name] / gpus / seconds for name in ("compile", "GPU")}
        limit = "start" if given.start_s > seconds / 2 else max(shares, key=lambda name: shares[name])
        rate = given.configurations / seconds
        first = first or rate / gpus
        busy = f"{shares['client']:11.0%}  {shares['compile']:12.0%}  {shares['GPU']:8.0%}"
        row = f"{gpus:4}  {seconds:7.1f}  {rate:8.1f}  {rate / gpus / first:11.2f}  {busy}"
        print(f"{row}  {simulation.bundles:5}  {limit}", flush=True)


if __name__ == "__main__":
    main()
