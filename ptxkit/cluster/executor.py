"""An executor of sweeps whose processes are the workers of a Dask cluster."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ptxkit.cluster import tasks
from ptxkit.cluster.connection import Connection
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState
from ptxkit.cluster.outliers import outliers
from ptxkit.cluster.team import Team, on_workers
from ptxkit.errors import FaultError, UnavailableError
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.problem import Problem
from ptxkit.workload.ahead import is_slow
from ptxkit.workload.launch import Tile


class ClusterExecutor:
    """An :class:`~ptxkit.sweep.executor.Executor` on a cluster.

    Args:
        connection: to the cluster.
        problem, seed, timeout_s, timed: see :class:`~ptxkit.sweep.local.LocalExecutor`.
        say: called with a line about a worker that is refused or lost; from a thread.
        gpu: name of the GPU model that measures; workers with others compile.

    Raises:
        UnavailableError: no worker can be used; the message has the reasons.
    """

    def __init__(
        self,
        connection: Connection,
        problem: Problem,
        seed: int,
        timeout_s: float,
        *,
        timed: bool,
        say: Callable[[str], None],
        gpu: str | None = None,
    ) -> None:
        slow = is_slow(problem.workload, problem.chosen)
        problem = replace(problem, kernel=on_workers(problem.kernel))
        self._compiling: dict[Tile, Job] = {}
        self._canaries: dict[str, Mapping[str, Any]] = {}  # address of a worker -> the last canary cases of its GPU
        self._say = say
        self._repeated: dict[WorkerState, Job] = {}  # the leaders on each GPU, without those on the one that decides
        self._team = Team(connection, (problem.kernel,), say, gpu)
        self._order = tasks.Order(self._team.ticket, problem, seed, timeout_s, timed, slow)

    @property
    def slots(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self._team.slots(CPU)

    @property
    def measurers(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self._team.slots(self._measuring)

    @property
    def _measuring(self) -> str:
        """The resource that measuring a tile takes."""
        return GPU if self._order.timed else CPU

    def start(self) -> Future[float] | None:
        """See :class:`~ptxkit.sweep.executor.Executor`: the future ends when the first GPU has been prepared.

        Measuring processes start while the first tiles are compiled. A worker that comes later starts its own with its first
        tile; one that cannot start it is not used any more, or says so with its first tile.
        """
        if not self._order.timed:
            return None
        ready: Future[float] = Future()
        for worker in self._with_gpu():
            job = self._team.submit(GPU, "starting", tasks.start_measuring, lambda: (self._order,), only=worker.address)
            job.future.add_done_callback(lambda _, job=job: self._started(job, ready))  # type: ignore[misc]
        return ready

    def _started(self, job: Job, ready: Future[float]) -> None:
        """A measuring process is ready, or could not start; in the dispatcher's thread."""
        if job.succeeded:
            self._compare(job.where, job.future.result())
            if not ready.done():
                ready.set_result(time.perf_counter())

    def _with_gpu(self) -> list[WorkerState]:
        return [worker for worker in self._team.workers() if worker.slots.get(GPU)]

    def compile(self, tile: Tile) -> Future[Compiled]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        job = self._team.submit(CPU, "compiling", tasks.compile_tile, lambda: (self._order, dict(tile)))
        self._compiling[tile] = job
        return job.future

    def measure(self, tile: Tile, compiled: Compiled, best: Callable[[], float]) -> Future[Entry]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        source = self._compiling[tile].where
        job = self._team.submit(
            self._measuring,
            "measuring",
            tasks.measure_tile,
            lambda: (self._order, dict(tile), compiled, source, best()),
            prefers=source,
        )
        job.future.add_done_callback(lambda _: self._watch(job))
        return job.future

    def _watch(self, job: Job) -> None:
        """Read the canary cases of the GPU that executed a job, if it launched them; in the dispatcher's thread."""
        if job.succeeded:
            self._compare(job.where, (job.future.result().measured_on or {}).get("canary"))

    def _compare(self, address: str, canary: Mapping[str, Any] | None) -> None:
        """Compare the canary cases of the GPU of a worker with those of the other GPUs."""
        if canary is None:
            return
        self._canaries[address] = canary
        for outlier, why in outliers(self._canaries).items():
            del self._canaries[outlier]
            self._team.dispatcher.stop_measuring(outlier, why)

    def mix(self, tile: Tile) -> Future[str]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        arguments = self._known(tile)
        return self._team.submit(
            CPU, "disassembling", tasks.mix_tile, lambda: (self._order, *arguments), prefers=arguments[2]
        ).future

    def leaders(self, tiles: Sequence[Mapping[str, Any]], budget_s: float) -> list[dict[str, Any]]:
        """See :class:`~ptxkit.sweep.executor.Executor`: on the GPU of each worker, of which the first that is done decides.

        Raises:
            FaultError: they could not be measured. UnavailableError: there is no worker any more.
        """
        known = [self._known(Tile(tile)) for tile in tiles]
        ended: queue.SimpleQueue[WorkerState] = queue.SimpleQueue()
        for worker in self._with_gpu():
            self._repeated[worker] = self._again(known, budget_s, worker.address)
            self._repeated[worker].future.add_done_callback(lambda _, worker=worker: ended.put(worker))  # type: ignore[misc]
        for _ in range(len(self._repeated)):
            worker = ended.get()
            if self._repeated[worker].succeeded:
                return list(self._repeated.pop(worker).future.result())
        return list(self._again(known, budget_s).future.result())  # on a worker that came later

    def leaders_elsewhere(self) -> list[list[dict[str, Any]]]:
        """See :class:`~ptxkit.sweep.executor.Executor`; a worker that cannot is left out."""
        found = []
        for worker, job in self._repeated.items():
            try:
                found.append(job.future.result())
            except (FaultError, UnavailableError) as error:
                self._say(f"the best are not compared on {worker}: {error}")
        return found

    def _again(self, known: Sequence[tuple[dict[str, Any], Compiled, str]], budget_s: float, only: str = "") -> Job:
        """Let a worker measure the leaders against each other."""
        what = "measuring the best"
        return self._team.submit(GPU, what, tasks.measure_leaders, lambda: (self._order, known, budget_s), only=only)

    def report(self) -> str:
        """See :class:`~ptxkit.sweep.executor.Executor`: number of workers, and what each has done."""
        return self._team.report()

    def hosts(self) -> Counter[str]:
        """How many workers each machine has."""
        return self._team.hosts()

    def abort(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        self._team.abort()

    def end(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        self._team.end()

    def _known(self, tile: Tile) -> tuple[dict[str, Any], Compiled, str]:
        job = self._compiling[tile]
        return dict(tile), job.future.result(), job.where
