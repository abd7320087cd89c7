"""An executor of sweeps whose processes are the workers of a Dask cluster."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptxkit.cluster import tasks
from ptxkit.cluster.connection import Connection
from ptxkit.cluster.dispatch import CPU, GPU, Dispatcher, Job
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.problem import Problem
from ptxkit.workload.ahead import is_slow
from ptxkit.workload.launch import Tile

WORKERS_S = 60.0  # to wait for the first worker that can be used
RELEASE_S = 5.0  # to end the processes of workers after a sweep


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
        if problem.kernel.endswith(".py"):
            problem = replace(problem, kernel=str(Path(problem.kernel).absolute()))
        self._client = connection.client
        self._order = tasks.Order(uuid.uuid4().hex, problem, seed, timeout_s, timed, slow)
        self._compiling: dict[Tile, Job] = {}
        self._dispatcher = Dispatcher(self._client, connection.address, problem.kernel, say, gpu)
        try:
            self._dispatcher.wait_for_workers(WORKERS_S)
        except BaseException:
            self._dispatcher.close()
            raise

    @property
    def slots(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return max(1, self._dispatcher.slots(CPU))

    @property
    def measurers(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return max(1, self._dispatcher.slots(GPU if self._order.timed else CPU))

    def start(self) -> Future[float] | None:
        """See :class:`~ptxkit.sweep.executor.Executor`: each worker starts measuring with its first tile."""
        return None

    def compile(self, tile: Tile) -> Future[Compiled]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        job = self._compiling[tile] = self._submit(
            CPU, "compile", tasks.compile_tile, lambda: (self._order, dict(tile))
        )
        return job.future

    def measure(self, tile: Tile, compiled: Compiled, best: Callable[[], float]) -> Future[Entry]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        source = self._compiling[tile].where
        resource = GPU if self._order.timed else CPU
        return self._submit(
            resource,
            "measure",
            tasks.measure_tile,
            lambda: (self._order, dict(tile), compiled, source, best()),
            source,
        ).future

    def mix(self, tile: Tile) -> Future[str]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        arguments = self._known(tile)
        return self._submit(CPU, "disassemble", tasks.mix_tile, lambda: (self._order, *arguments), arguments[2]).future

    def leaders(self, tiles: Sequence[Mapping[str, Any]], budget_s: float) -> list[dict[str, Any]]:
        """See :class:`~ptxkit.sweep.executor.Executor`: all on the GPU of one worker.

        Raises:
            FaultError: they could not be measured. UnavailableError: there is no worker any more.
        """
        known = [self._known(Tile(tile)) for tile in tiles]
        job = self._submit(GPU, "leaders", tasks.measure_leaders, lambda: (self._order, known, budget_s))
        rows: list[dict[str, Any]] = job.future.result()
        return rows

    def report(self) -> str:
        """See :class:`~ptxkit.sweep.executor.Executor`: number of workers, and what each has done."""
        seats = sorted(self._dispatcher.seats.values(), key=lambda seat: seat.name)
        each = " ".join(f"{seat.name}:{seat.done}" for seat in seats)
        return f"{len(seats)} workers {each}"

    def hosts(self) -> Counter[str]:
        """How many workers each machine has."""
        return Counter(seat.host for seat in self._dispatcher.seats.values())

    def abort(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        self._dispatcher.close()

    def end(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        seats = list(self._dispatcher.seats)
        self._dispatcher.close()
        if seats and self._client.status == "running":
            options = {"workers": seats, "on_error": "ignore"}
            released = threading.Thread(
                target=self._client.run, args=(tasks.release, self._order.ticket), kwargs=options, daemon=True
            )
            released.start()  # a worker that does not answer ends its processes by itself after a while
            released.join(RELEASE_S)

    def _known(self, tile: Tile) -> tuple[dict[str, Any], Compiled, str]:
        job = self._compiling[tile]
        return dict(tile), job.future.result(), job.where

    def _submit(
        self,
        resource: str,
        what: str,
        function: Callable[..., Any],
        arguments: Callable[[], tuple[Any, ...]],
        prefers: str = "",
    ) -> Job:
        return self._dispatcher.submit(Job(what, resource, function, arguments, prefers))
