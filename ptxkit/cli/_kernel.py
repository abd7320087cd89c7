"""Kernels on the command line: a registered name or the path of a description file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ptxkit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload


def kernel_argument(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions for a kernel: registered names, and files where the word looks like a path."""
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    from ptxkit.workload import registry

    return [CompletionItem(name) for name in registry.names() if name.startswith(incomplete)]


def find_kernel(name: str) -> type[Workload]:
    """The description called ``name``, or in the file ``name`` when that is a path to a ``.py`` file.

    Raises:
        UsageError: no such kernel or file, or the file describes none.
    """
    from ptxkit.workload import registry

    if "/" not in name and not name.endswith(".py") and ".py:" not in name:
        return registry.get(name)
    path = Path(name)
    if not path.is_file() and (path.is_dir() or path.is_symlink() or ".py:" in name):
        raise UsageError(registry.missing_file(name))
    if path.suffix != ".py":
        raise UsageError(
            f"{name} is not a description; give the .py file beside it (ptxkit new NAME writes such a pair)"
        )
    if not path.is_file():
        raise UsageError(registry.missing_file(name))
    return registry.load_file(path)


def peer_list(text: str) -> list[str]:
    """``"torch,cublas"`` -> the names; ``"none"`` -> no names."""
    return [name for word in text.split(",") if (name := word.strip()) and name != "none"]


def refuse_absent(named: Sequence[str] | None, absent: Sequence[tuple[str, str]]) -> None:
    """Raise UnavailableError for a peer that the user named and that cannot be used here.

    Args:
        named: the peers of ``--peers``; None where the option was left out.
        absent: (peer, why it cannot be used).
    """
    for name, reason in absent:
        if named is not None:
            raise UnavailableError(f"--peers {name}: {reason}")


def parse_iterations(text: str) -> int:
    """ITERATIONS as a number.

    Raises:
        UsageError: no whole number, or out of range.
    """
    from ptxkit.workload.tuned.record import MOST_SAMPLES

    try:
        iterations = int(text)
    except ValueError:
        raise UsageError(f"ITERATIONS must be a whole number, not {text!r}") from None
    if not 1 <= iterations <= MOST_SAMPLES:
        raise UsageError(f"ITERATIONS must be between 1 and {MOST_SAMPLES}, not {text}")
    return iterations
