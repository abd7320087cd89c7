"""Finds the candidate whose kernel failed.

A failed kernel is reported by a later call of the driver, and makes the GPU unusable for the process. The GPU is therefore
synchronized at the end of each step of a candidate, while nothing is timed, so that the next candidate never begins with the
fault of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ptxkit.errors import FaultError, PtxkitError, TimeLimitError, UsageError

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Row


@contextmanager
def step_of(device: Any, row: Row, step: str) -> Iterator[None]:
    """A context for one step of a candidate, with which the GPU is done at the end.

    Args:
        device: a GPU that is usable. row: the candidate. step: what it does, as in "it failed while it was verified".

    Raises:
        FaultError: a kernel failed in it; the message names the step. PtxkitError: another error of the step.
    """
    try:
        yield
        device.synchronize()
    except PtxkitError as error:
        if isinstance(error, TimeLimitError) or _usable(device):  # what exceeds its limit may never be over
            raise
        raise FaultError(_described(device, row, step, error)) from error


def _usable(device: Any) -> bool:
    """Whether no kernel has failed, which a library may have reported by an error of its own, or not at all."""
    if not device.lost:
        with suppress(FaultError):
            device.synchronize()
    return not device.lost


def _described(device: Any, row: Row, step: str, error: PtxkitError) -> str:
    """The error of a candidate whose kernel failed, in one line."""
    if row.kind == "variant":
        return f"failed while {step}: {error}"
    found = device.lost.partition(f" failed on {device.name}: ")[2] or device.lost
    own = "" if isinstance(error, FaultError | UsageError) else f" ({error})"
    return f"one of its kernels failed while {step}: {found}{own}"


def not_run(culprit: str, device: Any) -> str:
    """Why a candidate was not run after another one made the GPU unusable."""
    return f"not run: the fault in {culprit} ended this process's use of {device.name}"
