"""``ptxkit bench``: kernels measured against what people would use instead, and results held against each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._kernel import kernel_argument, parse_pairs, peer_list
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.results import Results, Target
    from ptxkit.bench.tables import Table
    from ptxkit.bench.targets import Plan

FORMATS = click.Choice(["table", "markdown", "csv"])


@click.group()
def command() -> None:
    """Measure kernels against their peers, and hold results against each other."""


@command.command("list")
@click.option("--format", "kind", type=FORMATS, default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def list_(kind: Any, as_json: bool) -> int:
    """What can be measured: kernels, sizes, variants, and the peers that know them."""
    from ptxkit.bench import tables
    from ptxkit.bench.peers import every, peers
    from ptxkit.bench.targets import plans
    from ptxkit.cli._text import print_json

    absent = peers(None)[1]
    known = every()
    lines = []
    for plan in plans(()):
        w = plan.workload
        sizes = " ".join(f"{k}={v}" for k, v in {**w.sizes, **_changed(plan)}.items())
        lines.append((w.name, sizes, " ".join(w.variants()), " ".join(p.name for p in known if p.offers(w)) or "-"))
    if as_json:
        names = ("kernel", "sizes", "variants", "peers")
        print_json([dict(zip(names, line, strict=True)) for line in lines])
        return 0
    click.echo(_rendered(tables.list_table(lines), kind))
    for name, reason in absent:
        click.echo(f"{name}: not here, {reason}", err=kind == "csv")
    return 0


@command.command("run")
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=kernel_argument)
@click.option("--sizes", metavar="SIZES", help="Instead of the kernels' own: 8192x4096,128x4096.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Set an option of the kernels.")
@click.option("--tile", "tiles", multiple=True, metavar="NAME=VALUE", help="Hold a tile parameter.")
@click.option("--peers", "peer_names", metavar="NAMES", help="Only these: torch,compile,triton; none for none.")
@click.option("--iterations", type=click.IntRange(2, 1_000_000), help="Exactly so many samples of each contender.")
@click.option("--time-budget", type=click.FloatRange(min=0.01), default=2.0, show_default=True, metavar="SECONDS",
              help="Of measuring, for each target.")  # fmt: skip
@click.option("--profile", type=click.Choice(["none", "ncu", "nsys", "torch"]), default="none", show_default=True,
              help="Run each contender once more under a profiler.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--device", "device_kind", type=click.Choice(["auto", "gpu", "emulator"]), default="auto", show_default=True
)
@click.option("--no-counts", is_flag=True, help="Do not count traffic in the emulator besides.")
@click.option("--format", "kind", type=FORMATS, default="table", show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the results (ptxkit.bench/2) there; - for stdout.")
@click.option("--check", is_flag=True, help="Exit with 1 when a variant is slower than this GPU's expectations.")
@click.option("--update-expectations", is_flag=True, help="Record the results as this GPU's expectations.")
def run(
    targets: tuple[str, ...],
    sizes: str | None,
    options: tuple[str, ...],
    tiles: tuple[str, ...],
    peer_names: str | None,
    iterations: int | None,
    time_budget: float,
    profile: str,
    seed: int,
    device_kind: str,
    no_counts: bool,
    kind: Any,
    json_file: str | None,
    check: bool,
    update_expectations: bool,
) -> int:
    """Measure TARGETs (KERNEL, KERNEL:VARIANT or a description file; all bundled kernels if none) and their peers.

    On a GPU, contenders are timed cold and hot, interleaved, and verified before and after. The emulator has no times; there
    the traffic and the intensity of every variant are counted.

    Ctrl-C and SIGTERM end it early: what is measured by then is shown, written (marked as partial), checked and recorded.

    Exit codes: 0 measured, 1 a wrong result, an alarm or (--check) a kernel that became slower, 2 usage, 3 no such device,
    peer or profiler, 5 fault, 130 interrupted, 143 terminated.
    """
    from ptxkit.bench import expectations
    from ptxkit.bench.method import Method
    from ptxkit.bench.peers import peers
    from ptxkit.bench.profilers import find, profiled
    from ptxkit.bench.run import BenchRun, require_gpu
    from ptxkit.bench.targets import parse_sizes, plans
    from ptxkit.cli import _run_text
    from ptxkit.cli._signals import terminable
    from ptxkit.cli._text import print_json
    from ptxkit.cli.run import stdout_set_aside
    from ptxkit.errors import PtxkitError
    from ptxkit.files import write_json
    from ptxkit.runtime.device import device as open_device

    wanted_sizes = parse_sizes(sizes) if sizes else ()
    held, tile = parse_pairs(options, "--option"), parse_pairs(tiles, "--tile")
    names = None if peer_names is None else peer_list(peer_names)
    device = open_device(device_kind)
    for given, what in (
        (check, "--check"),
        (update_expectations, "--update-expectations"),
        (profile != "none", "--profile"),
    ):
        if given:
            require_gpu(device, what)
    if profile != "none":
        find(profile)  # said now rather than after minutes of measuring
    expected = expectations.load(expectations.path_for(device.name)) if check else None
    chosen = plans(targets, wanted_sizes, held, small=device.kind == "emulator")
    _check_tile(tile, chosen)
    found, absent = peers(names)  # a misspelt name is said on any device
    if device.kind != "gpu":
        found, absent = [], []
    bench = BenchRun(
        device,
        found,
        dict(absent),
        Method(budget_s=time_budget, iterations=iterations),
        seed,
        tile,
        not no_counts,
        _words(),
    )

    known: list[Results] = []
    stopped: BaseException | None = None

    def done(results: Results) -> None:
        known[:] = [results]
        if json_file and json_file != "-":
            write_json(json_file, results.to_json())

    with stdout_set_aside(json_file == "-"), _run_text.progress() as say:
        try:
            with terminable():
                results = bench.run(chosen, say, done)
                if profile != "none":
                    profiled(results, profile, say, done)
        except (KeyboardInterrupt, PtxkitError, MemoryError) as error:
            if not known or not known[0].targets:
                raise
            stopped = error
    results = known[0]
    if json_file == "-":
        print_json(results.to_json())
    else:
        _show(results, kind)
    code = _complain(results)
    if expected is not None:
        code = max(code, _held(expected, results))
    if update_expectations:
        path = expectations.path_for(device.name)
        before = expectations.load(path) if path.is_file() else None
        expectations.save(path, expectations.updated(before, results))
        click.echo(f"recorded in {path}", err=True)
    if stopped is not None:
        click.echo(f"stopped: {len(results.targets)} of {len(chosen)} targets are measured", err=True)
        raise stopped
    return code


@command.command("compare")
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path(), required=False)
@click.option("--format", "kind", type=FORMATS, default="table", show_default=True)
def compare(before: str, after: str | None, kind: Any) -> int:
    """Hold two results against each other, time by time; of one alone, its variants against the unfused baseline."""
    from ptxkit.bench import results, tables

    first = results.load(before)
    if after is None:
        shown = [tables.variants_table(target) for target in first.targets]
        click.echo("\n\n".join(_rendered(t, kind) for t in shown))
        return 0
    click.echo(_by_target([tables.compare_table(first, results.load(after))], kind))
    return 0


@command.command("verify")
@click.argument("receipt", type=click.Path())
@click.option(
    "--peers", "peer_names", metavar="NAMES", help="Of the receipt's, only these: torch,triton; none for none."
)
@click.option("--time-budget", type=click.FloatRange(min=0.01), metavar="SECONDS", help="Instead of the receipt's.")
@click.option("--json", "json_file", metavar="FILE", help="Write the new results (ptxkit.bench/2) there.")
@click.option("--format", "kind", type=FORMATS, default="table", show_default=True)
def verify(receipt: str, peer_names: str | None, time_budget: float | None, json_file: str | None, kind: Any) -> int:
    """Run a RECEIPT (a file of bench run --json) again, with its peers, by its method; say same, faster, slower or ambiguous
    of each contender, how far ours are from the peers then and now, and what changed.

    Exit codes: 0 same, faster or ambiguous, 1 a variant is slower or a result wrong, 2 usage, 3 no GPU. A peer that became
    slower or is not here any more is said and no more.
    """
    from ptxkit.bench import receipts, results, tables
    from ptxkit.bench.comparison import compared
    from ptxkit.cli import _run_text
    from ptxkit.files import write_json
    from ptxkit.runtime.device import device as open_device

    before = results.load(receipt)
    wanted = None if peer_names is None else peer_list(peer_names)
    with _run_text.progress() as say:
        after, changes = receipts.again(before, open_device("auto"), time_budget, wanted, say)
    if json_file:
        write_json(json_file, after.to_json())
    if after.device_kind == "gpu":
        found = (tables.compare_table(before, after), tables.distance_table(before, after))
        click.echo(_by_target([table for table in found if table is not None], kind))
    for change in changes:
        click.echo(change)
    code = _complain(after)
    slower = any(c.kind == "variant" and c.judgement.word == "slower" for c in compared(before, after))
    return 1 if slower else code


@command.command("roofline")
@click.argument("result", metavar="RESULTS", type=click.Path())
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("-o", "--output", metavar="FILE", help="Draw it there: .svg, .png or .pdf. Needs matplotlib.")
@click.option("--mode", type=click.Choice(["cold", "hot"]), default="cold", show_default=True)
def roofline(result: str, kernels: tuple[str, ...], output: str | None, mode: Any) -> int:
    """Where the variants of RESULTS, of these KERNELs or all, stand under the roofs of their run: as text, or drawn."""
    from ptxkit.bench import results, roofline
    from ptxkit.cli._text import terminal_width

    loaded = results.load(result).of_kernels(kernels)
    if output is None:
        click.echo(roofline.text(loaded, mode, width=terminal_width()))
    else:
        roofline.draw(loaded, output, mode)
        click.echo(f"drawn to {output}", err=True)
    return 0


def _rendered(table: Table, kind: Any) -> str:
    from ptxkit.bench.tables import render
    from ptxkit.cli._text import terminal_width

    return render(table, kind, terminal_width())


def _by_target(found: list[Table], kind: Any) -> str:
    from ptxkit.bench.tables import by_target

    return "\n\n".join(_rendered(part, kind) for table in found for part in by_target(table, kind))


def _changed(plan: Plan) -> dict[str, Any]:
    """Options that are not the defaults."""
    defaults = type(plan.workload)()
    return {k: v for k, v in plan.workload.options.items() if v != getattr(defaults, k)}


def _check_tile(tile: dict[str, str], chosen: list[Plan]) -> None:
    for name in tile:
        if not any(name in v.tile for plan in chosen for v in plan.workload.variants().values()):
            known = dict.fromkeys(n for plan in chosen for v in plan.workload.variants().values() for n in v.tile)
            raise UsageError(
                f"none of these kernels has a tile parameter {name}; there are {', '.join(known) or 'none'}"
            )


def _words() -> list[str]:
    return ["ptxkit", *sys.argv[1:]]


def _show(results: Results, kind: Any) -> None:
    from ptxkit.bench import details, tables

    roof = results.roofs.copy_gbs if results.roofs else None
    parts = []
    for target in results.targets:
        found = (tables.target_table(target, roof), details.traffic_table(target), details.accuracy_table(target))
        shown = [table for table in found if table is not None]
        parts += [_rendered(t, kind) for t in ([tables.joined(shown)] if kind == "csv" else shown)]
    notes = []
    if results.roofs:
        peaks = ", ".join(f"{unit} {value:.4g} TFLOP/s" for unit, value in results.roofs.peak_tflops.items())
        notes.append(
            f"{results.device}: copy {results.roofs.copy_gbs:.0f} GB/s, in L2 {results.roofs.l2_gbs:.0f} GB/s, {peaks}, all "
            "measured in this run. ± is half the interquartile range. How: docs/benchmarking.md."
        )
    else:
        notes.append(
            "Counts are exact, of PTX instructions; the emulator has no times. x least: bytes over the least there are."
        )
    notes += [f"{name}: not here, {reason}" for name, reason in results.absent.items()]
    click.echo("\n\n".join([*parts]) if kind == "csv" else "\n\n".join([*parts, "\n".join(notes)]))


def _complain(results: Results) -> int:
    """Exit code 1 and a line on stderr for each result that nobody should believe."""
    from ptxkit.cli._text import to_stderr

    code = 0
    for target in results.targets:
        for row in target.rows:
            for complaint in _complaints(target, row):
                to_stderr(f"error: {complaint}", fg="red")
                code = 1
    return code


def _complaints(target: Target, row: Any) -> list[str]:
    where = f"{target.key} {row.name}"
    found = [f"{where}: {alarm}" for alarm in row.alarms]
    if row.kind == "variant" and row.error:
        found.append(f"{where}: {row.error}")
    if row.verified is False:
        found.append(f"{where}: wrong result: {row.worst}")
    return found


def _held(expected: Any, results: Results) -> int:
    from ptxkit.bench import expectations
    from ptxkit.cli._text import to_stderr

    held = list(expectations.check(expected, results))
    for h in held:
        if h.judgement.word == "slower":
            times = f"{h.found_us:.4g} us, expected {h.expected_us:.4g} us"
            to_stderr(f"error: {h.target} {h.row} {h.mode}: {times}: {h.judgement}", fg="red")
    if not held:
        raise UsageError("none of these targets has an expectation; record some with --update-expectations")
    slower = sum(h.judgement.word == "slower" for h in held)
    click.echo(f"{len(held)} times held against expectations: {slower} slower", err=True)
    return int(slower > 0)
