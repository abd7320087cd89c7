"""Runs a call on a device: one launch on newly initialised arrays, its summary, and its time or its counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.cold import cold_time
from ptxkit.bench.measure.counted import counted
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.report.run_json import counted_json, time_json
from ptxkit.runtime.abilities import is_timed
from ptxkit.source_run.call import Call
from ptxkit.source_run.outputs import ArraySummary, save_npy, summarise
from ptxkit.source_run.workload import Prepared, built_of
from ptxkit.workload import execute
from ptxkit.workload.case import with_complaints
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.mismatch import may_be_unwritten
from ptxkit.workload.tolerance import Rule
from ptxkit.workload.verify import Verdict, compare_all

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Timed
    from ptxkit.emulator.counters.counters import Counters
    from ptxkit.runtime.device import Device

SCHEMA = "ptxkit.run_file/2"


@dataclass(frozen=True)
class FileReport:
    """The result of running a kernel of a source file.

    Attributes:
        call: the launch.
        device_kind, device_name: ``"gpu"`` or ``"emulator"``; ``"NVIDIA H200"``.
        arrays: every array argument after the first launch.
        verdict: the comparison with ``--expect``; None without it.
        counters: exact counts of the launch; None if the device does not count.
        time: device time of a launch, cold L2; None without a reliable clock or if the result is wrong.
        iterations: requested number of timed samples, or None.
    """

    call: Call
    device_kind: str
    device_name: str
    arrays: tuple[ArraySummary, ...]
    verdict: Verdict | None
    counters: Counters | None
    time: Timed | None
    iterations: int | None

    @property
    def exit_code(self) -> int:
        """1 for a wrong result, else 0: without ``--expect``, a launch that completes is a success."""
        from ptxkit.errors import VerificationError

        return VerificationError.exit_code if self.verdict is not None and not self.verdict.verified else 0

    def to_json(self) -> dict[str, Any]:
        """The object of schema ``ptxkit.run_file/2``."""
        verdict = self.verdict
        return {
            "schema": SCHEMA,
            **plan_json(self.call),
            "iterations": self.iterations,
            "device": {"kind": self.device_kind, "name": self.device_name, "target": self.call.file.image.target},
            "verified": None if verdict is None else verdict.verified,
            "max_abs_error": None if verdict is None else verdict.max_abs_error,
            "max_rel_error": None if verdict is None else verdict.max_rel_error,
            "mismatches": None if verdict is None else verdict.mismatches,
            "worst": None if verdict is None else verdict.worst,
            "explanation": None if verdict is None else verdict.explanation,
            "time_us": time_json(self.time),
            "counted": counted_json(counted(self.counters)) if self.counters else None,
            "arrays": [array.to_json() for array in self.arrays],
        }


def plan_json(call: Call) -> dict[str, Any]:
    """The launch as JSON values."""
    geometry = call.geometry
    return {
        "file": str(call.file.path),
        "entry": call.entry.name,
        "target": call.file.image.target,
        "arguments": [
            {
                "name": p.name or None,
                "position": p.index,
                "declaration": call.entry.declarations[p.index],
                "value": text,
            }
            for p, text in zip(call.entry.parameters, call.texts, strict=True)
        ],
        "grid": geometry.grid,
        "block": geometry.block,
        "cluster": geometry.cluster,
        "shared_bytes": geometry.shared,
        "cooperative": geometry.cooperative,
    }


def run_call(
    call: Call,
    device: Device,
    *,
    seed: int = 0,
    iterations: int | None = None,
    tolerance: Tolerance | Rule | None = None,
    limit: TimeLimit | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> FileReport:
    """Launch once, summarise and save the arrays, compare them with their expected values, and time the kernel on a GPU.

    Args:
        call: from :func:`ptxkit.source_run.call.make_call`.
        device: the device that runs it.
        seed: for random arrays.
        iterations: timed samples; None samples until the median is known or a time budget is spent.
        tolerance: of ``--expect``; None takes the default of each array's type.
        limit: on the time of the launches; None for no limit.
        say: is called with a progress message before each step.

    Raises:
        UsageError: a file that cannot be read or written, an argument or launch that the kernel refuses.
        UnavailableError: too little memory.
        FaultError: the kernel failed.
    """
    say("preparing arguments")
    prepared_files = Prepared(call)
    built = built_of(prepared_files)
    case = execute.Case(built.workload, device, seed)
    _ = prepared_files.expected  # read before the launch, so that a missing file is reported at once
    prepared = execute.bound(case, built)
    say(f"{call.title} on {device.name}")
    if call.arrays:  # a kernel without arrays has nothing to restore or to read back
        case.reset()
    limit = limit or TimeLimit()
    with limit.around(call.title):
        measured = device.measure(prepared.launch, samples=1)
        device.synchronize()
    outputs = case.outputs() if call.arrays else {}
    for name, file in call.saved.items():
        save_npy(file, outputs[name])
    poisons = case.poisons
    verdict = compared(prepared_files, case, tolerance, built.smallest_store)
    if verdict is not None and verdict.verified:
        with limit.around(call.title):
            verdict = _again(prepared_files, prepared, tolerance, measured.counters) or verdict
    arrays = tuple(
        summarise(name, array, case.inputs.get(name), poisons.get(name, execute.POISON), call.saved.get(name, ""))
        for name, array in outputs.items()
    )
    time = None
    if is_timed(device) and (verdict is None or verdict.verified):
        say(f"timing {call.title} on {device.name}")
        time = cold_time(device, built, Method.quick(iterations), seed, say, limit)
    return FileReport(
        call,
        device.kind,
        device.name,
        arrays,
        verdict,
        measured.counters,
        time,
        iterations,
    )


def compared(
    prepared: Prepared, case: execute.Case, tolerance: Tolerance | Rule | None, smallest_store: int
) -> Verdict | None:
    """The arrays of a case after a launch, compared with ``--expect``; None without it.

    Args:
        smallest_store: bytes of the kernel's smallest write; elements of more bytes may be written in part.
    """
    if not prepared.expected:
        return None
    verdict = compare_all(case.outputs(), prepared.expected, tolerance, case.poisons, smallest_store)
    return with_complaints(verdict, case.undefined(prepared.expected))


def _again(
    files: Prepared, prepared: execute.Prepared, tolerance: Tolerance | Rule | None, counters: Counters | None
) -> Verdict | None:
    """Launch again on arrays with other initial contents, and compare, to find elements that the kernel never writes.

    The file of expected values may have been written by the same kernel. An element that the kernel never writes then has
    the fill pattern in the file as well as in the array, and the first comparison cannot detect it.

    Returns:
        The failed comparison, or None if all elements agree.
    """
    case = prepared.case
    outputs = case.outputs()
    smallest = prepared.build.smallest_store
    expected = [(name, poison) for name, poison in case.poisons.items() if name in files.expected]
    unwritten = any(may_be_unwritten(outputs[name], poison, smallest) for name, poison in expected)
    for poison in execute.other_poisons(counters, counters is None and case.is_poisoned, unwritten):
        prepared.state.restore()
        case.reset(poison)
        prepared.launch()
        case.device.synchronize()
        verdict = compared(files, case, tolerance, smallest)
        if verdict is not None and not verdict.verified:
            what = "with other contents of the arrays that start uninitialised: "
            return replace(verdict, worst=what + verdict.worst, explanation=what + verdict.explanation)
    return None
