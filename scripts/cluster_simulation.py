"""Simulates sweeps on 1 to 1,000 GPUs from the times of a measured sweep, and names what limits each.

    python scripts/cluster_simulation.py [JOURNAL] [--gpus 1,2,4,...] [--configurations 10000] [--client-ms 7] [--cores 16]

The model has three kinds of servers. The client, with the scheduler, hands out every task and receives its result, one at a
time: this takes ``--client-ms`` for each of the two tasks of a configuration. The ``--cores`` of each GPU's worker compile, and
its GPU measures one configuration at a time; it is idle until the client has handed it the next one. Times of compiling and
of measuring are drawn from the journal of a sweep on a GPU, or have an exponential distribution with the means
``--compile-ms`` and ``--measure-ms``. As in :class:`ptxkit.sweep.run.Sweep`, at most 3 configurations for each compiling
process are in flight. A measuring process starts in ``--start-s`` seconds. Images travel in ``--image-ms`` unless the worker
that measures has compiled them.

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

from ptxkit.sweep.journal import read
from ptxkit.sweep.run import AHEAD


@dataclass
class Simulation:
    """A sweep of ``count`` configurations on ``gpus`` workers; see the docstring of this file. Times in seconds."""

    gpus: int
    count: int
    cores: int
    client: float
    image: float
    start: float
    compiling: Callable[[], float]
    measuring: Callable[[], float]
    now: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: {"client": 0.0, "compile": 0.0, "GPU": 0.0})
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def run(self) -> float:
        """The seconds until the last configuration is measured."""
        self.left, self.flight, self.done = self.count, 0, 0
        self.requests: deque[Callable[[], None]] = deque()  # that wait for the client
        self.serving = False
        self.slots = [self.cores] * self.gpus
        self.free_gpus = list(range(self.gpus))
        self.begun = [False] * self.gpus
        self.compiled: deque[int] = deque()  # the workers that compiled what waits for a GPU
        self.free_slots = self.gpus * self.cores
        self._ask()
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        assert self.done == self.count
        return self.now

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event))

    def _client(self, request: Callable[[], None]) -> None:
        """Let the client handle a request, after those before it."""
        self.requests.append(request)
        if not self.serving:
            self._serve()

    def _serve(self) -> None:
        self.serving = bool(self.requests)
        if self.serving:
            request = self.requests.popleft()
            self.busy["client"] += self.client / 2
            self._after(self.client / 2, lambda: self._served(request))

    def _served(self, request: Callable[[], None]) -> None:
        request()
        self._serve()

    def _ask(self) -> None:
        """Hand out tiles to be compiled."""
        most = AHEAD * self.gpus * self.cores
        while self.left and self.free_slots and self.flight < most:
            self.left -= 1
            self.flight += 1
            self.free_slots -= 1
            worker = max(range(self.gpus), key=self.slots.__getitem__) if self.gpus <= 64 else self._roomy()
            self.slots[worker] -= 1
            self._client(lambda worker=worker: self._compile(worker))  # type: ignore[misc]

    def _roomy(self) -> int:
        """A worker with a free slot: the best of a few, since a search among all would take longer than the simulation."""
        some = random.sample(range(self.gpus), 16)
        best = max(some, key=self.slots.__getitem__)
        return best if self.slots[best] else next(w for w in range(self.gpus) if self.slots[w])

    def _compile(self, worker: int) -> None:
        seconds = self.compiling()
        self.busy["compile"] += seconds / self.cores
        self._after(seconds, lambda: self._client(lambda: self._is_compiled(worker)))

    def _is_compiled(self, worker: int) -> None:
        self.slots[worker] += 1
        self.free_slots += 1
        self.compiled.append(worker)
        self._place()
        self._ask()

    def _place(self) -> None:
        """Hand compiled tiles to free GPUs, to the one of the compiling worker if it is free."""
        while self.compiled and self.free_gpus:
            source = self.compiled.popleft()
            worker = source if source in self.free_gpus[:64] else self.free_gpus[0]
            self.free_gpus.remove(worker)
            self._client(lambda worker=worker, source=source: self._measure(worker, source))  # type: ignore[misc]

    def _measure(self, worker: int, source: int) -> None:
        seconds = self.measuring()
        self.busy["GPU"] += seconds
        extra = (0.0 if worker == source else self.image) + (0.0 if self.begun[worker] else self.start)
        self.begun[worker] = True
        self._after(seconds + extra, lambda: self._client(lambda: self._is_measured(worker)))

    def _is_measured(self, worker: int) -> None:
        self.done += 1
        self.flight -= 1
        self.free_gpus.append(worker)
        self._place()
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
    parser.add_argument("--client-ms", type=float, default=7.0, help="of the client and the scheduler for a task")
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
    print(f"client {given.client_ms:g} ms a task, {given.cores} compiling processes for each GPU")
    print("GPUs  seconds  a second  over linear  client busy  compile busy  GPU busy  limit")
    first = 0.0
    for gpus in map(int, given.gpus.split(",")):
        generator = random.Random(gpus)
        draws = [drawn(values, mean, generator) for values, mean in zip((compiles, measures), means, strict=True)]
        client, image = given.client_ms / 1e3, given.image_ms / 1e3
        compiling, measuring = draws
        simulation = Simulation(
            gpus, given.configurations, given.cores, client, image, given.start_s, compiling, measuring
        )
        seconds = simulation.run()
        shares = {"client": simulation.busy["client"] / seconds}
        shares |= {name: simulation.busy[name] / gpus / seconds for name in ("compile", "GPU")}
        limit = "start" if given.start_s > seconds / 2 else max(shares, key=lambda name: shares[name])
        rate = given.configurations / seconds
        first = first or rate / gpus
        busy = f"{shares['client']:11.0%}  {shares['compile']:12.0%}  {shares['GPU']:8.0%}"
        print(f"{gpus:4}  {seconds:7.1f}  {rate:8.1f}  {rate / gpus / first:11.2f}  {busy}  {limit}", flush=True)


if __name__ == "__main__":
    main()
