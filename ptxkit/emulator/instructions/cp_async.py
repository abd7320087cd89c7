"""cp.async and its groups. PTX ISA, "cp.async" to "cp.async.wait_group", "cp.async.mbarrier.arrive"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ptxkit.emulator.access.global_memory import GlobalSite
from ptxkit.emulator.access.shared_memory import SharedSite
from ptxkit.emulator.access.site import UNITS, widen
from ptxkit.emulator.arrays import Elements, Index, Lanes
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.memory.footprint import READ
from ptxkit.emulator.memory.traffic import sectors
from ptxkit.emulator.simt.asynchronous import MBARRIER, Groups, Operation
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.step import PRED, U32, Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite, address_type
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.errors import TrapError
from ptxkit.isa.model import Immediate, Register

MECHANISM: Mechanism[Groups] = Mechanism(
    "cp.async",
    Groups,
    "a cp.async of {}",
    "wait for it (cp.async.wait_group), and let the others know by __syncthreads() or an mbarrier",
    generic_proxy=True,
)
COUNTER = "global_to_shared"


class _Copy:
    """A cp.async instruction: each lane copies a row of 4, 8 or 16 bytes."""

    def __init__(self, b: Binding, size: int, source_offset: int, destination_offset: int) -> None:
        self.size = size
        self.where, self.number = b.where, b.index
        self.glob = GlobalSite(b.where, b.index, source_offset, UNITS[size], 1, False)
        # source and destination cache their address patterns under different keys
        self.shared = SharedSite(b.where, -4 * b.index - 1, destination_offset, UNITS[size], 1, True)

    def whole(self, x: Group, to: Lanes, source: Lanes) -> None:
        """Every lane copies all of its bytes."""
        to, source = widen(to), widen(source)
        x.tally.add(self.number, COUNTER, x.lanes * self.size)
        queue = x.wave.queue
        index, _, start = self.shared._flat(x, to)
        try:
            a, first, p = self.glob.locate(x, source, x.covers(source.shape))
        except LookupError:
            self._some(x, to, source, np.full(x.shape, self.size, np.int64))
            return
        self.glob.count_traffic(x, p, int(source.reshape(-1)[p.first]) + self.glob.offset)
        x.wave.launch.machine.version += 1
        if x.wave.races:
            self._note(x, np.broadcast_to(index, x.shape)[x.active()] + start, source, self.size)
        cells, rows = x.wave.shared.view(UNITS[self.size]), a.typed(UNITS[self.size])
        if a.sentinel is not None:
            self.glob.notice_unwritten(x, a, rows[first:].take(p.indices))
        if queue.eager:
            if p.contiguous:
                data = rows[first : first + p.indices.size]
            else:
                data = rows[first:].take(p.indices)
            data = data.reshape(p.indices.shape)
            at = np.broadcast_to(index, x.shape)
            if x.mask is None:
                cells[start:][at] = data
            else:
                cells[start:][at[x.mask]] = np.broadcast_to(data, x.shape)[x.mask]
            return
        active = x.active()
        to_rows = np.broadcast_to(index, x.shape)[active] + start
        from_rows = np.broadcast_to(p.indices, x.shape)[active] + first

        def perform(which: Elements) -> None:
            cells[to_rows[which]] = rows[from_rows[which]]

        self._submit(x, to_rows, perform)

    def some(self, x: Group, to: Lanes, source: Lanes, sizes: Lanes) -> None:
        """Each lane copies the first ``sizes`` (uint32) bytes, and fills the rest of its row with zeros."""
        to, source = widen(to), widen(source)
        sizes = sizes.astype(np.int64)
        if (sizes > self.size).any():
            bad = np.broadcast_to(sizes > self.size, x.shape) & x.active()
            if bad.any():
                cta, thread = x.first(bad)
                most = int(np.broadcast_to(sizes, x.shape)[bad][0])
                raise TrapError(
                    f"{self.where}: thread {thread} of CTA {cta}: src-size {most} of a {self.size}-byte copy"
                )
        if (sizes == self.size).all():
            self.whole(x, to, source)
            return
        read = np.broadcast_to(sizes, x.shape)[x.active()].sum()
        x.tally.add(self.number, COUNTER, int(read))
        self._some(x, to, source, sizes)

    def _some(self, x: Group, to: Lanes, source: Lanes, sizes: Lanes) -> None:
        """Copy rows byte by byte, for sources in several allocations and for partial copies."""
        wave = x.wave
        memory = wave.launch.machine.memory
        wave.launch.machine.version += 1
        index, _, start = self.shared._flat(x, to)
        active = x.active()
        rows = np.broadcast_to(index, x.shape)[active] + start
        if wave.races:
            self._note(x, rows, source, sizes)
        addresses = (source + np.uint64(self.glob.offset & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.uint64)
        bad = (addresses & np.uint64(self.size - 1)) != 0
        reads = sizes > 0
        if (np.broadcast_to(bad & reads, x.shape) & active).any():
            self.glob.fail(x, addresses, bad & reads, self.glob.misaligned)
        addresses, reads = np.broadcast_to(addresses, x.shape), np.broadcast_to(reads, x.shape)
        lengths = np.broadcast_to(sizes, x.shape)
        for n in np.unique(lengths[active & reads]):
            outside = active & (lengths == n) & ~memory.inside(addresses, int(n))
            if outside.any():
                self.glob.fail(x, addresses, outside, partial(memory.explain, nbytes=int(n)))
        if x.tally.traffic:
            touched = active & reads
            x.tally.access(self.number, "global", 0, sectors(addresses, self.size, touched, x.shape), 0, 0, x.lanes)
        sources, lengths = addresses[active], lengths[active]
        if wave.launch.footprint is not None:
            wave.launch.footprint.runs(memory, sources, lengths, READ)
        if any(a.sentinel is not None for a, _ in memory.partition(sources[lengths > 0])):
            x.tally.add(self.number, UNWRITTEN, 1)
        cells = wave.shared.reshape(-1, self.size)

        def perform(which: Elements) -> None:
            at, address, length = rows[which], sources[which], lengths[which]
            data = np.zeros((len(at), self.size), np.uint8)
            some = np.flatnonzero(length)
            for a, chosen in memory.partition(address[some]) if len(some) else ():
                lanes = some[chosen]
                offset = (address[lanes] - np.uint64(a.base)).view(np.int64)
                # allocations are padded to at least 16 bytes, so that whole rows can be read and then shortened
                data[lanes] = a.data[offset[:, None] + np.arange(self.size)]
            data[np.arange(self.size) >= length[:, None]] = 0
            cells[at] = data

        self._submit(x, rows, perform)

    def _note(self, x: Group, rows: Index, source: Lanes, lengths: Lanes | int) -> None:
        """Report the written rows to the race check; ``lengths`` are the numbers of bytes that are read at ``source``."""
        active = x.active()
        threads, sizes = x.thread[active], np.full(1, self.size)

        def sources() -> Index:
            given = (source.astype(np.int64), np.asarray(lengths, np.int64))
            return np.stack([np.broadcast_to(v, x.shape)[active] for v in given], axis=-1)

        for races in x.wave.races:
            races.operations.grouped(MECHANISM, self.where, threads, rows * self.size, sizes, True, sources)

    def _submit(self, x: Group, rows: Index, copy: Callable[[Elements], None]) -> None:
        proxies = x.wave.generic_writes

        def perform(which: Elements) -> None:
            copy(which)
            for writes in proxies:
                writes.wrote(rows[which], self.size, self.where)

        def poison() -> None:
            x.wave.shared.reshape(-1, self.size)[rows] = POISON

        x.wave.queue.submit(Operation(x.thread[x.active()], perform, poison), MECHANISM)


@effect(
    "cp.async.<cop>.<space>.global{.<hint>}{.<prefetch>}",
    cop="ca cg",
    space="shared shared::cta",
    hint="L2::cache_hint",
    prefetch="L2::64B L2::128B L2::256B",
)
@effect(
    "cp.async.<cop>.<space>.global.<prefetch>.<hint>",
    cop="ca cg",
    space="shared shared::cta",
    hint="L2::cache_hint",
    prefetch="L2::64B L2::128B L2::256B",
)
def _copy(b: Binding) -> Step:
    operands = list(b.operands)
    if b.form["hint"]:
        operands.pop()
    to, offset_to = b.address(operands[0])
    source, offset = b.address(operands[1])
    size = operands[2].value if isinstance(operands[2], Immediate) else None
    if not isinstance(size, int) or size not in ((16,) if b.form["cop"] == "cg" else (4, 8, 16)):
        raise b.fail(f"copies {operands[2]} bytes; .cg takes 16, .ca 4, 8 or 16")
    copy = _Copy(b, size, offset, offset_to)
    sources: tuple[Typed, ...] = ((to, address_type(b, to)), (source, address_type(b, source)))
    if len(operands) == 3:
        return Step(copy.whole, sources)
    last = operands[3]
    if isinstance(last, Register) and (b.register_type(last) or U32).name == "pred":

        def ignoring(x: Group, to: Lanes, source: Lanes, ignored: Lanes) -> None:
            copy.some(x, to, source, np.where(ignored, 0, size))

        return Step(ignoring, (*sources, (last, PRED)))
    if isinstance(last, Immediate) and last.value == size:
        return Step(copy.whole, sources)
    return Step(copy.some, (*sources, (last, U32)))


def newest(b: Binding) -> int:
    """The constant N of a wait_group."""
    value = getattr(b.operands[0], "value", None)
    if not isinstance(value, int) or value < 0:
        raise b.fail(f"the number of groups must be a constant, found {b.operands[0]}")
    return value


@effect("cp.async.commit_group")
def _commit(b: Binding) -> Step:
    return Step(lambda x: x.wave.queue.commit(x, MECHANISM))


@effect("cp.async.wait_group")
def _wait_group(b: Binding) -> Step:
    n = newest(b)
    return Step(lambda x: x.wave.queue.wait(x, MECHANISM, n))


@effect("cp.async.wait_all")
def _wait_all(b: Binding) -> Step:
    def wait(x: Group) -> None:
        x.wave.queue.commit(x, MECHANISM)
        x.wave.queue.wait(x, MECHANISM, 0)

    return Step(wait)


@effect("cp.async.mbarrier.arrive{.noinc}{.<space>}.b64", space="shared shared::cta")
def _copies_arrive(b: Binding) -> Step:
    at = BarrierSite(b, b.operands[0], b.form["space"])
    noinc = b.form.has("noinc")

    def arrive(x: Group, base: Lanes) -> None:
        index, barriers = at.index(x, base), x.wave.part(Mbarriers)
        barriers.check(x, index, b.where)
        if not noinc:
            barriers.update(x, index, b.where, arrivals=-1)
        for part in barriers.turns(x, index, 1):
            arrive_when_complete(part, index)

    def arrive_when_complete(x: Group, index: Lanes) -> None:
        wave, where = x.wave, b.where
        words = np.broadcast_to(index, x.shape)[x.active()]
        threads = x.thread[x.active()]
        for races in wave.races:
            races.operations.arrive_after(MECHANISM, x, where, index)

        def complete(which: Elements) -> None:
            wave.queue.of(MECHANISM).drain(threads[which], operation.serial)
            wave.part(Mbarriers).arrive(words[which], where)

        operation = Operation(threads, complete, barrier=words)
        wave.queue.submit(operation, MBARRIER)

    return Step(arrive, (at.source,))
