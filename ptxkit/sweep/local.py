"""The processes of a sweep on this machine: a pool that compiles, and one process that measures."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import active_children, get_context
from typing import Any

from ptxkit.processes.orphans import end_with
from ptxkit.sweep.compiling import Compiled, compile_tile
from ptxkit.sweep.disassembled import sass_mix
from ptxkit.sweep.journal import Entry
from ptxkit.sweep.measuring import MeasuringProcess
from ptxkit.sweep.modelled import model_tile
from ptxkit.sweep.pool import Pool
from ptxkit.sweep.problem import Problem
from ptxkit.workload.ahead import processes
from ptxkit.workload.launch import Tile

NICENESS = 10  # of compiling processes beside a measuring one, which must not wait for a processor


class LocalExecutor:
    """An :class:`~ptxkit.sweep.executor.Executor` on this machine.

    Args:
        problem: what is swept.
        seed: of the inputs. timeout_s: for measuring or emulating one configuration.
        timed: on a GPU; else modelled in the emulator.
        workers: compiling processes; fewer are started for programs that need gigabytes to compile.
        slow: whether the programs are such, see :func:`ptxkit.workload.ahead.is_slow`.
        processors: that compiling processes may use; all where there are none.
        repeats: execute once more what a compiling process that died may have executed, see :class:`~ptxkit.sweep.pool.Pool`;
            else all futures raise ``BrokenProcessPool`` then.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        timeout_s: float,
        *,
        timed: bool,
        workers: int,
        slow: bool,
        processors: Collection[int] = (),
        repeats: bool = True,
    ) -> None:
        self.problem, self.seed, self.timeout_s, self.timed = problem, seed, timeout_s, timed
        self._others = set(active_children())
        self._best = math.inf
        self.process = MeasuringProcess(problem, seed, timeout_s)
        self._slots = processes(workers) if slow else workers
        made = partial(
            ProcessPoolExecutor,
            mp_context=get_context("spawn"),
            initializer=_without_gpu,
            initargs=(os.getpid(), NICENESS if timed else 0, processors),
            max_tasks_per_child=1 if slow else None,  # a process does not return the gigabytes of a large compilation
        )
        self._pool = Pool(made, self._slots, repeats=repeats)
        self._measurer = ThreadPoolExecutor(1)  # a thread that waits for the measuring process

    @property
    def slots(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self._slots

    @property
    def measurers(self) -> int:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return 1

    def start(self) -> Future[float] | None:
        """See :class:`~ptxkit.sweep.executor.Executor`.

        Raises:
            UnavailableError: from the future; measuring cannot start.
        """
        return self._measurer.submit(self._started) if self.timed else None

    def compile(self, tile: Mapping[str, Any]) -> Future[Compiled]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self._pool.submit(compile_tile, self.problem, dict(tile))

    def measure(self, tile: Tile, compiled: Compiled, best: Callable[[], float]) -> Future[Entry]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        if self.timed:
            return self._measurer.submit(self._measured, tile, compiled, best)
        return self._pool.submit(model_tile, self.problem, dict(tile), compiled, self.seed, self.timeout_s)

    def mix(self, tile: Mapping[str, Any]) -> Future[str]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self._pool.submit(sass_mix, self.problem, dict(tile))

    def leaders(self, tiles: Sequence[Mapping[str, Any]], budget_s: float) -> list[dict[str, Any]]:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        return self.process.leaders(tiles, budget_s)

    def leaders_elsewhere(self) -> list[list[dict[str, Any]]]:
        """See :class:`~ptxkit.sweep.executor.Executor`: there is one GPU."""
        return []

    def report(self) -> str:
        """See :class:`~ptxkit.sweep.executor.Executor`: how often compiling processes died."""
        return f"compiling processes died: {self._pool.deaths}" if self._pool.deaths else ""

    def abort(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        self._pool.stop()
        for child in set(active_children()) - self._others:
            child.kill()

    def end(self) -> None:
        """See :class:`~ptxkit.sweep.executor.Executor`."""
        self._measurer.shutdown(wait=False, cancel_futures=True)
        self.process.end()
        self._pool.end()

    def _started(self) -> float:
        self.process.start()
        return time.perf_counter()

    def _measured(self, tile: Tile, compiled: Compiled, best: Callable[[], float]) -> Entry:
        """In the measurer's thread: it may take the next tile before the sweep has read the result of this one."""
        self._best = min(self._best, best())
        found = self.process.measure(tile, self._best, compiled.images if compiled.loadable else ())
        if found.status == "ok" and found.time_us is not None:
            self._best = min(self._best, found.time_us)
        status: Any = found.status
        return Entry(
            tile,
            status,
            found.error,
            found.time_us,
            found.spread_us,
            found.samples,
            measured_s=found.seconds,
            prepare_s=found.prepare_s,
            verify_s=found.verify_s,
            time_s=found.time_s,
            measured_on=found.measured_on,
        )


def _without_gpu(parent: int, niceness: int, processors: Collection[int]) -> None:
    """Initialise a worker process: it sees no GPU, leaves Ctrl-C to the parent process, and ends with it.

    Args:
        niceness: by which its priority on the processors is lower than that of the parent process.
        processors: that it may use; all where there are none.
    """
    os.nice(niceness)
    if processors:
        os.sched_setaffinity(0, processors)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
