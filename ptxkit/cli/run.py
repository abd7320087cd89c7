"""``ptxkit run``: compiles, runs and verifies a kernel's variants, and times them or counts what they execute."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ptxkit.cli._early_exit import leave
from ptxkit.cli._help import EMULATOR_CHECKS, SOURCE_FILE_HEADINGS, HeadedCommand
from ptxkit.cli._kernel import find_kernel, kernel_argument, parse_iterations
from ptxkit.cli._options import (
    Seconds,
    arch_option,
    device_option,
    emulator_changes,
    emulator_options,
    emulator_settings,
    kernel_option,
    parse_arch,
    parse_pairs,
    refuse_options,
    seed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._run_file import FileOptions, file_options, names_source_file, refuse_described, run_file
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results
    from ptxkit.workload.workload import Workload

SET_TOLERANCE = (
    "To set another tolerance: tolerance = Tolerance(relative=..., absolute=...) in the description, @variant(tolerance=...), "
    "or Work(..., sum_length=k) for the default (docs/verification.md)."
)


HEADINGS = {
    "Kernel": ("--variant", "--tile", "--option", "--seed"),
    "Device": ("--device", "--arch"),
    "Checks in the emulator": EMULATOR_CHECKS,
    "Limits": ("--timeout", "--max-instructions"),
    "Output": ("--json", "--dry-run"),
    **SOURCE_FILE_HEADINGS,
}


@click.command(
    cls=HeadedCommand,
    headings=HEADINGS,
    context_settings={"ignore_unknown_options": True},  # so that -5 is parsed as a size and refused there
)
@click.argument("kernel", shell_complete=kernel_argument)
@click.argument("numbers", nargs=-1, metavar="[SIZE]... [ITERATIONS]")
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Run only this variant; may be given several times."
)
@device_option
@arch_option
@seed_option
@tile_option
@kernel_option
@emulator_options
@click.option(
    "--timeout",
    type=Seconds(min=0.1),
    metavar="SECONDS",
    help="Stop and report a variant whose launches take longer, compiling not counted; if a GPU hangs, end the process.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.run/3) on stdout and nothing else.")
@click.option("--dry-run", is_flag=True, help="Show what would be launched without running it.")
@file_options
def command(
    kernel: str,
    numbers: tuple[str, ...],
    variants: tuple[str, ...],
    device_kind: str,
    arch: str | None,
    seed: int,
    tiles: tuple[str, ...],
    options: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
    dry_run: bool,
    **given: Any,
) -> int:
    """Compile, run, verify and measure KERNEL.

    On a GPU the times are measured; in the emulator instructions and memory traffic are counted.

    KERNEL: a name from `ptxkit list`, a description file such as ./mine.py, or a source file without a description, such as
    ./k.cu[:ENTRY] or ./k.ptx[:ENTRY]. A source file alone lists its kernels; with --arg, --grid and --block, one of them runs.
    SIZE: the kernel's sizes, all of them or none. ITERATIONS, after the sizes: the number of timed samples; without it,
    sampling ends after a short time budget.
    """
    from ptxkit.cli import _run_text
    from ptxkit.cli._text import print_json

    refuse_options(numbers)
    settings = emulator_changes(given)
    of_source_file = FileOptions.of(given)
    target = parse_arch(arch)

    from ptxkit.bench.measure.time_limit import TimeLimit
    from ptxkit.runtime.device import device as open_device
    from ptxkit.runtime.device import is_emulating

    if names_source_file(kernel):
        refuse_described({"--variant": variants, "--tile": tiles, "--option": options})
        device = open_device(device_kind)
        limit = TimeLimit(timeout, None if is_emulating(device) else partial(end_stuck, device.name))
        with emulator_settings(device, settings):
            return run_file(
                kernel, numbers, of_source_file, device, target, seed=seed, as_json=as_json, dry_run=dry_run, limit=limit
            )
    of_source_file.refuse(kernel)
    held_tile = parse_pairs(tiles, "--tile")
    held_options = parse_pairs(options, "--option")
    with stdout_set_aside():
        workload_class = find_kernel(kernel)
        sizes, iterations = split_numbers(workload_class, numbers)
        for name in variants:
            workload_class.variant(name)

    from ptxkit.bench.measure.run import Run

    device = open_device(device_kind)
    changed = emulator_settings(device, settings)
    with stdout_set_aside():
        workload = workload_class.make(sizes, held_options, small=is_emulating(device))
    real_stdout = os.dup(1)  # for the watchdog of --timeout, which reports while stdout is redirected

    def stuck(report: Results) -> None:
        os.dup2(real_stdout, 1)
        sys.stdout = sys.__stdout__ or sys.stdout
        show(report, as_json)
        sys.stdout.flush()
        sys.stderr.flush()
        leave(int(report.cases[0].exit_code))

    measured = Run(
        workload,
        device,
        variants=variants,
        target=target,
        tile=held_tile,
        seed=seed,
        iterations=iterations,
        timeout_s=timeout,
        stuck=stuck,
    )
    if dry_run:
        with stdout_set_aside():
            plan = measured.launches()
        print_json(plan) if as_json else click.echo(_run_text.plan_text(plan))
        return 0
    with changed, stdout_set_aside(), _run_text.progress() as say:
        report = measured.run(say)
    show(report, as_json)
    return report.cases[0].exit_code


def end_stuck(device: str, what: str) -> NoReturn:
    """End the process from the watchdog's thread when a kernel hangs in a call that signals do not interrupt."""
    from ptxkit.cli._text import to_stderr

    to_stderr(f"error: {what}: not done within the limit of --timeout; {device} is still executing it", fg="red")
    leave(int(ExitCode.TIME_LIMIT))


def show(report: Results, as_json: bool) -> None:
    """Print results as JSON or text on stdout, and failures on stderr."""
    from ptxkit.bench.report.run_json import run_json
    from ptxkit.cli import _run_text
    from ptxkit.cli._text import print_json

    if as_json:
        print_json(run_json(report))
    else:
        click.echo(_run_text.report_text(report))
    complain(report)


def split_numbers(workload: type[Workload], numbers: Sequence[str]) -> tuple[Sequence[str], int | None]:
    """The positional arguments as sizes and ITERATIONS, the integer beyond the kernel's sizes."""
    names = workload.size_names()
    if len(numbers) != len(names) + 1:
        return numbers, None
    return numbers[:-1], parse_iterations(numbers[-1])


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
