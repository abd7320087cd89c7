"""``ptxkit run --seeds``: verifies a kernel with the inputs of many seeds, here or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._signals import Stop
from ptxkit.cli._text import number_of, print_json, styled, table, to_stderr
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.measure.run import Run
    from ptxkit.cli._run_request import Request
    from ptxkit.workload.seeds import SeedChecks, SeedRow

SHOWN_SEEDS = 8  # failing seeds of a variant that a message names


def run_seeds(how: Request, measured: Run, printed: Any = None) -> int:
    """Verify the variants of a kernel with many seeds, print the report and return the exit code.

    Args:
        measured: what would be run with one seed. printed: takes the JSON value where it is not printed.
    """
    from ptxkit.cli._progress import progress
    from ptxkit.workload.memory import check_memory
    from ptxkit.workload.seeds import SeedChecks

    assert how.seeds is not None
    device = how.device
    with stdout_set_aside():
        check_memory(measured.workload, device)
    names = measured.plan.variants
    checks = SeedChecks(measured.workload, device.name, device.kind, _target(measured), how.seed, how.seeds)
    stop = Stop()
    with stop.kept(), stdout_set_aside(), progress() as say:
        if how.cluster is None:
            _here(how, measured, checks, names, say)
        else:
            _there(how, checks, names, say)
    if stop.reason is not None and not checks.rows:
        raise stop.reason
    show(how, checks, printed)
    if stop.reason is not None:
        raise stop.reason
    return checks.exit_code


def _target(measured: Run) -> str:
    from ptxkit.workload.resolve import target_for

    return (measured.target or target_for(measured.variants[0], None)).name


def _here(how: Request, measured: Run, checks: SeedChecks, names: Sequence[str], say: Any) -> None:
    from ptxkit.bench.measure.time_limit import TimeLimit
    from ptxkit.cli._early_exit import leave
    from ptxkit.errors import TimeLimitError
    from ptxkit.runtime.device import is_emulating
    from ptxkit.workload.seeds import SeedRow, check_seed

    seed = how.seed

    def stuck(variant: str) -> None:
        """A launch does not end: show what is known, and end the process."""
        error = TimeLimitError(f"not done within the limit of --timeout; {how.device.name} is still executing it")
        checks.rows.append(SeedRow(variant, seed, error=str(error), exit_code=int(error.exit_code)))
        show(how, checks)
        sys.stdout.flush()
        leave(int(error.exit_code))

    for seed in range(how.seed, how.seed + checks.count):
        say(f"{seed - how.seed} of {number_of(checks.count, 'seed')}")
        limit = TimeLimit(how.timeout_s, None if is_emulating(how.device) else stuck)
        checks.rows += check_seed(
            measured.workload,
            how.device,
            seed,
            variants=names,
            target=how.target,
            tile=how.tile,
            around=limit.around,
        )
        if how.device.lost:
            return


def _there(how: Request, checks: SeedChecks, names: Sequence[str], say: Any) -> None:
    from ptxkit.cli._cluster import tell
    from ptxkit.cluster.case_tasks import CaseOrder
    from ptxkit.cluster.cases import LIMIT_S, check_seeds
    from ptxkit.cluster.gpus import ClusterGpu

    device = how.device
    order = CaseOrder(
        "",
        device.times,
        device.values() if isinstance(device, ClusterGpu) else None,
        tile=how.tile,
        target=None if how.target is None else how.target.name,
        settings=how.settings,
        limit_s=LIMIT_S,
        variant_limit_s=how.timeout_s,
    )
    assert how.cluster is not None
    check_seeds(how.cluster, order, checks, names, say, tell)


def show(how: Request, checks: SeedChecks, printed: Any = None) -> None:
    """Print the checks as JSON or text on stdout, and failures on stderr."""
    if how.as_json:
        (printed or print_json)(checks.to_json())
    else:
        click.echo(text(checks))
    for variant, rows in checks.by_variant().items():
        failed = [row for row in rows if row.failed]
        if failed:
            to_stderr(f"error: {checks.workload.name} {variant}: {_failures(failed)}", fg="red")
    if checks.rows and checks.exit_code == ExitCode.NOTHING_VERIFIED:
        to_stderr(f"error: {checks.workload.name}: nothing was verified, every variant was skipped", fg="red")


def _failures(failed: Sequence[SeedRow]) -> str:
    """The first failure with its reason, and the seeds of the others."""
    first, *others = failed
    said = f"seed {first.seed}: {first.reason}"
    if others:
        seeds = ", ".join(str(row.seed) for row in others[:SHOWN_SEEDS])
        more = f" and {len(others) - SHOWN_SEEDS} more" if len(others) > SHOWN_SEEDS else ""
        said += f"; also with {'seed' if len(others) == 1 else 'seeds'} {seeds}{more}"
    return f"{said}; --seed {first.seed} runs this one alone"


def text(checks: SeedChecks) -> str:
    """The header, and a row for each variant."""
    sizes = " ".join(f"{name}={value}" for name, value in checks.workload.sizes.items())
    last = checks.first + checks.count - 1
    known = len({row.seed for row in checks.rows})
    stopped = f", stopped after {known}" if checks.partial else ""
    lines = [
        f"{styled(checks.workload.name, bold=True)}  {sizes}  on {checks.device} ({checks.target})",
        f"seeds {checks.first} to {last}{stopped}",
        "",
    ]
    every = checks.by_variant()
    ran = {name: found for name, rows in every.items() if (found := [r for r in rows if r.skipped is None])}
    if ran:
        lines.append(table([_row(name, rows) for name, rows in ran.items()], HEADERS))
    notes = [f"{name}: skipped, {rows[0].skipped}" for name, rows in every.items() if name not in ran]
    return "\n".join([*lines, "", *notes]).rstrip()


HEADERS = ["variant", "verified", "max rel error", "with seed"]


def _row(name: str, rows: Sequence[SeedRow]) -> list[str]:
    compared = [row for row in rows if row.verified is not None]
    worst = max(compared, key=lambda row: row.max_rel_error, default=None)
    right = sum(row.verified is True for row in rows)
    error, seed = ("-", "-") if worst is None else (f"{worst.max_rel_error:.2g}", str(worst.seed))
    return [name, f"{right} of {len(rows)}", error, seed]
