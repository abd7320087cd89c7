"""The logical clock of the warps of a wave, and what its recorded warps do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask, Words
from ptxkit.emulator.simt.hooks import AccessSite, OperationHooks
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.tcgen05.memory import TensorMemory
from ptxkit.emulator.timeline.flights import Flights
from ptxkit.emulator.timeline.record import EPILOGUE, RUN, WAIT, Columns, LaunchRecord, WarpSpan

if TYPE_CHECKING:
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Group, WaveState

_STORES = ("st.global", "red.global", "red.async", "tcgen05.ld", "multimem.red", "multimem.st")
_ALLOCATES = ("tcgen05.alloc", "tcgen05.dealloc")
MOST_FLAGS = 64
"""Distinct addresses of one strong access that are followed."""


class _Block:
    """What is needed of a block of instructions: positions after its gate, positions of its waits, what it does."""

    def __init__(self, block: BasicBlock) -> None:
        instructions = [i for _, i in block.instructions]
        gated = block.gate is not None
        self.count = len(instructions) - gated
        self.positions = {id(i): max(k - gated, 0) for k, i in enumerate(instructions)}
        opcodes = [i.opcode for i in instructions]
        self.waits = [max(k - gated, 0) for k, o in enumerate(opcodes) if "wait_group" in o or "wait_all" in o]
        self.stores = any(o.startswith(_STORES) or ("bulk" in o and ".global.shared" in o) for o in opcodes)
        self.allocates = any(o.startswith(_ALLOCATES) for o in opcodes)
        self.gate = opcodes[0] if gated else ""


class WaveSteps:
    """Follows one wave through the hooks of the race check: they are called wherever threads synchronise.

    A row is a warp of the wave: CTA index times warps a CTA plus the warp's number.

    Attributes:
        now: (rows,) step of each warp at the start of what it executes.
        recorded: (rows,) which warps are recorded.
        operations: the hooks of asynchronous operations and mbarriers.
    """

    compares = False
    tensor_memory = None

    def __init__(self, wave: WaveState, record: LaunchRecord, ctas: list[int], latency: int) -> None:
        self.wave = wave
        self.record = record
        self.latency = latency
        count, self.warps, _ = wave.shape
        self.now: Index = np.zeros(count * self.warps, np.int64)
        self.recorded: Mask = np.repeat(np.isin(np.arange(count), ctas), self.warps)
        self.size = wave.launch.cluster_size
        self.operations: OperationHooks = Flights(self)
        self._rows: Index = np.empty(0, np.int64)
        self._left = 0
        self._block: _Block | None = None
        self._blocks: dict[int, _Block] = {}
        self._next_wait = 0
        self._arrived: dict[int, Index] = {}
        self._cluster: Index = np.zeros((2, count // self.size), np.int64)
        self._flags: dict[int, int] = {}
        self._instructions: Index = np.zeros(count * self.warps, np.int64)
        self._begun: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._last: dict[int, WarpSpan] = {}
        self._columns: dict[int, tuple[int, int]] = {}

    # -- the scheduler -----------------------------------------------------------------------------------------------

    def enters(self, group: Group, block: BasicBlock) -> None:
        """``group`` comes to the gate of ``block``, where it may have to wait."""
        self._finish()
        self._rows = self.rows(group)
        self.now[self._rows] += 1
        self._instructions[self._rows] += 1

    def executes(self, group: Group, block: BasicBlock) -> None:
        """``group`` is about to execute ``block`` after its gate."""
        self._finish()
        self._rows = self.rows(group)
        self._block = self._known(block)
        self._left = self._block.count
        self._next_wait = 0
        self._instructions[self._rows] += self._left
        if self._block.stores:
            for row in self._rows[self.recorded[self._rows]].tolist():
                if self._kinds.get(row, RUN) != EPILOGUE:
                    self._end_span(row, int(self.now[row]))
                    self._kinds[row] = EPILOGUE

    def _known(self, block: BasicBlock) -> _Block:
        found = self._blocks.get(block.index)
        if found is None:
            found = self._blocks[block.index] = _Block(block)
        return found

    def _finish(self) -> None:
        """The current execution has ended."""
        block, self._block = self._block, None
        if block is None:
            return
        self.now[self._rows] += self._left
        if block.allocates:
            self._sample_columns()

    def _sample_columns(self) -> None:
        memory = self.wave.part(TensorMemory)
        for cta in np.unique(self._rows[self.recorded[self._rows]] // self.warps).tolist():
            held = memory.held(cta)
            counts = sum(a.count for a in held if a.cta == cta), sum(a.count for a in held)
            if self._columns.get(cta) != counts:
                self._columns[cta] = counts
                step = int(self.now[cta * self.warps : (cta + 1) * self.warps].max())
                self.record.columns.append(Columns(int(self.wave.ctas[cta]), step, *counts))

    def close(self) -> None:
        """The wave is over, or has failed."""
        self._finish()
        for row in np.flatnonzero(self.recorded).tolist():
            self._end_span(row, int(self.now[row]))
            last = self._last.pop(row, None)
            if last is not None:
                self.record.spans.append(last)
        for k in np.unique(np.flatnonzero(self.recorded) // self.warps).tolist():
            cta, rows = int(self.wave.ctas[k]), slice(k * self.warps, (k + 1) * self.warps)
            self.record.ends[cta] = int(self.now[rows].max())
            self.record.instructions[cta] = int(self._instructions[rows].sum())

    # -- clocks ------------------------------------------------------------------------------------------------------

    def rows(self, x: Selection) -> Index:
        """Rows of the warps of ``x``."""
        found = x.memo.get("timeline rows")
        if not isinstance(found, np.ndarray):
            here: Mask = np.ones(x.shape[:2], np.bool_) if x.mask is None else np.any(x.mask, -1)
            if x.rows:
                found = np.asarray(np.asarray(x.c, np.int64) * self.warps + x.w)[here[:, 0]]
            else:
                found = np.flatnonzero(here.reshape(-1))
            x.memo["timeline rows"] = found
        return found

    def offset(self, where: Where) -> int:
        """Position of an instruction in what is being executed."""
        return 0 if self._block is None else self._block.positions.get(id(where.instruction), 0)

    def wait_offset(self) -> int:
        """Position of the next wait for groups in what is being executed."""
        waits = [] if self._block is None else self._block.waits
        self._next_wait += 1
        return waits[self._next_wait - 1] if self._next_wait <= len(waits) else 0

    def join(self, rows: Index, steps: Index, name: str, offset: int = 0, ends_epilogue: bool = False) -> None:
        """``rows`` have waited, at ``offset`` in what they execute, for what was complete at ``steps``."""
        at = self.now[rows] + offset
        waited = np.maximum(steps - at, 0)
        self.now[rows] += waited
        for k in np.flatnonzero(self.recorded[rows]).tolist():
            row, start, end = int(rows[k]), int(at[k]), int(at[k] + waited[k])
            if end > start:
                self._end_span(row, start)
                self._add(row, start, end, WAIT, name)
                self._begun[row] = end
            if ends_epilogue:
                self.leave_epilogue(row, end)

    def leave_epilogue(self, row: int, step: int) -> None:
        """``row`` waits for an mbarrier, or issues a load or a product: its epilogue, if it was in one, is over."""
        if self._kinds.get(row, RUN) != RUN:
            self._end_span(row, step)
            self._kinds[row] = RUN

    def _end_span(self, row: int, step: int) -> None:
        """What ``row`` has been doing ends at ``step``."""
        start = self._begun.get(row, 0)
        if step > start:
            kind = self._kinds.get(row, RUN)
            self._add(row, start, step, kind, kind)
            self._begun[row] = step

    def _add(self, row: int, start: int, end: int, kind: str, name: str) -> None:
        """Record a span; one that continues the last span of its warp is joined to it."""
        cta, warp = int(self.wave.ctas[row // self.warps]), row % self.warps
        last = self._last.get(row)
        if last is not None and last.end == start and (last.kind, last.name) == (kind, name):
            start = last.start
        elif last is not None and self.record.room():
            self.record.spans.append(last)
        self._last[row] = WarpSpan(cta, warp, start, end, kind, name)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def met(self, x: Selection) -> None:
        """See :class:`~ptxkit.emulator.simt.hooks.RaceHooks`; so below."""
        rows = self.rows(x)
        most = np.zeros(self.wave.shape[0], np.int64)
        np.maximum.at(most, rows // self.warps, self.now[rows])
        self.join(rows, most[rows // self.warps], "barrier")

    def arrived(self, number: int, x: Selection) -> None:
        rows = self.rows(x)
        if number not in self._arrived:
            self._arrived[number] = np.zeros(self.wave.shape[0], np.int64)
        np.maximum.at(self._arrived[number], rows // self.warps, self.now[rows])

    def complete(self, number: int, ctas: Mask, waiting: Mask) -> None:
        rows = np.flatnonzero((waiting.any(-1) & ctas[:, None]).reshape(-1))
        self.join(rows, self._arrived[number][rows // self.warps], f"barrier {number}")
        self._arrived[number][ctas] = 0

    def cluster_arrived(self, x: Selection, relaxed: bool) -> None:
        rows = self.rows(x)
        np.maximum.at(self._cluster[0], rows // (self.warps * self.size), self.now[rows])

    def cluster_complete(self, clusters: Mask) -> None:
        self._cluster[1, clusters] = self._cluster[0, clusters]
        self._cluster[0, clusters] = 0

    def cluster_waited(self, x: Selection) -> None:
        rows = self.rows(x)
        self.join(rows, self._cluster[1, rows // (self.warps * self.size)], "barrier.cluster")

    def flagged(self, x: Selection, addresses: Addresses, ordering: str, write: bool) -> None:
        """Threads may synchronise through the words of global memory that strong accesses use."""
        threads = x.thread[x.active()]
        values = np.broadcast_to(addresses, x.shape)[x.active()]
        pairs = list(dict.fromkeys(zip((threads >> 5).tolist(), values.tolist(), strict=True)))
        if len(pairs) > MOST_FLAGS:
            return
        for row, address in pairs:
            before = self._flags.get(address, 0)
            if before > self.now[row]:
                self.join(np.array([row]), np.array([before]), "flag in global memory")
            if write:
                self._flags[address] = max(before, int(self.now[row]))

    # -- what has no place in a timeline -----------------------------------------------------------------------------

    def read(self, x: Selection, site: AccessSite, index: Index, start: int) -> None:
        """Accesses to shared memory take their step and no more."""

    def write(self, x: Selection, site: AccessSite, index: Index, start: int, data: Lanes) -> None:
        """See :meth:`read`."""

    def touch(
        self,
        x: Selection,
        where: Where,
        elements: Index,
        size: int,
        write: bool,
        ordering: str = "",
        remote: bool = False,
        values: Callable[[], Lanes] | None = None,
    ) -> None:
        """See :meth:`read`."""

    def runs(self, x: Selection, where: Where, starts: Index, sizes: Index, write: bool) -> None:
        """See :meth:`read`."""

    def fence(self, x: Selection, within_cta: bool = False) -> None:
        """See :meth:`read`."""

    def fence_initialisations(self, x: Selection) -> None:
        """See :meth:`read`."""

    def proxy_fence(self, x: Selection) -> None:
        """As :meth:`read`."""

    def warps_met(self, groups: Sequence[Selection], masks: Words | None) -> None:
        """Lanes of one warp have one clock."""

    def ended(self, ctas: Mask) -> None:
        """:meth:`close` records the end."""
