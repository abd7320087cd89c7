"""Requests to a cluster end, whatever happens to the client and its event loop."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from ptxkit.cluster.calls import call


@pytest.fixture
def client():
    """An object with a client's state and an event loop that a thread runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = SimpleNamespace(status="running", loop=SimpleNamespace(asyncio_loop=loop))
    yield made
    if loop.is_running():
        loop.call_soon_threadsafe(loop.stop)
    thread.join()
    if not loop.is_closed():
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()


async def answer():
    return 42


async def never():
    await asyncio.Event().wait()


async def refuse():
    raise TimeoutError("of the request")


def test_result(client):
    assert call(client, answer, 60) == 42


def test_error_of_the_request(client):
    with pytest.raises(TimeoutError, match="of the request"):
        call(client, refuse, 60)


def test_time_limit(client):
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        call(client, never, 0.1)


def test_client_is_closed_during_a_request(client):
    async def close():
        client.status = "closed"
        await never()

    with pytest.raises(ConnectionAbortedError):
        call(client, close, 60)


def test_request_is_cancelled(client):
    async def cancel():
        asyncio.current_task().cancel()
        await never()

    with pytest.raises(ConnectionAbortedError):
        call(client, cancel, 60)


@pytest.mark.parametrize("closed", [False, True])
def test_loop_has_stopped(client, closed):
    """Dask's own methods would wait without a limit for a loop that never begins the request."""
    loop = client.loop.asyncio_loop
    loop.call_soon_threadsafe(loop.stop)
    while loop.is_running():
        pass
    if closed:
        loop.close()
    with pytest.raises(ConnectionAbortedError):
        call(client, answer, 60)
