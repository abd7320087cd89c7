"""Runs each variant under a profiler in a separate process, to measure its memory traffic in hardware.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptxkit.bench.results.results import CaseResult, Results, Row
from ptxkit.errors import UnavailableError

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


def profiled(
    results: Results, tool: str, say: Callable[[str], None], done: Callable[[Results], None] = lambda results: None
) -> Results:
    """The results with the measurements of a profiler for each variant that ran.

    ``ncu`` fills in ``measured``; ``nsys`` and ``torch`` leave a report in the working directory, named in the row's note.

    Args:
        done: called with the results so far, marked as partial until the last case: at the start, and after each case.

    Raises:
        UnavailableError: the profiler is not installed, or may not read the counters.
    """
    find(tool)
    before, cases = results.partial, list(results.cases)
    done(replace(results, partial=True))
    for number, case in enumerate(results.cases):
        rows = []
        for row in case.rows:
            if row.kind == "variant" and row.cold:
                say(f"{tool}: {case.key} {row.name}")
                row = _one(tool, case, row)
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


def _one(tool: str, case: CaseResult, row: Row) -> Row:
    call: dict[str, Any] = {
        "kernel": case.description or case.kernel,
        "sizes": case.sizes,
        "options": case.options,
        "variant": row.name,
    }
    call |= {"tile": row.tile, "seed": case.seed}
    child = [sys.executable, "-m", "ptxkit.bench.measure.profiled_call", json.dumps(call)]
    name = report_name(case, row)
    if tool == "nsys":
        # User Guide, "Command Line Options": a long option is followed by an equal sign. Without capture-range-end=stop nsys
        # ends the child with the range, and fails with it
        only_the_call = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        how = [*only_the_call, "--trace=cuda", "--force-overwrite=true", f"--output={name}"]
        _run([find(tool), "profile", *how, *child])
        return _with_report(row, "profile", Path(f"{name}.nsys-rep"))
    if tool == "torch":
        trace = Path(f"{name}.trace.json")
        _run([*child, "--torch-trace", str(trace)])
        return _with_report(row, "trace", trace)
    metrics = ",".join(NCU)
    command = [find(tool), "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    return replace(row, measured=read_ncu(_run([*command, "--metrics", metrics, *child])))


def report_name(case: CaseResult, row: Row) -> str:
    """Names of the files of a variant, without suffix: ``softmax-rows=64-cols=1024-dtype=f16-fused``."""
    return re.sub(r"[^\w=.]+", "-", f"{case.key} {row.name}")


def _with_report(row: Row, what: str, file: Path) -> Row:
    """The row with a note about the path of its report, added to earlier notes."""
    if not file.is_file():
        raise UnavailableError(f"the profiler ended, but wrote no {file}")
    return replace(row, note=", ".join(filter(None, [row.note, f"{what} in {file}"])))


def _run(command: Sequence[str]) -> str:
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
        raise UnavailableError(f"{Path(command[0]).name} did not end within {TIMEOUT_S} s") from None
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise UnavailableError("the driver lets only an administrator read the GPU's counters (ERR_NVGPUCTRPERM)")
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UnavailableError(f"{Path(command[0]).name} failed: {last[0]}")
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
