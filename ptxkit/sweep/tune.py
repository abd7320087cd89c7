"""``run --tune``: the first candidates of the model, variants with tiles, measured against each other.

On a GPU they are verified and timed with interleaved samples, as by ``ptxkit bench run``; the fastest becomes a record. Without
one they are verified in the emulator and ordered by the modelled cost of a sweep, and nothing is recorded, because a modelled
cost is no measurement.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.candidates import BufferSets, VariantCandidate
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.session import Session
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.errors import PtxkitError
from ptxkit.exit_codes import ExitCode, most_severe
from ptxkit.runtime.abilities import is_timed
from ptxkit.sweep.compiling import compile_tile
from ptxkit.sweep.modelled import model_tile
from ptxkit.sweep.problem import Problem
from ptxkit.sweep.report import STATUS_CODES
from ptxkit.sweep.winners import record_of
from ptxkit.workload.ahead import compile_ahead
from ptxkit.workload.memory import check_memory
from ptxkit.workload.tuned.record import Measured

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Row
    from ptxkit.runtime.device import Device
    from ptxkit.workload.choice import PredictedVariant
    from ptxkit.workload.tuned.record import Record
    from ptxkit.workload.workload import Workload

CANDIDATES = 6  # by default
BUDGET_S = 0.25  # of sampling, for each candidate
UNLIMITED_S = 86400.0  # of a candidate in the emulator without --timeout


@dataclass(frozen=True)
class Tried:
    """A candidate and what was found.

    Attributes:
        candidate: variant, tile and prediction.
        time_us, spread_us, samples: of a GPU. cost: modelled, in the emulator.
        error: why it has neither; "" if it has. exit_code: of the failure.
    """

    candidate: PredictedVariant
    time_us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    cost: float | None = None
    error: str = ""
    exit_code: int = 0

    @property
    def value(self) -> float:
        """What is minimised; infinite for a candidate that failed."""
        found = self.time_us if self.time_us is not None else self.cost
        return math.inf if found is None or self.error else found

    def to_json(self) -> dict[str, Any]:
        """The candidate as JSON values."""
        return {
            "variant": self.candidate.name,
            "tile": dict(self.candidate.resolved.tile),
            "predicted_us": self.candidate.terms.total,
            "time_us": self.time_us,
            "spread_us": self.spread_us,
            "samples": self.samples,
            "cost": self.cost,
            "error": self.error or None,
        }


@dataclass
class Tuning:
    """The candidates of a workload on a device.

    Args:
        kernel: name or path of the description. workload: with its sizes. device: to measure on.
        candidates: see :func:`ptxkit.workload.choice.ranked`.
        seed: of the inputs. iterations: samples of each candidate; None for the stopping rule of ``ptxkit run``.
        timeout_s: limit for the launches of one candidate; None for none.
        stuck: called with the name of a candidate that hangs on a GPU; must end the process.
    """

    kernel: str
    workload: Workload
    device: Device
    candidates: Sequence[PredictedVariant]
    seed: int = 0
    iterations: int | None = None
    timeout_s: float | None = None
    stuck: Callable[[str], None] | None = None

    def run(self, say: Callable[[str], None] = lambda what: None) -> list[Tried]:
        """Verify and measure all candidates; the best first, those that failed last.

        Raises:
            UnavailableError: the sizes need more memory than there is.
        """
        check_memory(self.workload, self.device)
        found = self._timed(say) if is_timed(self.device) else [self._modelled(o, say) for o in self.candidates]
        return sorted(found, key=lambda tried: tried.value)

    def record(self, tried: Sequence[Tried]) -> Record | None:
        """The record of the fastest candidate; None if nothing was timed."""
        timed = [t for t in tried if t.time_us is not None and math.isfinite(t.value)]
        if not timed or not is_timed(self.device):
            return None
        best, facts = timed[0], self.device.facts()
        others = [Measured(t.candidate.name, dict(t.candidate.resolved.tile), t.time_us) for t in timed[1:] if t.time_us]
        times = {
            "time_us": best.time_us,
            "spread_us": best.spread_us,
            "samples": best.samples,
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        gpu = {"driver": facts.kernel_driver, "uuid": facts.uuid}
        return record_of(best.candidate.resolved, "variant", times, gpu, others)

    def _timed(self, say: Callable[[str], None]) -> list[Tried]:
        device: Any = self.device
        method = Method(
            budget_s=BUDGET_S * len(self.candidates),
            iterations=self.iterations,
            modes=("cold",),
            percentiles=False,
        )
        count = method.sets(self.workload.work().bytes, self.workload.bytes_needed(), device.l2_bytes, device.memory_bytes)
        target = self.candidates[0].resolved.target
        sets = BufferSets(self.workload, device, count, self.seed, target)
        compile_ahead([option.resolved for option in self.candidates], say)
        _ = sets.data.expected  # which is outside the time limit
        failed, entered, candidates = [], [], []
        for option in self.candidates:
            say(f"compiling {option.name} {option.resolved.tile}")
            try:
                made = VariantCandidate(sets, option.resolved.variant, option.resolved.tile, target)
            except PtxkitError as error:
                failed.append(Tried(option, error=str(error), exit_code=int(error.exit_code)))
                continue
            made.row = replace(made.row, name=f"{option.name} {option.resolved.tile}".strip())
            entered.append(option)
            candidates.append(made)
        limit = TimeLimit(self.timeout_s, self.stuck)
        rows = Session(device, sets, method, limit=limit).measure(candidates, say) if candidates else []
        return failed + [_of_row(option, row) for option, row in zip(entered, rows, strict=True)]

    def _modelled(self, option: PredictedVariant, say: Callable[[str], None]) -> Tried:
        resolved = option.resolved
        say(f"{option.name} {resolved.tile} on {self.device.name}")
        workload = resolved.workload
        sizes, options = workload.sizes, workload.options
        problem = Problem(
            self.kernel, option.name, sizes, options, resolved.target.name, facts=self.device.facts_for(resolved.target)
        )
        compiled = compile_tile(problem, resolved.tile)
        if compiled.error:
            return Tried(option, error=compiled.error, exit_code=int(ExitCode.NOT_COMPILED))
        entry = model_tile(problem, resolved.tile, compiled, self.seed, self.timeout_s or UNLIMITED_S)
        return Tried(option, cost=entry.cost, error=entry.error, exit_code=int(STATUS_CODES[entry.status]))


def exit_code(tried: Sequence[Tried]) -> ExitCode:
    """``DONE`` if a candidate is verified, else the code of the most severe failure."""
    if any(math.isfinite(t.value) for t in tried):
        return ExitCode.DONE
    return most_severe([t.exit_code for t in tried]) if tried else ExitCode.NOTHING_VERIFIED


def _of_row(option: PredictedVariant, row: Row) -> Tried:
    if row.cold is None or row.verified is not True:
        code = row.exit_code if row.error else ExitCode.WRONG
        why = row.error or (f"wrong result: {row.worst}" if row.verified is False else "it could not be timed")
        return Tried(option, error=why, exit_code=int(code))
    return Tried(option, row.cold.median_us, row.cold.spread_us, row.cold.samples)
