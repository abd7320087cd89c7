"""Global memory: one numpy array per allocation, at virtual addresses with unmapped gaps between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.address_table import AddressTable
from ptxkit.emulator.memory.layout import plain
from ptxkit.emulator.memory.undefined_stores import UndefinedStores
from ptxkit.errors import MemoryFault, UnavailableError, UsageError

GLOBAL_BASE = 0x7000_0000_0000
"""Lowest address of an allocation. The shared and local windows are below, so that an address determines its state space."""

ALIGNMENT = 256  # what cuMemAlloc guarantees
GAP = 1 << 20  # unmapped bytes after each allocation: an access here is reported with the allocation that it overruns
FAR = 1 << 34  # an address within this distance of an allocation is reported as an access to it
PARAMETERS = "kernel parameters"
PARAMETER_BASE = 0xC000_0000
"""First address of kernel parameters. It fits in 32 bits, as on hardware, because ``mov.u32`` of a parameter is legal PTX that
Triton emits, followed by ``cvt.u64.u32`` and ``cvta.param``."""
PARAMETER_SLOT = 1 << 16  # bytes from the parameters of one launch to those of the next
PARAMETER_SLOTS = 2048  # they end below 0xCBCBCBCB, which an address that nothing has written is
POISON = 0xCB
"""The value of each byte of uninitialised memory and registers. As float32 it is -2.7e7; as an address it is invalid."""

SHARED_WINDOW = 0x0100_0000_0000
LOCAL_WINDOW = 0x0200_0000_0000
WINDOW_BYTES = 1 << 32


class Allocation:
    """``nbytes`` at ``base``; ``data`` is padded to 16 bytes so that it can be viewed as any type.

    Attributes:
        fresh: no byte has been written.
        sentinel: the byte with which the host filled the allocation to mark it as uninitialised; None for initialised
            contents. An element that still has this value has probably not been written.
        undefined: an allocation at the same address in which the uninitialised bits are set; None if ``fresh`` is sufficient.
            See :mod:`ptxkit.emulator.initcheck.memory`.
        undefined_stores: bytes to which undefined ones have been copied, whether uninitialised memory is followed or not; None
            where that has not happened.
        marked: the number of allocations so far that have got ``undefined_stores``.
    """

    marked = 0

    __slots__ = ("base", "data", "fresh", "nbytes", "sentinel", "symbol", "undefined", "undefined_stores", "views")

    def __init__(self, base: int, nbytes: int, name: str, data: NDArray[np.uint8] | None = None) -> None:
        self.base = base
        self.nbytes = nbytes
        self.symbol = name
        if data is None:
            data = np.full((nbytes + 31) // 16 * 16, POISON, np.uint8)
        self.data: NDArray[np.uint8] = data
        self.views: dict[str, NDArray[np.generic]] = {}
        self.fresh = False
        self.sentinel: int | None = None
        self.undefined: Allocation | None = None
        self.undefined_stores: UndefinedStores | None = None

    @property
    def name(self) -> str:
        """The name for messages; that of a variable of a module is demangled at each request, which takes long."""
        return plain(self.symbol)

    def initialise(self, start: int, nbytes: int) -> None:
        """The host has written ``nbytes`` from byte ``start`` on."""
        self._overwritten(start, nbytes)
        if nbytes >= self.nbytes:
            self.fresh, self.undefined, self.sentinel = False, None, None
        elif self.fresh or self.undefined is not None:
            self.tracked().data[start : start + nbytes] = 0

    def forget(self, start: int, nbytes: int) -> None:
        """Mark ``nbytes`` from byte ``start`` on as uninitialised."""
        self._overwritten(start, nbytes)
        if nbytes >= self.nbytes:
            self.fresh, self.undefined = True, None
        else:
            self.tracked().data[start : start + nbytes] = 0xFF

    def _overwritten(self, start: int, nbytes: int) -> None:
        if self.undefined_stores is not None:
            self.undefined_stores.clear(start, nbytes)

    def holding_undefined(self) -> UndefinedStores:
        """:attr:`undefined_stores`; created if it is None."""
        if self.undefined_stores is None:
            self.undefined_stores = UndefinedStores(self.nbytes)
            Allocation.marked += 1
        return self.undefined_stores

    def unwritten(self, values: NDArray[np.generic]) -> int:
        """The number of elements of ``values``, which were read, whose bytes all equal the sentinel."""
        if self.sentinel is None or not values.size:
            return 0
        size = values.dtype.itemsize
        if size in (1, 2, 4, 8):
            return int(
                np.count_nonzero(values.view(f"u{size}") == int.from_bytes(bytes([self.sentinel]) * size, "little"))
            )
        octets = np.ascontiguousarray(values).view(np.uint8).reshape(-1, size)
        return int(np.count_nonzero((octets == self.sentinel).all(1)))

    def tracked(self) -> Allocation:
        """:attr:`undefined`; created if it is None."""
        if self.undefined is None:
            made = Allocation(self.base, self.nbytes, self.name, np.zeros(len(self.data), np.uint8))
            if self.fresh:
                made.data[: self.nbytes] = 0xFF
            self.fresh, self.undefined = False, made
        return self.undefined

    def typed(self, dtype: np.dtype) -> NDArray[np.generic]:
        """The whole allocation as elements of ``dtype``."""
        view = self.views.get(dtype.char)
        if view is None:
            view = self.views[dtype.char] = self.data.view(dtype)
        return view


class GlobalMemory:
    """Allocations by address.

    Attributes:
        retired: addresses that the next allocation frees first.
        heap: bytes that device code has allocated by malloc, and not freed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.heap = 0
        self._next = GLOBAL_BASE
        self._next_slot = 0
        self._table: AddressTable[Allocation] = AddressTable()
        self._lock = threading.RLock()  # for changes of the table; other threads may read it at the same time
        self._changing = False
        self._freed: list[tuple[int, int, str]] = []
        self.retired: list[int] = []

    @contextmanager
    def _change(self) -> Iterator[bool]:
        """Keeps other threads from changing the table; gives False in the middle of a change by the same thread.

        The garbage collector may call :meth:`free` there, because a change makes objects, which lets it run.
        """
        with self._lock:
            first = not self._changing
            self._changing = True
            try:
                yield first
            finally:
                self._changing = not first

    def allocate(self, nbytes: int, name: str = "") -> Allocation:
        """A new poisoned allocation.

        Raises:
            UsageError: ``nbytes`` is negative.
            UnavailableError: more than the machine has.
        """
        if nbytes < 0:
            raise UsageError(f"cannot allocate {nbytes} bytes")
        if self.retired:
            self._free_retired()
        if self.used + nbytes > self.capacity:
            raise UnavailableError(
                f"{nbytes:,} bytes were requested, the emulator has {self.capacity - self.used:,} left; use smaller sizes"
            )
        with self._change():
            allocation = Allocation(self._next, nbytes, name)
            self._next += -(-(nbytes + GAP) // ALIGNMENT) * ALIGNMENT
            if not self._table.room:
                self._table = AddressTable(self._table.live())
            self._table.extend([allocation])
            self.used += nbytes
        return allocation

    def allocate_all(self, sizes: Sequence[int], name: str) -> list[Allocation]:
        """New poisoned allocations, which share one array; the caller has compared their sizes with :attr:`capacity`."""
        if self.retired:
            self._free_retired()
        padded = [(nbytes + 31) // 16 * 16 for nbytes in sizes]
        data = np.full(sum(padded), POISON, np.uint8)
        first = data.__array_interface__["data"][0]
        made, hosts, at = [], [], 0
        with self._change():
            for nbytes, room in zip(sizes, padded, strict=True):
                made.append(Allocation(self._next, nbytes, name, data[at : at + room]))
                self._next += -(-(nbytes + GAP) // ALIGNMENT) * ALIGNMENT
                hosts.append(first + at)
                at += room
            if self._table.room < len(made):
                self._table = AddressTable(self._table.live(), len(made))
            self._table.extend(made, hosts)
            self.used += sum(sizes)
        return made

    def allocate_parameters(self, nbytes: int) -> Allocation:
        """A new poisoned allocation for the parameters of a launch, whose addresses fit in 32 bits.

        Raises:
            UnavailableError: too many launches are running.
        """
        with self._change():
            live = self._table.live()
            taken = {a.base for a in live if a.base < GLOBAL_BASE}
            for _ in range(PARAMETER_SLOTS):
                base = PARAMETER_BASE + self._next_slot * PARAMETER_SLOT
                self._next_slot = (self._next_slot + 1) % PARAMETER_SLOTS
                if base not in taken:
                    break
            else:
                raise UnavailableError(f"{PARAMETER_SLOTS} launches are running at once; wait for some of them")
            allocation = Allocation(base, nbytes, PARAMETERS)
            self._table = AddressTable(sorted([*live, allocation], key=lambda a: a.base))
            self.used += nbytes
        return allocation

    def free(self, address: int) -> None:
        """Free the allocation at ``address``.

        If the garbage collector calls this in the middle of a change, the next allocation does it.
        """
        with self._change() as first:
            if not first:
                self.retired.append(address)
                return
            gone = self._table.remove(address)
            if gone is None:
                raise UsageError(f"{address:#x} is not the start of an allocation")
            self.used -= gone.nbytes
            self._freed.append((gone.base, gone.nbytes, gone.symbol))
            del self._freed[:-256]

    def starting_at(self, addresses: Sequence[int]) -> list[Allocation | None]:
        """The allocation that begins at each address, or None."""
        return self._table.starting_at(addresses)

    def free_all(self, addresses: Sequence[int]) -> None:
        """Free the allocations that begin at these addresses, which are all different; there must be one for each."""
        with self._change():
            gone = self._table.remove_all(addresses)
            self.used -= sum([a.nbytes for a in gone])
            self._freed += [(a.base, a.nbytes, a.symbol) for a in gone]
            del self._freed[:-256]

    def _free_retired(self) -> None:
        """Free all of ``retired`` at one time: a module may have thousands of variables, and each change copies the table."""
        addresses = set()
        with self._change():
            while self.retired:
                addresses.add(self.retired.pop())
            live = self._table.live()
            kept = [a for a in live if a.base not in addresses]
            gone = [a for a in live if a.base in addresses]
            self._table = AddressTable(kept)
            self.used -= sum(a.nbytes for a in gone)
            self._freed += [(a.base, a.nbytes, a.symbol) for a in gone]
            del self._freed[:-256]

    def allocations(self) -> tuple[Allocation, ...]:
        """Every live allocation, by address."""
        return self._table.live()

    @property
    def table(self) -> AddressTable[Allocation]:
        """The allocations now; another table replaces it when they change otherwise than at its end."""
        return self._table

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds ``address``, or the nearest below it (the caller checks the end); None if there is none."""
        return self._table.below(address)

    def forget_undefined(self) -> None:
        """Mark all memory as initialised."""
        for a in self._table.live():
            a.fresh, a.undefined = False, None

    def record(self, a: Allocation, start: int, nbytes: int) -> bytes:
        """A copy of ``nbytes`` at ``address`` that describe a copy operation, such as a tensor map."""
        return a.data[start : start + nbytes].tobytes()

    def slice(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """``nbytes`` at ``address`` as a view.

        Raises:
            MemoryFault: not inside one allocation.
        """
        a = self.find(address)
        if a is None or address + nbytes > a.base + a.nbytes:
            raise MemoryFault(f"{nbytes} bytes at {address:#x}: {self.explain(address, nbytes)}")
        return a.data[address - a.base : address - a.base + nbytes]

    def explain(self, address: int, nbytes: int) -> str:
        """The message that explains why ``nbytes`` at ``address`` cannot be accessed, with the nearest allocation."""
        if address < 4096:
            return "null pointer" if address == 0 else f"null pointer plus {address}"
        for base, size, name in reversed(self._freed):
            if base <= address < base + size:
                return f"{address - base} bytes into {label(plain(name), size)}, which was freed"
        above, below = self._table.above(address), self._table.below(address)
        if below is not None and below.name == PARAMETERS and address - below.base >= PARAMETER_SLOT:
            below = None
        if below is not None:
            past = address + nbytes - (below.base + below.nbytes)
            if past <= 0:
                return f"inside {label(below.name, below.nbytes)}"
            if past > FAR:
                return "no allocation is near"
            if above is None or address - below.base - below.nbytes <= above.base - address:
                return f"{past} byte{'s' * (past != 1)} past the end of {label(below.name, below.nbytes)}"
        if above is not None and above.base - address <= GAP:
            return f"{above.base - address} bytes before the start of {label(above.name, above.nbytes)}"
        if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
            return "a generic address of shared memory; convert it with cvta.to.shared or use a generic access"
        if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
            return "a generic address of local memory"
        return "no allocation is near"

    def inside(self, addresses: NDArray[np.uint64], size: int) -> NDArray[np.bool_]:
        """Which addresses begin ``size`` bytes that lie in a single allocation."""
        table = self._table
        i = table.places(addresses)
        fits: NDArray[np.bool_] = (i >= 0) & (addresses + np.uint64(size) <= table.end[np.maximum(i, 0)])
        return fits

    def partition(self, addresses: NDArray[np.uint64]) -> list[tuple[Allocation, NDArray[np.int64]]]:
        """Groups addresses, all valid, by allocation: (allocation, positions in ``addresses``)."""
        table = self._table
        which = table.places(addresses)
        found = [(table.ranges[int(k)], np.flatnonzero(which == k)) for k in np.flatnonzero(np.bincount(which))]
        return [(a, positions) for a, positions in found if a is not None]

    def owner(self, address: int) -> Allocation | None:
        """The live allocation that contains ``address``."""
        a = self.find(address)
        return a if a is not None and address < a.base + a.nbytes else None


def poison(dtype: DTypeLike, shape: tuple[int, ...] = (1, 1, 1)) -> Lanes:
    """An array of ``dtype`` and ``shape`` that holds poison; predicates are true."""
    t = np.dtype(dtype)
    if t.kind == "b":
        return np.ones(shape, t)
    return np.full(int(np.prod(shape)) * t.itemsize, POISON, np.uint8).view(t).reshape(shape)


def label(name: str, nbytes: int) -> str:
    """The text that names an allocation in messages: its name, or "an allocation", and its size."""
    return f"'{name}' ({nbytes:,} bytes)" if name else f"an allocation of {nbytes:,} bytes"
