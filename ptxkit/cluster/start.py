"""Starts schedulers and workers: those of ``ptxkit cluster``, and a whole cluster on this machine for one command."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ptxkit.cluster.calls import probe
from ptxkit.cluster.gpus import ClusterGpu, hold, visible_gpus
from ptxkit.cluster.processors import compiling_processors
from ptxkit.cluster.reasons import LATE, TRANSIENT, reason, without_tls
from ptxkit.cluster.security import Endpoint, check_installed
from ptxkit.errors import UnavailableError
from ptxkit.processes.interrupts import interrupts_blocked

CORES_A_WORKER = 8  # of a cluster on this machine: a worker that ends takes what its processes were compiling with it
LEAST_WORKERS = 2
THREADS = 4  # of a worker for bundles of jobs, which wait in them, beside two for each slot
START_S = 120.0  # for a worker to connect to its scheduler
PROBE_S = 5.0  # for the first answer of a scheduler to a worker, which asks again after that
GONE_S = 60.0  # without an answer of the scheduler after which workers end
ASK_S = 2.0  # interval at which the scheduler is asked whether it is there
LOOPBACK = "127.0.0.1"
TRACKER_WARNINGS = "ignore:resource_tracker:UserWarning"


def quiet() -> None:
    """Let Dask report through exceptions only; called before anything of Dask is started.

    Raises:
        FileNotFoundError: the current directory was deleted, so that no process can be started in it.
    """
    import dask

    Path.cwd()
    dask.config.set({"distributed.worker.daemon": False})  # workers have processes of their own
    dask.config.set({"distributed.admin.low-level-log-length": 100})  # a scheduler keeps so many answers of each command
    dask.config.set({"distributed.diagnostics.nvml": False})  # workers read the sensors of their GPU themselves
    dask.config.set({"distributed.worker.http.routes": []})  # Dask's servers of pages have no keys: they answer nothing
    if not has_dashboard():
        dask.config.set({"distributed.scheduler.http.routes": []})
    _let_trackers_be_quiet()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    for name in ("core", "scheduler", "worker", "nanny", "client", "comm", "batched"):
        logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL)


def _let_trackers_be_quiet() -> None:
    """Let no process print what a worker that was killed has left to Python's resource tracker, which removes it."""
    filters = [each for each in os.environ.get("PYTHONWARNINGS", "").split(",") if each]
    if TRACKER_WARNINGS not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join([*filters, TRACKER_WARNINGS])


def worker_options(
    scheduler: str,
    host: str | None,
    slots: int,
    gpu: ClusterGpu | None,
    security: Any,
    name: str,
    processors: Sequence[int],
) -> dict[str, Any]:
    """The options of Dask's ``Nanny``, which starts a worker again when it ends.

    Args:
        scheduler: its address. host: that the worker is reached at; None for the one that leads to the scheduler.
        slots: number of processes that compile or emulate. gpu: that the worker measures on, or None.
        processors: that the processes compile on.
    """
    import dask

    started = {"slots": slots, "gpu": None if gpu is None else gpu.values(), "processors": list(processors)}
    return {
        "scheduler_ip": scheduler,
        "host": host,
        "nthreads": 2 * slots + THREADS,
        "name": name,
        "security": security,
        "memory_limit": 0,  # Dask would end a worker whose compilers need much memory for a moment
        "death_timeout": START_S,
        "local_directory": tempfile.gettempdir(),
        "env": {"CUDA_VISIBLE_DEVICES": "" if gpu is None else gpu.uuid},
        "config": {**dask.config.config, "ptxkit": {"worker": started}},
        "dashboard": False,
        "dashboard_address": f"{LOOPBACK}:0",
        "silence_logs": logging.CRITICAL,
    }


def local_cluster(gpus: bool, slots: int | None = None) -> Any:
    """A cluster of Dask on this machine that ends with this process; its connections are encrypted with temporary keys.

    Args:
        gpus: one worker for each GPU; else workers for the emulator on the CPU cores.
        slots: number of compiling processes of all workers; None for one on each processor that compiles.

    Raises:
        UnavailableError: a package is missing, there is no GPU that is free, or workers do not start.
    """
    check_installed()
    from distributed import Nanny, Scheduler, Security, SpecCluster

    quiet()
    try:
        security = Security.temporary()
    except ImportError:
        raise UnavailableError("clusters need the package cryptography: pip install 'ptxkit[cluster]'") from None
    locks = ExitStack()
    found: list[ClusterGpu | None] = []
    if gpus:
        found += visible_gpus()
        if not found:
            raise UnavailableError("--cluster local-gpus needs a GPU; local takes the emulator on the CPU cores")
        for gpu in found:
            locks.enter_context(hold(gpu))  # type: ignore[arg-type]  # every one of them is a GPU
    processors = compiling_processors(len(found))
    cores = slots or len(processors)
    if not gpus:
        found += [None] * max(min(LEAST_WORKERS, cores), math.ceil(cores / CORES_A_WORKER))
    share, rest = divmod(cores, len(found))
    workers = {}
    for number, gpu in enumerate(found):
        kind = "emulator" if gpu is None else "gpu"
        mine = max(1, share + (number < rest))
        options = worker_options("", LOOPBACK, mine, gpu, security, f"{kind}{number}", processors)
        del options["scheduler_ip"]  # the cluster sets it
        workers[number] = {"cls": Nanny, "options": options}
    serving = {"host": LOOPBACK, "protocol": "tls://", "port": 0, "security": security}
    serving |= {"dashboard_address": f"{LOOPBACK}:0", "dashboard": has_dashboard()}
    with interrupts_blocked():  # its threads and processes leave Ctrl-C to this thread
        try:
            cluster = SpecCluster(
                workers, scheduler={"cls": Scheduler, "options": serving}, security=security, silence_logs=logging.CRITICAL
            )
        except Exception as error:  # noqa: BLE001  # of Dask, such as an AssertionError after a time limit
            locks.close()
            late = f" within {START_S:g} s; is it busy, or out of memory?" if (why := reason(error)) == LATE else f": {why}"
            raise UnavailableError(f"the workers of this machine did not start{late}") from None
    cluster.ptxkit_locks = locks
    return cluster


def serve_scheduler(at: Endpoint, say: Callable[[str], None]) -> int:
    """Run a scheduler until a signal arrives; returns the number of the signal.

    Raises:
        UnavailableError: the address cannot be used.
    """
    from distributed import Scheduler

    quiet()
    scheme, _, rest = at.address.partition("://")

    async def serve() -> int:
        stopped = _signals()
        try:
            scheduler = await Scheduler(
                host=at.host,
                port=int(rest.rpartition(":")[2]),
                protocol=f"{scheme}://",
                security=at.security,
                dashboard_address=f"{LOOPBACK}:0",
                dashboard=has_dashboard(),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UnavailableError(f"a scheduler cannot listen at {at.address}: {reason(error)}") from None
        try:
            say(f"scheduler at {scheduler.address}")
            if has_dashboard():
                say(f"dashboard at http://{LOOPBACK}:{scheduler.http_server.port}/status")
            return await stopped
        finally:
            await scheduler.close()

    return asyncio.run(serve())


def serve_workers(
    at: Endpoint,
    gpus: Sequence[ClusterGpu],
    slots: int | None,
    host: str | None,
    say: Callable[[str], None],
) -> int:
    """Run a worker for each GPU, or one without a GPU, until a signal arrives or the scheduler has ended.

    Args:
        slots: number of processes of each worker that compile or emulate; None for the processors that compile, divided
            among the workers.
        host: name or address that others reach this machine at; None for the one that leads to the scheduler.

    Returns:
        The number of the signal; 0 if the scheduler has ended.

    Raises:
        UnavailableError: a GPU is held by another worker, or the scheduler does not answer.
    """
    quiet()
    from ptxkit.cluster.security import is_loopback

    host = host or (LOOPBACK if is_loopback(at.host) else None)
    processors = compiling_processors(len(gpus))
    share = slots or max(1, len(processors) // max(1, len(gpus)))

    async def serve() -> int:
        stopped = _signals()
        kept: list[asyncio.Future[Any]] = []

        async def start() -> None:
            await _find(at, say)
            for number, gpu in enumerate(gpus or [None]):
                name = f"{platform.node()}-{os.getpid()}-{number}"
                options = worker_options(at.address, host, share, gpu, at.security, name, processors)
                what = "the emulator" if gpu is None else f"{gpu.name} {gpu.uuid}, driver {gpu.driver}"
                line = f"worker {name} with {what}, {share} compiling process{'es' * (share > 1)}"
                nanny = await _started(options, at.address)
                _say_at(say, line, nanny.worker_address)
                kept.append(asyncio.ensure_future(_keep(nanny, options, partial(_say_at, say, line))))

        starting: asyncio.Future[Any] = asyncio.ensure_future(start())
        try:
            await asyncio.wait([stopped, starting], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                starting.result()
                await asyncio.wait([stopped, *kept], return_when=asyncio.FIRST_COMPLETED)
            return stopped.result() if stopped.done() else 0
        finally:
            for each in (starting, *kept):
                each.cancel()
            await asyncio.gather(starting, *kept, return_exceptions=True)

    with ExitStack() as locks:
        for gpu in gpus:
            locks.enter_context(hold(gpu))
        return asyncio.run(serve())


def _say_at(say: Callable[[str], None], line: str, address: str) -> None:
    say(f"{line}, at {address}")


async def _find(at: Endpoint, say: Callable[[str], None]) -> None:
    """Wait until a scheduler answers, which may be started at the same time as its workers.

    Args:
        say: called with a line where it does not answer at once.

    Raises:
        UnavailableError: none does within :data:`GONE_S`, or what answers is none, or does not accept the keys.
    """
    begin = time.monotonic()
    waiting = False
    while True:
        try:
            return await probe(at.address, at.security.get_connection_args("worker"), PROBE_S)
        except (OSError, TimeoutError, RuntimeError) as error:
            why = reason(error)
        advice = without_tls(at.address, why)
        if advice or why not in TRANSIENT or time.monotonic() - begin > GONE_S:
            raise UnavailableError(f"no worker can be started for {at.address}: {why}{advice}")
        if not waiting:
            say(f"waiting up to {GONE_S:g} s for the scheduler {at.address}: {why}")
        waiting = True


async def _started(options: Mapping[str, Any], scheduler: str) -> Any:
    """Dask's ``Nanny`` of a worker that has connected to its scheduler.

    Raises:
        UnavailableError: it does not connect.
    """
    from distributed import Nanny

    try:
        return await Nanny(**options)
    except Exception as error:  # noqa: BLE001  # of Dask, tornado or ssl
        why = reason(error)
        raise UnavailableError(f"no worker can be started for {scheduler}: {why}{without_tls(scheduler, why)}") from None


async def _keep(nanny: Any, options: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Run a worker until its scheduler has not answered for :data:`GONE_S`; it is ended when this is cancelled, too.

    A worker ends when it loses its scheduler, unless it is executing something, and its nanny waits for it. When the scheduler
    answers again, both are ended, and others are started.

    Args:
        say: called with the address of each worker that is started again.
    """
    from distributed.core import rpc

    answered = time.monotonic()
    try:
        while time.monotonic() - answered < GONE_S:
            await asyncio.sleep(ASK_S)
            with suppress(OSError, TimeoutError, UnavailableError):
                async with rpc(nanny.scheduler_addr, connection_args=nanny.connection_args, timeout=5) as scheduler:
                    await asyncio.wait_for(scheduler.identity(n_workers=0), 5)
                answered = time.monotonic()
                if nanny.status.name in ("closing_gracefully", "closing", "closed", "failed"):
                    await nanny.close()
                    nanny = await _started(options, nanny.scheduler_addr)
                    say(nanny.worker_address)
    finally:
        await nanny.close()


def _signals() -> asyncio.Future[int]:
    """A future of the number of the signal that asks this process to end."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return stopped


def has_dashboard() -> bool:
    """Whether Dask can show pages about a cluster, which need bokeh."""
    return find_spec("bokeh") is not None
