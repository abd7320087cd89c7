"""One configuration without a GPU: verified and counted in the emulator, then modelled. Runs in a pool of processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ptxkit.errors import FaultError, PtxkitError
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.model import Geometry, cost
from ptxkit.sweep.problem import Problem
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute

_CASES: dict[str, execute.Case] = {}  # inputs and reference are made once a process


def model_tile(problem: Problem, tile: Mapping[str, Any], compiled: Compiled, seed: int, timeout_s: float) -> Entry:
    """Emulate one configuration and say what it would cost."""
    begin = time.perf_counter()
    try:
        with _limited(timeout_s):
            return _modelled(problem, tile, compiled, seed)
    except TimeoutError:
        error = f"not done within {timeout_s:g} s"
        return Entry(tile, "timeout", error, measured_s=time.perf_counter() - begin)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """TimeoutError inside when it takes longer; in the main thread of a process, where there are such signals."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _modelled(problem: Problem, tile: Mapping[str, Any], compiled: Compiled, seed: int) -> Entry:
    from ptxkit.runtime.device import emulating_device

    begin = time.perf_counter()
    if problem.key not in _CASES:
        _CASES[problem.key] = execute.Case(problem.workload, emulating_device(), seed)
    base: dict[str, Any] = {"tile": dict(tile)}
    try:
        result = execute.run(_CASES[problem.key], problem.chosen, problem.parsed_target, tile, explicit=True)
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
