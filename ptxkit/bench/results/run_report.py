"""What ``ptxkit run`` found, as values: the table and the JSON are two views of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.exit_codes import ExitCode, most_severe

if TYPE_CHECKING:
    from ptxkit.bench.measure.statistics import Summary
    from ptxkit.emulator.counters.counters import Counters
    from ptxkit.workload.launch import Work

SCHEMA = "ptxkit.run/2"
SCHEMA_PLAN = "ptxkit.plan/1"
BASELINE = "unfused"  # the variant that speed-ups refer to
COUNTERS = (
    "instructions",
    "flops",
    "global_load_bytes",
    "global_store_bytes",
    "global_load_sectors",
    "global_store_sectors",
    "global_atomic_sectors",
    "shared_bank_conflicts",
)


@dataclass(frozen=True)
class VariantReport:
    """One variant's row.

    Attributes:
        name: the variant.
        target: what it was compiled for, "sm_90a"; "" when it was skipped before that was known.
        tile: the chosen tile parameters. tile_note: why they are not the declared default, "" where they are.
        skipped: why it was not run, or None.
        error: the error that stopped it, or None.
        verified: whether every output is within tolerance; None when it did not come to that.
        max_abs_error, max_rel_error: against the float64 reference, over all outputs.
        worst: where the first wrong output differs, one line; "" when verified.
        explanation: all that is known of the wrong elements, in several lines; "" when verified.
        launches: kernel launches that make up the variant.
        time_us: device time of all its launches together, cold L2; None where there is no clock to trust.
        bandwidth_gbs: the work's bytes over the median time.
        roof_fraction: that over the copy bandwidth measured in the same run.
        speedup: over the baseline variant of the same run; None without one.
        counters: exact counts of all its launches together; None where the device does not count.
        warnings: what the compiler remarked, mapped to source lines.
    """

    name: str
    target: str = ""
    tile: Mapping[str, Any] = field(default_factory=dict)
    tile_note: str = ""
    skipped: str | None = None
    error: PtxkitError | None = None
    verified: bool | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    worst: str = ""
    explanation: str = ""
    launches: int = 0
    time_us: Summary | None = None
    bandwidth_gbs: float | None = None
    roof_fraction: float | None = None
    speedup: float | None = None
    counters: Counters | None = None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The variant's object in the schema; ``error`` appears only in the one that failed."""
        time = self.time_us
        row: dict[str, Any] = {
            "name": self.name,
            "target": self.target,
            "tile": dict(self.tile),
            "tile_note": self.tile_note,
            "skipped": self.skipped,
            "verified": self.verified,
            "explanation": self.explanation,
            "max_abs_error": self.max_abs_error,
            "max_rel_error": self.max_rel_error,
            "launches": self.launches,
            "time_us": time
            and {
                "median": time.median,
                "mean": time.mean,
                "std": time.std,
                "ci95": list(time.ci95),
                "samples": time.samples,
            },
            "bandwidth_gbs": self.bandwidth_gbs,
            "roof_fraction": self.roof_fraction,
            "speedup": self.speedup,
            "counters": self.counters and {name: getattr(self.counters, name) for name in COUNTERS},
        }
        if self.error is not None:
            row["error"] = str(self.error)
        return row


@dataclass(frozen=True)
class RunReport:
    """Everything one ``ptxkit run`` found.

    Attributes:
        kernel: the workload's name.
        sizes: size name -> value.
        iterations: timed samples asked for, or None.
        device_kind, device_name: "gpu" or "emulator"; "NVIDIA H200".
        target: what was compiled for; a variant that needs a newer one names it in its own report.
        work: the least that any version must do.
        roof_gbs: device-to-device copy bandwidth measured in this run, bytes read plus written; None where nothing is timed.
        variants: the rows, in the description's order.
    """

    kernel: str
    sizes: Mapping[str, int]
    iterations: int | None
    device_kind: str
    device_name: str
    target: str
    work: Work
    roof_gbs: float | None
    variants: tuple[VariantReport, ...]

    @property
    def exit_code(self) -> ExitCode:
        """``DONE`` when every variant that ran is verified and at least one ran; else the code of the most severe failure."""
        if all(variant.skipped is not None for variant in self.variants):
            return ExitCode.NOTHING_VERIFIED
        errors = [variant.error.exit_code for variant in self.variants if variant.error is not None]
        wrong = [ExitCode.WRONG for variant in self.variants if variant.verified is False]
        return most_severe([*errors, *wrong])

    def to_json(self) -> dict[str, Any]:
        """The object of schema ``ptxkit.run/2``."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "sizes": dict(self.sizes),
            "iterations": self.iterations,
            "device": {"kind": self.device_kind, "name": self.device_name, "target": self.target},
            "work": {"flops": self.work.flops, "bytes": self.work.bytes, "intensity": self.work.intensity},
            "variants": [variant.to_json() for variant in self.variants],
        }
