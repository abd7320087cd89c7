"""Jobs that wait for one resource. What it costs to take some of them does not depend on how many wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from ptxkit.cluster.jobs import Job


class Waiting:
    """Jobs in the order in which they are to be placed; those during which a worker ended before are kept apart.

    Attributes:
        suspects: jobs that are to be executed alone, in their order; ``len()`` does not count them.
    """

    def __init__(self) -> None:
        self.suspects: deque[Job] = deque()
        self._jobs: OrderedDict[Job, None] = OrderedDict()
        self._preferring: dict[str, OrderedDict[Job, None]] = {}  # address of a worker -> the jobs that prefer it

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.suspects, *self._jobs])

    def add(self, job: Job, *, first: bool = False) -> None:
        """Let a job wait after the others, or before them."""
        if job.ended:
            (self.suspects.appendleft if first else self.suspects.append)(job)
            return
        for queue in (self._jobs, self._preferring.setdefault(job.prefers, OrderedDict())):
            queue[job] = None
            queue.move_to_end(job, last=not first)

    def take(self, count: int, address: str) -> list[Job]:
        """At most ``count`` jobs for a worker: those that prefer it, then the others, each in their order."""
        preferring = self._preferring.get(address, ())
        chosen = [job for job, _ in zip(preferring, range(count), strict=False)]
        for job in chosen:
            self._remove(job)
        while len(chosen) < count and self._jobs:
            chosen.append(job := next(iter(self._jobs)))
            self._remove(job)
        return chosen

    def _remove(self, job: Job) -> None:
        del self._jobs[job]
        alike = self._preferring[job.prefers]
        del alike[job]
        if not alike:
            del self._preferring[job.prefers]
