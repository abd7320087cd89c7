"""The interfaces of memory, machine, kernel and launch to instructions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Addresses, Bytes, Index, Lanes, Mask
from ptxkit.emulator.memory.address_table import AddressTable
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.atomic_lock import AtomicLock
from ptxkit.emulator.memory.footprint import Footprint
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Instruction

Dim = tuple[int, int, int]


class MemoryState(Protocol):
    """Global memory: allocations by address.

    Attributes:
        heap: bytes that device code has allocated by malloc.
    """

    heap: int

    @property
    def used(self) -> int:
        """Number of allocated bytes."""

    @property
    def capacity(self) -> int:
        """Size of global memory in bytes."""

    @property
    def table(self) -> AddressTable[Allocation]:
        """See :attr:`~ptxkit.emulator.memory.allocations.GlobalMemory.table`."""

    def allocations(self) -> tuple[Allocation, ...]:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.allocations`."""

    def find(self, address: int) -> Allocation | None:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.find`."""

    def owner(self, address: int) -> Allocation | None:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.owner`."""

    def inside(self, addresses: Addresses, nbytes: int) -> Mask:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.inside`."""

    def explain(self, address: int, nbytes: int) -> str:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.explain`."""

    def partition(self, addresses: Addresses) -> list[tuple[Allocation, Index]]:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.partition`."""

    def record(self, a: Allocation, start: int, nbytes: int) -> bytes:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.record`."""

    def slice(self, address: int, nbytes: int) -> Bytes:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.slice`."""

    def starting_at(self, addresses: Sequence[int]) -> list[Allocation | None]:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.starting_at`."""

    def free_all(self, addresses: Sequence[int]) -> None:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.free_all`."""

    def free(self, address: int) -> None:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.free`."""


class MachineState(Protocol):
    """The machine: global memory, and the state that its worker threads share.

    Attributes:
        version: number of changes of memory, by which a waiting wave recognises progress.
        texel_objects: handle -> texture or surface object, of :class:`ptxkit.emulator.texture.texels.TexelObject`.
        atomics: the lock that :attr:`atomic_lock` holds.
    """

    version: int
    texel_objects: dict[int, object]
    atomics: AtomicLock

    @property
    def memory(self) -> MemoryState:
        """Global memory."""

    @property
    def atomic_lock(self) -> AbstractContextManager[object]:
        """The lock that is held while an atomic operation is performed."""

    def allocate_all(self, sizes: Sequence[int], name: str) -> list[int]:
        """The addresses of uninitialised memory of these sizes, which the caller has compared with the capacity."""


class CodeState(Protocol):
    """The bound kernel."""

    target: str
    layout: Layout
    instructions: list[tuple[Where, Instruction]]
    const_ranges: list[tuple[int, int]]
    entry: FunctionCode

    @property
    def specials(self) -> frozenset[str]:
        """Special registers that the kernel and what it calls read."""


class LaunchState(Protocol):
    """The launch: its shape, its kernel, and its parameters.

    Attributes:
        shared_bytes: shared memory of a CTA; ``shared_begin`` is the first address that accesses may have.
        serial: number of the launch.
        heap_bytes: size of the heap of malloc.
        workspace: address of the workspace that the driver provides for a cooperative launch, or 0.
    """

    name: str
    grid: Dim
    block: Dim
    cluster: Dim
    explicit_cluster: bool
    threads: int
    ctas: int
    cluster_size: int
    shared_bytes: int
    shared_begin: int
    dynamic_shared: int
    cooperative: bool
    sms: int
    serial: int
    workspace: int
    heap_bytes: int

    @property
    def footprint(self) -> Footprint | None:
        """What records the bytes of global memory that the launch touches, or None."""

    @property
    def machine(self) -> MachineState:
        """The machine on which the launch is executed."""

    @property
    def code(self) -> CodeState:
        """The bound kernel."""

    @property
    def param_allocation(self) -> Allocation:
        """The kernel's parameters in memory."""

    def parameter(self, offset: int, dtype: np.dtype) -> Lanes:
        """A kernel parameter as one-element lanes."""

    def cancel_cluster(self) -> int | None:
        """Cancel a cluster that has not started; returns the linear index of its first CTA, or None without such a cluster."""

    def cta_coordinates(self, linear: int) -> Dim:
        """Grid coordinates of a CTA."""

    def describe(self) -> str:
        """The grid and block of the launch, for messages."""
