"""Memory as the initialisation check sees it: at every address the bits that are not initialised, instead of a value.

A load, store or copy that is executed on this memory, with the same addresses, moves undefined bits as the real one moves
values. So no instruction has to be written twice. A :class:`Mirror` makes, of a group of threads, one whose wave has this
memory, counts nothing, completes asynchronous operations at once and signals no mbarrier.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.asynchronous import Queue
from ptxkit.emulator.memory.allocations import Allocation, GlobalMemory
from ptxkit.emulator.tma.tensor_map import LAYOUT

if TYPE_CHECKING:
    from ptxkit.emulator.engine.threads import Group
    from ptxkit.emulator.engine.wave import Wave

LOCK = threading.RLock()
"""Held while undefined bits of global memory are looked at and changed."""


class UndefinedMemory:
    """Global memory's undefined bits, at the same addresses. Bounds and messages are those of the real one."""

    def __init__(self, memory: GlobalMemory) -> None:
        self.real = memory
        self.explain = memory.explain
        self.inside = memory.inside

    def find(self, address: int) -> Allocation | None:
        """As :meth:`GlobalMemory.find`."""
        a = self.real.find(address)
        return None if a is None else a.tracked()

    def owner(self, address: int) -> Allocation | None:
        """As :meth:`GlobalMemory.owner`."""
        a = self.real.owner(address)
        return None if a is None else a.tracked()

    def partition(self, addresses: NDArray[np.uint64]) -> list[tuple[Allocation, NDArray[np.int64]]]:
        """As :meth:`GlobalMemory.partition`."""
        return [(a.tracked(), lanes) for a, lanes in self.real.partition(addresses)]

    def record(self, a: Allocation, start: int, nbytes: int) -> bytes:
        """A tensor map: its real bytes, but elements outside the array are filled with zeros, which are defined."""
        real = self.real.owner(a.base)
        assert real is not None
        raw = self.real.record(real, start, nbytes)
        fields = np.frombuffer(raw, LAYOUT).copy()
        if nbytes == fields.nbytes:
            fields["fill_mode"] = 0
        return fields.tobytes()

    def written(self, write: Callable[[], object]) -> dict[int, int]:
        """Base address -> number of undefined bytes that ``write`` writes there. What is undefined stays as it was."""
        kept = [(a, a.fresh, a.undefined) for a in self.real.allocations()]
        for a, *_ in kept:
            a.fresh, a.undefined = False, None
        try:
            write()
            found = {a.base: a.undefined.data for a, *_ in kept if a.undefined is not None}
            return {base: int(np.count_nonzero(data)) for base, data in found.items() if data.any()}
        finally:
            for a, fresh, undefined in kept:
                a.fresh, a.undefined = fresh, undefined


class _Machine:
    """What instructions ask of a machine."""

    def __init__(self, memory: UndefinedMemory) -> None:
        self.memory = memory
        self.atomic_lock = LOCK
        self.version = 0


class _Mbarriers:
    """Those of a mirror, which nothing waits for."""

    def check(self, *_: Any) -> None:
        """They were checked."""

    def complete_tx(self, *_: Any) -> None:
        """The real operation signals them."""


class Mirror:
    """One wave's undefined bits.

    Attributes:
        shared: those of its shared memory, as it has it.
        tracks_memory: shared and global memory are followed, too, not only local memory.
    """

    def __init__(self, wave: Wave, tracks_memory: bool) -> None:
        self.real = wave
        self.tracks_memory = tracks_memory
        launch = copy.copy(wave.launch)
        self.memory = UndefinedMemory(launch.machine.memory)
        launch.machine = _Machine(self.memory)  # type: ignore[assignment]
        self.wave = copy.copy(wave)
        self.wave.launch = launch
        self.shared: NDArray[np.uint8] = np.full(len(wave.shared), 0xFF if tracks_memory else 0, np.uint8)
        self.wave.shared = self.shared
        self.wave.races = None
        self.wave.generic_writes = None
        self.wave.mbarriers = _Mbarriers()  # type: ignore[assignment]
        self.wave.state = {}
        self.wave.queue = Queue(self.wave)
        self.wave.queue.eager = True
        self.tally = Tally(len(wave.blocks), False)
        self.local = self._local(wave.local.shape)

    @staticmethod
    def _local(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return np.full(shape, 0xFF, np.uint8)

    def group(self, x: Group) -> Group:
        """``x`` with this memory."""
        have, want = self.local, self.real.local.shape
        if have.shape != want:  # the stack has grown
            self.local = self._local(want)
            self.local[:, : have.shape[1]] = have
        self.wave.local = self.local
        found: Group | None = x._cache.get("mirror")
        if found is None:
            found = copy.copy(x)
            found._cache = {}
            found.wave, found.tally = self.wave, self.tally
            x._cache["mirror"] = found
        return found
