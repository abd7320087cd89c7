"""Running a kernel's variants one after another, and making the report of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.cold import cold_times_us
from ptxkit.bench.measure.roofs import copy_bandwidth_gbs
from ptxkit.bench.measure.statistics import FixedSamples, TimeBudget, summarize
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.results.run_report import BASELINE, SCHEMA_PLAN, RunReport, VariantReport
from ptxkit.errors import CompileError, DescriptionError, FaultError, TimeLimitError, UsageError
from ptxkit.workload import execute
from ptxkit.workload.ahead import compile_ahead
from ptxkit.workload.resolve import resolve, target_for, unavailable

if TYPE_CHECKING:
    from ptxkit.bench.measure.statistics import Summary
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


def silent(what: str) -> None:
    """Report no progress."""


class Runner:
    """One ``ptxkit run``: a workload's variants on a device.

    Args:
        workload: with its sizes.
        device: where to run.
        variants: names of the variants to run; none means all, and one that the target lacks is then skipped.
        target: compile for this one instead of the device's own.
        tile: tile parameter -> value, for the variants that have that parameter.
        seed: of the random inputs.
        iterations: timed samples; None samples until the median is known or a time budget is spent.
        timeout_s: for one variant; None for no limit.
        stuck: given the report so far when a variant hangs where nothing but the end of the process ends it; must end it.

    Raises:
        UsageError: no such variant, or no variant that runs has a tile parameter that is held.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        *,
        variants: Sequence[str] = (),
        target: Target | None = None,
        tile: Mapping[str, Any] | None = None,
        seed: int = 0,
        iterations: int | None = None,
        timeout_s: float | None = None,
        stuck: Callable[[RunReport], None] = lambda report: None,
    ) -> None:
        workload = self.workload = workload.on(device.facts_for(target))
        self.device = device
        self.explicit = bool(variants)
        chosen = [workload.variant(name) for name in dict.fromkeys(variants)]
        self.variants = tuple(chosen or workload.variants().values())
        self.target = target or device.target
        self.tile = dict(tile or {})
        self.seed = seed
        self.iterations = iterations
        self.rows: list[VariantReport] = []
        self._report_stuck = stuck
        self.limit = TimeLimit(timeout_s, self._stuck)
        for name in self.tile:
            if not any(name in variant.tile for variant in self.variants):
                known = ", ".join(dict.fromkeys(n for v in self.variants for n in v.tile)) or "none"
                raise UsageError(f"{workload.name} has no tile parameter {name}; there are {known}")

    def run(self, say: Callable[[str], None] = silent) -> RunReport:
        """Run every variant on the same inputs. A variant that does not compile or faults is reported, not raised.

        Args:
            say: is told what is being done, for progress.

        Raises:
            UsageError: the sizes need more memory than there is.
            UnavailableError: a variant asked for by name needs another target.
        """
        case = execute.Case(self.workload, self.device, self.seed, target=self.target)
        compile_ahead(case.resolvable(self.variants, self._tile_of), say)
        say("preparing inputs")
        if self.limit.seconds is not None:
            _ = case.expected  # made before the first variant's time runs
        self.rows = []
        roof: float | None = None
        for variant in self.variants:
            if self.device.lost is not None:
                self.rows.append(VariantReport(variant.name, skipped=self._not_run(self.rows[-1])))
                continue
            say(f"{self.workload.name} {variant.name} on {self.device.name}")
            row, times = self._limited(case, variant)
            if times is not None:
                roof = roof or copy_bandwidth_gbs(self.device)
                row = self._timed(row, times, roof)
            self.rows.append(row)
        return self._report(roof)

    def _limited(self, case: execute.Case, variant: Variant) -> tuple[VariantReport, Summary | None]:
        try:
            with self.limit.around(variant.name):
                return self._run_variant(case, variant)
        except TimeLimitError as error:
            return VariantReport(variant.name, error=error), None

    def _report(self, roof: float | None) -> RunReport:
        return RunReport(
            kernel=self.workload.name,
            sizes=self.workload.sizes,
            iterations=self.iterations,
            device_kind=self.device.kind,
            device_name=self.device.name,
            target=self._target_name(),
            work=self.workload.work(),
            roof_gbs=roof,
            variants=with_speedups(self.rows),
        )

    def _not_run(self, before: VariantReport) -> str:
        """Why a variant cannot run after one with which the device was lost."""
        failed = next((row.name for row in self.rows if isinstance(row.error, FaultError)), before.name)
        return (
            f"not run: the fault in {failed} ended this process's use of {self.device.name}; run it alone with "
            "--variant, or everything with --device emulator"
        )

    def _stuck(self, name: str) -> None:
        """From the watchdog's thread: a variant hangs in a call that no signal ends."""
        what = (
            f"not done within {self.limit.seconds:g} s, the limit of --timeout; {self.device.name} is still executing it, so "
            "this process ends"
        )
        rows = [*self.rows, VariantReport(name, error=TimeLimitError(what))]
        names = [variant.name for variant in self.variants][len(rows) :]
        self.rows = [*rows, *(VariantReport(other, skipped=f"not run: {name} did not end") for other in names)]
        self._report_stuck(self._report(None))

    def plan(self) -> dict[str, Any]:
        """What :meth:`run` would launch, as JSON values; nothing is compiled or allocated."""
        execute.check_memory(self.workload, self.device)
        return {
            "schema": SCHEMA_PLAN,
            "kernel": self.workload.name,
            "sizes": self.workload.sizes,
            "iterations": self.iterations,
            "device": {"kind": self.device.kind, "name": self.device.name, "target": self._target_name()},
            "bytes_needed": self.workload.bytes_needed(),
            "variants": [self._plan_variant(variant) for variant in self.variants],
        }

    def _plan_variant(self, variant: Variant) -> dict[str, Any]:
        skipped = unavailable(variant, self.target, self.workload)
        if skipped is not None:
            return {"name": variant.name, "skipped": skipped, "target": "", "tile": "", "launches": []}
        found = resolve(self.workload, variant, self.target, self._tile_of(variant), device=self.device)
        launches = [
            {
                "entry": launch.entry,
                "source": str(variant.source_of(self.workload, launch)),
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared,
                "cluster": launch.cluster,
                "cooperative": launch.cooperative,
            }
            for launch in found.launches
        ]
        tile = str(found.tile)
        return {"name": variant.name, "skipped": None, "target": found.target.name, "tile": tile, "launches": launches}

    def _run_variant(self, case: execute.Case, variant: Variant) -> tuple[VariantReport, Summary | None]:
        """The verified variant's row without what depends on the time, and its time in microseconds."""
        try:
            result = execute.run(case, variant, self.target, self._tile_of(variant), explicit=self.explicit)
            if result.skipped is not None or result.prepared is None or result.verdict is None:
                return VariantReport(variant.name, skipped=result.skipped), None
            times = []
            if result.counters is None and result.verdict.verified:  # the time of a wrong result is worth nothing
                rule = TimeBudget() if self.iterations is None else FixedSamples(self.iterations)
                times = cold_times_us(self.device, result.prepared, rule)
                wrong = result.prepared.again() if times else None
                if wrong is not None:
                    result, times = replace(result, verdict=wrong), []
        except (CompileError, FaultError) as error:
            return VariantReport(variant.name, error=error), None
        except UsageError as error:  # these sizes are not for this variant; the others may do
            if self.explicit or self.tile or isinstance(error, DescriptionError):
                raise
            return VariantReport(variant.name, error=error), None
        verdict, prepared = result.verdict, result.prepared
        assert verdict is not None
        assert prepared is not None
        row = VariantReport(
            name=variant.name,
            target=result.target,
            tile=dict(result.tile),
            tile_note=prepared.tile_note,
            verified=verdict.verified,
            max_abs_error=verdict.max_abs_error,
            max_rel_error=verdict.max_rel_error,
            worst=verdict.worst,
            explanation=verdict.explanation or verdict.worst,
            launches=result.launches,
            counters=result.counters,
            warnings=tuple(image.log for image in prepared.build.images if image.log),
        )
        return row, summarize(times) if times else None

    def _timed(self, row: VariantReport, time_us: Summary, roof_gbs: float) -> VariantReport:
        bandwidth = self.workload.work().bytes / time_us.median / 1e3  # bytes/us is MB/s; 1e3 of those a GB/s
        return replace(row, time_us=time_us, bandwidth_gbs=bandwidth, roof_fraction=bandwidth / roof_gbs)

    def _tile_of(self, variant: Variant) -> dict[str, Any]:
        return {name: value for name, value in self.tile.items() if name in variant.tile}

    def _target_name(self) -> str:
        """The target given, the device's own, or what most variants are compiled for by default."""
        return (self.target or target_for(self.variants[0], None)).name


def with_speedups(rows: Sequence[VariantReport]) -> tuple[VariantReport, ...]:
    """The rows with their speed-up over the baseline variant filled in, where both have a time."""
    base = next((row.time_us.median for row in rows if row.name == BASELINE and row.time_us), None)
    return tuple(
        replace(row, speedup=base / row.time_us.median) if base is not None and row.time_us else row for row in rows
    )
