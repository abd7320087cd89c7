"""Debugging sessions for kernels with a description: every launch of a variant, verified at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.commands.interpreter import Reply
from ptxkit.debugger.session import Session
from ptxkit.debugger.subject import Subject, subject_of
from ptxkit.errors import UsageError
from ptxkit.runtime.device import is_emulating
from ptxkit.workload import execute

if TYPE_CHECKING:
    from ptxkit.workload.build import Build
    from ptxkit.workload.verify import Verdict


def session_of(
    case: execute.Case,
    built: Build,
    settings: Mapping[str, Any] | None = None,
    compare: Callable[[execute.Case], Verdict | None] | None = None,
) -> Session:
    """A session for a compiled variant.

    Args:
        case: its inputs, on the emulator.
        built: the compiled variant.
        settings: of the emulator.
        compare: gives the verdict on the arrays at the end, or None; None compares all outputs with the reference.

    Raises:
        UsageError: the case is not on the emulator.
    """
    if not is_emulating(case.device):
        raise UsageError(f"debug works in the emulator, not on {case.device.name}")
    prepared = execute.bound(case, built)
    subjects: dict[str, Subject] = {}
    for n, launch in enumerate(prepared.launches):
        arguments: tuple[Any, ...] = ()
        if len(prepared.launches) == len(built.steps):
            arguments = tuple(_passed(case, a) for a in built.steps[n].launch.args)
        subjects.setdefault(launch.kernel.name, subject_of(launch.kernel, arguments))

    first = prepared.launches[0].geometry

    def target() -> Verdict | None:
        if compare is None:
            return prepared.check()[0]
        case.reset()
        prepared.launch()
        return compare(case)

    return Session(case.device, tuple(subjects.values()), target, settings, (first.grid, first.block))


def _passed(case: execute.Case, argument: object) -> object:
    """For an argument that names an array, an array of its element type; None for other arguments."""
    if not isinstance(argument, str):
        return None
    value = case.argument(argument)
    return np.empty((1,), value.dtype) if hasattr(value, "dtype") and getattr(value, "shape", None) else None


def finished(outcome: Any) -> Reply:
    """The text for a verdict."""
    if outcome is None:
        return Reply()
    text = "The result is verified." if outcome.verified else f"WRONG RESULT: {outcome.worst}"
    return Reply(text, {"verified": outcome.verified, "worst": outcome.worst})
