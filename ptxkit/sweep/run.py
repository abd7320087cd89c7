"""A sweep: compilers in a pool of processes, one process that measures what is ready, and a journal that loses nothing."""

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

LEADERS = 6  # measured once more, against each other
NEAR = 1.05  # times the best: who is not within that is no leader
ORPHAN_CHECK_S = 0.25
PARTS = ("search", "compile", "prepare", "verify", "time")
AHEAD = 3  # tiles under way for each worker, so that neither compilers nor GPU wait


@dataclass(frozen=True)
class _Step:
    """What a future works on: compiling a tile, or what comes after that."""

    tile: Tile
    compiled: Compiled | None = None


@dataclass
class Sweep:
    """One sweep.

    Args:
        problem: what is swept. search: which configurations. journal: where it is written down.
        evaluations: at most so many, those of an earlier run included.
        timed: on a GPU; else modelled in the emulator.
        workers: compiling processes. timeout_s: for measuring or emulating one configuration. seed: of the inputs.
        leader_budget_s: for the repeated measurement of the best.
        shown: how many of the best will be shown, whose machine code is disassembled; 0 for none.

    Attributes:
        done: what came of each tile, so far. reused: tiles whose machine code had been measured before. measured: the others.
        mixes: fingerprint of a tile that will be shown -> what its machine code consists of.
        trouble: why the best could not be measured once more, or "".
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
    _alike: dict[str, list[tuple[Tile, Compiled]]] = field(
        default_factory=dict
    )  # fingerprint under way -> who waits for it

    def run(self, say: Callable[[str], None] = lambda what: None) -> list[Entry]:
        """Explore until the evaluations are spent or nothing is left; then measure the best once more.

        Returns:
            The entries of this run, one for each configuration. The leaders come first, by the repeated measurement; then the
            others, by the first. Those times are not alike: a GPU that has run for a while at its power cap is slower.

        Raises:
            UnavailableError: measuring cannot start.
        """
        begin = time.perf_counter()
        self.done, self._repeated = {}, set()
        self._before = self.search.claim(entry.key for entry in self.journal.entries)[: self.evaluations]
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
            max_tasks_per_child=1 if slow else None,  # a large compile keeps its gigabytes
        )
        self._measurer = ThreadPoolExecutor(1)  # waits for the measuring process, so that this thread need not
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
            mixing = self._disassemble()  # beside the repeated measurement, which leaves the compiling processes idle
            if starting is not None:
                self.spent["start"] = starting.result() - begin
                self._leaders(say)
                self.spent["leaders"] = time.perf_counter() - begin - self.spent["explored"]
            self._gather(mixing, say)
        except BrokenProcessPool:
            raise UnavailableError("a compiling process died; is there enough memory? --workers takes fewer") from None
        except BaseException:
            for child in set(active_children()) - others:  # what they compile is of no use any more
                child.kill()
            raise
        finally:
            self._measurer.shutdown(wait=False, cancel_futures=True)
            self._process.end()
            self._pool.shutdown(wait=True, cancel_futures=True)
        return self.entries()

    def entries(self) -> list[Entry]:
        """What is known by now, in the order of :meth:`run`; of a sweep that was stopped, too."""
        return sorted(self.done.values(), key=lambda e: (e.key not in self._repeated, e.value))

    def _gather(self, mixing: dict[Future[str], str], say: Callable[[str], None]) -> None:
        """Wait for the disassemblies, the last of which start here: of what moved up where a leader turned out to be wrong."""
        with suppress(BrokenProcessPool):  # the times are known all the same
            mixing |= self._disassemble(mixing.values())
            for number, future in enumerate(as_completed(mixing), 1):
                say(f"disassembled {number} of {len(mixing)}")
                self.mixes[mixing[future]] = future.result()

    def _disassemble(self, begun: Collection[str] = ()) -> dict[Future[str], str]:
        """Start on the machine code of the tiles that will be shown, one of each fingerprint.

        Args:
            begun: fingerprints that need no further start.

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
        """Start on as many tiles as the search and the processes can have under way; whether there were any."""
        room = min(self.search.ahead, AHEAD * self.workers) - len(pending)
        left = self.evaluations - len(self.done) - len(pending) - sum(map(len, self._alike.values()))
        if self._before:  # a search that goes on begins with what it knew
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
        """One step of a tile is done: what comes next, or its entry."""
        if step.compiled is None:
            self.spent["compile"] += result.seconds
            self._place(step.tile, result, pending)
            return
        self._record(step.tile, _with(result, step.compiled))
        for tile, compiled in self._alike.pop(step.compiled.fingerprint):
            self._place(tile, compiled, pending)

    def _place(self, tile: Tile, compiled: Compiled, pending: dict[Future[Any], _Step]) -> None:
        """A compiled tile: it failed, is known, waits for one that runs alike, or is measured or modelled now."""
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
        except FaultError as error:  # what each was measured with before still holds
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
    """Those that may be the best: within 5% of it, six at most, one of each machine code."""
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
    """Compilers and the emulator stay off the GPU; Ctrl-C is the parent's to handle, and nobody outlives it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)
