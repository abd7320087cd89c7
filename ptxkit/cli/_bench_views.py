"""Views of ``ptxkit bench`` on several cases of a kernel, and on machines without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._bench_kept import Kept
from ptxkit.cli._bench_measured import Setup, check_tile
from ptxkit.cli._bench_options import (
    budget_option,
    format_option,
    iterations_option,
    peers_option,
    results_option,
    sizes_option,
    without_times,
)
from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._kernel import kernel_argument, peer_list
from ptxkit.cli._options import (
    WholeNumber,
    arch_option,
    device_option,
    kernel_option,
    parse_arch,
    parse_pairs,
    seed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError, shortened

if TYPE_CHECKING:
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.report.tables import Table
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import Gpu


def documented_roofline(
    words: Sequence[str],
    arch: str | None,
    gpu_name: str | None,
    sizes: str | None,
    options: tuple[str, ...],
    kind: Any,
    as_json: bool,
) -> int:
    """Count kernels in the emulator and print their intensities below documented roofs; return the exit code.

    Raises:
        UsageError: no such GPU or kernel, or a target that the GPU does not run. UnavailableError: no such target.
    """
    from ptxkit.bench.cases import parse_sizes, plans
    from ptxkit.bench.measure.benchmark import Benchmark
    from ptxkit.bench.report import documented_roofline as report
    from ptxkit.cli import _bench_verdict
    from ptxkit.cli._progress import progress
    from ptxkit.runtime.device import emulating_device

    target, gpu = target_and_gpu(parse_arch(arch), gpu_name)
    wanted = () if sizes is None else parse_sizes(sizes)
    with stdout_set_aside(), progress() as say:
        chosen = plans(words, wanted, parse_pairs(options, "--option"), small=True)
        bench = Benchmark(emulating_device(), target=target, leave_out=not words)
        results = bench.run(chosen, say)
        made = report.to_json(results, gpu) if as_json else None
    printed(made, report.csv(results, gpu), [report.table(results, gpu)], kind)
    return _bench_verdict.complain(results)


def printed(made: dict[str, Any] | None, csv: str, tables: Sequence[Table], kind: Any) -> None:
    """Print a view as one JSON object where it is given, else as CSV or as tables."""
    from ptxkit.cli import _bench_text
    from ptxkit.cli._text import print_json

    if made is not None:
        print_json(made)
    else:
        click.echo(csv if kind == "csv" else _bench_text.rendered(tables, kind))


def target_and_gpu(target: Target | None, gpu_name: str | None) -> tuple[Target, Gpu]:
    """The target to compile for, and the GPU whose documented roofs apply: the one that is named, else the target's.

    Raises:
        UsageError: no documented GPU has this name, or it does not run code of the target.
    """
    from ptxkit.targets.gpus import REFERENCE_GPUS, find_gpu, reference_gpu, target_of

    if gpu_name is None:
        assert target is not None
        gpu = reference_gpu(target)
        if gpu.cc != target.cc:
            able = [repr(other.name) for other in REFERENCE_GPUS if target_of(other).accepts(target)]
            fix = f"give --gpu, such as {able[0]}" if able else "give another --arch"
            raise UsageError(f"no GPU of {target} is documented; {fix}")
        return target, gpu
    gpu = find_gpu(gpu_name)
    own = target_of(gpu)
    if target is not None and not own.accepts(target):
        raise UsageError(f"{gpu.name} does not run code for {target}; its own target is {own}")
    return target or own, gpu


def refuse_several(chosen: Sequence[Plan], what: str) -> None:
    """Raise UsageError where a pattern names several kernels and ``what`` takes one."""
    names = list(dict.fromkeys(plan.workload.name for plan in chosen))
    if len(names) > 1:
        raise UsageError(f"{what} takes one kernel; these are {len(names)}: {shortened(', '.join(names))}")


LADDER_HEADINGS = {
    "Sizes": ("--sizes", "--along", "--steps", "--option", "--tile", "--seed"),
    "Measurement": ("--device", "--arch", "--peers", "--iterations", "--time-budget"),
    "Output": ("--format", "--json"),
}


@click.command("ladder", cls=HeadedCommand, headings=LADDER_HEADINGS)
@click.argument("kernel", shell_complete=kernel_argument)
@sizes_option
@click.option("--along", metavar="NAME", help="Vary this size in powers of two and keep the others.")
@click.option(
    "--steps", type=WholeNumber(1, 31), metavar="N", help="Generate this many powers of two, at most; 8 by default."
)
@kernel_option
@tile_option
@seed_option
@device_option
@arch_option
@peers_option
@iterations_option
@budget_option
@format_option
@results_option
def ladder(
    kernel: str,
    sizes: str | None,
    along: str | None,
    steps: int | None,
    options: tuple[str, ...],
    tiles: tuple[str, ...],
    seed: int,
    device_kind: str,
    arch: str | None,
    peer_names: str | None,
    iterations: int | None,
    time_budget: float,
    kind: Any,
    json_file: str | None,
) -> int:
    """Measure a kernel at growing sizes, in one table.

    KERNEL: a name, NAME:VARIANT or a description file. The sizes are those of its benchmarks and, for a kernel with one size
    or with --along, powers of two from a sixteenth of the L2 cache to eight times its bytes. In the emulator they are powers of
    two up to its default size.

    On a GPU the table has cold and hot times and bandwidths of variants and peers, and ratios with their ±; where the data
    outgrows L2, both bandwidths converge. The emulator has no times: there the table has bytes and counts. The file of --json
    is one of bench run. The exit code is that of bench run.
    """
    from ptxkit.bench.cases import STEPS, Plan, parse_sizes, plans
    from ptxkit.bench.cases import ladder as ladder_of
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.report.csv_text import results_csv
    from ptxkit.bench.report.ladder import ladder_table
    from ptxkit.cli import _bench_verdict
    from ptxkit.cli._text import to_stderr
    from ptxkit.runtime.device import device as open_device
    from ptxkit.runtime.device import is_emulating, is_timed

    if sizes is not None and (along is not None or steps is not None):
        raise UsageError(f"--sizes gives every size; leave out {'--steps' if along is None else '--along'}")
    target, kept = parse_arch(arch), Kept(json_file)
    device = open_device(device_kind)
    facts = device.facts_for(target)
    given, tile = parse_pairs(options, "--option"), parse_pairs(tiles, "--tile")
    with stdout_set_aside():
        small = is_emulating(device)
        chosen = plans([kernel], () if sizes is None else parse_sizes(sizes), given, small=small)
        refuse_several(chosen, "bench ladder")
        first = chosen[0]
        if sizes is None:
            made = ladder_of(type(first.workload), facts.l2_bytes, given, along, steps=steps or STEPS, small=small)
            chosen = [Plan(workload, first.variants) for workload in made]
    check_tile(tile, chosen)
    setup = Setup(
        device,
        Method(budget_s=time_budget, iterations=iterations),
        peers=None if peer_names is None else peer_list(peer_names),
        seed=seed,
        tile=tile,
        counts=False,
        target=target,
    )
    if not is_timed(device):
        for line in without_times(iterations=iterations, peers=peer_names):
            to_stderr(line)
    results = setup.measured(chosen, kept).results
    with stdout_set_aside():
        table, csv = ladder_table(results, facts.l2_bytes, facts.gpu), results_csv(results)
    printed(results.to_json() if json_file == "-" else None, csv, [table], kind)
    code = _bench_verdict.complain(results)
    kept.end(len(chosen))
    return code


PRECISION_HEADINGS = {
    "Kernel": ("--over", "--values", "--sizes", "--option", "--tile", "--seed"),
    "Measurement": ("--device", "--arch", "--iterations", "--time-budget"),
    "Output": ("--format", "--json"),
}


@click.command("precision", cls=HeadedCommand, headings=PRECISION_HEADINGS)
@click.argument("kernel", shell_complete=kernel_argument)
@click.option("--over", metavar="OPTION", default="dtype", show_default=True, help="Compare the values of this option.")
@click.option("--values", metavar="VALUES", help="Compare only these values: f32,bf16.")
@click.option("--sizes", metavar="SIZES", help="Compare at this size instead of the kernel's default: 128x4096.")
@kernel_option
@tile_option
@seed_option
@device_option
@arch_option
@iterations_option
@budget_option
@format_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.precision/1) on stdout.")
def precision(
    kernel: str,
    over: str,
    values: str | None,
    sizes: str | None,
    options: tuple[str, ...],
    tiles: tuple[str, ...],
    seed: int,
    device_kind: str,
    arch: str | None,
    iterations: int | None,
    time_budget: float,
    kind: Any,
    as_json: bool,
) -> int:
    """Compare the errors of a kernel's dtypes with one reference.

    KERNEL: a name, NAME:VARIANT or a description file with an option dtype, or another one that --over names, whose values
    compute the same function.

    The same random data, drawn in the dtype with the most bits and rounded to the others, are computed in each dtype. The
    table has bytes, intensity, and the 50th, 90th and 99th percentile and the largest of the absolute error and of the error in
    ulp, all against one float64 reference of the unrounded data; on a GPU also times, in the emulator the bytes it counts.
    Each variant is also verified as by ptxkit run. The exit code is that of bench run.
    """
    from ptxkit.bench.cases import Plan, parse_sizes, plans
    from ptxkit.bench.measure.benchmark import case_result
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.measure.precision import compare_dtypes, dtypes_of, with_times
    from ptxkit.bench.report.precision import precision_csv, precision_json, precision_table
    from ptxkit.cli import _bench_verdict
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import to_stderr
    from ptxkit.runtime.device import device as open_device
    from ptxkit.runtime.device import is_emulating, is_timed

    given, tile, target = parse_pairs(options, "--option"), parse_pairs(tiles, "--tile"), parse_arch(arch)
    if over in given:
        raise UsageError(f"--option {over} is what is compared; give --values {given[over]}")
    wanted = [] if sizes is None else parse_sizes(sizes)
    if len(wanted) > 1:
        raise UsageError(f"--sizes takes one size here, not {len(wanted)}; bench ladder compares sizes")
    chosen_values = [] if values is None else [word.strip() for word in values.split(",")]
    device = open_device(device_kind)
    with stdout_set_aside(), progress() as say:
        named = plans([kernel], wanted, given, small=is_emulating(device))
        refuse_several(named, "bench precision")
        plan = named[0]
        described = type(plan.workload)
        base = plan.workload if wanted or is_emulating(device) else described.make((), given)
        workloads = {
            value: described(**{**base.sizes, **base.options, over: value})
            for value in dtypes_of(described, over, chosen_values)
        }
        check_tile(tile, [Plan(workload, plan.variants) for workload in workloads.values()])
        left_out = list[str]()
        found = compare_dtypes(
            workloads,
            device,
            variants=plan.variants,
            target=target,
            tile=tile,
            seed=seed,
            say=say,
            leave_out=None if chosen_values else left_out.append,
        )
    for remark in left_out:
        to_stderr(remark)
    same = [Plan(workloads[of.value], plan.variants) for of in found]
    cases = {of.value: case_result(of.workload, of.rows, device, seed) for of in found}
    kept = Kept(None)
    for line in [] if is_timed(device) else without_times(iterations=iterations):
        to_stderr(line)
    if is_timed(device):
        method = Method(budget_s=time_budget, iterations=iterations)
        setup = Setup(device, method, peers=[], seed=seed, tile=tile, counts=False, target=target)
        times = setup.measured(same, kept).results
        timed = {value: times.case(case.key) for value, case in cases.items()}  # an interrupt may have left some out
        cases = {
            v: case if (found_times := timed[v]) is None else with_times(case, found_times) for v, case in cases.items()
        }
    ran = [row.target for case in cases.values() for row in case.rows if row.target]
    where = {"kind": device.kind, "name": device.name, "target": ran[0] if ran else ""}
    made = precision_json(cases, where, over, seed) if as_json else None
    printed(made, precision_csv(cases, over), [precision_table(cases, where, over)], kind)
    code = _bench_verdict.complain_of(list(cases.values()))
    kept.end(len(same))
    return code
