"""A connection with a cluster, or with one that is started on this machine for as long as the connection lasts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ptxkit.cluster.calls import call, probe
from ptxkit.cluster.gpus import ClusterGpu, from_values
from ptxkit.cluster.reasons import reason, without_tls
from ptxkit.cluster.security import (
    LOCAL_CLUSTERS,
    Endpoint,
    check_installed,
    check_port,
    endpoint,
    is_loopback,
    worker_command,
)
from ptxkit.cluster.start import has_dashboard, local_cluster, quiet
from ptxkit.cluster.tasks import describe
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.processes.interrupts import interrupts_blocked

LOCAL, LOCAL_GPUS = LOCAL_CLUSTERS
CONNECT_S = 15.0
THIS_MACHINE = "the cluster of this machine"  # in messages
ANSWER_S = 30.0  # for all workers to describe themselves


@dataclass(frozen=True)
class Connection:
    """A connection.

    Attributes:
        client: of Dask. title: names the cluster in messages.
        dashboard: address of Dask's pages about the cluster, or "" where bokeh is not installed or they cannot be reached.
        worker_command: what starts a worker for it.
    """

    client: Any
    title: str
    dashboard: str = ""
    worker_command: str = "ptxkit cluster worker"

    def workers(self) -> dict[str, Mapping[str, Any]]:
        """Address -> what :func:`ptxkit.cluster.tasks.describe` returned there, or an exception.

        Raises:
            UnavailableError: the scheduler does not answer.
        """
        with _answering(self.title):
            if not listed_workers(self.client):
                return {}
            found: dict[str, Mapping[str, Any]]
            found = call(self.client, lambda: self.client.run(describe, on_error="return"), ANSWER_S)
            return found

    def gpu(self) -> ClusterGpu | None:
        """A GPU of the model that most workers have; None if no worker has a GPU.

        Raises:
            UnavailableError: there is no worker.
        """
        found = self.workers()
        started = [w["started"] for w in found.values() if isinstance(w, dict) and w["started"] is not None]
        gpus = [from_values(one["gpu"]) for one in started if one["gpu"] is not None]
        if not gpus:
            return None
        ((model, _),) = Counter(gpu.name for gpu in gpus).most_common(1)
        return next(gpu for gpu in gpus if gpu.name == model)


def listed_workers(client: Any) -> dict[str, Any]:
    """Address -> what the scheduler knows of each worker, asked now; see :func:`listed`."""
    return listed(client)[1]


def listed(client: Any) -> tuple[str, dict[str, Any]]:
    """The identity of the scheduler, which another one at its address does not have, and what it knows of each worker.

    ``Client.scheduler_info`` is of no use: a periodic request of the client replaces its answer by one without workers.

    Raises:
        OSError, TimeoutError: the scheduler does not answer.
    """
    found = call(client, lambda: client.scheduler.identity(n_workers=-1), ANSWER_S)
    return str(found.get("id", "")), found["workers"]


@contextmanager
def connected(cluster: str, tls: str | None, insecure: bool, slots: int | None = None) -> Iterator[Connection]:
    """A connection inside a ``with`` block.

    Args:
        cluster: an address, :data:`LOCAL` or :data:`LOCAL_GPUS`.
        tls, insecure: see :func:`ptxkit.cluster.security.endpoint`.
        slots: number of compiling processes of a cluster on this machine.

    Raises:
        UsageError: an address that cannot be used. UnavailableError: the scheduler does not answer, or a package is missing.
    """
    local = cluster in (LOCAL, LOCAL_GPUS)
    if local and (tls is not None or insecure):
        raise UsageError(f"--tls and --insecure are for the address of a scheduler, not for --cluster {cluster}")
    if not local and slots is not None:
        raise UsageError("--jobs is for this machine; each `ptxkit cluster worker` has a --jobs of its own")
    at = None if local else endpoint(cluster, tls, insecure)
    check_installed()
    if at is not None:
        check_port(at)
        with _client(at, f"the scheduler {at.address}") as client:
            yield Connection(client, f"the cluster {at.address}", _dashboard(client, at.host), worker_command(at, tls))
        return
    made = local_cluster(cluster == LOCAL_GPUS, slots)
    try:
        with _client(Endpoint(made.scheduler_address, "127.0.0.1"), THIS_MACHINE, made.security) as client:
            yield Connection(client, THIS_MACHINE, made.dashboard_link if has_dashboard() else "")
    finally:
        with suppress(TimeoutError):
            made.close(timeout=10)
        made.ptxkit_locks.close()


def _dashboard(client: Any, host: str) -> str:
    """Where the pages of a scheduler are: they are at a loopback address of its machine."""
    if not has_dashboard():
        return ""
    port = call(client, lambda: client.scheduler.identity(n_workers=0), ANSWER_S)["services"].get("dashboard")
    if port is None:
        return ""
    page = f"http://127.0.0.1:{port}/status"
    return page if is_loopback(host) else f"{page} on {host}; reach it with: ssh -L {port}:127.0.0.1:{port} {host}"


@contextmanager
def _client(at: Endpoint, title: str, security: Any = None) -> Iterator[Any]:
    from distributed import Client

    quiet()
    security = security or at.security
    with interrupts_blocked(), _answering(title, at.address):  # its threads leave Ctrl-C to this thread
        asyncio.run(probe(at.address, security.get_connection_args("client"), CONNECT_S))
        client = Client(at.address, security=security, timeout=CONNECT_S, set_as_default=False, name="ptxkit")
    try:
        yield client
    finally:
        with suppress(TimeoutError):
            client.close(timeout=5)


@contextmanager
def _answering(title: str, address: str = "") -> Iterator[None]:
    """Turn what Dask raises for a scheduler that does not answer into UnavailableError.

    Args:
        address: that a connection is made to.
    """
    try:
        yield
    except (OSError, TimeoutError, RuntimeError, ValueError) as error:
        why = reason(error)
        raise UnavailableError(f"{title} does not answer: {why}{without_tls(address, why)}") from None
