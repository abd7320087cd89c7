"""Which worker gets which jobs next, and how many at a time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator

from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState

BUNDLES_S = 80.0  # most bundles of a resource a second: each takes some milliseconds of the client and its scheduler
AT_ONCE = 8  # bundles that may follow each other without a pause
LEAD_S = 0.2  # of work that waits on a worker, so that its GPU need not wait for an answer of the client
MOST_LEAD_S = 2.0  # where many workers share the bundles of a second


class _Budget:
    """How many bundles may be sent now."""

    def __init__(self) -> None:
        self._left, self._at = float(AT_ONCE), time.monotonic()

    def left(self) -> int:
        now = time.monotonic()
        self._left = min(AT_ONCE, self._left + BUNDLES_S * (now - self._at))
        self._at = now
        return int(self._left)

    def take(self) -> None:
        self._left -= 1


class Placing:
    """The jobs that wait, and the choice of workers for them.

    Few jobs are sent as they come, one by one. Where more come than :data:`BUNDLES_S` allows, those that come in between go
    together. A worker gets as many jobs in advance as it executes in :data:`LEAD_S`, or until its turn comes again; none,
    where a job takes longer than that.

    Attributes:
        hurried: whether jobs wait for nothing but the time at which another bundle may be sent.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Job]] = {CPU: deque(), GPU: deque()}
        self._pinned: list[Job] = []  # jobs that one worker must execute
        self._seconds: dict[str, float] = {}  # resource -> mean time of its jobs
        self._budget = {CPU: _Budget(), GPU: _Budget()}
        self.hurried = False

    def accept(self, job: Job, *, first: bool = False) -> None:
        """Let a job wait for a worker, after the others unless it is to be the ``first``."""
        if job.only:
            self._pinned.append(job)
        elif first:
            self._waiting[job.resource].appendleft(job)
        else:
            self._waiting[job.resource].append(job)

    def again(self, jobs: list[Job]) -> None:
        """Let jobs that were placed before wait in front of the others, in their order."""
        for job in reversed(jobs):
            self.accept(job, first=True)

    def took(self, job: Job) -> None:
        """A job has been executed: its time is counted."""
        before = self._seconds.get(job.resource, job.seconds)
        self._seconds[job.resource] = 0.9 * before + 0.1 * job.seconds

    def waits(self, resource: str) -> bool:
        """Whether jobs wait for a resource."""
        return bool(self._waiting[resource])

    def everything(self) -> list[Job]:
        """All jobs that wait."""
        return [*self._waiting[CPU], *self._waiting[GPU], *self._pinned]

    def pinned(self, workers: dict[str, WorkerState]) -> Iterator[tuple[WorkerState | None, Job]]:
        """Jobs that one worker must execute, with it where it is free, and with None where it is lost."""
        for job in list(self._pinned):
            worker = workers.get(job.only)
            if worker is not None and not worker.slots.get(job.resource):
                worker = None
            if worker is None or worker.room(job.resource) > 0:
                self._pinned.remove(job)
                yield worker, job

    def next(self, workers: Iterable[WorkerState]) -> Iterator[tuple[WorkerState, list[Job]]]:
        """Workers, and the jobs that each of them is to get now. Each must be sent before the next one is asked for."""
        every = list(workers)
        self.hurried = False
        for resource in (GPU, CPU):
            able = [worker for worker in every if worker.slots.get(resource)]
            reserved, suspect = self._suspect(resource, able)
            if reserved is not None and suspect is not None:
                yield reserved, [suspect]
            able = [worker for worker in able if worker is not reserved and not worker.suspected]
            sent = True
            while sent:
                sent = False
                for bundle in self._round(resource, able):
                    sent = True
                    yield bundle

    def _suspect(self, resource: str, able: list[WorkerState]) -> tuple[WorkerState | None, Job | None]:
        """The worker that is kept for jobs that were executed by a worker that ended; and one of them, if it is free.

        One that has executed jobs before is preferred: on another, the job would be suspected again if the worker ended
        for another reason while its processes start, which takes seconds.
        """
        suspect = next((job for job in self._waiting[resource] if job.ended), None)
        if suspect is None:
            return None, None
        reserved = min(able, key=lambda worker: (not worker.done[resource], len(worker.running)), default=None)
        if reserved is None or reserved.running:
            return reserved, None
        self._waiting[resource].remove(suspect)
        return reserved, suspect

    def _round(self, resource: str, able: list[WorkerState]) -> Iterator[tuple[WorkerState, list[Job]]]:
        """One bundle for each worker that can get more, those with little to do first; jobs are divided evenly."""
        waiting, budget = self._waiting[resource], self._budget[resource]
        if not waiting or not able:
            return
        rooms = self._rooms(resource, able)
        free = [worker for worker, room in rooms.items() if room > 0]
        free.sort(key=lambda worker: worker.count(resource) / worker.slots[resource])
        for place, worker in enumerate(free):
            ready = sum(not job.ended for job in waiting)
            left = budget.left()
            self.hurried |= bool(ready and not left)
            if not ready or not left:
                return
            budget.take()
            share = math.ceil(ready / min(left, len(free) - place))
            yield worker, self._chosen(waiting, worker, min(share, rooms[worker]))

    def _rooms(self, resource: str, able: list[WorkerState]) -> dict[WorkerState, int]:
        """How many more jobs each worker can get: no more than its share of all jobs, however short the first ones were.

        Jobs do not move from one worker to another, and the first answers are those of the shortest jobs.
        """
        jobs = len(self._waiting[resource]) + sum(worker.count(resource) for worker in able)
        each = jobs / sum(worker.slots[resource] for worker in able)
        rooms = {}
        for worker in able:
            share = max(worker.slots[resource], math.ceil(each * worker.slots[resource]))
            rooms[worker] = min(worker.room(resource, self._ahead(resource, worker, len(able))), share - worker.count(resource))
        return rooms

    def _ahead(self, resource: str, worker: WorkerState, workers: int) -> int:
        """How many jobs wait on a worker while it executes others."""
        seconds = self._seconds.get(resource)
        if seconds is None:
            return 0
        lead = min(MOST_LEAD_S, LEAD_S + workers / BUNDLES_S)
        return int(worker.slots[resource] * lead / max(seconds, 1e-3))

    @staticmethod
    def _chosen(waiting: deque[Job], worker: WorkerState, count: int) -> list[Job]:
        """Take jobs for a worker: those that prefer it before others."""
        ready = [job for job in waiting if not job.ended]
        chosen = sorted(ready, key=lambda job: job.prefers != worker.address)[:count]
        taken = set(chosen)
        rest = [job for job in waiting if job not in taken]
        waiting.clear()
        waiting.extend(rest)
        return chosen
