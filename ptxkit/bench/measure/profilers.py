"""Runs each variant and each peer under a profiler in a separate process, to measure its memory traffic in hardware.

ncu serialises kernels and flushes caches, so that times of a profiled run are not used. The child is ``python -m
ptxkit.bench.measure.profiled_call``, which brackets one call with cuProfilerStart and cuProfilerStop.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptxkit.bench.results.results import CaseResult, ProfiledKernel, Results, Row
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import refused

# Stall reasons: cycles of waiting per issued instruction, with the names of Nsight Compute.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "short_scoreboard", "sleeping",
    "tex_throttle", "wait",
)  # fmt: skip
# Nsight Compute's metric -> (field, how the kernels of a variant combine): bytes add up, ratios are of the longest kernel.
NCU: Mapping[str, tuple[str, str]] = {
    "dram__bytes_read.sum": ("dram_read_bytes", "sum"),
    "dram__bytes_write.sum": ("dram_write_bytes", "sum"),
    "lts__t_sector_hit_rate.pct": ("l2_hit_percent", "longest"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("occupancy_percent", "longest"),
    "launch__registers_per_thread": ("registers", "max"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": ("global_load_sectors", "sum"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": ("global_store_sectors", "sum"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("shared_bank_conflicts", "sum"),
    "smsp__inst_executed.sum": ("warp_instructions", "sum"),
    "gpu__time_duration.sum": ("profiled_ns", "sum"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("tensor_pipe_percent", "longest"),
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": ("fma_pipe_percent", "longest"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": ("issue_percent", "longest"),
} | {f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": (f"stall_{why}", "longest") for why in STALLS}
TIMEOUT_S = 300


MINIMAL, FULL = "minimal", "full"
"""Sections of ncu: the counters of the table, or all sections."""


@dataclass(frozen=True)
class Profile:
    """How candidates are profiled.

    Attributes:
        tool: ``"ncu"``, ``"nsys"`` or ``"torch"``.
        directory: where reports are kept; None keeps those of nsys and torch in the working directory, and none of ncu.
        sections: of ncu: ``("minimal",)``, ``("full",)``, or names of sections such as ``"SpeedOfLight"``.
    """

    tool: str
    directory: Path | None = None
    sections: tuple[str, ...] = (MINIMAL,)

    def check(self) -> None:
        """Check the options before anything is measured, and make the directory.

        Raises:
            UsageError: sections without ncu, or without a directory for the report, or names that are none.
            UnavailableError: the profiler is not installed. FileAccessError: the directory cannot be made.
        """
        if self.sections != (MINIMAL,):
            if self.tool != "ncu":
                raise UsageError("--profile-sections are of Nsight Compute; give --profile ncu")
            wrong = next((n for n in self.sections if not re.fullmatch(r"\w+", n)), None)
            if wrong is not None:
                raise UsageError(f"--profile-sections takes minimal, full or names such as SpeedOfLight, not {wrong!r}")
            if len(self.sections) > 1 and {MINIMAL, FULL} & set(self.sections):
                raise UsageError("--profile-sections takes either minimal, full or names of sections, separated by commas")
            if self.directory is None:
                raise UsageError("--profile-sections are kept in a report; give --profile-dir DIRECTORY")
        find(self.tool)
        if self.directory is not None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise refused(self.directory, error, "make") from None

    def file(self, name: str) -> str:
        """The path of a report."""
        return name if self.directory is None else str(self.directory / name)


def profiled(
    results: Results,
    profile: Profile,
    say: Callable[[str], None],
    done: Callable[[Results], None] = lambda results: None,
) -> Results:
    """The results with the measurements of a profiler for each variant and peer that has a time.

    ``ncu`` fills in ``measured``, ``torch`` the kernels; reports that are kept are named in the row's note.

    Args:
        done: called with the results so far, marked as partial until the last case: at the start, and after each case.

    Raises:
        UnavailableError: the profiler is not installed, or may not read the counters.
    """
    find(profile.tool)
    before, cases = results.partial, list(results.cases)
    done(replace(results, partial=True))
    for number, case in enumerate(results.cases):
        rows = []
        for row in case.rows:
            if row.cold:
                say(f"{profile.tool}: {case.key} {row.name}")
                row = _one(profile, case, row)
            rows.append(row)
        cases[number] = replace(case, rows=tuple(rows))
        results = replace(results, cases=tuple(cases), partial=before or number + 1 < len(cases))
        done(results)
    return results


def find(tool: str) -> str:
    """Path of the profiler.

    Raises:
        UnavailableError: it is not installed.
    """
    if tool == "torch":
        return sys.executable
    path = shutil.which(tool)
    if path is None:
        product = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}[tool]
        raise UnavailableError(f"--profile {tool} needs {product}: no {tool} on PATH")
    return path


def _one(profile: Profile, case: CaseResult, row: Row) -> Row:
    call: dict[str, Any] = {"kernel": case.description or case.kernel, "sizes": case.sizes, "options": case.options}
    call |= {"peer": row.name} if row.kind == "peer" else {"variant": row.name, "tile": row.tile}
    call |= {"seed": case.seed}
    child = [sys.executable, "-m", "ptxkit.bench.measure.profiled_call", json.dumps(call)]
    name = profile.file(report_name(case, row))
    if profile.tool == "nsys":
        # User Guide, "Command Line Options": a long option is followed by an equal sign. Without capture-range-end=stop nsys
        # ends the child with the range, and fails with it
        only_the_call = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        how = [*only_the_call, "--trace=cuda", "--force-overwrite=true", f"--output={name}"]
        _run([find("nsys"), "profile", *how, *child], row.name)
        return _with_report(row, "profile", Path(f"{name}.nsys-rep"))
    if profile.tool == "torch":
        trace = Path(f"{name}.trace.json")
        _run([*child, "--torch-trace", str(trace)], row.name)
        row = _with_report(row, "trace", trace)
        return replace(row, kernels=read_trace(trace.read_text(encoding="utf-8")))
    return _by_ncu(profile, row, child, Path(f"{name}.ncu-rep"))


def _by_ncu(profile: Profile, row: Row, child: Sequence[str], report: Path) -> Row:
    """The row with counters of ncu, whose report is kept if there is a directory for it."""
    metrics = ["--metrics", ",".join(NCU)]
    if profile.sections == (FULL,):
        metrics += ["--set", "full"]
    elif profile.sections != (MINIMAL,):
        metrics += [word for name in profile.sections for word in ("--section", name)]
    command = [find("ncu"), "--profile-from-start", "off", "--clock-control", "none"]
    table = ["--csv", "--page", "raw"]
    if profile.directory is None:
        return replace(row, measured=read_ncu(_run([*command, *table, *metrics, *child], row.name)))
    _run([*command, *metrics, "--force-overwrite", "--export", str(report), *child], row.name)
    row = _with_report(row, "report", report)
    return replace(row, measured=read_ncu(_run([find("ncu"), *table, "--import", str(report)], row.name)))


def read_trace(text: str) -> tuple[ProfiledKernel, ...]:
    """The kernels and copies of a Chrome trace of torch's profiler, by the time that they take.

    Raises:
        UnavailableError: the trace has none, as where CUPTI could not observe the GPU.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for event in json.loads(text).get("traceEvents", ()):
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in event:
            times[event["name"]].append(float(event["dur"]))
    if not times:
        raise UnavailableError("torch's profiler saw no kernel; CUPTI may not be able to observe this GPU")
    made = (ProfiledKernel(name, len(each), sum(each)) for name, each in times.items())
    return tuple(sorted(made, key=lambda kernel: -kernel.time_us))


def report_name(case: CaseResult, row: Row) -> str:
    """Names of the files of a variant, without suffix: ``softmax-rows=64-cols=1024-dtype=f16-fused``."""
    return re.sub(r"[^\w=.]+", "-", f"{case.key} {row.name}")


def _with_report(row: Row, what: str, file: Path) -> Row:
    """The row with a note about the path of its report, added to earlier notes."""
    if not file.is_file():
        raise UnavailableError(f"the profiler ended, but wrote no {file}")
    return replace(row, note=", ".join(filter(None, [row.note, f"{what} in {file}"])))


def _run(command: Sequence[str], candidate: str) -> str:
    """What a program prints; UnavailableError names the candidate that it was to profile."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{Path(command[0]).name} did not end within {TIMEOUT_S} s, of {candidate}") from None
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise UnavailableError("the driver lets only an administrator read the GPU's counters (ERR_NVGPUCTRPERM)")
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UnavailableError(f"{Path(command[0]).name} failed to profile {candidate}: {last[0]}")
    return done.stdout


def read_ncu(text: str) -> dict[str, float]:
    """The figures of a variant from ``ncu --csv --page raw``: a header, a line of units, a line per kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        raise UnavailableError("ncu saw no kernel")
    header, units, *kernels = csv.reader(io.StringIO("\n".join(lines)))
    scale = {
        "Kbyte": 1e3,
        "Mbyte": 1e6,
        "Gbyte": 1e9,
        "usecond": 1e3,
        "us": 1e3,
        "msecond": 1e6,
        "ms": 1e6,
        "second": 1e9,
    }
    values: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        for name, unit, cell in zip(header, units, kernel, strict=True):
            if name in NCU and (number := _number(cell)) is not None:  # a GPU may not have all counters
                values[name].append(number * scale.get(unit, 1))
    return _combined(values)


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _combined(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    times = values.get("gpu__time_duration.sum", [])
    longest = max(range(len(times)), key=times.__getitem__, default=0)
    found: dict[str, float] = {}
    for metric, (name, how) in NCU.items():
        column = values.get(metric)
        if column:
            found[name] = sum(column) if how == "sum" else max(column) if how == "max" else column[longest]
    if "dram_read_bytes" in found and "dram_write_bytes" in found:
        found["dram_bytes"] = found["dram_read_bytes"] + found["dram_write_bytes"]
    return found


def call_of(text: str) -> dict[str, Any]:
    """The argument of the child process."""
    value: dict[str, Any] = json.loads(text)
    return value
