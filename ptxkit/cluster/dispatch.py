"""Places jobs on the workers of a Dask cluster, and places them again when a worker ends or hangs.

Dask would place tasks by itself. It is told here which worker executes which task, because a sweep must know which
configuration a worker was executing when it ended: a configuration that ends two workers is not tried on a third one. A job
that was on a worker that ended is executed alone on the next one, so that no other is suspected with it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ptxkit.cluster.calls import call
from ptxkit.cluster.connection import listed_workers
from ptxkit.cluster.held import WorkerFailed, WorkerThrottled, WorkerUnfit
from ptxkit.cluster.identity import difference, identity
from ptxkit.cluster.reasons import reason
from ptxkit.cluster.seats import CPU, GPU, Job, Seat
from ptxkit.cluster.tasks import describe
from ptxkit.errors import FaultError, UnavailableError

DEATHS = 2  # workers that may end while they execute a job, before it is put aside
BY_CHANCE = 3  # workers that ended for no job's sake, from which on jobs that were put aside are tried again
MOST_DEATHS = 4  # workers that may end while they execute a job, before it is given up in any case
LOOK_S = 0.5  # interval at which the list of workers is read
HUNG_S = 30.0  # without a sign of life after which a worker counts as hung
LOST_S = 30.0  # without a scheduler after which a sweep stops
NOBODY_S = 60.0  # without a worker after which a sweep stops; a worker that is started again needs a few seconds
RESULT_S = 20.0  # to get a result from a worker
REST_S = 20.0  # for which a GPU that throttles is not used
RESTS = 6  # after which it is not used any more


@dataclass
class _Life:
    """Signs of life of a worker: the scheduler's time of the last one, and our clock when it was reported first."""

    last_seen: float
    at: float

    @property
    def hung(self) -> bool:
        return time.monotonic() - self.at > HUNG_S


class Dispatcher:
    """Executes jobs on the workers of a cluster.

    Args:
        client: of Dask. title: of the cluster, for messages.
        kernels: whose descriptions must be equal on every worker, see :func:`ptxkit.cluster.identity.identity`.
        say: called with a line about a worker that is refused or lost; from a thread.
        gpu_model: only workers with this GPU get jobs for :data:`GPU`.
    """

    def __init__(
        self,
        client: Any,
        title: str,
        kernels: Sequence[str],
        say: Callable[[str], None],
        gpu_model: str | None = None,
    ) -> None:
        self.client, self.title, self.kernels, self.say, self.gpu_model = client, title, tuple(kernels), say, gpu_model
        self.mine = identity(*self.kernels)
        self.seats: dict[str, Seat] = {}
        self.refused: dict[str, str] = {}  # address -> why a worker is not used
        self._lives: dict[str, _Life] = {}
        self._asked: set[str] = set()  # addresses of workers that are being described
        self._waiting: dict[str, deque[Job]] = {CPU: deque(), GPU: deque()}
        self._pinned: list[Job] = []  # jobs that one worker must execute
        self._aside: list[Job] = []  # jobs with so many dead workers that they wait until all others are done
        self._deaths: list[list[Job]] = []  # the jobs of each worker, or process of a worker, that ended
        self._events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._listing: Future[Any] | None = None  # the list of workers that was requested of the scheduler
        self._over = False
        self._failed: UnavailableError | None = None
        self._alone_since = self._connected_at = time.monotonic()
        self._describer = ThreadPoolExecutor(8, "ptxkit-describer")
        self._gatherer = ThreadPoolExecutor(8, "ptxkit-gatherer")
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ptxkit-dispatcher", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Job:
        """Execute a job when a worker is free."""
        self._events.put((self._accept, (job,)))
        return job

    def wait_for_workers(self, seconds: float) -> None:
        """Wait until there is a worker.

        Raises:
            UnavailableError: there is none; the message has the reasons.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ready.wait(LOOK_S):
            if self.refused and not self._asked and not self.seats:
                break
        if self._failed is not None:
            raise self._failed
        if not self.seats:
            raise self._nobody()

    def stop_measuring(self, address: str, why: str) -> None:
        """Give a worker no more jobs for its GPU."""
        self._events.put((self._stop_measuring, (address, why)))

    def slots(self, resource: str) -> int:
        """How many jobs all workers execute at a time."""
        return sum(seat.slots.get(resource, 0) for seat in list(self.seats.values()))

    def close(self) -> None:
        """Cancel everything and stop; futures of jobs are cancelled."""
        self._over = True
        self._events.put((lambda: None, ()))
        self._thread.join(RESULT_S)
        for pool in (self._describer, self._gatherer):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the dispatcher's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        looked = -LOOK_S
        try:
            while not self._over and self._failed is None:
                with suppress(queue.Empty):
                    event, arguments = self._events.get(timeout=LOOK_S)
                    event(*arguments)
                    while True:
                        event, arguments = self._events.get_nowait()
                        event(*arguments)
                if self._over:
                    break
                if time.monotonic() - looked >= LOOK_S:
                    self._look()
                    looked = time.monotonic()
                self._place()
        except BaseException as error:  # noqa: BLE001  # whatever it is, only this code tells the waiting jobs
            self._failed = UnavailableError(f"{self.title} cannot be used any more: {reason(error)}")
        finally:
            self._end()

    def _end(self) -> None:
        """Give every job an end."""
        while not self._events.empty():  # jobs, and results that must not be lost
            event, arguments = self._events.get()
            if event in (self._accept, self._finished):
                event(*arguments)
        running = [(job, task) for seat in self.seats.values() for job, task in seat.running.items()]
        if self.client.status == "running":
            self._cancel([task for _, task in running])
        for job in [*(job for job, _ in running), *self._waiting[CPU], *self._waiting[GPU], *self._pinned, *self._aside]:
            if self._failed is None:
                job.future.cancel()
            elif not job.future.done():
                job.future.set_exception(self._failed)
        self._ready.set()

    def _cancel(self, tasks: list[Any]) -> None:
        """Cancel tasks; in another thread, since the scheduler may not answer."""
        if tasks:
            self._gatherer.submit(call, self.client, lambda: self.client.cancel(tasks, force=True), RESULT_S)

    def _accept(self, job: Job, *, first: bool = False) -> None:
        """Let a job wait for a worker, after the others unless it is to be the ``first``."""
        if job.only:
            self._pinned.append(job)
        elif first:
            self._waiting[job.resource].appendleft(job)
        else:
            self._waiting[job.resource].append(job)

    def _look(self) -> None:
        """Compare the scheduler's list of workers with ours."""
        now = time.monotonic()
        listed, self._listing = self._listing, None
        if listed is not None and not listed.done():
            self._listing = listed
        elif self.client.status == "running":
            self._listing = self._describer.submit(listed_workers, self.client)
        if listed is None or not listed.done() or listed.exception() is not None:
            if now - self._connected_at > LOST_S or self.client.status == "closed":
                self._failed = UnavailableError(
                    f"{self.title} does not answer any more; the same command goes on when it does"
                )
            return
        workers = listed.result()
        self._connected_at = now
        for address, info in workers.items():
            life = self._lives.get(address)
            if life is None or life.last_seen != info["last_seen"]:
                self._lives[address] = _Life(info["last_seen"], now)
        for address in [a for a in self._lives if a not in workers]:
            del self._lives[address]
            self.refused.pop(address, None)
        for seat in [s for a, s in self.seats.items() if a not in self._lives]:
            self._lose(seat, "has ended")
        for seat in [s for a, s in self.seats.items() if self._lives[a].hung]:
            self._lose(seat, f"has given no sign of life for {HUNG_S:g} s")
        for address, life in self._lives.items():
            new = address not in self.seats and address not in self.refused and address not in self._asked
            if new and not life.hung:
                self._asked.add(address)
                self._describer.submit(self._describe, address, workers[address])
        if any(seat.slots for seat in self.seats.values()) and not self._starved():
            self._alone_since = now
        elif now - self._alone_since > NOBODY_S:
            self._failed = self._nobody()

    def _starved(self) -> bool:
        return bool(self._waiting[GPU]) and not self.slots(GPU)

    def _nobody(self) -> UnavailableError:
        reasons = "; ".join(self.refused.values()) or "none is connected; start some with ptxkit cluster worker"
        return UnavailableError(f"{self.title} has no worker that can be used: {reasons}")

    def _describe(self, address: str, info: Mapping[str, Any]) -> None:
        """In another thread, since the worker may hang."""
        try:
            found = call(
                self.client,
                lambda: self.client.run(describe, *self.kernels, workers=[address], on_error="return"),
                HUNG_S,
            ).get(address)
        except Exception as error:  # noqa: BLE001  # of Dask, tornado or ssl: it has ended
            found = error
        self._events.put((self._welcome, (address, info, found)))

    def _welcome(self, address: str, info: Mapping[str, Any], found: Any) -> None:
        """Take a worker, or refuse it."""
        self._asked.discard(address)
        if address not in self._lives or isinstance(found, (OSError, TimeoutError)):  # it has ended, or is asked again
            return
        name = str(info.get("name", address))
        why = objection(self.mine, found)
        if why:
            where = f" on {found['host']}" if isinstance(found, dict) else ""
            self._refuse(address, f"the worker {name}{where} is not used: {why}")
            return
        slots = {CPU: int(found["started"]["slots"]), GPU: int(found["started"]["gpu"] is not None)}
        if self.gpu_model is not None and slots[GPU] and found["started"]["gpu"]["name"] != self.gpu_model:
            slots[GPU] = 0  # it compiles
        self.seats[address] = Seat(address, name, found["host"], slots, found)
        self._ready.set()

    def _refuse(self, address: str, message: str) -> None:
        self.refused[address] = message
        self.say(message)

    def _lose(self, seat: Seat, how: str) -> None:
        """A worker has ended or hangs: its jobs are placed on others."""
        del self.seats[seat.address]
        self.say(f"the worker {seat} {how}; {len(seat.running)} of its tasks are started again")
        self._cancel(list(seat.running.values()))
        self._deaths.append(list(seat.running))
        for job in list(seat.running):
            self._blame(job, f"{seat}")
        seat.running.clear()

    def _blame(self, job: Job, whom: str) -> None:
        job.ended.append(whom)
        if len(job.ended) < DEATHS:
            self._accept(job, first=True)
        elif len(job.ended) < MOST_DEATHS:
            self._aside.append(job)
        else:
            self._quarantine(job)

    def _judge(self) -> None:
        """When nothing else is left: give up the jobs that were put aside, unless workers also end whatever they execute."""
        if not self._aside or any(self._waiting.values()) or any(seat.running for seat in self.seats.values()):
            return
        innocent = sum(all(_succeeded(job) for job in jobs) for jobs in self._deaths)
        aside, self._aside = self._aside, []
        for job in aside:
            if innocent >= BY_CHANCE:
                self._accept(job, first=True)
            else:
                self._quarantine(job)

    def _quarantine(self, job: Job) -> None:
        if not job.future.done():
            workers = " and ".join(job.ended)
            job.future.set_exception(FaultError(f"quarantined: the workers {workers} ended while they executed it"))

    def _gather(self, seat: Seat, job: Job, task: Any) -> None:
        """Get the result of a task; in another thread, since the worker may have ended or hang."""
        error: BaseException | None
        result = None
        try:
            error = None if task.status == "finished" else call(self.client, task.exception, RESULT_S)
            result = call(self.client, task.result, RESULT_S) if error is None else None
        except Exception as problem:  # noqa: BLE001  # of Dask, tornado or ssl: the result is lost
            error = problem
        self._events.put((self._finished, (seat, job, task, result, error)))

    def _finished(self, seat: Seat, job: Job, task: Any, result: Any, error: BaseException | None) -> None:
        """A task of Dask has come to an end."""
        if job not in seat.running or seat.running[job] is not task:  # the worker was given up before
            return
        del seat.running[job]
        task.release()
        kind = type(error).__name__
        if error is None:
            seat.done[job.resource] += 1
            job.where = seat.address
            if not job.future.done():
                job.future.set_result(result)
        elif isinstance(error, WorkerUnfit):
            self._accept(job, first=True)
            self._retire(seat, f"the worker {seat} is not used any more: {error}")
        elif isinstance(error, WorkerThrottled):
            self._accept(job, first=True)
            self._rest(seat, str(error))
        elif isinstance(error, WorkerFailed) or kind == "KilledWorker":
            self._deaths.append([job])
            self._blame(job, str(seat))
        elif kind in ("CancelledError", "FutureCancelledError", "TimeoutError", "CommClosedError", "ConnectionAbortedError"):
            self._accept(job, first=True)  # the connection was lost with the result
        elif not job.future.done():
            job.future.set_exception(error)

    def _retire(self, seat: Seat, why: str) -> None:
        """Do not use a worker any more; its jobs are placed on others."""
        self.seats.pop(seat.address, None)
        self._refuse(seat.address, why)
        self._cancel(list(seat.running.values()))
        for other in seat.running:
            self._accept(other, first=True)
        seat.running.clear()

    def _rest(self, seat: Seat, why: str) -> None:
        """Give a GPU that throttles no job for a while; after several times, none any more."""
        seat.rests += 1
        if seat.rests > RESTS:
            self._retire(seat, f"the worker {seat} is not used any more: {why}, {seat.rests} times")
            return
        seat.rests_until = time.monotonic() + REST_S
        self.say(f"the worker {seat} measures nothing for {REST_S:g} s: {why}")

    def _stop_measuring(self, address: str, why: str) -> None:
        seat = self.seats.get(address)
        if seat is not None and seat.slots.get(GPU):
            seat.slots[GPU] = 0
            self.say(f"the worker {seat} only compiles from now on: {why}")

    def _place_pinned(self) -> None:
        """Give jobs that one worker must execute to it, or an error where it is lost."""
        for job in list(self._pinned):
            seat = self.seats.get(job.only)
            if seat is not None and seat.slots.get(job.resource) and seat.free(job.resource) <= 0:
                continue
            self._pinned.remove(job)
            if seat is not None and seat.slots.get(job.resource):
                self._start(seat, job)
            elif not job.future.done():
                job.future.set_exception(FaultError("its worker is not there any more"))

    def _place(self) -> None:
        """Give jobs to the workers that are free."""
        self._place_pinned()
        self._judge()
        for resource in (GPU, CPU):
            waiting = self._waiting[resource]
            suspects = [job for job in waiting if job.ended]
            reserved = None
            if suspects and self.seats:
                able = [s for s in self.seats.values() if s.slots.get(resource)]
                reserved = min(able, key=lambda s: len(s.running), default=None)
                if reserved is not None and not reserved.running:
                    waiting.remove(suspects[0])
                    self._start(reserved, suspects[0])
            while waiting:
                job = next((job for job in waiting if not job.ended), None)
                if job is None:
                    break
                able = [s for s in self.seats.values() if s is not reserved and not s.suspected]
                free = [s for s in able if s.free(resource) > 0]
                if not free:
                    break
                seat = max(free, key=lambda s: s.free(resource) / s.slots[resource])
                at_home = (j for j in waiting if j.prefers == seat.address and not j.ended)
                job = next(at_home, job)
                waiting.remove(job)
                self._start(seat, job)

    def _start(self, seat: Seat, job: Job) -> None:
        task = self.client.submit(
            job.function,
            *job.arguments(),
            workers=[seat.address],
            allow_other_workers=False,
            resources={job.resource: 1},
            pure=False,
            retries=0,
        )
        seat.running[job] = task
        task.add_done_callback(lambda _: self._gatherer.submit(self._gather, seat, job, task))


def _succeeded(job: Job) -> bool:
    return job.future.done() and not job.future.cancelled() and job.future.exception() is None


def objection(mine: Mapping[str, str], described: Any) -> str:
    """Why a worker cannot be used, or "".

    Args:
        mine: :func:`ptxkit.cluster.identity.identity` of this process.
        described: what :func:`ptxkit.cluster.tasks.describe` returned there, or an exception.
    """
    if not isinstance(described, dict):
        what = "no answer" if described is None else reason(described)
        return f"it cannot execute ptxkit's tasks ({what}); is the same version installed there?"
    if described["started"] is None:
        return "it was not started by ptxkit cluster worker"
    return difference(mine, described["identity"])
