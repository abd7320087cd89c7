"""``ptxkit bench shapes``: a sample of the grid of shapes against peers."""

from __future__ import annotations

from typing import Any

import click

from ptxkit.cli._bench_kept import Kept
from ptxkit.cli._bench_measured import Setup
from ptxkit.cli._bench_options import (
    SECONDS,
    format_option,
    iterations_option,
    limit_option,
    peers_option,
    results_option,
)
from ptxkit.cli._cluster import CLUSTER, device_of, joined
from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._kernel import peer_list
from ptxkit.cli._options import WholeNumber, arch_option, device_option, on_cluster, parse_arch
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UnavailableError, UsageError

SAMPLE, EMULATED_SAMPLE = 60, 12  # cases by default, on a GPU and in the emulator
BUDGET_S = 1.0  # of sampling; compiling and two verifications take longer than that for large cases

HEADINGS = {
    "Cases": ("--sample", "--seed", "--family", "--list"),
    "Measurement": ("--device", "--arch", "--variants", "--peers", "--iterations", "--time-budget"),
    "Cluster": (*CLUSTER, "--timeout"),
    "Output": ("--format", "--json", "--output"),
}


@click.command("shapes", cls=HeadedCommand, headings=HEADINGS)
@click.option(
    "--sample",
    type=WholeNumber(min=1),
    metavar="N",
    help=f"Draw this many cases, evenly from the families; {SAMPLE} by default, {EMULATED_SAMPLE} in the emulator.",
)
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="S",
    help="Generate the random sizes, the sample and the input data from this seed.",
)
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="FAMILY",
    help="Take only cases of this family, such as rows or product_bf16; may be given several times.",
)
@click.option("--list", "as_list", is_flag=True, help="Show the cases, and what kernels refuse, without measuring.")
@device_option
@arch_option
@on_cluster
@limit_option
@click.option(
    "--variants",
    type=click.Choice(["chosen", "all"]),
    default="chosen",
    show_default=True,
    help="Measure the variant that ptxkit chooses for a case, or all of them, which also shows the regret of the choice.",
)
@peers_option
@iterations_option
@click.option(
    "--time-budget",
    type=SECONDS,
    default=BUDGET_S,
    show_default=True,
    metavar="SECONDS",
    help="Measure each case for about this long.",
)
@format_option
@results_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Draw the speeds of all cases over their best peers to this file: .svg, .png or .pdf. Requires matplotlib.",
)
def shapes(
    sample: int | None,
    seed: int,
    families: tuple[str, ...],
    as_list: bool,
    device_kind: str,
    arch: str | None,
    cluster: str | None,
    tls: str | None,
    insecure: bool,
    timeout: float | None,
    variants: str,
    peer_names: str | None,
    iterations: int | None,
    time_budget: float,
    kind: Any,
    json_file: str | None,
    output: str | None,
) -> int:
    """Measure a sample of many shapes against peers.

    The grid has sizes of published models, random and awkward ones, for row kernels, element-wise kernels, gradients, products
    of all types, attention and sparse products. On a GPU the variant that ptxkit chooses is compared with all peers, and the
    table has the geometric mean, quantiles, wins and losses of each family, and the ten worst cases.

    The emulator has no times: there the bytes that the chosen variants move are compared with the minimum, at smaller sizes
    with the same remainders.

    The file of --json is one of bench run, for bench compare and bench rerun. Ctrl-C and SIGTERM end the command early: what
    was measured by then is shown and written. The exit code is that of bench run.
    """
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.report import shapes as report
    from ptxkit.bench.shapes.grid import grid
    from ptxkit.bench.shapes.planned import planned
    from ptxkit.cli import _bench_text, _bench_verdict
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import print_json, to_stderr
    from ptxkit.figures import check_drawable
    from ptxkit.runtime.device import is_timed

    target = parse_arch(arch)
    if as_list:
        for option, value in {"--json": json_file, "--output": output, "--cluster": cluster}.items():
            if value is not None:
                raise UsageError(f"{option} is for results; leave it out with --list")
    with stdout_set_aside():
        every = grid(seed).of_families(families)
    if as_list:
        return _listed(every if sample is None else every.of_shapes(every.sample(sample, seed)), kind)
    workers = joined(cluster, tls, insecure, timeout)
    device = device_of(device_kind, workers)
    if output is not None:
        if not is_timed(device):
            raise UnavailableError(f"--output draws times; {device.name} has none")
        check_drawable(output, report.WHAT)
    kept = Kept(json_file)
    method = Method(budget_s=time_budget, iterations=iterations, modes=("cold",), percentiles=False)
    names = None if peer_names is None else peer_list(peer_names)
    setup = Setup(
        device,
        method,
        peers=names,
        seed=seed,
        counts=False,
        target=target,
        leave_out=True,
        cluster=workers,
        limit_s=timeout,
    )
    count = sample or (SAMPLE if is_timed(device) else EMULATED_SAMPLE)
    with stdout_set_aside(), progress() as say:
        say("choosing variants")
        chosen = planned(every.sample(count, seed), device, target, every_variant=variants == "all")
    if not chosen.plans:
        raise UnavailableError(f"none of the cases can run here: {chosen.left_out[0]}")
    results = setup.measured(chosen.plans, kept).results
    with stdout_set_aside():
        csv, tables = report.shapes_csv(results), report.shapes_tables(results, chosen.left_out)
    if json_file == "-":
        print_json(results.to_json())
    else:
        click.echo(csv if kind == "csv" else _bench_text.rendered(tables, kind))
    for text in chosen.left_out if json_file == "-" or kind == "csv" else ():
        to_stderr(f"left out: {text}")
    if output is not None:
        report.draw(results, output)
        to_stderr(f"drawn to {output}")
    code = _bench_verdict.complain(results)
    kept.end(len(chosen.plans))
    return code


def _listed(of: Any, kind: Any) -> int:
    """Print the cases of a grid."""
    from ptxkit.bench.report import csv_text
    from ptxkit.bench.report import shapes as report
    from ptxkit.cli import _bench_text

    with stdout_set_aside():
        tables = report.list_tables(of)
    text = csv_text.written(tables[0].headers, tables[0].rows) if kind == "csv" else _bench_text.rendered(tables, kind)
    click.echo(text)
    return 0
