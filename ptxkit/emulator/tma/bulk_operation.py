"""Execution of a bulk copy or reduction, from the operands to the operation in the queue.

:class:`BulkOperation` checks addresses, sizes and mbarriers when the instruction is executed, so that every fault names the
instruction. The data are moved when the queue performs the operation; :mod:`ptxkit.emulator.tma.bulk` defines the
instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Addresses, Bytes, Elements, Index, Lanes
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.simt.asynchronous import EVERY, MBARRIER, Groups, Operation
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.step import U32, Binding, Step, Typed
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite, address_type
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.emulator.tma.box_reductions import floats
from ptxkit.emulator.tma.spans import Runs, Side, copy, fill
from ptxkit.errors import RaceError
from ptxkit.isa.model import Operand
from ptxkit.isa.types import TYPES, PtxType

MECHANISM: Mechanism[Groups] = Mechanism(
    "bulk",
    Groups,
    "a bulk copy of {}",
    "wait until it has read (cp.async.bulk.wait_group.read), and let the others know by __syncthreads() or an mbarrier",
)
ALIGNED = 128  # bytes that a copy to shared memory should be aligned to


@dataclass(frozen=True)
class Reduction:
    """What a reduction does to each element. Subnormal numbers are kept, as on an H200, also those of f32.

    Attributes:
        operation: (old, source) -> new.
        dtype: of the arrays that ``operation`` takes.
        name: of the PTX type.
    """

    operation: Callable[..., Lanes]
    dtype: np.dtype
    name: str


class MemoryOperand:
    """An address operand: a register, which is a source of the step, and a constant offset."""

    def __init__(self, b: Binding, operand: Operand | None) -> None:
        self.operand, offset = b.address(operand)
        self.type: PtxType = address_type(b, self.operand)
        self.offset = np.uint64(offset & 0xFFFF_FFFF_FFFF_FFFF)

    @property
    def source(self) -> Typed:
        return self.operand, self.type

    def lanes(self, runs: Runs, base: Lanes) -> Addresses:
        """Address of each element."""
        return runs.lanes(widen(base)) + self.offset


class BulkOperation:
    """A bulk copy or reduction.

    Args:
        spaces: state spaces of destination and source.
        operands: destination, source, size, and what the form has beyond them.
        multicast: the last source is the mask of the CTAs that receive the data.
        byte_mask: the last source is a mask of the bytes of each 16 that are copied.
        reduction: combines the source with the destination; None for a copy.
    """

    def __init__(
        self,
        b: Binding,
        spaces: tuple[str, str],
        operands: list[Operand | None],
        multicast: bool = False,
        byte_mask: bool = False,
        reduction: Reduction | None = None,
    ) -> None:
        self.where, self.number = b.where, b.index
        self.to_space, self.source_space = spaces
        self.to, self.source = MemoryOperand(b, operands[0]), MemoryOperand(b, operands[1])
        self.multicast, self.byte_mask, self.reduction = multicast, byte_mask, reduction
        sources: list[Typed] = [self.to.source, self.source.source, (operands[2], U32)]
        rest = operands[3:]
        self.barrier: BarrierSite | None = None
        if self.to_space != "global":
            self.barrier = BarrierSite(b, rest.pop(0), self.to_space, key=1)
            sources.append(self.barrier.source)
        if len(rest) != multicast + byte_mask:
            raise b.fail("wrong number of operands")
        sources += [(o, TYPES["u16"]) for o in rest]
        self.step = Step(self.issue, tuple(sources))
        names = {"shared::cta": "shared", "shared::cluster": "shared", "global": "global"}
        self.counter = f"{names[self.source_space]}_to_{names[self.to_space]}"

    def issue(self, x: Group, to: Lanes, source: Lanes, size: Lanes, *rest: Lanes) -> None:
        """Check the operation and submit it to the queue."""
        wave = x.wave
        sizes = np.broadcast_to(size, x.shape)[x.active()].astype(np.int64)
        runs = Runs(self.where, x, sizes)
        to_address, source_address = self.to.lanes(runs, to), self.source.lanes(runs, source)
        if self.source_space == "global":
            origin = runs.in_global(source_address, "reads")
        else:
            origin = runs.in_shared(source_address, "reads", remote=False)
        if self.to_space == "global":
            target = runs.in_global(to_address, "writes", updates=self.reduction is not None)
        else:
            target = runs.in_shared(to_address, "writes", remote=self.to_space == "shared::cluster")
        if runs.unwritten:
            x.tally.add(self.number, UNWRITTEN, runs.unwritten)
        leaders = None
        if self.barrier is None and self.reduction is None and not self.byte_mask:
            leaders = runs.leaders(origin.start, target.which, target.start, sizes)
        distinct = EVERY if leaders is None else np.unique(leaders)
        x.tally.add(self.number, self.counter, int(sizes[distinct].sum()))
        if self.counter != "shared_to_shared" and x.tally.traffic:
            start = (origin if self.source_space == "global" else target).start
            touched = (start + sizes + 31 >> 5) - (start >> 5)
            x.tally.add(self.number, f"sectors.{self.counter}", int(touched[distinct].sum()))
        if self.counter == "global_to_shared":
            misaligned = np.where(target.start % ALIGNED, sizes, 0)
            if misaligned.any():
                x.tally.add(self.number, "misaligned", int(misaligned[distinct].sum()))
        threads = x.thread[x.active()]
        barrier = None
        lanes = list(rest)
        if self.barrier is not None:
            index = self.barrier.index(x, lanes.pop(0))
            barrier = runs.lanes(index)
            if not self.multicast:
                # the mbarriers of other CTAs are checked when the operation completes
                wave.part(Mbarriers).check(x, index, self.where)
                self._same_cta(runs, target, barrier)
            else:
                element, shift = self._receivers(runs, runs.lanes(lanes.pop(0)))
                step = wave.shared_stride
                origin = Side(origin.arrays, origin.which[element], origin.start[element])
                to_cta, to_offset = np.divmod(target.start[element], step)
                own = to_cta - wave.cluster_rank[to_cta]
                runs.require_running(own + shift, element)
                target = Side(target.arrays, target.which[element], (own + shift) * step + to_offset)
                barrier = (own + shift) * (step >> 3) + barrier[element] % (step >> 3)
                sizes, threads = sizes[element], threads[element]
                for writes in wave.generic_writes:
                    writes.replaced(target.start, sizes)
        kept = runs.lanes(lanes.pop(0)) if self.byte_mask else None
        wave.launch.machine.version += 1
        if wave.races:
            self._note(wave, threads, target, origin, sizes, barrier)
        self._submit(x, target, origin, sizes, threads, barrier, kept, leaders)

    def _note(
        self, wave: WaveState, threads: Index, target: Side, origin: Side, sizes: Index, barrier: Index | None
    ) -> None:
        """Report the accesses to the race check."""
        accessed = [(True, target.start, sizes)]
        if self.source_space != "global":
            accessed.insert(0, (False, origin.start, sizes))
        for races in wave.races:
            if barrier is None:
                races.operations.grouped(MECHANISM, self.where, threads, origin.start, sizes, False)
            else:
                update, sources = self.reduction is not None, partial(np.column_stack, (origin.which, origin.start))
                races.operations.completing(self.where, threads, barrier, accessed, update, sources)

    def _same_cta(self, runs: Runs, target: Side, barrier: Index) -> None:
        stride = runs.x.wave.shared_stride
        bad = target.start // stride != barrier * 8 // stride
        if bad.any():
            runs.fail(bad, "the destination and the mbarrier are in different CTAs")

    def _receivers(self, runs: Runs, masks: Lanes) -> tuple[Index, Index]:
        """The copies of a multicast: for each, the number of its element (a thread's operation) and the receiver's rank."""
        size = runs.x.wave.launch.cluster_size
        bad = (masks >> np.uint16(size) if size < 16 else np.zeros_like(masks)) != 0
        if bad.any():
            runs.fail(bad, f"the mask {int(masks[np.argmax(bad)]):#x} names CTAs beyond a cluster of {size}")
        bits = (masks[:, None] >> np.arange(16, dtype=np.uint16)) & np.uint16(1)
        element, rank = np.nonzero(bits)
        return element, rank

    def _submit(
        self,
        x: Group,
        target: Side,
        origin: Side,
        sizes: Index,
        threads: Index,
        barrier: Index | None,
        kept: Lanes | None,
        leaders: Index | None,
    ) -> None:
        wave, where = x.wave, self.where

        def chosen(which: Elements) -> Elements:
            return which if leaders is None else np.unique(leaders[which])

        def perform(which: Elements) -> None:
            if self.reduction is not None:
                with wave.launch.machine.atomic_lock:
                    for k in np.arange(len(sizes))[which].tolist():
                        self._reduce(wave, int(threads[k]), *(side.run(k, int(sizes[k])) for side in (target, origin)))
            elif kept is not None:
                _copy_masked(target, origin, sizes, which, kept)
            else:
                copy(target, origin, sizes, chosen(which))
            if barrier is not None:
                wave.part(Mbarriers).complete_tx(barrier[which], sizes[which], where)

        capture = None
        if self.source_space != "global" and self.to_space == "global" and not wave.queue.eager:
            stride = int(sizes.max(initial=0))
            held = np.empty(len(sizes) * stride, np.uint8)
            buffers = Side([held], np.zeros(len(sizes), np.int64), np.arange(len(sizes)) * stride)
            shared = Side(list(origin.arrays), origin.which.copy(), origin.start.copy())
            origin.arrays.append(held)

            def capture(which: Elements) -> None:
                rows = np.arange(len(sizes))[chosen(which)]
                rows = rows[origin.which[rows] != len(origin.arrays) - 1]
                copy(buffers, shared, sizes, rows)
                origin.which[rows] = len(origin.arrays) - 1
                origin.start[rows] = buffers.start[rows]

        poison = None if self.reduction is not None else lambda: fill(target, sizes, POISON)
        operation = Operation(threads, perform, poison, capture, barrier, sizes, leader=leaders)
        if capture is not None:
            operation.lost = lambda element: unread_at_exit(x, where, int(threads[element]))
        if barrier is None:
            wave.queue.submit(operation, MECHANISM)
        else:
            wave.queue.submit(operation, MBARRIER)

    def _reduce(self, wave: WaveState, thread: int, to: Bytes, source: Bytes) -> None:
        """Combine the elements of one thread's operation with their destination."""
        reduction = self.reduction
        assert reduction is not None
        cells, values = to.view(reduction.dtype), source.view(reduction.dtype)
        result = reduction.operation(cells, values)
        for hooks in wave.arithmetic:
            new, old, given = (floats(v, reduction.name) for v in (result, cells, values))
            if new is not None and old is not None and given is not None:
                hooks.produced(wave, self.where, thread, new, (old, given))
        cells[:] = result


def unread_at_exit(x: Group, where: Where, thread: int) -> RaceError:
    """A CTA has ended, and with it its shared memory, while a store may still read it.

    CUDA C++ Programming Guide, "Asynchronous data copies using TMA": the thread that has issued the store waits until the
    source has been read. That the store then reaches global memory needs no wait.
    """
    cta, linear = divmod(thread, x.wave.shape[1] * 32)
    return RaceError(
        f"{where}: the CTA exits before this store is known to have read its shared memory: thread "
        f"{x.wave.thread_coordinates(linear)} of CTA {x.wave.cta_coordinates(cta)} has issued it and not waited for it; put "
        "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0 before the end of the kernel"
    )


def _copy_masked(to: Side, source: Side, sizes: Index, which: Elements, masks: Lanes) -> None:
    """Copy, of each 16 bytes, those whose bit is set in the mask."""
    for k in np.arange(len(sizes))[which].tolist():
        n = int(sizes[k])
        chosen = np.flatnonzero(int(masks[k]) >> np.arange(16) & 1)
        to.run(k, n).reshape(-1, 16)[:, chosen] = source.run(k, n).reshape(-1, 16)[:, chosen]
