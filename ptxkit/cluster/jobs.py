"""The jobs of a command, and the workers of a cluster that execute them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

CPU, GPU = "CPU", "GPU"  # resources of workers


@dataclass(eq=False)
class Job:
    """One function to be executed, which may be placed several times.

    Attributes:
        what: names it in messages.
        resource: :data:`CPU` or :data:`GPU`. function, arguments: what is executed; ``arguments`` is called when it is placed.
        prefers: address of the worker that should execute it, or "". only: of the one that must, or ""; the future raises
            FaultError if that one is lost or not used any more.
        future: of its result. where: address of the worker that executed it.
        ended: the workers that ended while they executed it. seconds: that the last execution took.
    """

    what: str
    resource: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    prefers: str = ""
    only: str = ""
    future: Future[Any] = field(default_factory=Future)
    where: str = ""
    ended: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether its result is known."""
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None


@dataclass(eq=False)
class Bundle:
    """Jobs that one task of Dask executes.

    Attributes:
        worker: the one that executes the task. task: the future of Dask. jobs: number -> those whose answer is not known.
        asked: whether its result was requested.
    """

    worker: WorkerState
    task: Any
    jobs: dict[int, Job]
    asked: bool = False


@dataclass(eq=False)
class WorkerState:
    """A worker.

    Attributes:
        address, name, host: of the worker. slots: resource -> how many jobs it executes at a time.
        running: its jobs, in the order in which it begins them. done: number of jobs that it has executed, by resource.
        rests: how often its GPU throttled, and rests_until: our clock until which it gets no job for the GPU.
        state: of its GPU in words, or "".
    """

    address: str
    name: str
    host: str
    slots: dict[str, int]
    described: Mapping[str, Any]
    running: dict[Job, Bundle] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    rests_until: float = 0.0
    state: str = ""
    _count: dict[str, int] = field(default_factory=lambda: {CPU: 0, GPU: 0})
    _suspects: set[Job] = field(default_factory=set)  # those of the running jobs during which a worker ended before

    def give(self, job: Job, bundle: Bundle) -> None:
        """It has got a job."""
        self.running[job] = bundle
        self._count[job.resource] += 1
        if job.ended:
            self._suspects.add(job)

    def take(self, job: Job) -> Bundle:
        """It does not have a job any more."""
        self._count[job.resource] -= 1
        self._suspects.discard(job)
        return self.running.pop(job)

    def room(self, resource: str, ahead: int = 0) -> int:
        """How many more jobs it can get.

        Args:
            ahead: number of jobs that wait there, so that it has the next one when one is done.
        """
        slots = self.slots.get(resource, 0)
        if not slots or (resource == GPU and self.rests_until > time.monotonic()):
            return 0
        return slots + ahead - self.count(resource)

    def count(self, resource: str) -> int:
        """How many jobs it has."""
        return self._count[resource]

    def begun(self) -> list[Job]:
        """The jobs that it may have begun: it begins them in order, and its last answers may not have arrived."""
        found: list[Job] = []
        for resource, slots in self.slots.items():
            found += [job for job in self.running if job.resource == resource][: 2 * slots]
        return found

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"

    @property
    def suspected(self) -> bool:
        """Whether it executes a job alone because the job may end it."""
        return bool(self._suspects)

    def line(self) -> str:
        """What it has done and is doing, for a line of progress."""
        busy = Counter(job.what for job in list(self.running))
        doing = ", ".join(f"{what} {count}" if count > 1 else what for what, count in sorted(busy.items()))
        if self.slots.get(GPU) and self.rests_until > time.monotonic():
            doing = f"rests because its GPU throttles{', ' if doing else ''}{doing}"
        done = self.done[GPU] or self.done[CPU]
        return f"{self}: {done} tasks done; {doing or 'idle'}{'; ' if self.state else ''}{self.state}"


def slots_of(workers: Iterable[WorkerState], resource: str) -> int:
    """How many jobs workers execute at a time."""
    return sum(worker.slots.get(resource, 0) for worker in workers)
