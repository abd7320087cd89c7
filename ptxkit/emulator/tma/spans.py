"""Runs of bytes that bulk operations copy: their location, the checks of their bounds, and copying many of them at once.

An operation has E elements, one for each thread that issued it, in the order of ``x.active()``; a :class:`Side` contains the
start of each run. Arrays of the sides and of the sizes are (E,) int64 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.access.shared_memory import exited
from ptxkit.emulator.arrays import Elements, Index, Lanes
from ptxkit.emulator.memory.allocations import SHARED_WINDOW, WINDOW_BYTES, Allocation
from ptxkit.emulator.memory.footprint import ATOMIC, READ, WRITE
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE
from ptxkit.emulator.simt.asynchronous import windows
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.proxies import ROW
from ptxkit.errors import MemoryFault

LONG = 4096  # bytes of a run from which separate copies are faster than one gather of all runs


@dataclass
class Side:
    """Source or destination of an operation.

    Attributes:
        arrays: uint8 arrays, each 16-byte aligned in the emulated address space.
        which: index in ``arrays`` of each element.
        start: first byte of each element in its array.
    """

    arrays: list[NDArray[np.uint8]]
    which: NDArray[np.int64]
    start: NDArray[np.int64]

    def run(self, element: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of one element, as a view."""
        start = int(self.start[element])
        return self.arrays[int(self.which[element])][start : start + nbytes]


def copy(to: Side, source: Side, sizes: NDArray[np.int64], which: Elements) -> None:
    """Copy the elements ``which``; sizes and starts are multiples of 16."""
    for elements, nbytes in _batches(to, source, sizes, which):
        target, origin = to.arrays[int(to.which[elements[0]])], source.arrays[int(source.which[elements[0]])]
        starts, origins = to.start[elements], source.start[elements]
        if nbytes >= LONG:
            for t, s in zip(starts.tolist(), origins.tolist(), strict=True):
                target[t : t + nbytes] = origin[s : s + nbytes]
        else:
            windows(target, 16, nbytes // 16)[starts >> 4] = windows(origin, 16, nbytes // 16)[origins >> 4]


def fill(to: Side, sizes: NDArray[np.int64], value: int) -> None:
    """Set every byte of every element."""
    for k, nbytes in enumerate(sizes.tolist()):
        to.run(k, nbytes)[:] = value


def _batches(
    to: Side, source: Side, sizes: NDArray[np.int64], which: Elements
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Groups the elements ``which`` by arrays and size; empty runs are omitted."""
    elements = np.arange(len(sizes))[which]
    elements = elements[sizes[elements] > 0]
    if not len(elements):
        return
    key = ((to.which * len(source.arrays) + source.which) << 32) + sizes
    kinds = np.unique(key[elements])
    for kind in kinds:
        same = elements if len(kinds) == 1 else elements[key[elements] == kind]
        yield same, int(sizes[same[0]])


class Runs:
    """Finds and checks the runs of one instruction.

    Args:
        where: the instruction, for messages.
        sizes: bytes of each run, multiples of ``multiple``.
    """

    def __init__(self, where: Where, x: Group, sizes: NDArray[np.int64], multiple: int = 16) -> None:
        self.where = where
        self.x = x
        self.sizes = sizes
        self.active = x.active()
        self.unwritten = 0  # number of times that global memory was read or updated that may be uninitialised
        self.cta: NDArray[np.int64] = np.broadcast_to(x.cta, x.shape)[self.active]
        wrong = (sizes & (multiple - 1)) != 0
        if wrong.any():
            self.fail(wrong, f"{int(sizes[np.argmax(wrong)])} bytes; a bulk operation moves a multiple of {multiple}")

    def lanes(self, value: Lanes) -> Lanes:
        """The values of a lane array, one for each element."""
        return np.broadcast_to(value, self.x.shape)[self.active]

    def leaders(self, *columns: Index) -> NDArray[np.int64] | None:
        """For each element the first one of its warp with the same values in all ``columns``; None if all elements differ.

        ptxas issues a copy to global memory once for all lanes of a warp that give it the same operands (SASS of sm_90a:
        UTMASTG and UBLKCP.G.S are not in a loop, or in a loop over different operands). CUTLASS's epilogues, in which a whole
        warp stores the same box, depend on it. Loads and reductions are issued for each lane.
        """
        warps = self.x.thread[self.active] >> 5
        if len(warps) == 1 or (warps[1:] != warps[:-1]).all():
            return None
        keys = np.column_stack([warps, *columns])
        _, first, kind = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return None if len(first) == len(keys) else first[kind.reshape(-1)]

    def in_global(self, addresses: NDArray[np.uint64], verb: str, updates: bool = False) -> Side:
        """Runs in global memory.

        Args:
            updates: a reduction, whose result depends on what it overwrites.

        Raises:
            MemoryFault: misaligned or out of bounds.
        """
        memory = self.x.wave.launch.machine.memory
        bad = (addresses & np.uint64(15)) != 0
        if bad.any():
            self._fault(bad, addresses, verb, "misaligned, bulk operations need a multiple of 16")
        first = memory.find(int(addresses[0]))
        if first is not None:
            # the usual case: everything is in one allocation
            end = np.uint64(first.base + first.nbytes)
            start = addresses - np.uint64(first.base)
            if (addresses >= np.uint64(first.base)).all() and (addresses + self.sizes.view(np.uint64) <= end).all():
                self._notice_unwritten(first, verb == "reads" or updates)
                self._forget_undefined(first, verb)
                self._mark(addresses, verb, updates)
                return Side([first.data], np.zeros(len(addresses), np.int64), start.view(np.int64))
        for n in np.unique(self.sizes):
            outside = (self.sizes == n) & ~memory.inside(addresses, int(n))
            if outside.any():
                address = int(addresses[np.argmax(outside)])
                self._fault(outside, addresses, verb, memory.explain(address, int(n)))
        self._mark(addresses, verb, updates)
        arrays: list[NDArray[np.uint8]] = []
        which, begin = np.zeros(len(addresses), np.int64), np.zeros(len(addresses), np.int64)
        for a, chosen in memory.partition(addresses):
            which[chosen] = len(arrays)
            begin[chosen] = (addresses[chosen] - np.uint64(a.base)).view(np.int64)
            arrays.append(a.data)
            self._notice_unwritten(a, verb == "reads" or updates)
            self._forget_undefined(a, verb)
        return Side(arrays, which, begin)

    def _mark(self, addresses: NDArray[np.uint64], verb: str, updates: bool) -> None:
        """Note the bytes of the runs, where launches on different streams are compared."""
        launch = self.x.wave.launch
        if launch.footprint is not None:
            kind = ATOMIC if updates else READ if verb == "reads" else WRITE
            launch.footprint.runs(launch.machine.memory, addresses, self.sizes, kind)

    def _notice_unwritten(self, a: Allocation, depends: bool) -> None:
        """Count an operation that depends on bytes of ``a``, if ``a`` was marked as uninitialised; they are not examined."""
        if a.sentinel is not None and depends:
            self.unwritten += 1

    def _forget_undefined(self, a: Allocation, verb: str) -> None:
        """A copy may overwrite bytes of ``a`` that a kernel has marked as undefined; which ones is not examined."""
        if verb == "writes" and a.undefined_stores is not None:
            a.undefined_stores.clear(0, a.nbytes)

    def in_shared(
        self, addresses: NDArray[np.uint64], verb: str, remote: bool, alignment: int = 16, generic_proxy: bool = False
    ) -> Side:
        """Runs in shared memory of the executing CTA or, if ``remote``, of the CTA that the address names.

        Args:
            generic_proxy: the instruction accesses them as ld and st do, so that no fence is needed.

        Raises:
            MemoryFault: misaligned, out of bounds, not in the cluster, or written without a later proxy fence.
        """
        wave = self.x.wave
        window = np.uint64(SHARED_WINDOW)
        generic = (addresses - window) < np.uint64(WINDOW_BYTES)
        address = np.where(generic, addresses - window, addresses)
        rank = (address >> np.uint64(CLUSTER_RANK_SHIFT)).view(np.int64)
        offset = (address & np.uint64((1 << CLUSTER_RANK_SHIFT) - 1)).view(np.int64)
        own = wave.cluster_rank[self.cta]
        if not remote:
            rank = np.where(rank == 0, own, rank)
        bad = (offset & (alignment - 1)) != 0
        if bad.any():
            self._fault(bad, addresses, verb, f"misaligned, it needs a multiple of {alignment}")
        shared_bytes, size = wave.launch.shared_bytes, wave.launch.cluster_size
        bad = (offset < SHARED_BASE) | (offset + self.sizes > SHARED_BASE + shared_bytes) | (rank >= size)
        if bad.any():
            k = int(np.argmax(bad))
            whose = f"CTA rank {rank[k]} in a cluster of {size}" if size > 1 or rank[k] else "the CTA"
            self._fault(bad, addresses, verb, f"outside the {shared_bytes:,} bytes of shared memory of {whose}")
        if not remote and (rank != own).any():
            self._fault(rank != own, addresses, verb, "in another CTA; shared::cta is the executing CTA's own memory")
        self.require_running(self.cta - own + rank)
        start = (self.cta - own + rank) * wave.shared_stride + offset
        for writes in () if generic_proxy else wave.generic_writes:
            if verb == "writes":
                writes.replaced(start, self.sizes)
            elif (unseen := writes.unseen(start, self.sizes)).any():
                k = int(np.argmax(unseen))
                rows = np.arange(start[k] // ROW, -(-(start[k] + self.sizes[k]) // ROW))
                self._fault(unseen, addresses, verb, writes.reason(rows))
        for races in wave.races if generic_proxy else ():
            races.runs(self.x, self.where, start, self.sizes, verb == "writes")
        return Side([wave.shared], np.zeros(len(start), np.int64), start)

    def require_running(self, ctas: NDArray[np.int64], element: NDArray[np.int64] | None = None) -> None:
        """Fail if one of ``ctas``, indices in the wave, has exited.

        Args:
            element: the run to which each belongs; None if there is one CTA for each run, in order.
        """
        ended = self.x.wave.ended
        if ended is None or not ended[ctas].any():
            return
        k = int(np.argmax(ended[ctas]))
        bad = np.arange(len(self.sizes)) == (k if element is None else element[k])
        self.fail(bad, exited(str(self.x.wave.cta_coordinates(int(ctas[k])))))

    def fail(self, bad: NDArray[np.bool_], why: str) -> NoReturn:
        """Raise for the first element in ``bad``."""
        lanes = np.zeros(self.x.shape, np.bool_)
        lanes[self.active] = bad
        cta, thread = self.x.first(lanes)
        self.x.wave.flush_output()
        raise MemoryFault(f"{self.where}: thread {thread} of CTA {cta}: {why}")

    def _fault(self, bad: NDArray[np.bool_], addresses: NDArray[np.uint64], verb: str, why: str) -> NoReturn:
        k = int(np.argmax(bad))
        self.fail(bad, f"{verb} {int(self.sizes[k]):,} bytes at {int(addresses[k]):#x}: {why}")
