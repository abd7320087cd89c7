"""Jobs travel to workers in bundles: one task of Dask for several jobs, whose answers arrive one by one."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ptxkit.cluster import work
from ptxkit.cluster.calls import call
from ptxkit.cluster.jobs import Bundle, Job, WorkerState
from ptxkit.errors import FaultError

RESULT_S = 20.0  # to get a result from a worker


class Bundles:
    """The bundles on their way; for the thread of a :class:`~ptxkit.cluster.dispatch.Dispatcher`.

    Args:
        client: of Dask.
        post: lets the dispatcher's thread call a function with arguments; called from any thread.
        finished: called in the dispatcher's thread with a worker, a job, its result, and what it raised or None.
    """

    def __init__(
        self,
        client: Any,
        post: Callable[..., None],
        finished: Callable[[WorkerState, Job, Any, BaseException | None], None],
    ) -> None:
        self._client, self._post, self._finished = client, post, finished
        self._topic = f"ptxkit-{uuid.uuid4().hex}"
        self._numbers = itertools.count()
        self._where: dict[int, Bundle] = {}  # number of a job whose answer is not known -> its bundle
        self._ended: list[Any] = []  # tasks whose answers are known
        self._gatherer = ThreadPoolExecutor(4, "ptxkit-gatherer")  # workers may hang
        client.subscribe_topic(self._topic, lambda event: post(self.answered, *event[1]))

    def send(self, worker: WorkerState, jobs: Sequence[Job]) -> None:
        """Let a worker execute jobs of one resource."""
        numbered = {next(self._numbers): job for job in jobs}
        parcel = work.parcel([(number, job.function, job.arguments()) for number, job in numbered.items()])
        task = self._client.submit(
            work.execute,
            self._topic,
            jobs[0].resource,
            parcel,
            workers=[worker.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )
        bundle = Bundle(worker, task, numbered)
        for number, job in numbered.items():
            self._where[number] = bundle
            worker.give(job, bundle)

    def answered(self, number: int, answer: bytes, seconds: float = 0.0) -> None:
        """The answer to a job has arrived; not for the first time, perhaps, or after its worker was given up."""
        try:
            result, error = work.opened(answer)
        except Exception as problem:  # noqa: BLE001  # whatever a class does when it is made again
            result, error = None, FaultError(f"a worker's answer cannot be read: {problem}")
        self._take(number, result, error, seconds)

    def _take(self, number: int, result: Any, error: BaseException | None, seconds: float) -> None:
        bundle = self._where.pop(number, None)
        if bundle is None:
            return
        job = bundle.jobs.pop(number)
        bundle.worker.take(job)
        if not bundle.jobs:
            self._ended.append(bundle.task)
        job.seconds = seconds
        self._finished(bundle.worker, job, result, error)

    def look(self) -> None:
        """Ask for what did not arrive: answers are lost with a connection; and forget tasks that have ended."""
        for task in self._ended:
            task.release()
        self._ended.clear()
        for bundle in set(self._where.values()):
            if not bundle.asked and bundle.task.status != "pending":
                bundle.asked = True
                self._gatherer.submit(self._gather, bundle)

    def _gather(self, bundle: Bundle) -> None:
        """Get the result of a task; in another thread, since the worker may have ended or hang."""
        error: BaseException | None
        task = bundle.task
        answers: Iterable[tuple[int, bytes, float]] = ()
        try:
            error = None if task.status == "finished" else call(self._client, task.exception, RESULT_S)
            answers = call(self._client, task.result, RESULT_S) if error is None else ()
        except Exception as problem:  # noqa: BLE001  # of Dask, tornado or ssl: the result is lost
            error = problem
        for answer in answers:
            self._post(self.answered, *answer)
        self._post(self._failed, bundle, error or ConnectionAbortedError("its answers were lost"))

    def _failed(self, bundle: Bundle, error: BaseException) -> None:
        """No more answers of a bundle will arrive."""
        for number in reversed(list(bundle.jobs)):  # each is placed before those that wait
            self._take(number, None, error, 0.0)

    def recall(self, worker: WorkerState, resource: str | None = None) -> list[Job]:
        """Take back the jobs of a worker: answers to them are ignored.

        Args:
            resource: only the jobs that take it; None for all.
        """
        jobs = [job for job in worker.running if resource is None or job.resource == resource]
        bundles = {worker.take(job) for job in jobs}
        for bundle in bundles:
            for number in bundle.jobs:
                self._where.pop(number, None)
            bundle.jobs.clear()
        self._cancel([bundle.task for bundle in bundles])
        return jobs

    def _cancel(self, tasks: list[Any]) -> None:
        """Cancel tasks; in another thread, since the scheduler may not answer."""
        if tasks and self._client.status == "running":
            self._gatherer.submit(call, self._client, lambda: self._client.cancel(tasks, force=True), RESULT_S)

    def is_answer(self, event: Callable[..., None]) -> bool:
        """Whether a posted function brings results."""
        return event in (self.answered, self._failed)

    def close(self) -> None:
        """Cancel everything."""
        tasks = list({id(bundle): bundle.task for bundle in self._where.values()}.values())
        self._where.clear()
        self._cancel(tasks)
        if self._client.status == "running":
            self._client.loop.add_callback(self._client.unsubscribe_topic, self._topic)
        self._gatherer.shutdown(wait=False)
