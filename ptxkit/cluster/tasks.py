"""What a Dask worker executes for a sweep: the methods of :class:`ptxkit.sweep.local.LocalExecutor`, which it has one of for
each sweep, with the images that another worker compiled."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ptxkit.cluster.identity import identity
from ptxkit.compiler.cache import default_cache
from ptxkit.errors import PtxkitError, UnavailableError
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.local import LocalExecutor
from ptxkit.sweep.problem import Problem

FETCH_S = 20.0  # to get images from another worker; after that they are compiled here
IDLE_S = 120.0  # after which a worker ends the processes of a sweep whose client has not released it
HANDLER = "ptxkit_images"


class WorkerFailed(PtxkitError):
    """A process of the worker died; the configuration may be the cause."""


class WorkerUnfit(PtxkitError):
    """The worker cannot be used for the sweep, whatever the configuration."""


@dataclass(frozen=True)
class Order:
    """What all tasks of a sweep have in common.

    Attributes:
        ticket: identifies the run of the sweep: another run starts new processes, which read descriptions again.
        problem, seed, timeout_s, timed, slow: see :class:`~ptxkit.sweep.local.LocalExecutor`.
    """

    ticket: str
    problem: Problem
    seed: int
    timeout_s: float
    timed: bool
    slow: bool = False


@dataclass
class _Held:
    """The processes of one sweep on this worker, and how many tasks use them."""

    executor: LocalExecutor
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


_lock = threading.Lock()
_held: dict[str, _Held] = {}
_released: set[str] = set()
_last: dict[str, Any] = {}  # the last reading of the GPU


def describe(kernel: str | None = None, *, dask_worker: Any) -> dict[str, Any]:
    """The versions of this worker, its machine, GPU and cache. Makes its images available to other workers.

    Args:
        kernel: see :func:`~ptxkit.cluster.identity.identity`.
    """
    import dask

    dask_worker.handlers[HANDLER] = images
    info = default_cache().info()
    stored = {"directory": str(info.directory), "entries": info.entries, "size_bytes": info.size_bytes}
    return {
        "identity": identity(kernel),
        "host": platform.node(),
        "pid": os.getpid(),
        "started": dask.config.get("ptxkit.worker", None),
        "cache": stored,
        "sweeps": len(_held),
        "last": dict(_last),
    }


async def images(keys: Sequence[str]) -> dict[str, bytes]:
    """The images that the cache of this worker has under the given keys: the handler of a request of another worker."""
    store = default_cache()
    return {key: data for key in keys if (data := store.get(key)) is not None}


def compile_tile(order: Order, tile: Mapping[str, Any]) -> Compiled:
    """Compile one tile into the cache of this worker."""
    with _using(order) as executor:
        return executor.compile(tile).result()


def mix_tile(order: Order, tile: Mapping[str, Any], compiled: Compiled, source: str) -> str:
    """The instruction mix of a tile."""
    _fetch(compiled.images, source)
    with _using(order) as executor:
        return executor.mix(tile).result()


def measure_tile(order: Order, tile: Mapping[str, Any], compiled: Compiled, source: str, best: float) -> Entry:
    """Verify one tile, and time it or model its cost.

    Args:
        source: address of the worker that compiled it. best: value of the best configuration so far.

    Raises:
        WorkerUnfit: this worker would compile something else, or cannot measure.
    """
    from distributed import get_worker

    from ptxkit.workload.launch import Tile

    worker = get_worker()
    with _using(order) as executor:
        _prepare(executor, [(tile, compiled, source)])
        entry = executor.measure(Tile(tile), compiled, lambda: best).result()
        where = {**(entry.measured_on or {}), "worker": str(worker.name), "host": platform.node()}
    _last.update(where)
    return replace(entry, measured_on=where)


def measure_leaders(
    order: Order, tiles: Sequence[tuple[Mapping[str, Any], Compiled, str]], budget_s: float
) -> list[dict[str, Any]]:
    """Measure tiles against each other, interleaved, on the GPU of this worker.

    Args:
        tiles: each with what was compiled, and the address of the worker that did.
    """
    with _using(order) as executor:
        _prepare(executor, tiles)
        return executor.leaders([tile for tile, _, _ in tiles], budget_s)


def release(ticket: str) -> None:
    """End the processes of a sweep."""
    with _lock:
        _released.add(ticket)
        held = _held.pop(ticket, None)
    if held is not None:
        held.executor.process.end()
        threading.Thread(target=held.executor.end, daemon=True).start()  # waits for what is being compiled


def _prepare(executor: LocalExecutor, tiles: Iterable[tuple[Mapping[str, Any], Compiled, str]]) -> None:
    """Get the images of tiles that another worker compiled, and compare what this worker makes of their sources.

    Raises:
        WorkerUnfit: it makes other machine code.
    """
    from distributed import get_worker

    for tile, compiled, source in tiles:
        if source == get_worker().address:
            continue
        _fetch(compiled.images, source)
        found = executor.compile(tile).result()  # from the cache, unless a file differs
        if found.error or found.fingerprint != compiled.fingerprint:
            raise WorkerUnfit(
                f"{found.error or 'it compiles other machine code'}: its sources, headers or libraries differ"
            )


def _fetch(keys: Sequence[str], source: str) -> None:
    """Get images that this worker's cache lacks from the worker that compiled them; failing that, they are compiled here."""
    from distributed import get_worker
    from distributed.utils import sync

    store = default_cache()
    worker = get_worker()
    missing = [key for key in keys if key and store.get(key) is None]
    if not missing or source == worker.address:
        return

    async def ask() -> Any:
        return await getattr(worker.rpc(source), HANDLER)(keys=missing)

    try:
        found = sync(worker.loop, ask, callback_timeout=FETCH_S)
    except (OSError, TimeoutError):  # that worker has ended, or hangs
        return
    for key, data in found.items():
        if key in missing:
            store.put(key, bytes(data))


class _using:  # a context manager, used as a function
    """The executor of a sweep inside a ``with`` block."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __enter__(self) -> LocalExecutor:
        import dask

        order = self.order
        _start_reaper()
        with _lock:
            if order.ticket in _released:
                raise WorkerUnfit("the sweep has ended")
            self.held = _held.get(order.ticket) or _Held(
                LocalExecutor(
                    order.problem,
                    order.seed,
                    order.timeout_s,
                    timed=order.timed,
                    workers=int(dask.config.get("ptxkit.worker.slots", 1)),
                    slow=order.slow,
                )
            )
            _held[order.ticket] = self.held
            self.held.users += 1
        return self.held.executor

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        ticket = self.order.ticket
        with _lock:
            self.held.users -= 1
            self.held.used_at = time.monotonic()
            if isinstance(error, BrokenProcessPool) and _held.get(ticket) is self.held:
                del _held[ticket]  # the next task starts new processes
        if isinstance(error, BrokenProcessPool):
            raise WorkerFailed("a process that compiles or emulates died; is there enough memory?") from None
        if isinstance(error, UnavailableError):
            raise WorkerUnfit(str(error)) from None


@cache
def _start_reaper() -> None:
    """Start the thread that ends the processes of sweeps whose client was killed; if it comes back, others are started."""
    threading.Thread(target=_reap, daemon=True).start()


def _reap() -> None:
    while True:
        time.sleep(IDLE_S / 4)
        with _lock:
            limit = time.monotonic() - IDLE_S
            idle = [ticket for ticket, held in _held.items() if not held.users and held.used_at < limit]
            ended = [_held.pop(ticket) for ticket in idle]
        for held in ended:
            held.executor.end()
