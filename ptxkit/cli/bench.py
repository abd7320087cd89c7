"""``ptxkit bench``: measures kernels and their peers, and compares results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ptxkit.cli._bench_measured import check_tile, check_words
from ptxkit.cli._bench_options import (
    FORMATS,
    SECONDS,
    budget_option,
    format_option,
    iterations_option,
    limit_option,
    peers_option,
    results_option,
    sizes_option,
    without_times,
)
from ptxkit.cli._bench_overhead import overhead
from ptxkit.cli._bench_shapes import shapes
from ptxkit.cli._bench_views import ladder, precision
from ptxkit.cli._cluster import CLUSTER, device_of, joined, tell
from ptxkit.cli._commands import Commands
from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._kernel import kernel_argument, peer_list
from ptxkit.cli._options import (
    arch_option,
    device_option,
    group_option,
    is_given,
    kernel_option,
    max_instructions_option,
    on_cluster,
    parse_arch,
    parse_pairs,
    seed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError
from ptxkit.exit_codes import most_severe


@click.group(cls=Commands, renamed={"verify": "rerun"})
def command() -> None:
    """Measure kernels and their peers, and compare results."""


@command.command("list")
@format_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array on stdout.")
def list_(kind: Any, as_json: bool) -> int:
    """List the kernels that can be measured.

    The table shows their sizes and variants, and the peers that support them.
    """
    from ptxkit.bench.cases import plans
    from ptxkit.bench.peers import every, peers
    from ptxkit.bench.report import csv_text, tables
    from ptxkit.cli import _bench_text
    from ptxkit.cli._text import print_json, to_stderr

    with stdout_set_aside():
        known = every()
        lines = [_bench_text.listed(plan, known) for plan in plans(())]
    if as_json:
        print_json(lines)
        return 0
    cells = [list(line.values()) for line in lines]
    text = csv_text.written(list(lines[0]), cells) if kind == "csv" else None
    click.echo(text or _bench_text.rendered([tables.list_table(cells)], kind))
    with stdout_set_aside():
        absent = [f"{name}: not available, {reason}" for name, reason in peers(None)[1]]
    if absent:
        say = to_stderr if kind == "csv" else click.echo
        say("\n".join(["", *absent]))
    return 0


RUN_HEADINGS = {
    "Kernels": ("--group", "--sizes", "--option", "--tile", "--seed"),
    "Measurement": ("--device", "--arch", "--peers", "--iterations", "--time-budget", "--profile", "--profile-dir",
                    "--profile-sections"),
    "Counts in the emulator": ("--no-counts", "--max-instructions"),
    "Cluster": (*CLUSTER, "--timeout"),
    "Output": ("--format", "--json"),
    "Expectations": ("--check", "--update-expectations", "--unrecorded", "--stop-after"),
}


@command.command("run", cls=HeadedCommand, headings=RUN_HEADINGS)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=kernel_argument)
@group_option
@sizes_option
@kernel_option
@tile_option
@peers_option
@iterations_option
@budget_option
@click.option("--profile", type=click.Choice(["none", "ncu", "nsys", "torch"]), default="none", show_default=True,
              help="Run each variant and peer once more under a profiler.")  # fmt: skip
@click.option("--profile-dir", metavar="DIRECTORY", help="Keep the profiler's reports in this directory: "
              ".ncu-rep, .nsys-rep or a Chrome trace.")  # fmt: skip
@click.option("--profile-sections", metavar="LIST", default="minimal", show_default=True, help="Collect these sections of "
              "Nsight Compute: minimal (the counters of the table), full, or names, separated by commas.")  # fmt: skip
@seed_option
@device_option
@arch_option
@on_cluster
@limit_option
@click.option("--no-counts", is_flag=True, help="Leave out the counts that the emulator makes beside a GPU.")
@max_instructions_option
@format_option
@results_option
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 1 if a variant is slower than this GPU's expectations, or in the emulator counts more than the target's. "
    "Without KERNEL, the emulator runs the recorded cases.",
)
@click.option(
    "--update-expectations",
    is_flag=True,
    help="Record the times as this GPU's expectations, or in the emulator the counts as the target's, after each case.",
)
@click.option(
    "--unrecorded",
    is_flag=True,
    help="Measure only the cases that are not among the expectations, or not with the variant that is chosen now; leave out "
    "those for which there is too little memory.",
)
@click.option("--stop-after", type=SECONDS, metavar="SECONDS", help="Begin no further case after this time.")
def run(
    kernels: tuple[str, ...],
    groups: tuple[str, ...],
    sizes: str | None,
    options: tuple[str, ...],
    tiles: tuple[str, ...],
    peer_names: str | None,
    iterations: int | None,
    time_budget: float,
    profile: str,
    profile_dir: str | None,
    profile_sections: str,
    seed: int,
    device_kind: str,
    arch: str | None,
    cluster: str | None,
    tls: str | None,
    insecure: bool,
    timeout: float | None,
    no_counts: bool,
    max_instructions: int | None,
    kind: Any,
    json_file: str | None,
    check: bool,
    update_expectations: bool,
    unrecorded: bool,
    stop_after: float | None,
) -> int:
    """Measure kernels and their peers.

    KERNEL: a name, NAME:VARIANT, a pattern such as 'attention*' or a description file; without one, all kernels are measured,
    or all of --group.

    On a GPU, variants and peers are timed cold and hot with interleaved samples, and verified before and after. The emulator
    has no times; there the memory traffic and the arithmetic intensity of every variant are counted, and --check compares
    counts, which guards a kernel on machines without a GPU.

    Ctrl-C and SIGTERM end it early: what was measured by then is shown, written (marked as partial), checked and recorded.

    The exit code is 1 for a wrong result, an impossible time, a variant without a time, and with --check for a variant
    that became slower or counts more than expected, or is recorded and no longer exists.
    """
    from ptxkit.bench.cases import parse_sizes, plans
    from ptxkit.bench.measure.environment import require_gpu
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.measure.profilers import MINIMAL, Profile
    from ptxkit.cli import _bench_text, _bench_verdict
    from ptxkit.cli._bench_expected import Expectations
    from ptxkit.cli._bench_kept import Kept
    from ptxkit.cli._bench_measured import Setup
    from ptxkit.cli._text import print_json, to_stderr
    from ptxkit.runtime.device import is_emulating, is_timed
    from ptxkit.runtime.registry import AUTO
    from ptxkit.workload import registry

    wanted_sizes = () if sizes is None else parse_sizes(sizes)
    given_options, tile = parse_pairs(options, "--option"), parse_pairs(tiles, "--tile")
    names = None if peer_names is None else peer_list(peer_names)
    target = parse_arch(arch)
    if stop_after is not None and cluster is not None:
        raise UsageError("--stop-after is for this machine; leave it out with --cluster")
    if unrecorded and check:
        raise UsageError("--check compares with what is recorded, and --unrecorded measures what is not; leave out one of them")
    kept = Kept(json_file)
    if cluster is not None:
        with stdout_set_aside():  # what is wrong is known before workers are started
            check_words(registry.selected(kernels) if kernels else (), names)
        if profile != "none":
            raise UsageError("--profile runs on this machine only; leave it out with --cluster")
    workers = joined(cluster, tls, insecure, timeout)
    device = device_of(device_kind, workers)
    if workers is not None and update_expectations and is_timed(device):
        raise UsageError("--update-expectations records the times of one GPU; leave it out with --cluster")
    how: Profile | None = None
    if profile != "none":
        require_gpu(device, "--profile", chosen=device_kind != AUTO)
        how = Profile(profile, None if profile_dir is None else Path(profile_dir), tuple(profile_sections.split(",")))
        how.check()  # a missing profiler is reported now rather than after minutes of measuring
    elif profile_dir is not None or profile_sections != MINIMAL:
        option = "--profile-dir" if profile_dir is not None else "--profile-sections"
        raise UsageError(f"{option} is for a profiler; give --profile ncu, nsys or torch")
    if no_counts and not is_timed(device):
        raise UsageError("--no-counts is for a GPU; the emulator has no times, only counts: leave it out")
    expected = Expectations(device, target, check=check, update=update_expectations)
    with stdout_set_aside():
        kernels = registry.selected(kernels, groups) if groups else kernels
        if expected.of_counts and check and not (kernels or update_expectations or wanted_sizes or given_options):
            chosen = expected.every_plan()
        else:
            chosen = plans(kernels, wanted_sizes, given_options, small=is_emulating(device))
        chosen = expected.as_recorded(chosen, seed=is_given("seed"), tile=bool(tile))
        every, chosen = chosen, expected.unrecorded(chosen) if unrecorded else chosen
    if not chosen:
        click.echo(f"all of {len(every)} cases are recorded in {expected.path}", err=json_file == "-")
        return 0
    kept.also = expected.enter
    check_tile(tile, chosen)
    setup = Setup(
        device,
        Method(budget_s=time_budget, iterations=iterations),
        peers=names,
        seed=seed,
        tile=tile,
        counts=not no_counts,
        target=target,
        leave_out=not kernels or unrecorded,
        max_instructions=max_instructions,
        cluster=workers,
        limit_s=timeout,
        stop_after_s=stop_after,
    )
    notes = [] if is_timed(device) else without_times(iterations=iterations, peers=names)
    kept = setup.measured(chosen, kept, how)
    results = kept.results
    if json_file == "-":
        print_json(results.to_json())
    else:
        with stdout_set_aside():  # work() of a description may print
            text = _bench_text.results_text(results, kind, notes)
        click.echo(text)
    code = _bench_verdict.complain(results)
    code = most_severe([code, expected.checked_and_recorded(results)])
    kept.end(len(chosen))
    if stop_after is not None and results.partial:
        to_stderr(f"--stop-after {stop_after:g}: {len(results.cases)} of {len(chosen)} cases are measured")
    return code


@command.command("compare")
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path(), required=False)
@format_option
def compare(before: str, after: str | None, kind: Any) -> int:
    """Compare the times of two result files.

    With one file, compare its variants with the unfused baseline.
    """
    from ptxkit.bench.report import csv_text, tables
    from ptxkit.bench.results import files
    from ptxkit.cli import _bench_text

    first = files.load(before)
    if after is not None:
        click.echo(_bench_text.compared_text(first, files.load(after), kind))
    elif kind == "csv":
        click.echo(csv_text.results_csv(first))
    else:
        click.echo(_bench_text.rendered([tables.variants_table(case) for case in first.cases], kind))
    return 0


@command.command("rerun")
@click.argument("result", metavar="RESULTS", type=click.Path())
@click.option(
    "--peers",
    "peer_names",
    metavar="NAMES",
    help="Run only these of the file's peers: torch,triton; none for no peers.",
)
@click.option("--time-budget", type=SECONDS, metavar="SECONDS", help="Measure each case for about this long.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the new results as JSON (ptxkit.bench/4) to this file; - for stdout.",
)
@format_option
def rerun_results(result: str, peer_names: str | None, time_budget: float | None, json_file: str | None, kind: Any) -> int:
    """Measure the cases of a result file again.

    RESULTS: a file that bench run --json wrote. Its peers and its method are used again. Judge each variant and
    peer as same, faster, slower or ambiguous, show the ratios to the peers before and now, and name what has changed.

    Ctrl-C and SIGTERM end it early: what was measured by then is compared and written.

    The exit code is 1 if a variant is slower or could not be timed again, or a result is wrong; 0 if all are the same, faster
    or ambiguous. A peer that became slower or is not installed any more is reported and does not change the exit code.
    """
    from ptxkit.bench.measure import rerun
    from ptxkit.bench.results import files
    from ptxkit.cli import _bench_text, _bench_verdict
    from ptxkit.cli._bench_kept import Kept
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import print_json, to_stderr
    from ptxkit.runtime.device import device as open_device

    before = files.load(result)
    if not before.cases:
        raise UsageError(f"{result} has no cases; there is nothing to run again")
    wanted = rerun.peers_of(before, None if peer_names is None else peer_list(peer_names))
    kept = Kept(json_file)
    with stdout_set_aside(), progress() as say, kept.measuring():
        rerun.again(before, open_device("auto"), time_budget, wanted, say, kept.done, tell)
    after = kept.results
    if json_file == "-":
        print_json(after.to_json())
    elif after.roofs:
        click.echo(_bench_text.compared_text(before, after, kind, distances=True))
    for change in rerun.changes(before, after, wanted):
        say_change = to_stderr if json_file == "-" or kind == "csv" else click.echo
        say_change(change)
    code = most_severe([_bench_verdict.complain(after), _bench_verdict.rerun(before, after)])
    kept.end(len(before.cases))
    return code


ROOFLINE_HEADINGS = {
    "Times of a result file": ("--output", "--mode"),
    "Documented roofs, without a GPU": ("--arch", "--gpu", "--sizes", "--option", "--format", "--json"),
}


@command.command("roofline", cls=HeadedCommand, headings=ROOFLINE_HEADINGS)
@click.argument("words", nargs=-1, metavar="RESULTS [KERNEL]... | [KERNEL]...")
@click.option("-o", "--output", metavar="FILE", help="Draw to this file: .svg, .png or .pdf. Requires matplotlib.")
@click.option("--mode", type=click.Choice(["cold", "hot"]), help="Show these times; cold by default.")
@click.option(
    "--arch",
    metavar="TARGET",
    help="Compile for this target, such as sm_90a, and place counted intensities below the documented roofs of its GPU.",
)
@click.option(
    "--gpu",
    "gpu_name",
    metavar="NAME",
    help="Use the documented roofs of this GPU, such as B200, or a part of its name.",
)
@click.option(
    "--sizes", metavar="SIZES", help="Count these sizes instead of the emulator's defaults: 256x1024,512x1024."
)
@kernel_option
@click.option("--format", "kind", type=FORMATS, help="Print documented roofs in this format; as a table by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.roofline/1) on stdout.")
def roofline(
    words: tuple[str, ...],
    output: str | None,
    mode: Any,
    arch: str | None,
    gpu_name: str | None,
    sizes: str | None,
    options: tuple[str, ...],
    kind: Any,
    as_json: bool,
) -> int:
    """Show results, or counts of the emulator, below a roofline.

    RESULTS: a file that bench run --json wrote on a GPU. KERNEL: show only these kernels. With --output, draw the roofline.
    A type without a measured peak is compared with the documented one, which is marked as such; without either, the
    bound of the variant is not stated.

    With --arch or --gpu, no GPU and no result file is needed: the emulator runs and verifies each KERNEL (a name, NAME:VARIANT
    or a description file; by default all bundled kernels), and its counted flops per byte are compared with the bandwidth
    and the peak rates of the data sheet. Nothing is timed. The exit code is that of bench run.
    """
    documented = arch is not None or gpu_name is not None
    _refuse_given(
        documented, {"--output": output, "--mode": mode}, "draws or shows the times of a result file", "leave it out"
    )
    counted_only = {"--sizes": sizes, "--option": options, "--format": kind, "--json": as_json}
    _refuse_given(not documented, counted_only, "is for documented roofs", "add --arch or --gpu")
    if documented:
        from ptxkit.cli._bench_views import documented_roofline

        return documented_roofline(words, arch, gpu_name, sizes, options, kind or "table", as_json)
    from ptxkit.bench.report import roofline
    from ptxkit.bench.results import files
    from ptxkit.cli._text import terminal_width, to_stderr
    from ptxkit.figures import check_drawable
    from ptxkit.workload import registry

    if not words:
        raise UsageError(NO_RESULTS)
    if not Path(words[0]).exists() and words[0].partition(":")[0] in registry.names():
        raise UsageError(f"{words[0]} is a kernel; {NO_RESULTS}")
    if output is not None:
        check_drawable(output, roofline.WHAT)
    loaded = files.load(words[0]).of_kernels(words[1:])
    if output is None:
        click.echo(roofline.text(loaded, mode or "cold", width=terminal_width()))
    else:
        roofline.draw(loaded, output, mode or "cold")
        to_stderr(f"drawn to {output}")
    return 0


NO_RESULTS = "give a result file of bench run --json, or --arch TARGET for documented roofs without a GPU"


def _refuse_given(wrong: bool, given: dict[str, Any], why: str, fix: str) -> None:
    for name, value in given.items():
        if wrong and value:
            raise UsageError(f"{name} {why}; {fix}")


command.add_command(ladder)
command.add_command(overhead)
command.add_command(precision)
command.add_command(shapes)
