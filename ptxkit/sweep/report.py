"""Reports of a sweep: a table with resources that may explain the ranking, JSON, and the T4 format.

T4 is the results schema 1.0.0 of the auto-tuning community (github.com/odgaard/TuningSchema, also in Kernel Tuner's
``schema/T4/1.0.0``): https://doi.org/10.1016/j.future.2024.05.021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ptxkit.exit_codes import ExitCode, most_severe
from ptxkit.quantities import time_text
from ptxkit.sweep.agreement import Agreement
from ptxkit.sweep.journal import SCHEMA, Entry
from ptxkit.sweep.problem import Problem, Space

if TYPE_CHECKING:
    from ptxkit.bench.results.ceiling import Ceiling
    from ptxkit.workload.launch import Work

INVALIDITY = {
    "ok": "correct",
    "slow": "correct",
    "compile": "compile",
    "launch": "runtime",
    "fault": "runtime",
    "wrong": "correctness",
    "timeout": "timeout",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep.

    Attributes:
        problem, space: what was swept. entries: best first.
        device: its name. timed: whether values are microseconds; else they are modelled.
        seconds: of wall time. spent: parts of it, see :class:`ptxkit.sweep.run.Sweep`.
        reused: configurations whose machine code had been measured before. measured: the others.
        ceiling: what bounds the workload on this device, see :func:`ptxkit.bench.results.ceiling.ceiling`; None where that is
            not known.
        best_peer: name and microseconds of the fastest peer, or None.
        mixes: fingerprint -> instruction mix of its machine code, see :func:`ptxkit.sweep.disassembled.sass_mix`.
        partial: the sweep was stopped early; the outcome has the results up to then.
        agreement: the leaders on each GPU of a cluster, or None.
    """

    problem: Problem
    space: Space
    entries: Sequence[Entry]
    device: str
    timed: bool
    seconds: float
    reused: int = 0
    measured: int = 0
    ceiling: Ceiling | None = None
    best_peer: tuple[str, float] | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    mixes: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    agreement: Agreement | None = None

    @property
    def best(self) -> Entry | None:
        """The fastest configuration; None if all failed."""
        first = self.entries[0] if self.entries else None
        return first if first is not None and math.isfinite(first.value) else None


def rows(outcome: Outcome, count: int) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the best configurations, with resources that may explain the ranking."""
    work = outcome.problem.workload.work()
    varied = [name for name, values in outcome.problem.axes.items() if len(values) > 1] or list(outcome.problem.axes)
    value = ["time", ""] if outcome.timed else ["modelled cost", ""]
    headers = [
        "",
        *varied,
        *value,
        "TFLOP/s",
        "of roof",
        "of best peer",
        "regs",
        "spills",
        "shared",
        "occupancy",
        "limited by",
        "mix",
    ]
    if not outcome.timed:
        headers = [h for h in headers if h not in ("TFLOP/s", "of roof", "of best peer")]
    found = []
    best = outcome.best.value if outcome.best else math.nan
    for place, entry in enumerate((e for e in outcome.entries[:count] if math.isfinite(e.value)), 1):
        row = [str(place), *(str(entry.tile[name]) for name in varied)]
        if outcome.timed:
            row += [_time(entry), f"{entry.value / best:.3f}x", *_rates(outcome, work, entry)]
        else:
            row += [f"{entry.value:.4g}", f"{entry.value / best:.3f}x"]
        row += [
            str(entry.registers),
            f"{entry.spill_bytes} B" if entry.spill_bytes else "-",
            f"{entry.shared_bytes / 1024:.3g} KB",
            f"{entry.occupancy:.0%}",
            entry.limiter,
            outcome.mixes.get(entry.fingerprint, "-"),
        ]
        found.append(row)
    return headers, found


def _rates(outcome: Outcome, work: Work, entry: Entry) -> list[str]:
    rate = work.flops / entry.value / 1e6
    roof = f"{outcome.ceiling.time_us / entry.value:.1%}" if outcome.ceiling else "-"
    peer = outcome.best_peer[1] / entry.value if outcome.best_peer else None
    return [f"{rate:.3g}", roof, f"{peer:.1%}" if peer else "-"]


def _time(entry: Entry) -> str:
    spread = f" ± {100 * entry.spread_us / entry.value:.1f}%" if entry.spread_us is not None else ""
    return time_text(entry.value) + spread


def failures(entries: Sequence[Entry]) -> list[str]:
    """For each kind of failure, the number of configurations and one example."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.status not in ("ok", "slow"):
            groups.setdefault(entry.status, []).append(entry)
    words = {"compile": "do not compile", "launch": "cannot be launched", "wrong": "give wrong results"}
    words |= {"fault": "fault", "timeout": "hang"}
    found = []
    for status, group in groups.items():
        example = group[0]
        tile = " ".join(f"{k}={v}" for k, v in example.tile.items())
        such = f", such as {tile}" if tile else ""
        found.append(f"{len(group)} {words[status]}{such}: {example.error.splitlines()[0]}")
    return found


STATUS_CODES = {
    "ok": ExitCode.DONE,
    "slow": ExitCode.DONE,
    "compile": ExitCode.NOT_COMPILED,
    "launch": ExitCode.USAGE,
    "wrong": ExitCode.WRONG,
    "fault": ExitCode.FAULT,
    "timeout": ExitCode.TIME_LIMIT,
}


def exit_code(entries: Sequence[Entry]) -> ExitCode:
    """``DONE`` when one of the configurations is verified, else the code of the most severe failure."""
    codes = [STATUS_CODES[entry.status] for entry in entries]
    if not codes:
        return ExitCode.NOTHING_VERIFIED
    return ExitCode.DONE if ExitCode.DONE in codes else most_severe(codes)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as JSON values; schema ``ptxkit.sweep/1``."""
    problem = outcome.problem
    return {
        "schema": SCHEMA,
        "kernel": problem.workload.name,
        "variant": problem.variant,
        "sizes": dict(problem.sizes),
        "options": dict(problem.options),
        "target": problem.target,
        "device": outcome.device,
        "unit": "us" if outcome.timed else "modelled cost",
        "axes": {name: list(values) for name, values in problem.axes.items()},
        "space": {
            "size": outcome.space.size,
            "tiles": len(outcome.space.tiles),
            "refused": dict(outcome.space.refused),
            "complete": outcome.space.complete,
        },
        "partial": outcome.partial,
        "seconds": outcome.seconds,
        "spent_s": dict(outcome.spent),
        "measured": outcome.measured,
        "reused": outcome.reused,
        "ceiling": outcome.ceiling and asdict(outcome.ceiling),
        "best_peer": outcome.best_peer and {"name": outcome.best_peer[0], "time_us": outcome.best_peer[1]},
        "agreement": outcome.agreement and outcome.agreement.to_json(),
        "entries": [asdict(entry) for entry in outcome.entries],
    }


def to_t4(entries: Sequence[Entry], timed: bool) -> dict[str, Any]:
    """Results in the T4 format 1.0.0: times in milliseconds."""
    results = []
    for entry in entries:
        value = entry.value
        measurements = []
        if math.isfinite(value):
            name, unit = ("time", "milliseconds") if timed else ("modelled_cost", "")
            measurements.append({"name": name, "value": value / 1e3 if timed else value, "unit": unit})
        results.append(
            {
                "timestamp": entry.at,
                "configuration": dict(entry.tile),
                "objectives": [m["name"] for m in measurements],
                "times": {
                    "compilation_time": entry.compile_s * 1e3,
                    "runtimes": [value / 1e3] if timed and math.isfinite(value) else [],
                    "framework": entry.prepare_s * 1e3,
                    "search_algorithm": 0,
                    "validation": entry.verify_s * 1e3,
                },
                "invalidity": INVALIDITY[entry.status],
                "correctness": 0 if entry.status == "wrong" else 1,
                "measurements": measurements,
            }
        )
    return {"schema_version": "1.0.0", "results": results}
