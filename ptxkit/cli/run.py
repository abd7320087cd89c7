"""``ptxkit run``: compiles, runs and verifies a kernel's variants, and times them or counts what they execute."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ptxkit.cli._early_exit import leave
from ptxkit.cli._kernel import (
    Seconds,
    device_option,
    find_kernel,
    kernel_argument,
    max_instructions_option,
    parse_iterations,
    parse_pairs,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._run_file import FileOptions, file_options, names_source_file, refuse_described, run_file
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

SET_TOLERANCE = (
    "To set another tolerance: tolerance = Tolerance(relative=..., absolute=...) in the description, @variant(tolerance=...), "
    "or Work(..., sum_length=k) for the default (docs/verification.md)."
)


@click.command(context_settings={"ignore_unknown_options": True})  # so that -5 is parsed as a size and refused there
@click.argument("kernel", shell_complete=kernel_argument)
@click.argument("numbers", nargs=-1, metavar="[SIZE]... [ITERATIONS]")
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Run only this variant; may be given several times."
)
@device_option
@click.option("--arch", metavar="TARGET", help="Compile for this target, such as sm_90a, instead of the device's own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for the input data.")
@click.option(
    "--tile", "tiles", multiple=True, metavar="NAME=VALUE", help="Fix a tile parameter, such as THREADS=256."
)
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="Set an option of the kernel (ptxkit list)."
)
@click.option(
    "--completion",
    type=click.Choice(["eager", "latest-legal"]),
    help="Perform asynchronous copies and wgmma in the emulator when they are issued (default), or as late as the kernel's "
    "waits allow, which makes a missing wait visible.",
)
@click.option(
    "--racecheck",
    is_flag=True,
    help="Check accesses to shared memory in the emulator: a missing __syncthreads or mbarrier wait between warps is an "
    "error that names both accesses. Takes two to four times as long.",
)
@click.option(
    "--racecheck-lanes",
    is_flag=True,
    help="Apply --racecheck to the lanes of a warp, too, which finds a missing __syncwarp.",
)
@max_instructions_option
@click.option(
    "--initcheck",
    is_flag=True,
    help="Report the use of shared or global memory that was never initialised, in the emulator. Registers and local memory "
    "are always checked. Takes several times as long.",
)
@click.option(
    "--trap",
    "traps",
    metavar="KIND[,KIND...]",
    help="Stop the emulator at the first integer division by zero (div0), NaN (nan) or infinity (inf) that a kernel produces, "
    "such as --trap div0,nan,inf. A GPU does not trap.",
)
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
    completion: str | None,
    racecheck: bool,
    racecheck_lanes: bool,
    max_instructions: int | None,
    initcheck: bool,
    traps: str | None,
    timeout: float | None,
    as_json: bool,
    dry_run: bool,
    **of_file: Any,
) -> int:
    """Compile, run and verify KERNEL, and time it on a GPU or count what it executes in the emulator.

    KERNEL: a name from `ptxkit list`, a description file such as ./mine.py, or a source file without a description, such as
    ./k.cu[:ENTRY] or ./k.ptx[:ENTRY]. A source file alone lists its kernels; with --arg, --grid and --block, one of them runs.
    SIZE: the kernel's sizes, all of them or none. ITERATIONS, after the sizes: the number of timed samples; without it,
    sampling ends after a short time budget.
    """
    from ptxkit.cli import _run_text
    from ptxkit.cli._text import print_json

    refuse_options(numbers)
    of_source_file = FileOptions(**of_file)
    target = parse_arch(arch)
    settings: dict[str, Any] = {}
    if completion is not None:
        settings["completion"] = completion
    if racecheck or racecheck_lanes:
        settings["racecheck"] = "lanes" if racecheck_lanes else "warps"
    if max_instructions is not None:
        settings["max_instructions"] = max_instructions
    if initcheck:
        settings["initcheck"] = True
    if traps is not None:
        settings["trap"] = parse_traps(traps)

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
    with changed, stdout_set_aside(as_json), _run_text.progress() as say:
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


def parse_traps(text: str) -> tuple[str, ...]:
    """The kinds of ``--trap``.

    Raises:
        UsageError: a kind does not exist, or none is given.
    """
    from ptxkit.emulator.settings import TRAPS

    kinds = tuple(word.strip() for word in text.split(","))
    for kind in kinds:
        if kind not in TRAPS:
            raise UsageError(f"--trap takes {', '.join(TRAPS)}, separated by commas; it cannot be {kind!r}")
    return tuple(dict.fromkeys(kinds))


def emulator_settings(device: Device, changes: dict[str, Any]) -> contextlib.AbstractContextManager[object]:
    """A context in which the emulator has the settings given as options.

    Raises:
        UsageError: the device is a GPU.
    """
    from ptxkit.runtime.device import is_emulating

    if not changes:
        return contextlib.nullcontext()
    if not is_emulating(device):
        option = "--" + next(iter(changes)).replace("_", "-")
        raise UsageError(f"{option} is for the emulator only, and this is {device.name}; add --device emulator")
    return device.settings(**changes)


def refuse_options(numbers: Sequence[str]) -> None:
    """Raise UsageError for unknown options, which click passes on among the positional numbers."""
    for word in numbers:
        if word.startswith("-") and not word[1:2].isdigit():
            known = [name for param in command.params if isinstance(param, click.Option) for name in param.opts]
            from ptxkit.cli._text import nearest

            raise click.UsageError(f"no such option {word!r}{nearest(word, known)}")


def split_numbers(workload: type[Workload], numbers: Sequence[str]) -> tuple[Sequence[str], int | None]:
    """The positional arguments as sizes and ITERATIONS, the integer beyond the kernel's sizes."""
    names = workload.size_names()
    if len(numbers) != len(names) + 1:
        return numbers, None
    return numbers[:-1], parse_iterations(numbers[-1])


def parse_arch(arch: str | None) -> Target | None:
    """The target named by ``--arch``.

    Raises:
        UnavailableError: there is no such target; the message names near ones.
    """
    if arch is None:
        return None
    from ptxkit.targets import Target

    try:
        return Target.parse(arch)
    except UsageError as error:
        raise UnavailableError(str(error)) from None


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
