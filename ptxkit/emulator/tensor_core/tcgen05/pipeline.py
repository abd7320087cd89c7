"""The operations mma, cp and shift in flight, and tcgen05.commit, which signals their completion to an mbarrier.

PTX ISA, "tcgen05.commit", "Pipelined tcgen05 Instructions". The operations of a CTA are performed in the order of
issue. If accesses in flight are tracked, they are performed when a thread waits for the mbarrier of a later commit and no
other thread can continue; otherwise when they are issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Elements, Index, Lanes
from ptxkit.emulator.simt.asynchronous import MBARRIER, Groups, Operation
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.step import Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.emulator.tensor_core.tcgen05.accesses import Access, Kind, Region
from ptxkit.emulator.tensor_core.tcgen05.fences import Fences
from ptxkit.emulator.tensor_core.tcgen05.memory import TensorMemory
from ptxkit.emulator.tensor_core.tcgen05.warps import Issuers, pair, require_target
from ptxkit.errors import TrapError
from ptxkit.isa.types import TYPES

MECHANISM: Mechanism[Groups] = Mechanism(
    "tcgen05",
    Groups,
    "a tcgen05 operation of {}",
    "wait for the mbarrier of its tcgen05.commit",
    span=0,
)
"""The mechanism that names these operations in messages; they complete on mbarriers."""


@dataclass(frozen=True)
class _Issued:
    """An operation that has not been performed.

    Attributes:
        accesses: what it writes and reads, each with the time that :meth:`Fences.issue` gave it.
    """

    perform: Callable[[], None]
    accesses: tuple[tuple[Access, int], ...]
    warp: int


class Pipelines:
    """The operations in flight of a wave, by the CTA that issued them."""

    def __init__(self, wave: WaveState) -> None:
        self.memory = wave.part(TensorMemory)
        self.fences = wave.part(Fences)
        self._issued: dict[int, list[_Issued]] = {}
        self._done: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def issue(
        self,
        cta: int,
        thread: int,
        where: Where,
        who: str,
        writes: tuple[Region, ...],
        reads: tuple[Region, ...],
        perform: Callable[[], None],
    ) -> None:
        """An operation of ``thread``, wave-wide, of ``cta`` that writes and reads tensor memory.

        Raises:
            RaceError: a tcgen05.ld or st of these cells is not complete.
        """
        if not self.memory.tracked:
            perform()
            return
        accesses = self.memory.accesses
        accesses.require(("load", "store"), where, who, "writes", writes)
        accesses.require(("store",), where, who, "reads", reads)
        warp = thread // 32
        self.fences.require("transfer", warp, where, who, writes + reads)
        self._race(thread, where, who, writes, reads)
        for kind in ("issued write", "operation"):
            self.fences.require(kind, warp, where, who, writes + reads, own=False)
        for kind in ("issued read", "operand"):
            self.fences.require(kind, warp, where, who, writes, own=False)
        begun = []
        of_kind: tuple[tuple[Kind, tuple[Region, ...]], ...] = (("write", writes), ("read", reads))
        for access, regions in of_kind:
            if regions:
                time = self.fences.issue(f"issued {access}", warp, where, who, regions)
                begun.append((accesses.begin(access, where, who, regions), time))
        issued = self._issued.setdefault(cta, [])
        issued.append(_Issued(perform, tuple(begun), warp))
        self._last[thread] = self._done.get(cta, 0) + len(issued)

    def _race(self, thread: int, where: Where, who: str, writes: tuple[Region, ...], reads: tuple[Region, ...]) -> None:
        threads = np.array([thread])
        for races in self.memory.wave.races:
            if races.tensor_memory is None:
                continue
            agent = races.operations.issued(MECHANISM, threads)
            for kind, regions in (("write", writes), ("read", reads)):
                races.tensor_memory.compare(kind, where, who, threads, regions)
                races.tensor_memory.record(kind, where, who, threads, regions, agent)

    def position(self, thread: int) -> int:
        """The number, within its CTA, of the last operation that ``thread`` has issued; a commit waits up to it."""
        return self._last.get(thread, 0)

    def perform(self, cta: int, until: int) -> None:
        """Perform the operations of ``cta`` up to a :meth:`position`."""
        issued, done = self._issued.get(cta, []), self._done.get(cta, 0)
        count = max(0, until - done)
        now, self._issued[cta] = issued[:count], issued[count:]
        self._done[cta] = done + len(now)
        for operation in now:
            operation.perform()
            for access, time in operation.accesses:
                self.memory.accesses.end(access)
                self.fences.retire(f"issued {access.kind}", time, access.regions)
                kind = "operation" if access.kind == "write" else "operand"
                self.fences.complete(kind, operation.warp, access.where, access.who, access.regions)


def _rounds(x: Group, issuers: Issuers, element: Index, barrier: Index) -> Iterator[Index]:
    """The mbarriers at which the issuing lanes arrive, as arrays of the shape of ``x``, each with one mbarrier for each lane.

    Args:
        element: issuer of each arrival, in order. barrier: its mbarrier.
    """
    counts = np.bincount(element, minlength=len(issuers))
    if not counts.all():  # a commit whose mask names no CTA has no effect
        return
    first = np.cumsum(counts) - counts
    for number in range(int(counts.max())):
        arrivals = np.zeros(x.shape, np.int64)
        arrivals[issuers.active] = barrier[first + np.minimum(number, counts - 1)]
        yield arrivals


@effect(
    "tcgen05.commit.<group>.mbarrier::arrive::one{.<space>}{.multicast::cluster}.b64",
    group="cta_group::1 cta_group::2",
    space="shared::cluster",
)
def _commit(b: Binding) -> Step:
    require_target(b)
    multicast = b.form.has("multicast__cluster")
    if len(b.operands) != 1 + multicast:
        raise b.fail("wrong number of operands: an mbarrier, and with .multicast::cluster a mask of CTAs")
    site = BarrierSite(b, b.operands[0], "shared::cluster")
    masks: tuple[Typed, ...] = ((b.operands[1], TYPES["u16"]),) if multicast else ()
    where, group = b.where, int(b.form["group"][-1])

    def commit(x: Group, base: Lanes, *mask: Lanes) -> None:
        wave = x.wave
        issuers = Issuers(x)
        index = site.index(x, base)
        for cta in issuers.cta.tolist():
            wave.part(TensorMemory).use_group(cta, group, where)
            if group == 2:
                pair(x, cta, where)
        barrier = np.broadcast_to(index, x.shape)[issuers.active]
        element = np.arange(len(issuers))
        if multicast:
            element, barrier = _receivers(x, issuers, issuers.values(mask[0]), barrier, where)
        else:
            wave.part(Mbarriers).check(x, index, where)
        pipelines = wave.part(Pipelines)
        until = [pipelines.position(thread) for thread in issuers.thread.tolist()]
        for races in wave.races:
            for arrivals in _rounds(x, issuers, element, barrier):
                races.operations.arrive_after(MECHANISM, x, where, arrivals)

        def perform(which: Elements) -> None:
            for e in np.unique(element[which]).tolist():
                pipelines.perform(int(issuers.cta[e]), until[e])
            wave.part(Mbarriers).arrive(barrier[which], where)

        wave.launch.machine.version += 1
        operation = Operation(issuers.thread[element], perform, barrier=barrier)
        wave.queue.submit(operation, MBARRIER, deferred=pipelines.memory.tracked)

    return Step(commit, (site.source, *masks))


def _receivers(x: Group, issuers: Issuers, masks: list[int], barrier: Lanes, where: Where) -> tuple[Lanes, Lanes]:
    """The element and the mbarrier of each arrival, at the same offset in each CTA that a mask names."""
    wave = x.wave
    size, words = wave.launch.cluster_size, wave.shared_stride >> 3
    elements, barriers = [], []
    for e, mask in enumerate(masks):
        if mask >> size:
            raise TrapError(f"{where}: {issuers.name(e)}: the mask {mask:#x} names CTAs beyond a cluster of {size}")
        cta = int(issuers.cta[e])
        first = cta - int(wave.cluster_rank[cta])
        for rank in range(size):
            if mask >> rank & 1:
                elements.append(e)
                barriers.append((first + rank) * words + int(barrier[e]) % words)
    return np.array(elements, np.int64), np.array(barriers, np.int64)


@effect("tcgen05.<which>", which="fence::before_thread_sync fence::after_thread_sync")
def _fence(b: Binding) -> Step:
    """tcgen05.fence has no effect on results, because operations are performed in order; only the race check uses it."""
    require_target(b)
    which = b.form["which"]
    return Step(lambda x: x.wave.part(Fences).fence(x, which))
