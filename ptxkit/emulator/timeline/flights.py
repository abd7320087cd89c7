"""Asynchronous operations and phases of mbarriers, in steps of the logical clock."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Index, Lanes, Mask
from ptxkit.emulator.simt.hooks import Sources
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.emulator.timeline.record import Flight, LaunchRecord, PhaseSpan

STORE = "TMA store"

KINDS = (
    ("cp.async.bulk.prefetch", "prefetch"),
    ("cp.reduce.async.bulk", STORE),
    ("cp.async.bulk", "TMA load"),
    ("cp.async", "cp.async"),
    ("wgmma", "wgmma"),
    ("tcgen05.mma", "tcgen05.mma"),
    ("tcgen05.cp", "tcgen05.cp"),
    ("clusterlaunchcontrol", "launch control"),
)
"""First matching prefix of an opcode -> kind; else the kind is the opcode's first two words."""


def kind_of(opcode: str) -> str:
    """The kind of an asynchronous operation, by its opcode."""
    if opcode.startswith("cp.async.bulk") and ".global.shared" in opcode:
        return STORE
    return next((kind for prefix, kind in KINDS if opcode.startswith(prefix)), ".".join(opcode.split(".")[:2]))


class Clock(Protocol):
    """The clock of a wave's warps: :class:`~ptxkit.emulator.timeline.steps.WaveSteps`, which documents the attributes."""

    wave: WaveState
    record: LaunchRecord
    latency: int
    warps: int
    now: Index
    recorded: Mask

    def rows(self, x: Selection) -> Index:
        """Rows of the warps of ``x``."""

    def offset(self, where: Where) -> int:
        """Position of an instruction in what is being executed."""

    def wait_offset(self) -> int:
        """Position of the next wait for groups in what is being executed."""

    def join(self, rows: Index, steps: Index, name: str, offset: int = 0, ends_epilogue: bool = False) -> None:
        """``rows`` have waited for what was complete at ``steps``."""

    def leave_epilogue(self, row: int, step: int) -> None:
        """The epilogue of ``row`` is over, if it was in one."""


class _Issued:
    """A recorded operation: its warp's row, the first thread that issued it, and its group."""

    def __init__(self, flight: Flight, row: int, thread: int, group: int) -> None:
        self.flight, self.row, self.thread, self.group = flight, row, thread, group

    def observe(self, step: int) -> None:
        """A wait for it has passed at ``step``."""
        if self.flight.observed is None or step < self.flight.observed:
            self.flight.observed = step


class _Earlier:
    """What a tcgen05.commit or cp.async.mbarrier.arrive stands for: the operations of a warp up to ``last``."""

    def __init__(self, mechanism: Mechanism[object], row: int, last: _Issued) -> None:
        self.mechanism, self.row, self.last = mechanism, row, last


class Flights:
    """The hooks of asynchronous operations and mbarriers. See :class:`~ptxkit.emulator.simt.hooks.OperationHooks`."""

    def __init__(self, steps: Clock) -> None:
        self.steps = steps
        self.wave = steps.wave
        words = len(self.wave.shared) // 8
        self.words_each = words // self.wave.shape[0]
        self._pending: Index = np.zeros(words, np.int64)
        self._done: Index = np.zeros(words, np.int64)
        self._phase: Index = np.zeros(words, np.int64)
        self._attached: dict[int, list[_Issued | _Earlier]] = {}
        self._finished: dict[int, list[_Issued | _Earlier]] = {}
        self._groups: dict[Mechanism[object], list[_Issued]] = {}
        self._committed: dict[Mechanism[object], Index] = {}
        self._latest: dict[Mechanism[object], Index] = {}
        self._last_product: tuple[int, int, int] = (0, -1, -1)

    # -- issue -------------------------------------------------------------------------------------------------------

    def _issue(self, where: Where, row: int, cta: int, nbytes: int, thread: int, group: int = 0) -> _Issued:
        i = where.instruction
        issued = int(self.steps.now[row]) + self.steps.offset(where)
        place = str(i.loc) if i.loc is not None else f"{where.path}:{i.line}"
        flight = Flight(
            kind_of(i.opcode),
            i.opcode,
            place,
            int(self.wave.ctas[cta]),
            row % self.steps.warps,
            issued,
            issued + self.steps.latency,
            nbytes,
        )
        if flight.kind != STORE:
            self.steps.leave_epilogue(row, issued)
        if self.steps.record.room():
            self.steps.record.flights.append(flight)
        return _Issued(flight, row, thread, group)

    def completing(
        self,
        where: Where,
        threads: Index,
        at: Index,
        runs: list[tuple[bool, Index, Index]],
        strong: bool = False,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads`` complete on the mbarriers ``at``."""
        steps = self.steps
        rows = threads >> 5
        np.maximum.at(self._pending, at, steps.now[rows] + steps.offset(where) + steps.latency)
        written = next(((starts, sizes) for write, starts, sizes in runs if write), None)
        if written is None:
            return
        starts = written[0]
        sizes = np.broadcast_to(written[1], starts.shape)
        homes = starts // self.wave.shared_stride
        chosen = np.flatnonzero(steps.recorded[homes * steps.warps])
        found: dict[tuple[int, int, int], int] = {}
        for k in chosen.tolist():
            key = int(rows[k]), int(at[k]), int(homes[k])
            found[key] = found.get(key, 0) + int(sizes[k])
        for (row, barrier, home), nbytes in found.items():
            self._attached.setdefault(barrier, []).append(self._issue(where, row, home, nbytes, row << 5))

    def grouped(
        self,
        mechanism: Mechanism[object],
        where: Where,
        threads: Index,
        starts: Index,
        sizes: Index,
        write: bool,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads`` that belong to groups."""
        rows = threads >> 5
        sizes = np.broadcast_to(sizes, threads.shape)
        self._note_latest(mechanism, rows, where)
        committed = self._committed_of(mechanism)
        for row in np.unique(rows[self.steps.recorded[rows]]).tolist():
            mine = rows == row
            thread = int(threads[mine][0])
            nbytes = int(sizes[mine].sum())
            issued = self._issue(where, row, row // self.steps.warps, nbytes, thread, int(committed[thread]))
            self._groups.setdefault(mechanism, []).append(issued)

    def multiplied(self, mechanism: Mechanism[object], where: Where, owners: Index, chunks: Index) -> None:
        """Matrix products and copies to tensor memory; called once for each operand."""
        rows = owners >> 5
        self._note_latest(mechanism, rows, where)
        committed = self._committed_of(mechanism)
        for row, thread in zip(rows.tolist(), owners.tolist(), strict=True):
            key = id(where), row, int(self.steps.now[row]) + self.steps.offset(where)
            if not self.steps.recorded[row] or self._is_known(mechanism, key):
                continue
            issued = self._issue(where, row, row // self.steps.warps, 0, thread, int(committed[thread]))
            self._groups.setdefault(mechanism, []).append(issued)

    def issued(self, mechanism: Mechanism[object], threads: Index) -> tuple[Index, Index]:
        """Agents of the race check, of which there are none."""
        return np.zeros(len(threads), np.int64), np.zeros(len(threads), np.int64)

    def _is_known(self, mechanism: Mechanism[object], key: tuple[int, int, int]) -> bool:
        """Whether the operation is recorded: one of its operands was reported before."""
        earlier = self._groups.get(mechanism, ())
        found = any(i.row == key[1] and i.flight.issued == key[2] for i in earlier) and self._last_product[0] == key[0]
        self._last_product = key
        return found

    def _note_latest(self, mechanism: Mechanism[object], rows: Index, where: Where) -> None:
        latest = self._latest.get(mechanism)
        if latest is None:
            latest = self._latest[mechanism] = np.zeros(len(self.steps.now), np.int64)
        np.maximum.at(latest, rows, self.steps.now[rows] + self.steps.offset(where) + self.steps.latency)

    def _committed_of(self, mechanism: Mechanism[object]) -> Index:
        found = self._committed.get(mechanism)
        if found is None:
            found = self._committed[mechanism] = np.zeros(int(np.prod(self.wave.shape)), np.int64)
        return found

    # -- groups ------------------------------------------------------------------------------------------------------

    def commit(self, x: Selection, mechanism: Mechanism[object]) -> None:
        """The threads of ``x`` close their group."""
        self._committed_of(mechanism)[x.thread[x.active()]] += 1

    def wait(self, x: Selection, mechanism: Mechanism[object], newest: int) -> None:
        """The threads of ``x`` wait for all groups but the ``newest`` ones."""
        steps = self.steps
        offset = steps.wait_offset()
        committed = self._committed_of(mechanism)
        waiting = np.zeros(len(committed), np.bool_)
        waiting[x.thread[x.active()]] = True
        covered = [
            i for i in self._groups.get(mechanism, ()) if waiting[i.thread] and i.group < committed[i.thread] - newest
        ]
        rows = steps.rows(x)
        complete = np.zeros(len(steps.now), np.int64)
        for i in covered:
            complete[i.row] = max(complete[i.row], i.flight.completes)
        if newest == 0 and mechanism in self._latest:
            other = ~steps.recorded
            complete[other] = self._latest[mechanism][other]
        leaders = rows - rows % steps.warps % max(mechanism.span, 1)
        steps.join(rows, complete[leaders], f"{mechanism.name} groups", offset)
        for i in covered:
            i.observe(int(steps.now[i.row]) + offset)
        if covered:
            done = set(map(id, covered))
            self._groups[mechanism] = [i for i in self._groups[mechanism] if id(i) not in done]

    # -- mbarriers ---------------------------------------------------------------------------------------------------

    def _lanes(self, x: Selection, index: Index, lanes: Mask | None = None) -> tuple[Index, Index]:
        """Rows and mbarriers of the active lanes of ``x``, distinct pairs."""
        active = x.active() if lanes is None else np.broadcast_to(lanes, x.shape) & x.active()
        words = len(self._pending)
        pairs = np.unique((x.thread[active] >> 5) * words + np.broadcast_to(index, x.shape)[active])
        return pairs // words, pairs % words

    def initialised(self, x: Selection, where: Where, index: Lanes) -> None:
        """mbarrier.init."""
        rows, at = self._lanes(x, index)
        self._pending[at] = 0
        self._done[at] = self.steps.now[rows] + self.steps.offset(where)
        self._phase[at] = 0

    def invalidated(self, x: Selection, where: Where, index: Lanes) -> None:
        """mbarrier.inval has no place in a timeline."""

    def used(self, x: Selection, where: Where, index: Index) -> None:
        """A change of the tx-count has no place in a timeline."""

    def arrived(self, x: Selection, where: Where, index: Index, relaxed: bool, within_cta: bool) -> None:
        """The threads of ``x`` arrive."""
        rows, at = self._lanes(x, index)
        np.maximum.at(self._pending, at, self.steps.now[rows] + self.steps.offset(where))

    def left_over(self, at: Index, which: Index) -> None:
        """The phase for which the bytes of a copy count has no place in a timeline."""

    def arrive_after(self, mechanism: Mechanism[object], x: Selection, where: Where, index: Index) -> None:
        """An arrival when all operations of the threads so far are complete."""
        rows, at = self._lanes(x, index)
        here = self.steps.now[rows] + self.steps.offset(where)
        latest = self._latest.get(mechanism)
        np.maximum.at(self._pending, at, here if latest is None else np.maximum(here, latest[rows]))
        issued = self._groups.get(mechanism, [])
        for row, barrier in zip(rows.tolist(), at.tolist(), strict=True):
            last = next((i for i in reversed(issued) if i.row == row), None)
            if last is not None:
                self._attached.setdefault(barrier, []).append(_Earlier(mechanism, row, last))

    def phase_over(self, at: Index) -> None:
        """The current phase of the distinct mbarriers ``at`` is complete."""
        before = self._done[at]
        self._done[at] = np.maximum(self._pending[at], before)
        self._pending[at] = 0
        self._phase[at] += 1
        for k in np.flatnonzero(self.steps.recorded[at // self.words_each * self.steps.warps]).tolist():
            barrier = int(at[k])
            self._finished[barrier] = self._attached.pop(barrier, [])
            name = self.wave.part(Mbarriers).name(barrier)
            cta = int(self.wave.ctas[barrier // self.words_each])
            if self.steps.record.room():
                span = PhaseSpan(cta, name, int(self._phase[barrier]) - 1, int(before[k]), int(self._done[barrier]))
                self.steps.record.phases.append(span)

    def waited(self, x: Selection, where: Where, index: Index, done: Mask, relaxed: bool, within_cta: bool) -> None:
        """The lanes ``done`` have seen that a phase is complete."""
        if not done.any():
            return
        steps = self.steps
        rows, at = self._lanes(x, index, done)
        offset = steps.offset(where)
        if steps.recorded[rows].any():
            name = self.wave.part(Mbarriers).name(int(at[steps.recorded[rows]][0]))
        else:
            name = ""
        most = np.zeros(len(steps.now), np.int64)
        np.maximum.at(most, rows, self._done[at])
        distinct = np.unique(rows)
        steps.join(distinct, most[distinct], name, offset, ends_epilogue=True)
        for row, barrier in zip(rows.tolist(), at.tolist(), strict=True):
            for found in self._finished.get(barrier, ()):
                step = int(steps.now[row]) + offset
                if isinstance(found, _Issued):
                    found.observe(step)
                else:
                    self._observe_earlier(found, step)

    def _observe_earlier(self, earlier: _Earlier, step: int) -> None:
        """A wait for a commit has passed: none of the operations before it is in flight any more."""
        issued = self._groups[earlier.mechanism]
        if earlier.last not in issued:
            return  # another wait has observed them
        end = issued.index(earlier.last)
        kept = []
        for k, i in enumerate(issued):
            if k <= end and i.row == earlier.row:
                i.observe(step)
            else:
                kept.append(i)
        self._groups[earlier.mechanism] = kept
