"""The workers of a cluster as one command uses them: jobs for them, their state in words, and the end of their processes."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ptxkit.cluster import held
from ptxkit.cluster.calls import call
from ptxkit.cluster.connection import Connection
from ptxkit.cluster.dispatch import Dispatcher
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState

WORKERS_S = 60.0  # to wait for the first worker that can be used
REPORT_S = 0.2  # for which a report is repeated: one about many workers takes time
RELEASE_S = 5.0  # to end the processes of workers after a command


class Team:
    """The workers that execute the jobs of one command.

    Args:
        connection: to the cluster.
        kernels: names or paths of the descriptions that the command uses.
        say: called with a line about a worker that is refused or lost; from a thread.
        gpu: name of the GPU model that measures; workers with others compile. None if nothing is timed.

    Attributes:
        ticket: identifies the run of the command on workers, see :func:`ptxkit.cluster.held.using`.

    Raises:
        UnavailableError: no worker can be used; the message has the reasons.
    """

    def __init__(
        self, connection: Connection, kernels: Sequence[str], say: Callable[[str], None], gpu: str | None = None
    ) -> None:
        self.ticket = uuid.uuid4().hex
        self._client = connection.client
        self._report, self._reported_at = "", -REPORT_S
        self.dispatcher = Dispatcher(self._client, connection.title, kernels, say, gpu, connection.worker_command)
        try:
            self.dispatcher.wait_for_workers(WORKERS_S)
        except BaseException:
            self.dispatcher.close()
            raise

    def submit(
        self,
        resource: str,
        what: str,
        function: Callable[..., Any],
        arguments: Callable[[], tuple[Any, ...]],
        *,
        prefers: str = "",
        only: str = "",
    ) -> Job:
        """Execute a function on a worker; see :class:`~ptxkit.cluster.dispatch.Job`."""
        return self.dispatcher.submit(Job(what, resource, function, arguments, prefers, only))

    def slots(self, resource: str) -> int:
        """How many jobs all workers execute at a time, at least 1."""
        return max(1, self.dispatcher.slots(resource))

    def workers(self) -> list[WorkerState]:
        """The workers that are used now, sorted by name."""
        return sorted(self.dispatcher.workers.values(), key=lambda worker: worker.name)

    def report(self) -> str:
        """How many workers there are and what each has done, and below that a line about each of them."""
        if time.monotonic() - self._reported_at < REPORT_S:
            return self._report
        workers = self.workers()
        each = " ".join(f"{worker.name}:{worker.done[GPU] or worker.done[CPU]}" for worker in workers)
        number = f"{len(workers)} worker{'s' * (len(workers) != 1)}"
        self._report = "\n".join([f"{number} {each}", *(worker.line() for worker in workers)])
        self._reported_at = time.monotonic()
        return self._report

    def hosts(self) -> Counter[str]:
        """How many workers each machine has."""
        return Counter(worker.host for worker in self.workers())

    def abort(self) -> None:
        """Stop what is being executed."""
        self.dispatcher.close()

    def end(self) -> None:
        """Stop everything, and end the processes that workers have started for the command."""
        addresses = list(self.dispatcher.workers)
        self.dispatcher.close()
        if addresses and self._client.status == "running":
            with suppress(OSError, TimeoutError):  # a worker that does not answer ends its processes by itself after a while
                call(
                    self._client,
                    lambda: self._client.run(held.release, self.ticket, workers=addresses, on_error="ignore"),
                    RELEASE_S,
                )


def on_workers(kernel: str) -> str:
    """The name of a kernel as workers find it: a path becomes absolute."""
    return str(Path(kernel).absolute()) if kernel.endswith(".py") else kernel
