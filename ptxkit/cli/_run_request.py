"""What the ways to run a kernel with a description share: its request, its positional arguments, the end of one that hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ptxkit.cli._early_exit import leave
from ptxkit.cli._kernel import parse_iterations
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.cluster.connection import Connection
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload


@dataclass(frozen=True)
class Request:
    """How a kernel with a description is run.

    Attributes:
        device, target, variants, tile, options, seed, timeout_s: see :class:`ptxkit.bench.measure.run.Run`.
        as_json, dry_run: the options of the command. settings: those of the emulator that options change.
        seeds: how many to verify with; None to run with one. cluster: to verify on, or None.
    """

    device: Device
    target: Target | None
    variants: tuple[str, ...]
    tile: dict[str, str]
    options: dict[str, str]
    seed: int
    timeout_s: float | None
    as_json: bool
    dry_run: bool
    settings: dict[str, Any]
    seeds: int | None = None
    cluster: Connection | None = None


def split_numbers(workload: type[Workload], numbers: Sequence[str]) -> tuple[Sequence[str], int | None]:
    """The positional arguments as sizes and ITERATIONS, the integer beyond the kernel's sizes."""
    names = workload.size_names()
    if len(numbers) != len(names) + 1:
        return numbers, None
    return numbers[:-1], parse_iterations(numbers[-1])


def end_stuck(device: str, what: str) -> NoReturn:
    """End the process from the watchdog's thread when a kernel hangs in a call that signals do not interrupt."""
    from ptxkit.cli._text import to_stderr

    to_stderr(f"error: {what}: not done within the limit of --timeout; {device} is still executing it", fg="red")
    leave(int(ExitCode.TIME_LIMIT))
