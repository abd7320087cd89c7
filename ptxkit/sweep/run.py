"""A sweep: a pool of processes compiles configurations, one process measures them, and a journal records each result."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from typing import Any

from ptxkit.errors import FaultError, UnavailableError
from ptxkit.sweep.compiling import Compiled, compile_tile
from ptxkit.sweep.disassembled import sass_mix
from ptxkit.sweep.interrupts import interrupts_blocked
from ptxkit.sweep.journal import Entry, Journal
from ptxkit.sweep.measuring import MeasuringProcess
from ptxkit.sweep.modelled import model_tile
from ptxkit.sweep.problem import Problem
from ptxkit.sweep.search import Search
from ptxkit.workload.ahead import is_slow, processes
from ptxkit.workload.launch import Tile

LEADERS = 6  # number of configurations that are measured again with interleaved samples
NEAR = 1.05  # only configurations within this factor of the best time can be leaders
ORPHAN_CHECK_S = 0.25
PARTS = ("search", "compile", "prepare", "verify", "time")
AHEAD = 3  # tiles in flight for each worker, so that neither the compiling processes nor the GPU are idle


@dataclass(frozen=True)
class _Step:
    """The work of a future: compiling a tile, or a step that follows."""

    tile: Tile
    compiled: Compiled | None = None


@dataclass
class Sweep:
    """One sweep.

    Args:
        problem: the subject of the sweep. search: selects the configurations. journal: where results are recorded.
        evaluations: maximum number of configurations, including those of an earlier run.
        timed: on a GPU; else modelled in the emulator.
        workers: compiling processes. timeout_s: for measuring or emulating one configuration. seed: of the inputs.
        leader_budget_s: for the repeated measurement of the best.
        shown: how many of the best configurations will be shown; their machine code is disassembled; 0 for none.

    Attributes:
        done: tile -> its result so far. reused: tiles whose machine code had been measured before. measured: the others.
        mixes: fingerprint of a tile that will be shown -> instruction mix of its machine code.
        trouble: why the leaders could not be measured again, or "".
        spent: wall seconds: ``search``, in which the search chose; ``start``, until measuring could begin; ``explored``, until
            all were known; ``leaders``, after that. And sums over configurations: ``compile``, of the compiling processes;
            ``prepare``, ``verify`` and ``time``, of the measuring one.
    """

    problem: Problem
    search: Search
    journal: Journal
    evaluations: int
    timed: bool
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    timeout_s: float = 30.0
    seed: int = 0
    leader_budget_s: float = 1.0
    shown: int = 0
    reused: int = 0
    measured: int = 0
    trouble: str = ""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    done: dict[Tile, Entry] = field(default_factory=dict)
    mixes: dict[str, str] = field(default_factory=dict)
    _best: float = math.inf
    _repeated: set[Tile] = field(default_factory=set)  # leaders that the repeated measurement timed
    _before: list[Tile] = field(default_factory=list)
    # fingerprint that is being measured -> other tiles with the same fingerprint, which take its result
    _alike: dict[str, list[tuple[Tile, Compiled]]] = field(default_factory=dict)

    def run(self, say: Callable[[str], None] = lambda what: None) -> list[Entry]:
        """Explore until the evaluations are used up or all tiles are known; then measure the leaders again.

        Returns:
            The entries of this run, one for each configuration. The leaders come first, sorted by the repeated
            measurement, then the others, sorted by the first measurement. The two kinds of times are not
            comparable, because a GPU becomes slower after some time at its power cap.

        Raises:
            UnavailableError: measuring cannot start.
        """
        begin = time.perf_counter()
        self.done, self._repeated = {}, set()
        self._before = self.search.reserve(entry.key for entry in self.journal.entries)[: self.evaluations]
        others = set(active_children())
        self._process = MeasuringProcess(self.problem, self.seed, self.timeout_s)
        slow = is_slow(self.problem.workload, self.problem.chosen)
        if slow:
            self.workers = processes(self.workers)
        self._pool = ProcessPoolExecutor(
            self.workers,
            mp_context=get_context("spawn"),
            initializer=_without_gpu,
            initargs=(os.getpid(),),
            max_tasks_per_child=1 if slow else None,  # a process does not return the gigabytes of a large compilation
        )
        self._measurer = ThreadPoolExecutor(1)  # a thread that waits for the measuring process
        starting = self._measurer.submit(self._start) if self.timed else None
        pending: dict[Future[Any], _Step] = {}
        try:
            while self._ask(pending) or pending:
                rate = len(self.done) / max(1e-9, time.perf_counter() - begin)
                say(f"{len(self.done)} of {self.evaluations}, {rate:.1f} a second, best {self._shown(self._best)}")
                ready, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ready:
                    self._advance(pending.pop(future), future.result(), pending)
            self.spent["explored"] = time.perf_counter() - begin
            mixing = self._disassemble()  # in the compiling processes, which are idle during the repeated measurement
            if starting is not None:
                self.spent["start"] = starting.result() - begin
                self._leaders(say)
                self.spent["leaders"] = time.perf_counter() - begin - self.spent["explored"]
            self._gather(mixing, say)
        except BrokenProcessPool:
            raise UnavailableError("a compiling process died; is there enough memory? --workers takes fewer") from None
        except BaseException:
            for child in set(active_children()) - others:  # their results are not needed any more
                child.kill()
            raise
        finally:
            self._measurer.shutdown(wait=False, cancel_futures=True)
            self._process.end()
            self._pool.shutdown(wait=True, cancel_futures=True)
        return self.entries()

    def entries(self) -> list[Entry]:
        """The results so far, in the order of :meth:`run`; also after a sweep was stopped."""
        return sorted(self.done.values(), key=lambda e: (e.key not in self._repeated, e.value))

    def _gather(self, mixing: dict[Future[str], str], say: Callable[[str], None]) -> None:
        """Wait for all disassemblies, after starting those of tiles that moved into the shown rows because a leader
        failed."""
        with suppress(BrokenProcessPool):  # the times are known even without disassemblies
            mixing |= self._disassemble(mixing.values())
            for number, future in enumerate(as_completed(mixing), 1):
                say(f"disassembled {number} of {len(mixing)}")
                self.mixes[mixing[future]] = future.result()

    def _disassemble(self, begun: Collection[str] = ()) -> dict[Future[str], str]:
        """Start the disassembly of the tiles that will be shown, one for each fingerprint.

        Args:
            begun: fingerprints whose disassembly has been started.

        Returns:
            Future -> fingerprint.
        """
        if not self.shown:
            return {}
        good = [e for e in self.entries() if math.isfinite(e.value)]
        wanted = {e.fingerprint: e for e in (*leaders(good), *good[: self.shown]) if e.fingerprint not in begun}
        with interrupts_blocked():
            return {self._pool.submit(sass_mix, self.problem, dict(e.tile)): f for f, e in wanted.items()}

    def _ask(self, pending: dict[Future[Any], _Step]) -> bool:
        """Start as many tiles as the search and the processes can have in flight; returns whether there were any."""
        room = min(self.search.ahead, AHEAD * self.workers) - len(pending)
        left = self.evaluations - len(self.done) - len(pending) - sum(map(len, self._alike.values()))
        if self._before:  # a resumed sweep begins with the tiles of its journal
            tiles = self._before[: min(left, AHEAD * self.workers - len(pending))]
            del self._before[: len(tiles)]
            self._start_on(tiles, pending)
            return bool(tiles)
        if left <= 0 or (pending and room < self.search.batch):
            return False
        begin = time.perf_counter()
        tiles = self.search.ask(min(left, room))
        self.spent["search"] += time.perf_counter() - begin
        self._start_on(tiles, pending)
        return bool(tiles)

    def _start_on(self, tiles: Sequence[Tile], pending: dict[Future[Any], _Step]) -> None:
        with interrupts_blocked():  # a submission may start a worker
            pending.update({self._pool.submit(compile_tile, self.problem, dict(t)): _Step(t) for t in tiles})

    def _advance(self, step: _Step, result: Any, pending: dict[Future[Any], _Step]) -> None:
        """Called when a step of a tile is done: starts its next step or records its entry."""
        if step.compiled is None:
            self.spent["compile"] += result.seconds
            self._place(step.tile, result, pending)
            return
        self._record(step.tile, _with(result, step.compiled))
        for tile, compiled in self._alike.pop(step.compiled.fingerprint):
            self._place(tile, compiled, pending)

    def _place(self, tile: Tile, compiled: Compiled, pending: dict[Future[Any], _Step]) -> None:
        """Handle a compiled tile: record a failure or a known result, wait for a tile with the same fingerprint, or
        measure it."""
        known = self.journal.known(compiled.fingerprint) if not compiled.error else None
        if compiled.error:
            self._record(tile, _with(Entry(tile, "compile", compiled.error), compiled))
        elif known is not None:
            self.reused += 1
            again = known.key == tile
            self._record(tile, known if again else replace(known, tile=dict(tile)), write=not again)
        elif compiled.fingerprint in self._alike:
            self._alike[compiled.fingerprint].append((tile, compiled))
        else:
            self._alike[compiled.fingerprint] = []
            if self.timed:
                future = self._measurer.submit(self._measure, tile)
            else:
                arguments = (self.problem, dict(tile), compiled, self.seed, self.timeout_s)
                with interrupts_blocked():
                    future = self._pool.submit(model_tile, *arguments)
            pending[future] = _Step(tile, compiled)

    def _start(self) -> float:
        self._process.start()
        return time.perf_counter()

    def _measure(self, tile: Tile) -> Entry:
        found = self._process.measure(tile, self._best)
        self.measured += 1
        for part, seconds in (("prepare", found.prepare_s), ("verify", found.verify_s), ("time", found.time_s)):
            self.spent[part] += seconds
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
        )

    def _record(self, tile: Tile, entry: Entry, write: bool = True) -> None:
        self.done[tile] = entry
        self._best = min(self._best, entry.value)
        if write:
            self.journal.add(entry)
        self.search.tell(tile, entry.value)

    def _leaders(self, say: Callable[[str], None]) -> None:
        for before, entry in zip(chosen := leaders(list(self.done.values())), self._again(chosen, say), strict=True):
            self.done[before.key] = entry

    def _again(self, chosen: Sequence[Entry], say: Callable[[str], None]) -> list[Entry]:
        if len(chosen) < 2:
            return list(chosen)
        say(f"measuring the best {len(chosen)} against each other")
        try:
            rows = self._process.leaders([e.tile for e in chosen], self.leader_budget_s)
        except FaultError as error:  # the first measurements remain valid
            self.trouble = str(error)
            return list(chosen)
        found = []
        for entry, row in zip(chosen, rows, strict=True):
            cold = row["cold"]
            if cold is None or row["verified"] is False:
                entry = replace(entry, status="wrong", error=row["error"] or row["worst"])
            else:
                times = {"time_us": cold["median_us"], "spread_us": cold["spread_us"], "samples": cold["samples"]}
                entry = replace(entry, status="ok", **times)
                self._repeated.add(entry.key)
            self.journal.add(entry, leader=True)
            found.append(entry)
        return found

    def _shown(self, value: float) -> str:
        if value == float("inf"):
            return "none yet"
        return f"{value:.4g} us" if self.timed else f"{value:.4g} (modelled)"


def leaders(entries: Sequence[Entry]) -> list[Entry]:
    """The configurations that may be the best: within NEAR of the best time, at most LEADERS, one for each
    fingerprint."""
    good = sorted((e for e in entries if e.status == "ok" and e.time_us is not None), key=lambda e: e.value)
    distinct = list({e.fingerprint: e for e in reversed(good)}.values())
    distinct.sort(key=lambda e: e.value)
    return [e for e in distinct if e.value <= NEAR * distinct[0].value][:LEADERS]


def _with(entry: Entry, compiled: Compiled) -> Entry:
    return replace(
        entry,
        compile_s=compiled.seconds,
        fingerprint=compiled.fingerprint,
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=compiled.shared_bytes,
        occupancy=compiled.occupancy,
        limiter=compiled.limiter,
        threads=compiled.threads,
        ctas=compiled.ctas,
    )


def _without_gpu(parent: int) -> None:
    """Initialise a worker process: it sees no GPU, leaves Ctrl-C to the parent process, and ends with it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)
