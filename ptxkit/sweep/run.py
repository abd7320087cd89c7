"""A sweep: an executor compiles and measures the configurations that a search chooses, and a journal records each result."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.errors import FaultError, PtxkitError
from ptxkit.sweep.agreement import Agreement, GpuTimes, is_wrong
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.executor import Executor
from ptxkit.sweep.journal import Entry, Journal
from ptxkit.sweep.local import LocalExecutor
from ptxkit.sweep.pending import Pending
from ptxkit.sweep.problem import Problem
from ptxkit.sweep.search import UNLIMITED, Search
from ptxkit.workload.ahead import is_slow
from ptxkit.workload.launch import Tile

LEADERS = 6  # number of configurations that are measured again with interleaved samples
NEAR = 1.05  # only configurations within this factor of the best time can be leaders
PARTS = ("search", "compile", "prepare", "verify", "time")
AHEAD = 3  # tiles in flight for each worker, so that neither the compiling processes nor the GPU are idle
# Tiles in flight where GPUs measure and the search does not wait for times: the processors compile them while the measuring
# processes start, and the GPUs then measure while fewer processors are busy.
COMPILED_AHEAD = 1000
# A search that learns from times has as many tiles in flight for each GPU as for a single one, but no more than this share of
# all evaluations: it would learn too late.
MOST_UNKNOWN = 1 / 8


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
        workers: compiling processes of this machine. executor: what compiles and measures; None for this machine.
        timeout_s: for measuring or emulating one configuration. seed: of the inputs.
        leader_budget_s: for the repeated measurement of the best.
        shown: how many of the best configurations will be shown; their machine code is disassembled; 0 for none.

    Attributes:
        done: tile -> its result so far. reused: tiles whose machine code had been measured before. measured: the others.
        mixes: fingerprint of a tile that will be shown -> instruction mix of its machine code.
        trouble: why the leaders could not be measured again, or "".
        agreement: the leaders on each GPU of a cluster; None where fewer than two were measured on fewer than two GPUs.
        spent: wall seconds: ``search``, in which the search chose; ``start``, until measuring could begin; ``explored``, until
            all were known; ``first``, until the first was measured; ``leaders``, after ``explored``. And sums over
            configurations: ``compile``, of the compiling processes; ``prepare``, ``verify`` and ``time``, of the measuring one.
    """

    problem: Problem
    search: Search
    journal: Journal
    evaluations: int
    timed: bool
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    executor: Executor | None = None
    timeout_s: float = 30.0
    seed: int = 0
    leader_budget_s: float = 1.0
    shown: int = 0
    reused: int = 0
    measured: int = 0
    trouble: str = ""
    agreement: Agreement | None = None
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    done: dict[Tile, Entry] = field(default_factory=dict)
    mixes: dict[str, str] = field(default_factory=dict)
    _best: float = math.inf
    _begin: float = 0.0
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
        begin = self._begin = time.perf_counter()
        self.done, self._repeated = {}, set()
        self._before = self.search.reserve(entry.key for entry in self.journal.entries)[: self.evaluations]
        self._executor = self.executor or LocalExecutor(
            self.problem,
            self.seed,
            self.timeout_s,
            timed=self.timed,
            workers=self.workers,
            slow=is_slow(self.problem.workload, self.problem.chosen),
        )
        starting = self._executor.start()
        pending: Pending[_Step] = Pending()
        try:
            while self._ask(pending) or pending:
                rate = len(self.done) / max(1e-9, time.perf_counter() - begin)
                known = f"{len(self.done)} of {self.evaluations}, {rate:.1f} a second, best {self._shown(self._best)}"
                say(", ".join(filter(None, (known, self._executor.report()))))
                for future, step in pending.done():
                    self._advance(step, future, pending)
            self.spent["explored"] = time.perf_counter() - begin
            mixing = self._disassemble()  # in the compiling processes, which are idle during the repeated measurement
            if self.timed:
                self._leaders(say)
                if starting is not None and starting.done():
                    self.spent["start"] = starting.result() - begin
                self.spent["leaders"] = time.perf_counter() - begin - self.spent["explored"]
            self._gather(mixing, say)
        except BaseException:
            self._executor.abort()
            with suppress(PtxkitError):  # the journal may be what failed
                self._keep(pending)
            raise
        finally:
            self._executor.end()
        return self.entries()

    def _keep(self, pending: Pending[_Step]) -> None:
        """Record what was measured when the sweep was stopped and has not been read yet."""
        for future, step in pending.futures.items():
            if step.compiled is not None and future.done() and not future.cancelled() and future.exception() is None:
                self._record(step.tile, _with(future.result(), step.compiled))

    def entries(self) -> list[Entry]:
        """The results so far, in the order of :meth:`run`; also after a sweep was stopped."""
        return sorted(self.done.values(), key=lambda e: (e.key not in self._repeated, e.value))

    def _gather(self, mixing: dict[Future[str], str], say: Callable[[str], None]) -> None:
        """Wait for all disassemblies, after starting those of tiles that moved into the shown rows because a leader
        failed."""
        with suppress(FaultError):  # the times are known even without disassemblies
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
        return {self._executor.mix(e.key): f for f, e in wanted.items()}

    def _ask(self, pending: Pending[_Step]) -> bool:
        """Start as many tiles as the search and the processes can have in flight; returns whether there were any."""
        most, batch = self._in_flight()
        left = self.evaluations - len(self.done) - len(pending) - sum(map(len, self._alike.values()))
        if self._before:  # a resumed sweep begins with the tiles of its journal
            tiles = self._before[: max(0, min(left, max(most, AHEAD * self._executor.slots) - len(pending)))]
            del self._before[: len(tiles)]
            self._start_on(tiles, pending)
            return bool(tiles)
        room = most - len(pending)
        if left <= 0 or (pending and room < batch):
            return False
        begin = time.perf_counter()
        tiles = self.search.ask(min(left, room))
        self.spent["search"] += time.perf_counter() - begin
        self._start_on(tiles, pending)
        return bool(tiles)

    def _in_flight(self) -> tuple[int, int]:
        """How many tiles are in flight at most, and for how many the search is asked at least while others are."""
        measurers, enough = self._executor.measurers, AHEAD * self._executor.slots
        if self.search.ahead == UNLIMITED:
            return max(enough, COMPILED_AHEAD if self.timed else 0), self.search.batch
        share = max(1, min(measurers, int(MOST_UNKNOWN * self.evaluations / self.search.ahead)))
        most = min(enough, max(share * self.search.ahead, AHEAD * measurers))
        return most, min(share * self.search.batch, max(1, most // 2))

    def _start_on(self, tiles: Sequence[Tile], pending: Pending[_Step]) -> None:
        for tile in tiles:
            pending.add(self._executor.compile(tile), _Step(tile))

    def _advance(self, step: _Step, future: Future[Any], pending: Pending[_Step]) -> None:
        """Called when a step of a tile is done: starts its next step or records its entry."""
        try:
            result = future.result()
        except FaultError as error:  # of a tile that ends the processes that execute it
            result = Entry(step.tile, "fault", str(error))
        if step.compiled is None:
            if isinstance(result, Entry):
                self._record(step.tile, result)
                return
            self.spent["compile"] += result.seconds
            self._place(step.tile, result, pending)
            return
        if self.timed:
            self.measured += 1
            self.spent.setdefault("first", time.perf_counter() - self._begin)
            for part in ("prepare", "verify", "time"):
                self.spent[part] += getattr(result, f"{part}_s")
        self._record(step.tile, _with(result, step.compiled))
        for tile, compiled in self._alike.pop(step.compiled.fingerprint):
            self._place(tile, compiled, pending)

    def _place(self, tile: Tile, compiled: Compiled, pending: Pending[_Step]) -> None:
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
            future = self._executor.measure(tile, compiled, lambda: self._best)
            pending.add(future, _Step(tile, compiled))

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
            rows = self._executor.leaders([e.tile for e in chosen], self.leader_budget_s)
        except FaultError as error:  # the first measurements remain valid
            self.trouble = str(error)
            return list(chosen)
        found = [_again_measured(entry, row) for entry, row in zip(chosen, rows, strict=True)]
        self._repeated |= {entry.key for entry in found if entry.status == "ok"}
        for entry in found:
            self.journal.add(entry, leader=True)
        self._elsewhere(chosen, rows, say)
        return found

    def _elsewhere(self, chosen: Sequence[Entry], rows: list[dict[str, Any]], say: Callable[[str], None]) -> None:
        """Compare the leaders on the other GPUs of a cluster, too; their times decide nothing."""
        say(f"measuring the best {len(chosen)} against each other on the other GPUs")
        others = self._executor.leaders_elsewhere()
        for found in others:
            for entry, row in zip(chosen, found, strict=True):
                self.journal.add(_again_measured(entry, row), leader=True, other_gpu=True)
        if others:
            each = tuple(GpuTimes.of(found) for found in (rows, *others))
            self.agreement = Agreement(tuple(e.tile for e in chosen), each)

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


def _again_measured(entry: Entry, row: Mapping[str, Any]) -> Entry:
    """A leader with the result of its repeated measurement."""
    where = row.get("measured_on") or entry.measured_on
    if is_wrong(row):
        return replace(entry, status="wrong", error=row["error"] or row["worst"], measured_on=where)
    cold = row["cold"]
    times = {"time_us": cold["median_us"], "spread_us": cold["spread_us"], "samples": cold["samples"]}
    return replace(entry, status="ok", measured_on=where, **times)


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
