"""``--cluster`` of the commands that measure: the connection, and the device that stands for those of the workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptxkit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from ptxkit.cluster.connection import Connection
    from ptxkit.runtime.device import Device

CLUSTER = ("--cluster", "--tls", "--insecure")
"""The options of :func:`ptxkit.cli._options.on_cluster`, for the headings of a command."""


@contextmanager
def connection(
    cluster: str | None, tls: str | None, insecure: bool, slots: int | None = None
) -> Iterator[Connection | None]:
    """The cluster of ``--cluster``, or None without it.

    Args:
        slots: number of compiling processes of a cluster on this machine.

    Raises:
        UsageError, UnavailableError: see :func:`ptxkit.cluster.connection.connected`.
    """
    from ptxkit.cli._text import to_stderr

    if cluster is None:
        if tls is not None or insecure:
            raise UsageError("--tls and --insecure are for --cluster ADDRESS")
        yield None
        return
    from ptxkit.cluster.connection import connected

    with connected(cluster, tls, insecure, slots) as made:
        if made.dashboard:
            to_stderr(f"dashboard: {made.dashboard}")
        yield made


def device_of(kind: str, cluster: Connection | None) -> Device:
    """The device of ``--device``: of this machine, or one that stands for the GPUs of the cluster's workers.

    Raises:
        UnavailableError: there is no such device.
    """
    from ptxkit.runtime.device import device as open_device

    if cluster is None:
        return open_device(kind)
    gpu = None if kind == "emulator" else cluster.gpu()
    if gpu is not None:
        return gpu  # type: ignore[return-value]  # it has what is asked of a device that nothing is launched on
    if kind == "gpu":
        raise UnavailableError(f"no worker of {cluster.title} has a GPU")
    return open_device("emulator")


def joined(cluster: str | None, tls: str | None, insecure: bool, timeout: float | None) -> Connection | None:
    """The cluster of ``--cluster`` until the command ends, or None without it.

    Args:
        timeout: of ``--timeout``, which is for clusters.

    Raises:
        UsageError, UnavailableError: see :func:`connection`.
    """
    import click

    if cluster is None and timeout is not None:
        raise UsageError("--timeout is for the cases of --cluster; on this machine Ctrl-C ends a case")
    return click.get_current_context().with_resource(connection(cluster, tls, insecure))


def tell(line: str) -> None:
    """Print a line about a worker on stderr."""
    from ptxkit.cli._text import to_stderr

    to_stderr(line, fg="yellow")
