"""The workers of a cluster as one command knows them: listed by the scheduler, described by themselves, used or refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ptxkit.cluster.calls import call
from ptxkit.cluster.connection import listed
from ptxkit.cluster.identity import difference, identity
from ptxkit.cluster.jobs import CPU, GPU, WorkerState
from ptxkit.cluster.reasons import reason
from ptxkit.cluster.tasks import describe
from ptxkit.errors import UnavailableError

HUNG_S = 30.0  # without a sign of life after which a worker counts as hung
LOST_S = 30.0  # without a scheduler after which a command stops
NOBODY_S = 60.0  # without a worker after which a command stops; a worker that is started again needs a few seconds
RESTARTED = "is not connected any more, because the scheduler was started again"


@dataclass
class _Life:
    """Signs of life of a worker: the scheduler's time of the last one, and our clock when it was reported first."""

    last_seen: float
    at: float

    @property
    def hung(self) -> bool:
        return time.monotonic() - self.at > HUNG_S


class Roster:
    """The workers; for the thread of a :class:`~ptxkit.cluster.dispatch.Dispatcher`.

    Args:
        client, title, kernels, say, gpu_model: see :class:`~ptxkit.cluster.dispatch.Dispatcher`.
        post: lets the dispatcher's thread call a function with arguments.

    Attributes:
        workers: address -> a worker that is used. refused: address -> why a worker is not used. asked: addresses of workers
            that are being described. ended_unused: number of workers that ended while they were being described.
    """

    def __init__(
        self,
        client: Any,
        title: str,
        kernels: Sequence[str],
        say: Callable[[str], None],
        gpu_model: str | None,
        post: Callable[..., None],
        worker_command: str = "ptxkit cluster worker",
    ) -> None:
        self._client, self._title, self._kernels, self._say = client, title, tuple(kernels), say
        self._gpu_model, self._post = gpu_model, post
        self._worker_command = worker_command
        self._scheduler = ""
        self._mine = identity(*self._kernels)
        self.workers: dict[str, WorkerState] = {}
        self.refused: dict[str, str] = {}
        self.asked: set[str] = set()
        self.ended_unused = 0
        self._lives: dict[str, _Life] = {}
        self._listing: Future[Any] | None = None  # the list of workers that was requested of the scheduler
        self._describer = ThreadPoolExecutor(8, "ptxkit-describer")  # workers may hang
        self._alone_since = self._connected_at = time.monotonic()

    def look(self) -> list[tuple[WorkerState, str]]:
        """Compare the scheduler's list of workers with ours.

        Returns:
            The workers that are lost, and how. They are not in ``workers`` any more.

        Raises:
            UnavailableError: the scheduler does not answer.
        """
        now = time.monotonic()
        answer, self._listing = self._listing, None
        if answer is not None and not answer.done():
            self._listing = answer
        elif self._client.status == "running":
            self._listing = self._describer.submit(listed, self._client)
        if answer is None or not answer.done() or answer.exception() is not None:
            if now - self._connected_at > LOST_S or self._client.status == "closed":
                raise UnavailableError(f"{self._title} does not answer any more; the same command goes on when it does")
            return []
        self._connected_at = now
        scheduler, workers = answer.result()
        return self._compare(scheduler, workers, now)

    def _compare(self, scheduler: str, workers: Mapping[str, Any], now: float) -> list[tuple[WorkerState, str]]:
        for address, info in workers.items():
            life = self._lives.get(address)
            if life is None or life.last_seen != info["last_seen"]:
                self._lives[address] = _Life(info["last_seen"], now)
        for address in [a for a in self._lives if a not in workers]:
            del self._lives[address]
            self.refused.pop(address, None)
            self.ended_unused += address in self.asked
        ended = RESTARTED if self._scheduler not in ("", scheduler) else "has ended"
        self._scheduler = scheduler
        lost = [(worker, ended) for a, worker in self.workers.items() if a not in self._lives]
        hung = f"has given no sign of life for {HUNG_S:g} s"
        lost += [(s, hung) for a, s in self.workers.items() if a in self._lives and self._lives[a].hung]
        for worker, _ in lost:
            del self.workers[worker.address]
        for address, life in self._lives.items():
            new = address not in self.workers and address not in self.refused and address not in self.asked
            if new and not life.hung:
                self.asked.add(address)
                self._describer.submit(self._describe, address, workers[address])
        return lost

    def check(self, starved: bool) -> None:
        """Compare the time without a worker with the limit.

        Args:
            starved: whether jobs wait for a resource that no worker has.

        Raises:
            UnavailableError: there has been none for too long.
        """
        now = time.monotonic()
        if any(worker.slots for worker in self.workers.values()) and not starved:
            self._alone_since = now
        elif now - self._alone_since > NOBODY_S:
            raise self.nobody()

    def nobody(self) -> UnavailableError:
        """The error for a cluster without a worker."""
        reasons = "; ".join(self.refused.values()) or f"none is connected; start some with: {self._worker_command}"
        return UnavailableError(f"{self._title} has no worker that can be used: {reasons}")

    def _describe(self, address: str, info: Mapping[str, Any]) -> None:
        """In another thread, since the worker may hang."""
        try:
            found = call(
                self._client,
                lambda: self._client.run(describe, *self._kernels, workers=[address], on_error="return"),
                HUNG_S,
            ).get(address)
        except Exception as error:  # noqa: BLE001  # of Dask, tornado or ssl: it has ended
            found = error
        self._post(self._welcome, address, info, found)

    def _welcome(self, address: str, info: Mapping[str, Any], found: Any) -> None:
        """Take a worker, or refuse it."""
        self.asked.discard(address)
        if address not in self._lives or isinstance(found, (OSError, TimeoutError)):  # it has ended, or is asked again
            return
        name = str(info.get("name", address))
        why = objection(self._mine, found)
        if why:
            where = f" on {found['host']}" if isinstance(found, dict) else ""
            self.refuse(address, f"the worker {name}{where} is not used: {why}")
            return
        slots = {CPU: int(found["started"]["slots"]), GPU: int(found["started"]["gpu"] is not None)}
        if self._gpu_model is not None and slots[GPU] and found["started"]["gpu"]["name"] != self._gpu_model:
            slots[GPU] = 0  # it compiles
        self.workers[address] = WorkerState(address, name, found["host"], slots, found)

    def refuse(self, address: str, message: str) -> None:
        """Do not use a worker, or not any more."""
        self.workers.pop(address, None)
        self.refused[address] = message
        self._say(message)

    def close(self) -> None:
        """Ask nobody any more."""
        self._describer.shutdown(wait=False, cancel_futures=True)


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
