"""Memory as the initialisation check sees it: at every address the bits that are not initialised, instead of a value.

A load, store or copy that is executed on this memory, with the same addresses, moves undefined bits as the real one moves
values. So no instruction has to be written twice. A :class:`Mirror` makes, of a group of threads, one whose wave has this
memory, counts nothing, completes asynchronous operations at once and signals no mbarrier.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.memory.address_table import AddressTable
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.atomic_lock import AtomicLock
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.simt.asynchronous import Collected, Operation
from ptxkit.emulator.simt.state import MemoryState
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.emulator.tma.tensor_map import LAYOUT

LOCK = threading.RLock()
"""Held while undefined bits of global memory are looked at and changed."""


class UndefinedMemory:
    """Global memory's undefined bits, at the same addresses. Bounds and messages are those of the real one."""

    heap = 0

    def __init__(self, memory: MemoryState) -> None:
        self.real = memory
        self.explain = memory.explain
        self.inside = memory.inside
        self.allocations = memory.allocations
        self.slice = memory.slice
        self.free = memory.free
        self.free_all = memory.free_all
        self.starting_at = memory.starting_at

    @property
    def used(self) -> int:
        """Bytes that are allocated."""
        return self.real.used

    @property
    def capacity(self) -> int:
        """Bytes that there are."""
        return self.real.capacity

    @property
    def table(self) -> AddressTable[Allocation]:
        """Of the real memory."""
        return self.real.table

    def find(self, address: int) -> Allocation | None:
        """See :meth:`GlobalMemory.find`."""
        a = self.real.find(address)
        return None if a is None else a.tracked()

    def owner(self, address: int) -> Allocation | None:
        """See :meth:`GlobalMemory.owner`."""
        a = self.real.owner(address)
        return None if a is None else a.tracked()

    def partition(self, addresses: NDArray[np.uint64]) -> list[tuple[Allocation, NDArray[np.int64]]]:
        """See :meth:`GlobalMemory.partition`."""
        return [(a.tracked(), lanes) for a, lanes in self.real.partition(addresses)]

    def record(self, a: Allocation, start: int, nbytes: int) -> bytes:
        """The bytes of a tensor map, with zero fill, so that elements outside the array count as defined."""
        real = self.real.owner(a.base)
        assert real is not None
        raw = self.real.record(real, start, nbytes)
        fields = np.frombuffer(raw, LAYOUT).copy()
        if nbytes == fields.nbytes:
            fields["fill_mode"] = 0
        return fields.tobytes()

    def written(self, write: Callable[[], object]) -> dict[int, NDArray[np.uint8]]:
        """Base address -> undefined bits, by byte, that ``write`` writes there. What is undefined stays as it was."""
        kept = [(a, a.fresh, a.undefined) for a in self.real.allocations()]
        for a, *_ in kept:
            a.fresh, a.undefined = False, None
        try:
            write()
            found = {a.base: a.undefined.data for a, *_ in kept if a.undefined is not None}
            return {base: data for base, data in found.items() if data.any()}
        finally:
            for a, fresh, undefined in kept:
                a.fresh, a.undefined = fresh, undefined


class _Machine:
    """The methods of a machine that instructions call."""

    def __init__(self, memory: UndefinedMemory) -> None:
        self.memory: MemoryState = memory
        self.atomic_lock: AbstractContextManager[object] = LOCK
        self.atomics = AtomicLock()
        self.version = 0
        self.texel_objects: dict[int, object] = {}

    def allocate_all(self, sizes: Sequence[int], name: str) -> list[int]:
        """Not supported: no instruction that is executed on undefined bits allocates memory."""
        raise NotImplementedError


class _SilentMbarriers(Mbarriers):
    """The mbarriers of a mirror, for which no thread waits."""

    def check(self, x: Group, index: Index, where: Where, or_invalidated: bool = False) -> None:
        """Nothing to do: the real operation has checked them."""

    def complete_tx(self, at: Index, nbytes: Index | int, where: Where | None = None) -> None:
        """The real operation signals them."""


def _silent(wave: WaveState) -> Mbarriers:
    return _SilentMbarriers(wave)


class Mirror:
    """One wave's undefined bits.

    Attributes:
        shared: those of its shared memory, as it has it.
        tracks_memory: shared and global memory are followed, too, not only local memory.
    """

    def __init__(self, wave: WaveState, tracks_memory: bool) -> None:
        self.real = wave
        self.tracks_memory = tracks_memory
        self.memory = UndefinedMemory(wave.launch.machine.memory)
        self.shared: NDArray[np.uint8] = np.full(len(wave.shared), 0xFF if tracks_memory else 0, np.uint8)
        self.shared.reshape(-1, wave.shared_stride)[:, :SHARED_BASE] = 0  # the system sets what it reserves to zero
        self.wave = wave.on_memory(_Machine(self.memory), self.shared)
        self.wave.provide(Mbarriers, _silent(self.wave))
        self.tally = Tally(0, False)
        self.local = self._local(wave.local.shape)

    @staticmethod
    def _local(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return np.full(shape, 0xFF, np.uint8)

    def issued(self, call: Callable[[], object]) -> None:
        """Execute an instruction that issues asynchronous operations on this memory.

        Where the real ones are performed at once, so are these. Otherwise each is performed with the real one, which the same
        instruction issues next on the real memory. What it is going to write in shared memory is uninitialised until then.
        """
        self.real.queue.followers = []
        if self.real.queue.eager:
            call()
            return
        at_once, held = self.wave.queue, Collected(self.real.queue.threads)
        self.wave.queue = held
        try:
            call()
        finally:
            self.wave.queue = at_once
        for operation in held.operations:
            self._undefine(operation)
        self.real.queue.followers = held.operations

    def _undefine(self, operation: Operation) -> None:
        """What the operation writes in shared memory is undefined."""
        if operation.poison is None:
            return
        kept = self.shared.copy()
        self.shared[:] = 0
        operation.poison()
        np.copyto(self.shared, np.where(self.shared != 0, 0xFF, kept))

    def fitted(self) -> NDArray[np.uint8]:
        """The undefined bits of local memory, in the shape that it has now."""
        have, want = self.local, self.real.local.shape
        if have.shape != want:  # the stack has grown
            self.local = self._local(want)
            self.local[:, : have.shape[1]] = have
        return self.local

    def group(self, x: Group) -> Group:
        """``x`` with this memory."""
        self.wave.local = self.fitted()
        found = x.memo.get("mirror")
        if not isinstance(found, Group):
            found = copy.copy(x)
            found.memo = {}
            found.wave, found.tally = self.wave, self.tally
            x.memo["mirror"] = found
        return found
