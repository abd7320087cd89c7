"""The winners of sweeps and of ``run --tune`` as records with their provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ptxkit
from ptxkit.workload.resolve import resolve
from ptxkit.workload.tuned.code import code_hash, inputs_hash
from ptxkit.workload.tuned.record import Measured, Record, Scope

if TYPE_CHECKING:
    from ptxkit.sweep.report import Outcome
    from ptxkit.workload.resolve import ResolvedVariant

MOST_OTHERS = 5  # other configurations that a record has beside the winner


def of_sweep(outcome: Outcome) -> Record:
    """The record of the best tile of a sweep; its programs are in the compile cache.

    Raises:
        PtxkitError: they are not, and do not compile any more.
    """
    best, problem = outcome.best, outcome.problem
    assert best is not None
    resolved = resolve(problem.workload, problem.chosen, problem.parsed_target, best.tile)
    others = [Measured(problem.variant, e.tile, e.time_us) for e in outcome.entries if e.time_us and e is not best]
    where = best.measured_on or {}
    return record_of(
        resolved,
        "tile",
        {"time_us": best.time_us, "spread_us": best.spread_us, "samples": best.samples, "at": best.at},
        {"driver": str(where.get("driver", "")), "uuid": str(where.get("uuid", ""))},
        sorted(others, key=lambda other: other.time_us),
    )


def record_of(
    resolved: ResolvedVariant,
    scope: Scope,
    times: Mapping[str, Any],
    gpu: Mapping[str, Any],
    others: Sequence[Measured] = (),
) -> Record:
    """The record of a resolved variant.

    Args:
        times: ``time_us``, ``spread_us``, ``samples`` and ``at``. gpu: ``driver`` and ``uuid``.
        others: what was measured beside it, the fastest first.
    """
    from ptxkit.compiler.nvrtc import nvrtc_version

    workload = resolved.workload
    return Record(
        kernel=workload.name,
        sizes=workload.sizes,
        options=workload.options,
        variant=resolved.variant.name,
        tile=dict(resolved.tile),
        scope=scope,
        target=resolved.target.name,
        nvrtc=nvrtc_version(),
        ptxkit=ptxkit.__version__,
        inputs=inputs_hash(resolved),
        code=code_hash(resolved),
        others=tuple(others[:MOST_OTHERS]),
        **times,
        **gpu,
    )
