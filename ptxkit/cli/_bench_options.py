"""Options that several commands of ``ptxkit bench`` share."""

from __future__ import annotations

from typing import Any

import click

from ptxkit.cli._options import Seconds, WholeNumber

SECONDS = Seconds(min=0.01)
FORMATS = click.Choice(["table", "markdown", "csv"])

sizes_option = click.option(
    "--sizes", metavar="SIZES", help="Measure these sizes instead of the kernels' own: 8192x4096,128x4096."
)
peers_option = click.option(
    "--peers",
    "peer_names",
    metavar="NAMES",
    help="Compare with these peers only: torch,compile,triton; none for no peers.",
)
iterations_option = click.option(
    "--iterations",
    type=WholeNumber(2, 1_000_000),
    metavar="N",
    help="Take exactly this many samples of each candidate.",
)
budget_option = click.option(
    "--time-budget",
    type=SECONDS,
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Measure each case for about this long.",
)
limit_option = click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="Stop a case of --cluster that takes longer, and record it as failed; 1800 by default.",
)
format_option = click.option(
    "--format", "kind", type=FORMATS, default="table", show_default=True, help="Print in this format."
)
results_option = click.option(
    "--json", "json_file", metavar="FILE", help="Write the results as JSON (ptxkit.bench/4) to this file; - for stdout."
)


def without_times(**given: Any) -> list[str]:
    """A line for the options that have no effect where nothing is timed."""
    names = [f"--{name}" for name, value in given.items() if value]
    return [f"{' and '.join(names)} {'do' if len(names) > 1 else 'does'} not apply to counts."] if names else []
