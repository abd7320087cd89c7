"""Requests to the scheduler and the workers of a cluster that end.

The synchronous methods of a Dask client (``run``, ``cancel``, ``Future.result``) hand a coroutine to the client's event loop
and wait for it in the calling thread. They wait without a limit where the loop was stopped before it began the coroutine,
which happens when another thread closes the client at that moment, and where a worker never answers. A thread that waits
like that keeps the process from ending. :func:`call` also ends when the client is closed, and after a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

NO_SCHEDULER = "what listens there is no Dask scheduler"
CONNECT_ONCE_S = 2.0
LOOK_S = 0.25  # interval at which the state of the client is read during a request


async def probe(address: str, connection_args: Mapping[str, Any], seconds: float) -> None:
    """Ask a scheduler whether it is there, before a client or a worker of Dask is started, which would leave threads or
    processes behind.

    Raises:
        OSError, TimeoutError: no scheduler answers.
    """
    from distributed.core import rpc

    found, failed = None, None
    try:
        async with rpc(address, connection_args=connection_args, timeout=seconds) as scheduler:
            found = await asyncio.wait_for(scheduler.identity(n_workers=0), seconds)
    except (OSError, TimeoutError, RuntimeError) as error:
        failed = error
    except Exception:  # noqa: BLE001  # another protocol, read as one of Dask: MemoryError, struct.error, ValueError, ...
        found = None
    if failed is not None:
        await _connect(address)
        raise failed
    if not isinstance(found, dict) or found.get("type") != "Scheduler":
        raise ConnectionError(NO_SCHEDULER)


async def _connect(address: str) -> None:
    """Connect once: after several attempts, Dask may say that there was no answer in time where nothing listens.

    Raises:
        OSError: of the operating system.
    """
    from distributed.comm import get_address_host_port

    with suppress(TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(*get_address_host_port(address)), CONNECT_ONCE_S)
        writer.close()


def call(client: Any, request: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of a request.

    Args:
        client: of Dask.
        request: called on the client's event loop, where the methods of the client return awaitables.
        seconds: after which the request is given up.

    Raises:
        TimeoutError: there was no answer in time. ConnectionAbortedError: the client is closed. Others: of the request.
    """
    loop = client.loop.asyncio_loop
    answer: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    async def perform() -> None:
        try:
            answer.set_result(await request())
        except asyncio.CancelledError:  # by the client, or because the request was given up
            answer.set_exception(ConnectionAbortedError("the connection with the cluster was closed during a request"))
            raise
        except Exception as error:  # noqa: BLE001  # it is raised in the calling thread
            answer.set_exception(error)

    def begin() -> None:
        tasks.append(loop.create_task(perform()))

    def give_up() -> None:
        for task in tasks:
            task.cancel()

    try:
        loop.call_soon_threadsafe(begin)
    except RuntimeError:  # the loop is closed
        raise ConnectionAbortedError("the connection with the cluster is closed") from None
    end = time.monotonic() + seconds
    while not wait([answer], min(LOOK_S, max(0.0, end - time.monotonic()))).done:
        closed = client.status == "closed" or not loop.is_running()
        if closed or time.monotonic() >= end:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(give_up)
            if closed:
                raise ConnectionAbortedError("the connection with the cluster was closed during a request")
            raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()
