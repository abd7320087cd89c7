"""``ptxkit run``: compiles, runs and verifies a kernel's variants, and times them or counts what they execute."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._cluster import connection, device_of
from ptxkit.cli._early_exit import leave
from ptxkit.cli._help import EMULATOR_CHECKS, SOURCE_FILE_HEADINGS, HeadedCommand
from ptxkit.cli._kernel import find_kernel, kernel_argument
from ptxkit.cli._options import (
    Seconds,
    WholeNumber,
    arch_option,
    cluster_options,
    device_option,
    emulator_changes,
    emulator_options,
    emulator_settings,
    group_option,
    kernel_option,
    parse_arch,
    parse_pairs,
    refuse_options,
    seed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._run_file import FileOptions, file_options, names_source_file, refuse_described, run_file
from ptxkit.cli._run_request import Request, end_stuck, split_numbers
from ptxkit.cli._signals import terminable
from ptxkit.errors import FaultError, PtxkitError, UsageError, shortened
from ptxkit.exit_codes import ExitCode, most_severe

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results
    from ptxkit.workload.choice import Choice
    from ptxkit.workload.workload import Workload

SET_TOLERANCE = (
    "To set another tolerance: tolerance = Tolerance(relative=..., absolute=...) in the description, @variant(tolerance=...), "
    "or Work(..., sum_length=k) for the default (docs/verification.md)."
)


HEADINGS = {
    "Kernel": ("--group", "--variant", "--tile", "--option", "--seed", "--seeds"),
    "Device": ("--device", "--arch"),
    "Cluster, with --seeds": ("--cluster", "--tls", "--insecure"),
    "Checks in the emulator": EMULATOR_CHECKS,
    "Tuning": ("--tune", "--candidates"),
    "Limits": ("--timeout", "--max-instructions"),
    "Output": ("--json", "--dry-run"),
    **SOURCE_FILE_HEADINGS,
}


@click.command(
    cls=HeadedCommand,
    headings=HEADINGS,
    context_settings={"ignore_unknown_options": True},  # so that -5 is parsed as a size and refused there
)
@click.argument("kernel", required=False, shell_complete=kernel_argument)
@click.argument("numbers", nargs=-1, metavar="[SIZE]... [ITERATIONS]")
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Run only this variant; may be given several times."
)
@group_option
@device_option
@arch_option
@seed_option
@click.option(
    "--seeds",
    type=WholeNumber(1, 1_000_000),
    metavar="COUNT",
    help="Verify with the inputs of this many seeds, from that of --seed on, and measure nothing.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Verify the seeds of --seeds on the workers of the Dask scheduler at ADDRESS, or local or local-gpus, as "
    "`ptxkit bench run --cluster`.",
)
@cluster_options
@tile_option
@kernel_option
@emulator_options
@click.option(
    "--tune",
    is_flag=True,
    help="Measure the variants and tiles that are expected to be the fastest, and keep the fastest for this GPU model and "
    "these sizes.",
)
@click.option("--candidates", type=WholeNumber(1, 64), metavar="N", help="Measure N candidates with --tune; default: 6.")
@click.option(
    "--timeout",
    type=Seconds(min=0.1),
    metavar="SECONDS",
    help="Stop and report a variant whose launches take longer, compiling not counted; if a GPU hangs, end the process.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.run/3) on stdout and nothing else."
)
@click.option("--dry-run", is_flag=True, help="Show what would be launched without running it.")
@file_options
def command(
    kernel: str | None,
    numbers: tuple[str, ...],
    variants: tuple[str, ...],
    groups: tuple[str, ...],
    device_kind: str,
    arch: str | None,
    seed: int,
    seeds: int | None,
    cluster: str | None,
    tls: str | None,
    insecure: bool,
    tiles: tuple[str, ...],
    options: tuple[str, ...],
    tune: bool,
    candidates: int | None,
    timeout: float | None,
    as_json: bool,
    dry_run: bool,
    **given: Any,
) -> int:
    """Compile, run, verify and measure KERNEL.

    On a GPU the times are measured; in the emulator instructions and memory traffic are counted.

    KERNEL: a name from `ptxkit list`, a description file such as ./mine.py, or a source file without a description, such as
    ./k.cu[:ENTRY] or ./k.ptx[:ENTRY]. A source file alone lists its kernels; with --arg, --grid and --block, one of them runs.
    triton:FILE.py:FUNCTION runs a function of Triton, by default as the file launches it (docs/triton.md).
    A pattern such as 'attention*', or --group, runs several kernels at their default sizes.
    Without --variant, the last line names the variant that is expected to be the fastest, and why.
    SIZE: the kernel's sizes, all of them or none. ITERATIONS, after the sizes: the number of timed samples; without it,
    sampling ends after a short time budget.

    With --seeds every variant is verified with many inputs. Ctrl-C and SIGTERM end the command early: the variants, or
    seeds, that were complete by then are shown.
    """
    if kernel is not None:
        refuse_options((kernel, *numbers))
    settings = emulator_changes(given)
    of_source_file = FileOptions.of(given)
    target = parse_arch(arch)

    from ptxkit.bench.measure.time_limit import TimeLimit
    from ptxkit.runtime.device import device as open_device
    from ptxkit.runtime.device import is_emulating

    if candidates is not None and not tune:
        raise UsageError("--candidates is for --tune; add it")
    if seeds is None and cluster is not None:
        raise UsageError(
            "--cluster ADDRESS is for --seeds COUNT; to measure on the workers of a cluster: ptxkit bench run --cluster "
            "ADDRESS; to launch thread block clusters of a source file's kernel: --cluster-dims X[,Y[,Z]]"
        )
    if seeds is None and (tls, insecure) != (None, False):
        raise UsageError("--tls and --insecure are for --seeds COUNT with --cluster ADDRESS")
    if seeds is not None and (dry_run or tune):
        raise UsageError(f"--seeds verifies only; leave out {'--dry-run' if dry_run else '--tune'}, or --seeds")
    if kernel is None and not groups:
        raise click.UsageError("missing argument 'KERNEL'", click.get_current_context())
    if groups and kernel is not None and kernel[:1].isdigit():
        numbers, kernel = (kernel, *numbers), None
    if kernel is not None and not groups and names_source_file(kernel):
        if tune:
            raise UsageError("--tune needs a description, which declares variants and tiles (ptxkit new --from)")
        refuse_described({"--variant": variants, "--tile": tiles, "--option": options, "--seeds": seeds})
        device = open_device(device_kind)
        limit = TimeLimit(timeout, None if is_emulating(device) else partial(end_stuck, device.name))
        with emulator_settings(device, settings):
            return run_file(
                kernel,
                numbers,
                of_source_file,
                device,
                target,
                seed=seed,
                as_json=as_json,
                dry_run=dry_run,
                limit=limit,
            )
    of_source_file.refuse(kernel or f"--group {groups[0]}")
    held_tile = parse_pairs(tiles, "--tile")
    held_options = parse_pairs(options, "--option")
    from ptxkit.workload import registry

    words = () if kernel is None else (kernel,)
    with stdout_set_aside():
        several = bool(groups) or any(map(registry.is_pattern, words))
        names = registry.selected(words, groups) if several else words
    if cluster is not None:  # what is wrong is known before workers are started
        with stdout_set_aside():
            for name in () if several else names:
                kernel_class = find_kernel(name)
                kernel_class.make(split_numbers(kernel_class, numbers)[0], held_options)
                for variant in variants:
                    kernel_class.variant(variant)
    workers = click.get_current_context().with_resource(connection(cluster, tls, insecure))
    device = device_of(device_kind, workers)
    how = Described(
        device, target, variants, held_tile, held_options, seed, timeout, as_json, dry_run, settings, seeds, workers
    )
    if tune:
        from ptxkit.cli._run_tune import run_tuned
        from ptxkit.sweep.tune import CANDIDATES

        if several:
            raise UsageError(f"--tune takes one kernel; these are {len(names)}: {shortened(', '.join(names))}")
        return run_tuned(names[0], numbers, how, candidates or CANDIDATES)
    return run_several(names, numbers, how) if several else how.run(names[0], numbers)


@dataclass(frozen=True)
class Described(Request):
    """How a kernel with a description is run."""

    def run(self, kernel: str, numbers: Sequence[str] = (), printed: Callable[[Any], None] | None = None) -> int:
        """Run the variants of a kernel, print the report and return the exit code.

        Args:
            numbers: sizes and ITERATIONS. printed: takes the JSON value where it is not printed.
        """
        from ptxkit.bench.measure.run import Run
        from ptxkit.cli import _run_text
        from ptxkit.cli._progress import progress
        from ptxkit.cli._text import print_json
        from ptxkit.runtime.device import is_emulating

        with stdout_set_aside():
            workload_class = find_kernel(kernel)
            sizes, iterations = split_numbers(workload_class, numbers)
            for name in self.variants:
                workload_class.variant(name)
        changed = emulator_settings(self.device, self.settings)
        with stdout_set_aside():
            workload = workload_class.make(sizes, self.options, small=is_emulating(self.device))
        choice: Choice | None = None
        real_stdout = os.dup(1)  # for the watchdog of --timeout, which reports while stdout is redirected

        def stuck(report: Results) -> None:
            os.dup2(real_stdout, 1)
            sys.stdout = sys.__stdout__ or sys.stdout
            show(report, self.as_json, choice=choice)
            sys.stdout.flush()
            sys.stderr.flush()
            leave(int(report.cases[0].exit_code))

        measured = Run(
            workload,
            self.device,
            variants=self.variants,
            target=self.target,
            tile=self.tile,
            seed=self.seed,
            iterations=iterations,
            timeout_s=self.timeout_s,
            stuck=stuck,
        )
        if self.seeds is not None:
            from ptxkit.cli._run_seeds import run_seeds

            if iterations is not None:
                raise UsageError("ITERATIONS is the number of timed samples, and --seeds measures nothing; leave one out")
            with changed:
                return run_seeds(self, measured, printed)
        if self.dry_run:
            with stdout_set_aside():
                plan = measured.launches()
            if self.as_json:
                (printed or print_json)(plan)
            else:
                click.echo(_run_text.plan_text(plan))
            return 0
        try:
            with terminable(), changed, stdout_set_aside(), progress() as say:
                choice = measured.choice()
                report = measured.run(say)
        except KeyboardInterrupt:
            complete = measured.until_interrupted()
            if complete is not None:
                show(complete, self.as_json, printed, choice)
            raise
        show(report, self.as_json, printed, choice)
        return report.cases[0].exit_code


def run_several(names: Sequence[str], numbers: Sequence[str], how: Described) -> int:
    """Run kernels one after another at their default sizes, or one kernel at given sizes; return the most severe exit code.

    Variants, tile parameters and options apply to the kernels that have them. A kernel that cannot run here, because of a
    package or the target, is reported and changes the exit code only if no kernel can.

    Raises:
        UsageError: sizes are given for several kernels, or no kernel has a given variant, tile parameter or option.
    """
    from ptxkit.cli._text import print_json, to_stderr

    if numbers and len(names) > 1:
        raise UsageError(f"sizes are given with one kernel; these are {len(names)}: {shortened(', '.join(names))}")
    with stdout_set_aside():
        plans = [_applying(find_kernel(name), how) for name in names]
    _refuse_unused("variant", how.variants, [of.variants for of in plans])
    _refuse_unused("tile parameter", how.tile, [of.tile for of in plans])
    _refuse_unused("option", how.options, [of.options for of in plans])
    values: list[Any] = []
    codes: list[int] = []
    for name, of in zip(names, plans, strict=True):
        if how.variants and not of.variants:
            continue
        if codes and not how.as_json:
            click.echo()
        try:
            codes.append(of.run(name, numbers, values.append))
        except KeyboardInterrupt:
            if how.as_json and values:
                print_json({"schema": "ptxkit.runs/1", "runs": values})
            raise
        except PtxkitError as error:
            if isinstance(error, FaultError):
                raise
            place = "" if str(error).startswith(f"{name}: ") else f"{name}: "
            to_stderr(f"error: {place}{error}", fg="red")
            codes.append(int(error.exit_code))
    if how.as_json:
        print_json({"schema": "ptxkit.runs/1", "runs": values})
    elsewhere = (ExitCode.UNAVAILABLE, ExitCode.NOTHING_VERIFIED)
    here = [code for code in codes if code not in elsewhere]
    return most_severe(here or codes)


def _applying(kernel: type[Workload], how: Described) -> Described:
    """What of the given variants, tile parameters and options a kernel has."""
    variants = tuple(name for name in how.variants if name in kernel.variants())
    meant = [v for name, v in kernel.variants().items() if not variants or name in variants]
    tile = {name: value for name, value in how.tile.items() if any(name in v.tile for v in meant)}
    options = {name: value for name, value in how.options.items() if name in kernel.option_types()}
    return replace(how, variants=variants, tile=tile, options=options)


def _refuse_unused(what: str, given: Iterable[str], used: Sequence[Iterable[str]]) -> None:
    for name in given:
        if not any(name in names for names in used):
            raise UsageError(f"none of these kernels has the {what} {name!r}")


def show(
    report: Results, as_json: bool, printed: Callable[[Any], None] | None = None, choice: Choice | None = None
) -> None:
    """Print results as JSON or text on stdout, and failures on stderr; ``printed`` takes the JSON value where it is given."""
    from ptxkit.bench.report.run_json import run_json
    from ptxkit.cli import _run_text
    from ptxkit.cli._text import print_json

    if as_json:
        (printed or print_json)(run_json(report, choice))
    else:
        click.echo(_run_text.report_text(report, choice))
    complain(report)


def complain(report: Results) -> None:
    """Print the compiler's warnings and the failures on stderr."""
    from ptxkit.cli._text import to_stderr

    (case,) = report.cases
    for warning in dict.fromkeys(warning for row in case.rows for warning in row.warnings):
        to_stderr(warning.rstrip(), fg="yellow")
    failures: dict[str, list[str]] = {}  # variants that share a source fail alike: one message for all of them
    for row in case.rows:
        if row.error is not None:
            failures.setdefault(row.diagnostics or row.error, []).append(row.name)
        elif row.verified is False:
            failures.setdefault(f"wrong result: {row.explanation or row.worst}", []).append(row.name)
        for alarm in row.alarms:
            failures.setdefault(alarm, []).append(row.name)
    if case.exit_code == ExitCode.NOTHING_VERIFIED:
        to_stderr(f"error: {case.kernel}: nothing was verified, every variant was skipped", fg="red")
    for what, names in failures.items():
        to_stderr(f"error: {case.kernel} {', '.join(names)}: {what}", fg="red")
    if any("tolerance: " in row.explanation for row in case.rows):
        to_stderr(SET_TOLERANCE)
