"""``ptxkit bench overhead``: what a launch costs the host and the device."""

from __future__ import annotations

from typing import Any

import click

from ptxkit.cli._bench_options import format_option
from ptxkit.cli._options import WholeNumber

MOST_ARGUMENTS = 64


@click.command("overhead")
@click.option(
    "--arguments",
    type=WholeNumber(0, MOST_ARGUMENTS),
    default=4,
    show_default=True,
    metavar="N",
    help="Launch a kernel with this many pointers as arguments.",
)
@click.option(
    "--rounds",
    type=WholeNumber(2, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Measure this many groups of launches of each kind.",
)
@format_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.overhead/1) on stdout.")
def overhead(arguments: int, rounds: int, kind: Any, as_json: bool) -> int:
    """Measure the cost of a launch, for the host and for the device.

    A kernel that does nothing is launched with its arguments bound at each call, prepared, and in a CUDA graph of many
    launches. Prepared launches are measured twice: as the driver's launch of a kernel, and as ptxkit launches them, as a graph
    of one kernel. A GPU is needed.
    """
    from ptxkit.bench.measure.environment import require_gpu
    from ptxkit.bench.measure.overhead import costs
    from ptxkit.bench.report import overhead as report
    from ptxkit.cli._bench_views import printed
    from ptxkit.cli._output import stdout_set_aside
    from ptxkit.runtime.device import device as open_device

    device: Any = open_device("auto")
    require_gpu(device, "bench overhead", chosen=False)
    with stdout_set_aside():
        found = costs(device, arguments, rounds)
    made = report.to_json(device, arguments, rounds, found) if as_json else None
    printed(made, report.csv(found), [report.table(device.name, arguments, found)], kind)
    return 0
