"""How a worker executes jobs: a task of Dask has several of them, and the answer to each is sent as soon as it is known.

A worker has one thread for the jobs of its GPU and one for each of its slots. They take the jobs of all tasks in the order of
their arrival, so that the next job begins without a message when one has ended. Answers travel as events of Dask, through the
scheduler to the client: a message that is sent together with others, where the result of a task would have to be requested.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from ptxkit.cluster.held import WorkerThrottled, WorkerUnfit
from ptxkit.cluster.jobs import GPU
from ptxkit.errors import FaultError, PtxkitError


class NotBegun(PtxkitError):
    """The job was not begun, because the worker cannot be used now, or its task was cancelled."""


_lock = threading.Lock()
_jobs = 0


def count() -> int:
    """How many jobs wait or are executed on this worker."""
    return _jobs


def parcel(jobs: list[tuple[int, Callable[..., Any], tuple[Any, ...]]]) -> bytes:
    """Jobs as they travel: number, function and arguments of each."""
    return pickle.dumps(jobs, pickle.HIGHEST_PROTOCOL)


def opened(answer: bytes) -> tuple[Any, BaseException | None]:
    """The result of a job, or what it raised."""
    found: tuple[Any, BaseException | None] = pickle.loads(answer)
    return found


def execute(topic: str, resource: str, jobs: bytes) -> list[tuple[int, bytes, float]]:
    """Execute jobs: what a task of Dask calls.

    Args:
        topic: of the events. resource: that each of them takes. jobs: see :func:`parcel`.

    Returns:
        Number, answer (see :func:`opened`) and seconds of each job: what was sent, in case that it was lost.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    over = threading.Event()

    def one(number: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, bytes, float]:
        begin = time.perf_counter()
        if over.is_set() or _cancelled(worker, key):
            answer = pickle.dumps((None, NotBegun("not begun")))
        else:
            _here.worker = worker
            answer = _answer(function, arguments, over)
        sent = number, answer, time.perf_counter() - begin
        worker.log_event(topic, list(sent))
        _counted(-1)
        return sent

    given = pickle.loads(jobs)
    _counted(len(given))
    futures = [_pool(resource).submit(one, *job) for job in given]
    return [future.result() for future in futures]


class _Here(threading.local):
    """The worker whose job a thread executes."""

    worker: Any = None


_here = _Here()


def this_worker() -> Any:
    """The worker of Dask that executes the job of this thread."""
    from distributed import get_worker

    return _here.worker if _here.worker is not None else get_worker()


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], over: threading.Event) -> bytes:
    """Execute one job; ``over`` is set if the worker cannot execute those after it."""
    found, error = None, None
    try:
        found = function(*arguments)
    except Exception as raised:  # noqa: BLE001  # it is raised on the client
        error = raised
        if isinstance(error, WorkerThrottled | WorkerUnfit):
            over.set()
    try:
        answer = pickle.dumps((found, error), pickle.HIGHEST_PROTOCOL)
        if error is not None:
            opened(answer)
    except Exception:  # noqa: BLE001  # whatever a class does when it is pickled
        what = f"{type(error).__name__}: {error}" if error is not None else f"a result of {type(found).__name__}"
        answer = pickle.dumps((None, FaultError(f"{what} cannot be sent")))
    return answer


def _cancelled(worker: Any, key: Any) -> bool:
    """Whether the client does not want the results of a task any more."""
    task = worker.state.tasks.get(key)
    return task is None or task.state != "executing"


def _counted(more: int) -> None:
    global _jobs  # noqa: PLW0603
    with _lock:
        _jobs += more


def _pool(resource: str) -> ThreadPoolExecutor:
    with _lock:
        return _made(resource)


@cache
def _made(resource: str) -> ThreadPoolExecutor:
    import dask

    slots = 1 if resource == GPU else int(dask.config.get("ptxkit.worker.slots", 1))
    return ThreadPoolExecutor(slots, f"ptxkit-{resource}")
