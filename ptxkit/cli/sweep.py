"""``ptxkit sweep``: searches the tile parameters of a kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._cluster import CLUSTER, connection, device_of, tell
from ptxkit.cli._commands import Commands
from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._kernel import find_kernel, kernel_argument
from ptxkit.cli._options import (
    Seconds,
    WholeNumber,
    device_option,
    kernel_option,
    on_cluster,
    parse_arch,
    parse_pairs,
    refuse_options,
    renamed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._signals import Stop
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.peers import Peer
    from ptxkit.cluster.connection import Connection
    from ptxkit.cluster.executor import ClusterExecutor
    from ptxkit.runtime.device import Device
    from ptxkit.sweep.problem import Problem, Space
    from ptxkit.sweep.report import Outcome
    from ptxkit.sweep.run import Sweep
    from ptxkit.sweep.search import Search
    from ptxkit.workload.workload import Workload

DEFAULT = "micro_tiling_matmul"
EXHAUSTIVE_UP_TO = 256  # configurations; larger spaces are searched
GUIDED_SHARE = 0.15  # share of a larger space that a search evaluates
GUIDED_LEAST = 48  # configurations that a search evaluates at least
LISTED_UP_TO = 2048  # configurations, above which --evaluations takes the first ones or a sample instead of a list of all
GUIDED_SAMPLE = 1024  # configurations of a sample at least, among which the guided search selects


@click.group(cls=Commands)
def command() -> None:
    """Search the tile parameters of a kernel."""


HEADINGS = {
    "Kernel": ("--tile", "--option", "--seed"),
    "Search": ("--search", "--evaluations", "--t1", "--timeout", "--jobs"),
    "Device": ("--device", "--arch"),
    "Cluster": CLUSTER,
    "Journal": ("--journal", "--fresh"),
    "Output": ("--top", "--peers", "--json", "--t4", "--heatmap", "--axes"),
    "Result": ("--apply",),
}


@command.command(
    "tiles",
    cls=HeadedCommand,
    headings=HEADINGS,
    context_settings={"ignore_unknown_options": True},  # so that -5 is parsed as a size and refused there
)
@click.argument("kernel", default=DEFAULT, metavar="[KERNEL[:VARIANT]]", shell_complete=kernel_argument)
@click.argument("numbers", nargs=-1, metavar="[SIZE]...")
@click.option("--search", "how", type=click.Choice(["auto", "exhaustive", "random", "guided"]), default="auto",
              show_default=True,
              help=f"Choose configurations; auto: all of up to {EXHAUSTIVE_UP_TO}, else guided, "
                   "or random without scikit-learn.")  # fmt: skip
@click.option(
    "--evaluations",
    type=WholeNumber(1),
    metavar="N",
    help="Evaluate at most this many configurations; "
    f"default: {GUIDED_SHARE:.0%} of a space of more than {EXHAUSTIVE_UP_TO}.",
)
@tile_option
@kernel_option
@click.option(
    "--t1",
    "t1_file",
    type=click.Path(),
    help="Take the values and conditions of tile parameters from this file in T1, the format for tuning problems of "
    "github.com/odgaard/TuningSchema.",
)
@click.option(
    "--arch", metavar="TARGET", help="Compile for this target instead of the device's own; only without a GPU."
)
@device_option
@on_cluster
@click.option(
    "--jobs",
    type=WholeNumber(1, 512),
    metavar="N",
    help="Compile in this many processes; default: one for each processor.",
)
@renamed_option("--workers", "--jobs")
@click.option("--timeout", type=Seconds(min=0.1), default=30.0, show_default=True, metavar="SECONDS",
              help="Stop a configuration that takes longer, and record it as hanging.")  # fmt: skip
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Generate the inputs, the sample of a large space and the order of the search from this seed.",
)
@click.option(
    "--journal", "journal_file", type=click.Path(), help="Append each configuration to this file when it is known."
)
@click.option("--fresh", is_flag=True, help="Start a new journal and keep the old one beside it.")
@click.option(
    "--top", type=WholeNumber(1), default=10, show_default=True, metavar="N", help="Show this many rows in the table."
)
@click.option(
    "--peers",
    "peer_names",
    metavar="NAMES",
    default="none",
    show_default=True,
    help="Compare the best tile with these peers.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all results (ptxkit.sweep/1) to FILE, - for stdout.")
@click.option(
    "--t4",
    "t4_file",
    type=click.Path(),
    help="Write the results to this file in T4 1.0.0, the format for tuning results of github.com/odgaard/TuningSchema.",
)
@click.option("--heatmap", type=click.Path(), help="Draw the best time over two parameters to this .svg, .png or .pdf.")
@click.option(
    "--axes",
    metavar="X,Y",
    help="Draw the heat map over these two parameters; without it, over the two that change the time most.",
)
@click.option(
    "--apply", "apply_it", is_flag=True, help="Record the best tile for this GPU; run and bench use it from then on."
)
def tiles(kernel: str, numbers: tuple[str, ...], **given: Any) -> int:
    """Find the best tile parameters of a kernel.

    VARIANT: the variant to search; the default is the last one with a tile space. SIZE: the sizes of the kernel.

    On a GPU configurations are compiled in a pool of processes while one process verifies and times what is ready; the best
    are then measured against each other. Without a GPU they are verified in the emulator and ranked by a model of what they
    execute. After an interruption the same command resumes the sweep, with or without --cluster.
    """
    with connection(given["cluster"], given["tls"], given["insecure"], given["jobs"]) as cluster:
        return _tiles(kernel, numbers, given, cluster)


def _tiles(kernel: str, numbers: tuple[str, ...], given: dict[str, Any], cluster: Connection | None) -> int:
    from ptxkit.cli import _sweep_outputs
    from ptxkit.cli._text import to_stderr
    from ptxkit.sweep import report
    from ptxkit.sweep.journal import Journal, default_path
    from ptxkit.sweep.problem import with_known
    from ptxkit.sweep.run import Sweep
    from ptxkit.workload.ahead import is_slow, processes
    from ptxkit.workload.memory import check_memory

    device = device_of(given["device_kind"], cluster)
    with stdout_set_aside():
        problem = _problem(kernel, numbers, given, device)
        check_memory(problem.workload, device)
        space = _space(given, problem)
    if given["journal_file"] == "":
        raise UsageError("--journal takes the name of a file")
    path = Path(given["journal_file"]) if given["journal_file"] else default_path(problem, device.name)
    outputs = _sweep_outputs.checked(given, problem, device, path)
    peers = _sweep_outputs.checked_peers(given["peer_names"], problem, device)
    if peers and cluster is not None:
        raise UsageError("--peers measures on this machine only; leave it out with --cluster")
    if given["fresh"]:
        _put_aside(path)
    journal = Journal(path, problem, device.name)
    if journal.unread:
        lines = "1 line is no entry and is" if journal.unread == 1 else f"{journal.unread} lines are no entries and are"
        to_stderr(f"{path}: {lines} ignored", fg="yellow")
    space = with_known(problem, space, (entry.key for entry in journal.entries))
    search, evaluations = _search(given, problem, space, device.multiprocessors)
    shown = 0 if outputs.json_file == "-" else outputs.top
    timed = device.times
    sweep = Sweep(problem, search, journal, evaluations, timed, timeout_s=given["timeout"], seed=given["seed"], shown=shown)
    if given["jobs"]:
        sweep.workers = given["jobs"]
    elif is_slow(problem.workload, problem.chosen):
        sweep.workers = processes(sweep.workers)
    if cluster is not None:
        sweep.executor = _executor(cluster, sweep, device)
    stop = Stop()
    outcome = _swept(sweep, space, device, peers, stop)
    if stop.reason is not None:
        known = _kept(len(journal.entries), path)
        if not outcome.entries:
            to_stderr(known)
            raise stop.reason
        outcome = replace(outcome, partial=True)
    if sweep.trouble:
        to_stderr(sweep.trouble, fg="yellow")
    failure = outputs.write(outcome)
    outputs.show(outcome, path)
    if stop.reason is not None:
        to_stderr(known)
        raise stop.reason
    if failure is not None:
        raise failure
    if outcome.best is None:
        to_stderr("error: no configuration is verified", fg="red")
        return report.exit_code(outcome.entries)
    outputs.record(outcome)
    return 0


def _kept(count: int, path: Path) -> str:
    """What a stopped sweep says about its journal."""
    from ptxkit.cli._text import number_of

    if not count:
        return f"no configuration is known yet; the same command starts again, with {path}"
    return f"{number_of(count, 'configuration')} {'is' if count == 1 else 'are'} in {path}; the same command goes on from there"


def _swept(sweep: Sweep, space: Space, device: Device, peers: Sequence[Peer], stop: Stop) -> Outcome:
    """Run the sweep; the outcome is partial if it was stopped."""
    from ptxkit.cli._progress import progress
    from ptxkit.sweep.report import Outcome

    begin = time.perf_counter()
    with stop.kept(), stdout_set_aside(), progress() as say:
        sweep.run(say)
    outcome = Outcome(
        sweep.problem,
        space,
        sweep.entries(),
        device.name,
        sweep.timed,
        time.perf_counter() - begin,
        sweep.reused,
        sweep.measured,
        spent=sweep.spent,
        mixes=sweep.mixes,
        agreement=sweep.agreement,
    )
    if sweep.timed and stop.reason is None and sweep.executor is None:
        with stop.kept(), stdout_set_aside():
            outcome = _with_roofs(outcome, device, peers, sweep.seed)
    return outcome


def _executor(cluster: Connection, sweep: Sweep, device: Device) -> ClusterExecutor:
    from ptxkit.cluster.executor import ClusterExecutor

    return ClusterExecutor(
        cluster,
        sweep.problem,
        sweep.seed,
        sweep.timeout_s,
        timed=sweep.timed,
        say=tell,
        gpu=device.name if sweep.timed else None,
    )


def _put_aside(path: Path) -> None:
    """Rename a journal, with the time in its new name, without replacing another file.

    Raises:
        UsageError: another sweep is writing to it. FileAccessError: it cannot be renamed.
    """
    from ptxkit.files import refused
    from ptxkit.sweep.journal_lock import lock

    if not path.is_file():
        return
    lock(path)
    stamp = f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"
    names = (path.with_name(name) for name in (stamp, *(f"{stamp}-{number}" for number in range(2, 1000))))
    try:
        path.rename(next(name for name in names if not name.exists()))
    except OSError as error:
        raise refused(path, error, "rename") from None


def _problem(kernel: str, numbers: Sequence[str], given: Any, device: Any) -> Problem:
    from ptxkit.cli._text import to_stderr
    from ptxkit.runtime.device import is_emulating
    from ptxkit.sweep.problem import Problem
    from ptxkit.targets import lowest_target
    from ptxkit.workload.resolve import unavailable

    refuse_options(numbers)
    name, _, variant_name = kernel.partition(":")
    found: type[Workload] = find_kernel(name)
    workload = found.make(list(numbers), parse_pairs(given["options"], "--option"), small=is_emulating(device))
    variants = {k: v for k, v in found.variants().items() if v.tile}
    if variant_name:
        variant = found.variant(variant_name)
    elif variants:
        usable = [v for v in variants.values() if unavailable(v, device.target, workload) is None]
        variant = (usable or list(variants.values()))[-1]
    else:
        raise UsageError(f"{found.name} declares no tile parameters; there is nothing to sweep")
    target = parse_arch(given["arch"]) or device.target or lowest_target(variant.requires)
    fixed = variant.held(workload, parse_pairs(given["tiles"], "--tile"))
    space = {}
    if given["t1_file"]:
        from ptxkit.sweep import t1

        space = dict(t1.read(given["t1_file"]).values)
        for parameter, values in space.items():
            if parameter not in variant.tile:
                known = ", ".join(variant.tile)
                raise UsageError(f"{given['t1_file']}: {found.name}:{variant.name} has no {parameter}; it has {known}")
            unknown = [str(v) for v in values if v not in variant.tile[parameter]]
            if unknown:
                to_stderr(
                    f"{given['t1_file']}: {variant.name} offers no {parameter} of {', '.join(unknown)}", fg="yellow"
                )
    options = workload.options
    return Problem(name, variant.name, workload.sizes, options, target.name, fixed, space, device.facts_for(target))


def _space(given: Any, problem: Problem) -> Space:
    """The tiles to search: all, or with ``--evaluations`` of a large space the first ones or a random sample."""
    from ptxkit.sweep import t1
    from ptxkit.sweep.problem import drawn, explore

    evaluations, how = given["evaluations"], given["how"]
    if given["t1_file"] and t1.read(given["t1_file"]).conditions:
        return _conditioned(explore(problem), given["t1_file"])
    if evaluations is None:
        return explore(problem)
    count = max(GUIDED_SAMPLE, round(evaluations / GUIDED_SHARE)) if how in ("auto", "guided") else evaluations
    space = explore(problem, max(LISTED_UP_TO, count))
    if space.complete or how == "exhaustive":
        return space
    return drawn(problem, count, given["seed"], preferred=how != "random") or explore(problem)


def _conditioned(space: Space, file: str) -> Space:
    from ptxkit.sweep import t1

    conditions = t1.read(file)
    kept = tuple(tile for tile in space.tiles if conditions.allows(tile))
    if not kept:
        raise UsageError(f"{file}: no tile meets its conditions")
    return replace(space, tiles=kept, refused={**space.refused, "T1 conditions": len(space.tiles) - len(kept)})


def _search(given: Any, problem: Problem, space: Space, sms: int) -> tuple[Search, int]:
    from importlib.util import find_spec

    from ptxkit.cli._text import to_stderr
    from ptxkit.sweep import search
    from ptxkit.sweep.problem import shape_of

    count = len(space.tiles)
    how = given["how"]
    if how == "auto":
        how = "exhaustive" if count <= EXHAUSTIVE_UP_TO else "guided"
        if how == "guided" and find_spec("sklearn") is None:
            how = "random"
            to_stderr("searched at random: pip install 'ptxkit[sweep]' gives a search guided by a model", fg="yellow")
    share = count if how == "exhaustive" else min(count, max(GUIDED_LEAST, round(GUIDED_SHARE * count)))
    evaluations = min(count, given["evaluations"] or share)
    made: Search
    if how == "guided":
        features = search.described(problem.axes, partial(shape_of, problem), sms)
        made = search.Guided(space.tiles, features, given["seed"])
    elif how == "random":
        made = search.shuffled(space.tiles, given["seed"])
    else:
        made = search.exhaustive(space.tiles)
    return made, evaluations


def _with_roofs(outcome: Outcome, device: Any, peers: Sequence[Peer], seed: int) -> Outcome:
    """The outcome with its ceiling and the best peer, measured in this process now that nothing else uses the GPU."""
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.measure.benchmark import Benchmark
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.measure.new_process import in_new_process
    from ptxkit.bench.measure.roofs import roofs
    from ptxkit.bench.results.ceiling import ceiling

    work = outcome.problem.workload.work()
    bound = ceiling(work.executed, work.bytes, work.unit, roofs(device, [work]))
    outcome = replace(outcome, ceiling=bound)
    if not peers or outcome.best is None:
        return outcome
    plan = Plan(outcome.problem.workload, (outcome.problem.variant,), {outcome.problem.variant: outcome.best.tile})
    method = Method(budget_s=1.0)
    results = Benchmark(device, peers, method=method, seed=seed, counts=False, when_lost=in_new_process).run([plan])
    best = results.cases[0].best("peer", "cold")
    if best is None or best.cold is None:
        return outcome
    return replace(outcome, best_peer=(best.name, best.cold.median_us))
