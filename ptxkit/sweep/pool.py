"""A pool of processes of which each may die: what one that died may have executed is executed again, alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ptxkit.errors import FaultError, UnavailableError
from ptxkit.processes.interrupts import interrupts_blocked

HOPELESS = 3  # functions that end their processes, from which on no other is tried if none has ever returned


@dataclass(frozen=True)
class _Job:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Future[Any] = field(default_factory=Future)


@dataclass
class _Generation:
    """The processes that are started together, and end together when one of them dies.

    Attributes:
        jobs: future of the pool -> job that has not ended. begun: those that may have been executed when one died; None before.
    """

    pool: ProcessPoolExecutor
    jobs: dict[Future[Any], _Job] = field(default_factory=dict)
    begun: set[Future[Any]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Pool:
    """Executes functions in processes.

    When a process of ``ProcessPoolExecutor`` dies, as by the system for want of memory, all of its processes end, and no future
    has a result. Here others are started. Functions that had not begun are executed by them. Of the others one may be the
    reason: they are executed one after another, each alone in a process. A function that ends two of these is given up.

    Args:
        make: starts a pool with a number of processes. slots: how many.
        repeats: do this; else a future raises ``BrokenProcessPool`` when a process has died, and all after it do so.

    Attributes:
        deaths: how often processes died while a function was executed.
    """

    def __init__(self, make: Callable[[int], ProcessPoolExecutor], slots: int, *, repeats: bool = True) -> None:
        self._make, self._slots, self._repeats = make, slots, repeats
        self.deaths = 0
        self._succeeded = False
        self._given_up = 0
        self._over = False
        self._starting = threading.Lock()  # never taken in a callback of a pool, which may hold the locks of that pool
        self._together: _Generation | None = None
        self._single: ProcessPoolExecutor | None = None
        self._again, self._alone = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Execute ``function(*arguments)`` in a process.

        The future raises what the function raises; :class:`~ptxkit.errors.FaultError` if two processes died while they executed
        it alone; :class:`~ptxkit.errors.UnavailableError` if processes die whatever they execute.
        """
        job = _Job(function, arguments)
        self._start(job)
        return job.future

    def stop(self) -> None:
        """Start nothing more; called before the processes are killed."""
        self._over = True

    def end(self) -> None:
        """End all processes, after what they execute."""
        self.stop()
        with self._starting:
            pools = [self._single, self._together.pool if self._together else None]
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        for threads in (self._again, self._alone):
            threads.shutdown(wait=True, cancel_futures=True)

    def _start(self, job: _Job) -> None:
        """Give a job to the processes that execute several at a time."""
        with self._starting:
            if self._over:
                job.future.cancel()
                return
            generation = self._together = self._together or _Generation(self._make(self._slots))
            try:
                future = _submit(generation.pool, job)
            except BrokenProcessPool as error:  # one has died, perhaps without a job
                if not self._repeats:
                    job.future.set_exception(error)
                    return
                generation = self._together = _Generation(self._make(self._slots))
                future = _submit(generation.pool, job)
            generation.jobs[future] = job
        future.add_done_callback(partial(self._ended, generation))

    def _ended(self, generation: _Generation, future: Future[Any]) -> None:
        """Called when a job has ended, in a thread of its pool or of :meth:`_start`."""
        job = generation.jobs.pop(future)
        if not self._repeats or future.cancelled() or not isinstance(future.exception(), BrokenProcessPool):
            self._answer(job, future)
            return
        with generation.lock:
            if generation.begun is None:  # the pool ends its futures one after another: the others are still as they were
                generation.begun = {future, *(each for each in list(generation.jobs) if each.running())}
                self.deaths += 1
        if self._over:
            job.future.cancel()
        elif future in generation.begun:
            self._alone.submit(self._execute_alone, job)
        else:
            self._again.submit(self._start, job)

    def _execute_alone(self, job: _Job) -> None:
        """Execute a job while no other is executed by its process, twice if the process dies; in the thread for it.

        What was in a queue when the first process died had perhaps not begun, so that only deaths here count.
        """
        for _ in range(2):
            with self._starting:
                if self._over:
                    job.future.cancel()
                    return
                self._single = self._single or self._make(1)
                try:
                    future = _submit(self._single, job)
                except BrokenProcessPool:  # its process has died
                    self._single = self._make(1)
                    future = _submit(self._single, job)
            if not isinstance(future.exception(), BrokenProcessPool):
                self._answer(job, future)
                return
            if not self._over:
                self.deaths += 1
        if self._over:
            job.future.cancel()
        else:
            self._give_up(job)

    def _answer(self, job: _Job, future: Future[Any]) -> None:
        """Give the result of a pool's future to that of a job."""
        if future.cancelled():
            job.future.cancel()
        elif (error := future.exception()) is not None:
            job.future.set_exception(error)
        else:
            self._succeeded = True
            job.future.set_result(future.result())

    def _give_up(self, job: _Job) -> None:
        self._given_up += 1
        if self._given_up >= HOPELESS and not self._succeeded:
            why = "the processes that compile die, whatever they execute; is there enough memory? --jobs takes fewer"
            job.future.set_exception(UnavailableError(why))
            return
        why = "two processes died while they executed it and nothing else; is there enough memory?"
        job.future.set_exception(FaultError(f"quarantined: {why}"))


def _submit(pool: ProcessPoolExecutor, job: _Job) -> Future[Any]:
    with interrupts_blocked():  # a submission may start a process
        return pool.submit(job.function, *job.arguments)
