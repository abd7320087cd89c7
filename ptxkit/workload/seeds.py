"""Verifies variants with the inputs of many seeds, on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxkit.errors import DescriptionError, PtxkitError, UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode, most_severe
from ptxkit.workload import execute

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

Around = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class SeedRow:
    """A variant with the inputs of one seed.

    Attributes:
        verified: whether all outputs are within the tolerance; None if the variant was skipped or failed.
        max_abs_error, max_rel_error, max_ulp_error: see :class:`~ptxkit.workload.verify.Verdict`.
        worst: the first element outside the tolerance, in words.
        skipped: why the device cannot run it, or None. error: why it failed, or None. exit_code: of the error.
    """

    variant: str
    seed: int
    verified: bool | None = None
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_ulp_error: float = 0.0
    worst: str = ""
    skipped: str | None = None
    error: str | None = None
    exit_code: int = int(ExitCode.DONE)

    @property
    def failed(self) -> bool:
        """Whether the variant was run and is not right."""
        return self.error is not None or self.verified is False

    @property
    def reason(self) -> str:
        """What went wrong, in words; "" if nothing did."""
        return self.error or (f"wrong result: {self.worst}" if self.verified is False else "")


def check_seed(
    workload: Workload,
    device: Device,
    seed: int,
    *,
    variants: Sequence[str] = (),
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    around: Around = lambda variant: nullcontext(),
) -> list[SeedRow]:
    """Verify variants with the inputs of a seed.

    Args:
        variants: their names; none for all, of which those that the device cannot run are skipped.
        target: to compile for; None for that of the device. tile: tile parameters to fix, for the variants that have them.
        around: a context for the launches of a variant, such as a time limit.

    Returns:
        A row for each variant. Once a fault has made the device unusable, the rows that follow have the same error.

    Raises:
        UsageError: no such variant or tile, or a wrong description. UnavailableError: a named variant cannot run here.
    """
    workload = workload.on(device.facts_for(target))
    case = execute.Case(workload, device, seed, target=target)
    rows = []
    for variant in [workload.variant(name) for name in variants] or list(workload.variants().values()):
        fixed = {name: value for name, value in (tile or {}).items() if name in variant.tile}
        if device.lost:
            rows.append(SeedRow(variant.name, seed, error=f"not run: {device.lost}", exit_code=int(ExitCode.FAULT)))
            continue
        try:
            result = execute.run(
                case, variant, target, fixed, explicit=bool(variants), around=partial(around, variant.name)
            )
        except (DescriptionError, UnavailableError):
            raise
        except UsageError as error:
            if variants or fixed:
                raise
            rows.append(SeedRow(variant.name, seed, error=str(error), exit_code=int(error.exit_code)))
            continue
        except PtxkitError as error:
            rows.append(SeedRow(variant.name, seed, error=str(error), exit_code=int(error.exit_code)))
            continue
        verdict = result.verdict
        if verdict is None:
            rows.append(SeedRow(variant.name, seed, skipped=result.skipped))
            continue
        rows.append(
            SeedRow(
                variant.name,
                seed,
                bool(verdict.verified),
                float(verdict.max_abs_error),
                float(verdict.max_rel_error),
                float(verdict.max_ulp_error),
                verdict.worst,
                exit_code=int(ExitCode.DONE if verdict.verified else ExitCode.WRONG),
            )
        )
    return rows


@dataclass
class SeedChecks:
    """The rows of one kernel with many seeds.

    Attributes:
        first, count: the seeds. rows: of those that are known, in any order. partial: some seeds are missing.
        measured_on: seed -> the worker of a cluster that verified it.
    """

    workload: Workload
    device: str
    device_kind: str
    target: str
    first: int
    count: int
    rows: list[SeedRow] = field(default_factory=list)
    measured_on: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Whether seeds are missing."""
        return len({row.seed for row in self.rows}) < self.count

    def by_variant(self) -> dict[str, list[SeedRow]]:
        """Variant, in the order of the description -> its rows by seed."""
        found: dict[str, list[SeedRow]] = {name: [] for name in self.workload.variants()}
        for row in sorted(self.rows, key=lambda row: row.seed):
            found[row.variant].append(row)
        return {name: rows for name, rows in found.items() if rows}

    @property
    def exit_code(self) -> ExitCode:
        """``DONE`` if every variant that ran is right with every seed and one ran; else that of the most severe failure."""
        if all(row.skipped is not None for row in self.rows):
            return ExitCode.NOTHING_VERIFIED
        return most_severe([row.exit_code for row in self.rows if row.failed])

    def to_json(self) -> dict[str, Any]:
        """As JSON values; schema ``ptxkit.seeds/1``."""
        return {
            "schema": "ptxkit.seeds/1",
            "kernel": self.workload.name,
            "sizes": dict(self.workload.sizes),
            "options": dict(self.workload.options),
            "device": {"kind": self.device_kind, "name": self.device, "target": self.target},
            "seeds": {"first": self.first, "count": self.count, "checked": len({row.seed for row in self.rows})},
            "partial": self.partial,
            "variants": [self._variant_json(name, rows) for name, rows in self.by_variant().items()],
        }

    def _variant_json(self, name: str, rows: Sequence[SeedRow]) -> dict[str, Any]:
        ran = [row for row in rows if row.skipped is None]
        worst = max(ran, key=lambda row: row.max_rel_error, default=None)
        return {
            "name": name,
            "skipped": None if ran else rows[0].skipped,
            "checked": len(ran),
            "verified": sum(row.verified is True for row in ran),
            "max_rel_error": worst and worst.max_rel_error,
            "max_rel_error_seed": worst and worst.seed,
            "failures": [
                {
                    "seed": row.seed,
                    "reason": row.reason,
                    "exit_code": row.exit_code,
                    "measured_on": dict(self.measured_on.get(row.seed, {})),
                }
                for row in ran
                if row.failed
            ],
        }
