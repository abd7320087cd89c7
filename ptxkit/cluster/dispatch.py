"""Places jobs on the workers of a Dask cluster, and places them again when a worker ends or hangs.

Dask would place tasks by itself. It is told here which worker executes which task, because a sweep must know which
configuration a worker was executing when it ended: a configuration that ends two workers is not tried on a third one. A job
that was on a worker that ended is executed alone on the next one, so that no other is suspected with it.

One thread decides everything. :class:`~ptxkit.cluster.roster.Roster` has the workers, :class:`~ptxkit.cluster.placing.Placing`
the jobs that wait, :class:`~ptxkit.cluster.bundles.Bundles` those on their way, and
:class:`~ptxkit.cluster.suspects.Suspects` what is known of those that end workers.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ptxkit.cluster.bundles import RESULT_S, Bundles
from ptxkit.cluster.held import WorkerFailed, WorkerThrottled, WorkerUnfit
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState, slots_of
from ptxkit.cluster.placing import Placing
from ptxkit.cluster.reasons import reason
from ptxkit.cluster.roster import RESTARTED, Roster
from ptxkit.cluster.suspects import Suspects
from ptxkit.cluster.work import NotBegun
from ptxkit.errors import FaultError, UnavailableError

LOOK_S = 0.5  # interval at which the list of workers is read
PLACE_S = 0.02  # interval at which jobs are placed while some wait for their turn
REST_S = 20.0  # for which a GPU that throttles is not used
RESTS = 6  # after which it is not used any more
LOST = {"CancelledError", "FutureCancelledError", "FutureLostError", "TimeoutError", "CommClosedError"}
LOST |= {"ConnectionAbortedError"}  # what names a connection that was lost with the result


class Dispatcher:
    """Executes jobs on the workers of a cluster.

    Args:
        client: of Dask. title: of the cluster, for messages.
        kernels: whose descriptions must be equal on every worker, see :func:`ptxkit.cluster.identity.identity`.
        say: called with a line about a worker that is refused or lost; from a thread.
        gpu_model: only workers with this GPU get jobs for :data:`GPU`.
        worker_command: what starts a worker, for the message that there is none.
    """

    def __init__(
        self,
        client: Any,
        title: str,
        kernels: Sequence[str],
        say: Callable[[str], None],
        gpu_model: str | None = None,
        worker_command: str = "ptxkit cluster worker",
    ) -> None:
        self._client, self._title, self._say = client, title, say
        self._events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._roster = Roster(client, title, kernels, say, gpu_model, self._post, worker_command)
        self._placing, self._suspects = Placing(), Suspects()
        self._bundles = Bundles(client, self._post, self._finished)
        self._over = False
        self._failed: UnavailableError | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ptxkit-dispatcher", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> dict[str, WorkerState]:
        """Address -> a worker that is used."""
        return self._roster.workers

    def submit(self, job: Job) -> Job:
        """Execute a job when a worker is free."""
        self._post(self._accept, job)
        return job

    def wait_for_workers(self, seconds: float) -> None:
        """Wait until there is a worker.

        Raises:
            UnavailableError: there is none; the message has the reasons.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ready.wait(LOOK_S):
            if self._roster.refused and not self._roster.asked and not self.workers:
                break
        if self._failed is not None:
            raise self._failed
        if not self.workers:
            raise self._roster.nobody()

    def stop_measuring(self, address: str, why: str) -> None:
        """Give a worker no more jobs for its GPU."""
        self._post(self._stop_measuring, address, why)

    def slots(self, resource: str) -> int:
        """How many jobs all workers execute at a time."""
        return slots_of(list(self.workers.values()), resource)

    def close(self) -> None:
        """Cancel everything and stop; futures of jobs are cancelled."""
        self._over = True
        self._post(lambda: None)
        self._thread.join(RESULT_S)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Let the dispatcher's thread call a function."""
        self._events.put((function, arguments))

    # -- the dispatcher's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        looked = -LOOK_S
        try:
            while not self._over:
                with suppress(queue.Empty):
                    event, arguments = self._events.get(timeout=PLACE_S if self._placing.hurried else LOOK_S)
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
        except UnavailableError as error:
            self._failed = error
        except BaseException as error:  # noqa: BLE001  # whatever it is, only this code tells the waiting jobs
            self._failed = UnavailableError(f"{self._title} cannot be used any more: {reason(error)}")
        finally:
            self._end()

    def _end(self) -> None:
        """Give every job an end."""
        while not self._events.empty():  # jobs, and results that must not be lost
            event, arguments = self._events.get()
            if event == self._accept or self._bundles.is_answer(event):
                event(*arguments)
        running = [job for worker in self.workers.values() for job in worker.running]
        for job in [*running, *self._placing.everything(), *self._suspects.aside]:
            if self._failed is None:
                job.future.cancel()
            elif not job.future.done():
                job.future.set_exception(self._failed)
        self._bundles.close()
        self._roster.close()
        self._ready.set()

    def _accept(self, job: Job) -> None:
        self._placing.accept(job)

    def _look(self) -> None:
        """See which workers have come and gone."""
        for worker, how in self._roster.look():
            self._lose(worker, how)
        self._suspects.by_chance = self._roster.ended_unused
        self._roster.check(starved=self._placing.waits(GPU) and not self.slots(GPU))
        self._bundles.look()
        if self.workers:
            self._ready.set()

    def _lose(self, worker: WorkerState, how: str) -> None:
        """A worker has ended or hangs: its jobs are placed on others."""
        number = len(worker.running)
        again = f"{number or 'none'} of its tasks {'are' if number > 1 else 'is'} started again"
        self._say(f"the worker {worker} {how}; {again}")
        begun = worker.begun()
        others = [job for job in self._bundles.recall(worker) if job not in begun]
        self._placing.again(others)
        if how == RESTARTED:  # no job is the reason
            self._placing.again(begun)
        else:
            self._placing.again(self._suspects.ended(f"{worker}", begun))

    def _finished(self, worker: WorkerState, job: Job, result: Any, error: BaseException | None) -> None:
        """A job has an answer, or will get none."""
        kind = type(error).__name__
        if error is None:
            worker.done[job.resource] += 1
            job.where = worker.address
            self._placing.took(job)
            if not job.future.done():
                job.future.set_result(result)
        elif isinstance(error, WorkerUnfit):
            self._placing.accept(job, first=True)
            self._retire(worker, f"the worker {worker} is not used any more: {error}")
        elif isinstance(error, WorkerThrottled):
            self._placing.accept(job, first=True)
            self._rest(worker, str(error))
        elif isinstance(error, WorkerFailed) or kind == "KilledWorker":
            self._placing.again(self._suspects.ended(f"{worker}", [job]))
        elif isinstance(error, NotBegun) or kind in LOST:  # the connection was lost with the result
            self._placing.accept(job, first=True)
        elif not job.future.done():
            job.future.set_exception(error)

    def _retire(self, worker: WorkerState, why: str) -> None:
        """Do not use a worker any more; its jobs are placed on others."""
        if self.workers.get(worker.address) is worker:
            self._roster.refuse(worker.address, why)
        self._placing.again(self._bundles.recall(worker))

    def _rest(self, worker: WorkerState, why: str) -> None:
        """Give a GPU that throttles no job for a while; after several times, none any more."""
        worker.rests += 1
        if worker.rests > RESTS:
            self._retire(worker, f"the worker {worker} is not used any more: {why}, {worker.rests} times")
            return
        worker.rests_until = time.monotonic() + REST_S
        self._placing.again(self._bundles.recall(worker, GPU))
        self._say(f"the worker {worker} measures nothing for {REST_S:g} s: {why}")

    def _stop_measuring(self, address: str, why: str) -> None:
        worker = self.workers.get(address)
        if worker is not None and worker.slots.get(GPU):
            worker.slots[GPU] = 0
            self._placing.again(self._bundles.recall(worker, GPU))
            self._say(f"the worker {worker} only compiles from now on: {why}")

    def _place(self) -> None:
        """Give jobs to the workers that are free."""
        for worker, job in self._placing.pinned(self.workers):
            if worker is not None:
                self._bundles.send(worker, [job])
            elif not job.future.done():
                job.future.set_exception(FaultError("its worker is not there any more"))
        if self._suspects.aside and not self._busy():
            self._placing.again(self._suspects.judge())
        for chosen, jobs in self._placing.next(self.workers.values()):
            self._bundles.send(chosen, jobs)

    def _busy(self) -> bool:
        """Whether jobs wait or are executed."""
        waits = self._placing.waits(CPU) or self._placing.waits(GPU)
        return waits or any(worker.running for worker in self.workers.values())
