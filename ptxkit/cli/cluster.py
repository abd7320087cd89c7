"""``ptxkit cluster``: the scheduler and the workers of a Dask cluster for ``--cluster``."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._commands import Commands
from ptxkit.cli._options import WholeNumber, cluster_options, renamed_option
from ptxkit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from ptxkit.cluster.gpus import ClusterGpu


@click.group(cls=Commands)
def command() -> None:
    """Start a Dask cluster, and show its workers.

    Commands with --cluster ADDRESS, such as `ptxkit sweep tiles`, compile and measure on these workers. A worker executes any
    code that is sent to it, with the rights of the user who started it.
    """


@command.command()
@click.argument("directory", type=click.Path())
def keys(directory: str) -> None:
    """Write the keys for encrypted connections.

    DIRECTORY: is created, with the files ca.pem, cert.pem and key.pem. Copy it to each machine, readable by you alone, and give
    it to --tls there. The keys are valid for a year; whoever has them can execute code on the workers.
    """
    from ptxkit.cluster.security import write_keys

    for path in write_keys(directory).values():
        click.echo(path)


@command.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME",
              help="Listen at this address of the machine; all but loopback addresses need --tls.")  # fmt: skip
@click.option("--port", type=WholeNumber(0, 65535), default=8786, show_default=True, metavar="N",
              help="Listen at this port; 0 for any free one.")  # fmt: skip
@cluster_options
def scheduler(host: str, port: int, tls: str | None, insecure: bool) -> None:
    """Run the scheduler that workers and clients connect to.

    It prints its address, and runs until Ctrl-C or SIGTERM. There is one for each cluster; several commands may use it at the
    same time.
    """
    from ptxkit.cluster.security import check_installed, endpoint
    from ptxkit.cluster.start import serve_scheduler

    at = endpoint(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls, insecure)
    check_installed()
    _end_by(serve_scheduler(at, click.echo))


@command.command()
@click.argument("address")
@click.option("--gpu-index", "indices", type=WholeNumber(0), multiple=True, metavar="INDEX",
              help="Measure on this GPU; may be repeated. By default there is a worker for each GPU.")  # fmt: skip
@click.option("--no-gpu", is_flag=True, help="Compile and emulate only, even if there is a GPU.")
@click.option("--jobs", type=WholeNumber(1, 512), metavar="N",
              help="Compile or emulate in N processes; default: the processors, divided among the GPUs.")  # fmt: skip
@renamed_option("--gpu", "--gpu-index")
@renamed_option("--workers", "--jobs")
@click.option(
    "--host", metavar="NAME", help="Listen at this address of the machine instead of the one that leads to ADDRESS."
)
@cluster_options
def worker(
    address: str,
    indices: tuple[int, ...],
    no_gpu: bool,
    jobs: int | None,
    host: str | None,
    tls: str | None,
    insecure: bool,
) -> None:
    """Run a worker for each GPU of this machine.

    ADDRESS: of the scheduler, such as tls://node1:8786. A machine without a GPU runs one worker. Each worker measures on
    its own GPU, which no other worker may use, and compiles in processes beside it. A worker without a GPU compiles, and
    measures in the emulator. A worker that dies is started again. The command runs until Ctrl-C or SIGTERM, or until the
    scheduler has not answered for a minute.
    """
    from ptxkit.cluster.gpus import visible_gpus
    from ptxkit.cluster.security import check_installed, check_port, endpoint
    from ptxkit.cluster.start import quiet, serve_workers

    at = endpoint(address, tls, insecure)
    check_port(at)
    check_installed()
    if no_gpu and indices:
        raise UsageError("--gpu-index and --no-gpu exclude each other")
    quiet()  # before a process looks for GPUs
    gpus = [] if no_gpu else _chosen(visible_gpus(), indices)
    number = serve_workers(at, gpus, jobs, host, click.echo)
    if number == 0:
        raise UnavailableError(f"the scheduler {at.address} does not answer any more")
    _end_by(number)


@command.command()
@click.argument("address")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def status(address: str, tls: str | None, insecure: bool, as_json: bool) -> None:
    """Show the workers of a cluster with their GPUs and tasks.

    ADDRESS: of the scheduler, such as tls://node1:8786. The last column states why a worker cannot be used from this machine.
    """
    from ptxkit.cli._text import number_of, print_json, table
    from ptxkit.cluster.connection import connected
    from ptxkit.cluster.security import endpoint, worker_command
    from ptxkit.cluster.status import survey

    at = endpoint(address, tls, insecure)
    with connected(address, tls, insecure) as cluster:
        rows = survey(cluster)
    if as_json:
        print_json({"schema": "ptxkit.cluster/1", "address": at.address, "workers": rows})
        return
    click.echo(f"{at.address}: {number_of(len(rows), 'worker')}, {number_of(sum(bool(r['gpu']) for r in rows), 'GPU')}")
    if not rows:
        click.echo(f"start some with: {worker_command(at, tls)}")
    else:
        click.echo("")
        headers = [
            "",
            "host",
            "GPU",
            "driver",
            "clock",
            "temperature",
            "ptxkit",
            "NVRTC",
            "slots",
            "tasks",
            "cache",
            "state",
        ]
        click.echo(table([_row(row) for row in rows], headers, left=4))


def _row(row: Mapping[str, Any]) -> list[str]:
    from ptxkit.quantities import quantity

    gpu, last, cache = row["gpu"] or {}, row["last"], row["cache"]
    clock, temperature = last.get("sm_clock_mhz"), last.get("temperature_c")
    return [
        row["name"],
        row["host"],
        gpu.get("name", "-"),
        gpu.get("driver", "-"),
        f"{clock} MHz" if clock else "-",
        f"{temperature} C" if temperature else "-",
        row["identity"].get("ptxkit", "-"),
        row["identity"].get("nvrtc", "-"),
        str(row["slots"]),
        str(row["tasks"]),
        f"{cache['entries']} images, {quantity(cache['size_bytes'], 'B')}" if cache else "-",
        row["refused"] or "ready",
    ]


def _chosen(found: list[ClusterGpu], indices: tuple[int, ...]) -> list[ClusterGpu]:
    from ptxkit.cli._text import number_of

    for index in indices:
        if index >= len(found):
            usable = number_of(len(found), "GPU") if found else "no GPU"
            raise UnavailableError(f"--gpu-index {index}: this machine has {usable} that can be used")
    return [found[index] for index in dict.fromkeys(indices)] if indices else found


def _end_by(number: int) -> None:
    """Exit as after the signal that ended a server."""
    from ptxkit.cli._signals import Terminated

    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
