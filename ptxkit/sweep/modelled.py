"""One configuration without a GPU: verified and counted in the emulator, then modelled. Runs in a pool of processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.errors import FaultError, PtxkitError, TimeLimitError
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.model import Geometry, cost
from ptxkit.sweep.problem import Problem
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute

_CASES: dict[str, execute.Case] = {}  # inputs and reference are made once per process


def model_tile(problem: Problem, tile: Mapping[str, Any], compiled: Compiled, seed: int, timeout_s: float) -> Entry:
    """Verify and count one configuration in the emulator, and estimate its cost."""
    from ptxkit.runtime.device import emulating_device

    begin = time.perf_counter()
    around = partial(TimeLimit(timeout_s).around, problem.chosen.name)
    if problem.key not in _CASES:
        case = _CASES[problem.key] = execute.Case(problem.workload, emulating_device(), seed)
        _ = case.expected  # computed before the time limit starts
    base: dict[str, Any] = {"tile": dict(tile)}
    try:
        result = execute.run(
            _CASES[problem.key], problem.chosen, problem.parsed_target, tile, explicit=True, around=around
        )
    except TimeLimitError as error:
        return Entry(status="timeout", error=str(error), measured_s=time.perf_counter() - begin, **base)
    except FaultError as error:
        return Entry(status="fault", error=str(error), **base)
    except PtxkitError as error:
        return Entry(status="launch", error=str(error), **base)
    seconds = time.perf_counter() - begin
    assert result.verdict is not None
    assert result.counters is not None
    if not result.verdict.verified:
        return Entry(status="wrong", error=result.verdict.worst, measured_s=seconds, **base)
    gpu = reference_facts(problem.parsed_target)
    geometry = Geometry(compiled.ctas, compiled.threads, compiled.occupancy, gpu.target.limits.warps, gpu.sms)
    return Entry(status="ok", cost=cost(result.counters, geometry), measured_s=seconds, **base)
