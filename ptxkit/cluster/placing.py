"""Which worker gets which jobs next, and how many at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator

from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState
from ptxkit.cluster.waiting import Waiting

BUNDLES_S = 40.0  # most bundles of a resource a second: each takes about 5 ms of the client and its scheduler
AT_ONCE = 8  # bundles that may follow each other without a pause
LEAD_S = 0.2  # of work that waits on a worker, so that its GPU need not wait for an answer of the client
MOST_LEAD_S = 30.0  # where many workers share the bundles of a second: 1,000 of them have their turn after 25 s
FEW = 16  # workers, all of which are looked at whenever something has changed
LOOK_EACH_S = 2e-5  # for each worker, until more of them are looked at again, which takes about a tenth of it


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
        hurried: whether jobs wait for the time at which another bundle may be sent, or workers are looked at again.
    """

    def __init__(self) -> None:
        self._waiting = {CPU: Waiting(), GPU: Waiting()}
        self._pinned: list[Job] = []  # jobs that one worker must execute
        self._seconds: dict[str, float] = {}  # resource -> mean time of its jobs
        self._budget = {CPU: _Budget(), GPU: _Budget()}
        self.hurried = False
        self._looked_at = -math.inf

    def accept(self, job: Job, *, first: bool = False) -> None:
        """Let a job wait for a worker, after the others unless it is to be the ``first``."""
        if job.only:
            self._pinned.append(job)
        else:
            self._waiting[job.resource].add(job, first=first)

    def again(self, jobs: list[Job]) -> None:
        """Let jobs that were placed before wait in front of the others, in their order."""
        for job in reversed(jobs):
            self.accept(job, first=True)

    def took(self, job: Job) -> None:
        """A job has been executed: its time is counted, unless it is one of those for each worker, such as to start."""
        if job.only:
            return
        before = self._seconds.get(job.resource, job.seconds)
        self._seconds[job.resource] = 0.9 * before + 0.1 * job.seconds

    def waits(self, resource: str) -> bool:
        """Whether jobs wait for a resource."""
        waiting = self._waiting[resource]
        return bool(waiting or waiting.suspects)

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

    def next(self, workers: Collection[WorkerState]) -> Iterator[tuple[WorkerState, list[Job]]]:
        """Workers, and the jobs that each of them is to get now. Each must be sent before the next one is asked for."""
        now = time.monotonic()
        if len(workers) > FEW and now - self._looked_at < LOOK_EACH_S * len(workers):
            self.hurried = True
            return
        self._looked_at = now
        self.hurried = False
        for resource in (GPU, CPU):
            waiting = self._waiting[resource]
            if not waiting.suspects and not self._may_send(resource):
                continue
            able = [worker for worker in workers if worker.slots.get(resource)]
            reserved = None
            if waiting.suspects:
                reserved = self._reserved(resource, able)
                if reserved is not None and not reserved.running:
                    yield reserved, [waiting.suspects.popleft()]
            able = [worker for worker in able if worker is not reserved and not worker.suspected]
            sent = True
            while sent and able and self._may_send(resource):
                sent = False
                for bundle in self._round(resource, able):
                    sent = True
                    yield bundle

    def _may_send(self, resource: str) -> bool:
        """Whether jobs wait and a bundle may be sent: looking at each of many workers in vain would take the client's time."""
        left = self._budget[resource].left()
        self.hurried |= bool(self._waiting[resource] and not left)
        return bool(self._waiting[resource] and left)

    @staticmethod
    def _reserved(resource: str, able: list[WorkerState]) -> WorkerState | None:
        """The worker that is kept for jobs that were executed by a worker that ended.

        One that has executed jobs before is preferred: on another, the job would be suspected again if the worker ended
        for another reason while its processes start, which takes seconds.
        """
        return min(able, key=lambda worker: (not worker.done[resource], len(worker.running)), default=None)

    def _round(self, resource: str, able: list[WorkerState]) -> Iterator[tuple[WorkerState, list[Job]]]:
        """One bundle for each worker that can get more, those with little to do first; jobs are divided evenly."""
        waiting, budget = self._waiting[resource], self._budget[resource]
        rooms = self._rooms(resource, able)
        free = sorted(rooms, key=lambda worker: worker.count(resource) / worker.slots[resource])
        for place, worker in enumerate(free):
            if not self._may_send(resource):
                return
            share = math.ceil(len(waiting) / min(budget.left(), len(free) - place))
            budget.take()
            yield worker, waiting.take(min(share, rooms[worker]), worker.address)

    def _rooms(self, resource: str, able: list[WorkerState]) -> dict[WorkerState, int]:
        """How many more jobs workers can get: no more than the share of each of all jobs, however short the first ones were.

        Jobs do not move from one worker to another, and the first answers are those of the shortest jobs.
        """
        counts = [worker.count(resource) for worker in able]
        slots = [worker.slots[resource] for worker in able]
        each = (len(self._waiting[resource]) + sum(counts)) / sum(slots)
        ahead = self._ahead(resource, len(able))
        rooms = {}
        for worker, count, mine in zip(able, counts, slots, strict=True):
            if count < (1 + ahead) * mine:
                share = max(mine, math.ceil(each * mine))
                room = min(worker.room(resource, int(mine * ahead)), share - count)
                if room > 0:
                    rooms[worker] = room
        return rooms

    def _ahead(self, resource: str, workers: int) -> float:
        """How many jobs wait for each slot of a worker while it executes others."""
        seconds = self._seconds.get(resource)
        return 0.0 if seconds is None else min(MOST_LEAD_S, LEAD_S + workers / BUNDLES_S) / max(seconds, 1e-3)
