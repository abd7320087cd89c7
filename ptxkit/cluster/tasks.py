"""What a Dask worker executes for a sweep: the methods of :class:`ptxkit.sweep.local.LocalExecutor`, which it has one of for
each sweep, with the images that another worker compiled."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from ptxkit.bench.measure.method import HARD
from ptxkit.cluster import held
from ptxkit.cluster.held import WorkerThrottled, WorkerUnfit
from ptxkit.cluster.identity import identity
from ptxkit.cluster.images import HANDLER, fetch_images, images
from ptxkit.cluster.work import count, this_worker
from ptxkit.compiler.cache import default_cache
from ptxkit.sweep.canary import CANARY_S, Reading
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.local import LocalExecutor
from ptxkit.sweep.problem import Problem


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


_last: dict[str, Any] = {}  # the last reading of the GPU
_canaries: dict[str, float] = {}  # ticket of the sweep -> our clock at the last canary cases


def describe(*kernels: str, dask_worker: Any) -> dict[str, Any]:
    """The versions of this worker, its machine, GPU and cache. Makes its images available to other workers.

    Args:
        kernels: see :func:`~ptxkit.cluster.identity.identity`.
    """
    import dask

    dask_worker.handlers[HANDLER] = images
    info = default_cache().info()
    stored = {"directory": str(info.directory), "entries": info.entries, "size_bytes": info.size_bytes}
    return {
        "identity": identity(*kernels),
        "host": platform.node(),
        "pid": os.getpid(),
        "started": dask.config.get("ptxkit.worker", None),
        "cache": stored,
        "sweeps": held.count(),
        "jobs": count(),
        "last": dict(_last),
    }


def compile_tile(order: Order, tile: Mapping[str, Any]) -> Compiled:
    """Compile one tile into the cache of this worker."""
    with _using(order) as executor:
        return executor.compile(tile).result()


def mix_tile(order: Order, tile: Mapping[str, Any], compiled: Compiled, source: str) -> str:
    """The instruction mix of a tile."""
    fetch_images(compiled.images, source)
    with _using(order) as executor:
        return executor.mix(tile).result()


def start_measuring(order: Order) -> dict[str, Any] | None:
    """Start the process that measures, and launch the canary cases.

    Returns:
        What they found, as in ``measured_on`` of :func:`measure_tile`; None where they were launched before.

    Raises:
        WorkerUnfit: this worker cannot measure, or its GPU computes wrong.
    """
    with _using(order) as executor:
        return _values(_canary(order, executor))


def measure_tile(order: Order, tile: Mapping[str, Any], compiled: Compiled, source: str, best: float) -> Entry:
    """Verify one tile, and time it or model its cost.

    Args:
        source: address of the worker that compiled it. best: value of the best configuration so far.

    Raises:
        WorkerUnfit: this worker would compile something else, cannot measure, or its GPU computes wrong.
        WorkerThrottled: its GPU throttled, so that the time says nothing.
    """
    from ptxkit.workload.launch import Tile

    worker = this_worker()
    with _using(order) as executor:
        _prepare(executor, [(tile, compiled, source)])
        canary = _canary(order, executor) if order.timed else None
        entry = executor.measure(Tile(tile), compiled, lambda: best).result()
        where = {**(entry.measured_on or {}), "worker": str(worker.name), "host": platform.node()}
        _last.update(where)
        if order.timed and entry.status in ("wrong", "fault", "timeout"):  # of the configuration, or of the GPU?
            canary = _canary(order, executor, now=True)
    _refuse_throttled(where)
    if canary is not None:
        where["canary"] = _values(canary)
    return replace(entry, measured_on=where)


def _values(canary: Reading | None) -> dict[str, Any] | None:
    return None if canary is None else {"times_us": dict(canary.times_us), "digests": dict(canary.digests)}


def _canary(order: Order, executor: LocalExecutor, *, now: bool = False) -> Reading | None:
    """The canary cases of the GPU, before its first measurement and every :data:`CANARY_S` seconds; None in between.

    Args:
        now: in any case.

    Raises:
        WorkerUnfit: the GPU computes wrong.
    """
    read_at = _canaries.get(order.ticket)
    if not now and read_at is not None and time.monotonic() - read_at < CANARY_S:
        return None
    reading = executor.process.canary()
    if reading.wrong:
        raise WorkerUnfit(f"its GPU computes wrong: {reading.wrong}")
    now_s = time.monotonic()
    for ticket in [ticket for ticket, at in _canaries.items() if now_s - at > CANARY_S]:
        del _canaries[ticket]  # of commands that have ended; others may measure here at the same time
    _canaries[order.ticket] = now_s
    return reading


def _refuse_throttled(where: Mapping[str, Any]) -> None:
    """Raise WorkerThrottled if the GPU throttled during a measurement, by heat or by its power supply."""
    reasons = [reason for reason in where.get("throttled", ()) if reason in HARD]
    if reasons:
        raise WorkerThrottled(f"its GPU throttles ({', '.join(reasons)}) at {where.get('temperature_c', '?')} C")


def measure_leaders(
    order: Order, tiles: Sequence[tuple[Mapping[str, Any], Compiled, str]], budget_s: float
) -> list[dict[str, Any]]:
    """Measure tiles against each other, interleaved, on the GPU of this worker, after its canary cases.

    Args:
        tiles: each with what was compiled, and the address of the worker that did.

    Raises:
        WorkerUnfit, WorkerThrottled: see :func:`measure_tile`.
    """
    here = {"worker": str(this_worker().name), "host": platform.node()}
    with _using(order) as executor:
        _prepare(executor, tiles)
        _canary(order, executor, now=True)
        rows = executor.leaders([tile for tile, _, _ in tiles], budget_s)
    for row in rows:
        row["measured_on"] = {**row.get("measured_on", {}), **here}
        _refuse_throttled(row["measured_on"])
    return rows


def _prepare(executor: LocalExecutor, tiles: Iterable[tuple[Mapping[str, Any], Compiled, str]]) -> None:
    """Get the images of tiles that another worker compiled, and compare what this worker makes of their sources.

    Raises:
        WorkerUnfit: it makes other machine code.
    """
    for tile, compiled, source in tiles:
        if source == this_worker().address:
            continue
        fetch_images(compiled.images, source)
        found = executor.compile(tile).result()  # from the cache, unless a file differs
        if found.error or found.fingerprint != compiled.fingerprint:
            raise WorkerUnfit(
                f"{found.error or 'it compiles other machine code'}: its sources, headers or libraries differ"
            )


def _using(order: Order) -> AbstractContextManager[LocalExecutor]:
    """The executor of a sweep inside a ``with`` block."""
    import dask

    return held.using(
        order.ticket,
        lambda: LocalExecutor(
            order.problem,
            order.seed,
            order.timeout_s,
            timed=order.timed,
            workers=int(dask.config.get("ptxkit.worker.slots", 1)),
            slow=order.slow,
            processors=dask.config.get("ptxkit.worker.processors", ()),
            repeats=False,  # the client decides what is executed again
        ),
    )
