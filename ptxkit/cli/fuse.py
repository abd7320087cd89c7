"""``ptxkit fuse``: reports which operations of a graph should share a launch."""

from __future__ import annotations

import click

from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._options import FiniteNumber, WholeNumber, parse_pairs
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

HEADINGS = {
    "Graph": ("--model", "--tokens", "--context", "--dtype", "--experts-dtype"),
    "Prediction": ("--gpu", "--launch-us", "--weight", "--threshold", "--no-compile"),
    "Output": ("--format", "--json", "--html"),
}


@click.command(cls=HeadedCommand, headings=HEADINGS)
@click.argument("graph", required=False, metavar="[GRAPH]")
@click.option(
    "--model", metavar="NAME", help="Take a layer of this model: gpt2, opt-13b, llama3-8b, mixtral-8x7b, deepseek-v3."
)
@click.option(
    "--tokens", type=WholeNumber(1), metavar="N", help="Compute this many tokens of the model at once, 4096 by default."
)
@click.option(
    "--context",
    type=WholeNumber(1),
    metavar="N",
    help="Attend to this many cached keys, as in decoding, instead of the tokens themselves.",
)
@click.option("--dtype", metavar="TYPE", help="Use this type for the model's activations and weights, bf16 by default.")
@click.option(
    "--experts-dtype",
    metavar="TYPE",
    help="Use this type for the weights of a model's routed experts and the rows that they multiply, with a scale for each "
    "row: s8 or e4m3.",
)
@click.option("--gpu", metavar="NAME", help="Predict for this GPU, such as B200, instead of an H200.")
@click.option(
    "--launch-us",
    type=FiniteNumber(0, 1000),
    metavar="US",
    help="Count this time for each launch instead of the 1 us that it takes in a CUDA graph.",
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="NAME=VALUE",
    help="Weigh a criterion of the score: memory, launches, registers, complexity, maintainability.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a threshold: fractions saved of memory and launches, registers, the score and the predicted speed-up from "
    "which operations are merged.",
)
@click.option("--no-compile", is_flag=True, help="Estimate registers instead of compiling the bundled kernels.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="Print in this format.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the report as JSON (ptxkit.fuse/1) to this file; - for stdout."
)
@click.option(
    "--html",
    metavar="FILE",
    help="Write a page with the graph before and after, and the roofline, to this file; - for stdout.",
)
def command(
    graph: str | None,
    model: str | None,
    tokens: int | None,
    context: int | None,
    dtype: str | None,
    experts_dtype: str | None,
    gpu: str | None,
    launch_us: float | None,
    weights: tuple[str, ...],
    thresholds: tuple[str, ...],
    no_compile: bool,
    form: str,
    json_path: str | None,
    html: str | None,
) -> None:
    """Report which operations should share a launch.

    For each operation, the report has flops, bytes, intensity and the roof that bounds it; for neighbouring operations,
    whether they can be fused, why, and what that saves; and the whole graph before and after, with the bundled kernel or the
    formula for `ptxkit new --expression` that computes a group.

    GRAPH: a .json file, or a .py file that defines a graph, or a torch module and example inputs. See docs/fusion.md.
    """
    from typing import cast

    from ptxkit.bench.report.tables import Format
    from ptxkit.cli._text import print_json, terminal_width
    from ptxkit.files import check_writable, refuse_same, write_json, write_text
    from ptxkit.fusion.analysis import analyse, compiled_kernel
    from ptxkit.fusion.machine import machine_for
    from ptxkit.fusion.models import model_graph
    from ptxkit.fusion.page import page
    from ptxkit.fusion.read import read_graph
    from ptxkit.fusion.report_json import values
    from ptxkit.fusion.score import parse_thresholds, parse_weights
    from ptxkit.fusion.tables import text
    from ptxkit.targets.achievable import LAUNCH_US

    if (graph is None) == (model is None):
        raise UsageError("give a graph, or --model and no graph; `ptxkit fuse --model gpt2` is an example")
    of_models = {"--tokens": tokens, "--context": context, "--dtype": dtype, "--experts-dtype": experts_dtype}
    for option, value in of_models.items():
        if model is None and value is not None:
            raise UsageError(f"{option} belongs to --model; a file states its shapes itself")
    texts = ("--dtype", dtype), ("--experts-dtype", experts_dtype)
    for option, value in (("--gpu", gpu), *texts, ("--json", json_path), ("--html", html)):
        if value == "":
            raise UsageError(f"{option} is empty; leave it out, or give a value")
    named = {"GRAPH": graph, "--json": json_path, "--html": html}
    if json_path == html == "-":
        raise UsageError("--json - and --html - both write to stdout; name a file for one of them")
    refuse_same({option: path for option, path in named.items() if path is not None and path != "-"})
    for path in (json_path, html):
        if path is not None and path != "-":
            check_writable(path)
    criteria = parse_weights(parse_pairs(weights, "--weight"))
    limits = parse_thresholds(parse_pairs(thresholds, "--threshold"))
    machine = machine_for(gpu, LAUNCH_US if launch_us is None else launch_us)
    with stdout_set_aside():
        if model is not None:
            found = model_graph(model, tokens or 4096, context or 0, dtype or "bf16", experts_dtype or "")
        else:
            found = read_graph(str(graph))
        arguments = {} if no_compile else {"compiled": compiled_kernel}
        report = analyse(found, machine, criteria, limits, **arguments)
    if html is not None and html != "-":
        write_text(html, page(report))
    if json_path is not None and json_path != "-":
        write_json(json_path, values(report))
    if html == "-":
        click.echo(page(report), nl=False)
    elif json_path == "-":
        print_json(values(report))
    else:
        click.echo(text(report, cast("Format", form), terminal_width()))
