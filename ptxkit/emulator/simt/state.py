"""What instructions see of the machine and of the launch that they belong to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Addresses, Bytes, Index, Lanes, Mask
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Instruction

Dim = tuple[int, int, int]


class MemoryState(Protocol):
    """Global memory: allocations by address."""

    @property
    def used(self) -> int:
        """Bytes that are allocated."""

    @property
    def capacity(self) -> int:
        """Bytes that there are."""

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

    def free(self, address: int) -> None:
        """See :meth:`~ptxkit.emulator.memory.allocations.GlobalMemory.free`."""


class MachineState(Protocol):
    """The machine: its memory, and what its threads agree on.

    Attributes:
        version: counts changes of memory; a wave that waits looks whether there were any.
    """

    version: int

    @property
    def memory(self) -> MemoryState:
        """Global memory."""

    @property
    def atomic_lock(self) -> AbstractContextManager[object]:
        """Held while an atomic operation is performed."""

    def allocate(self, nbytes: int, name: str = "") -> int:
        """Address of ``nbytes`` of new global memory."""


class CodeState(Protocol):
    """The bound kernel."""

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
        workspace: address of what the driver gives to a cooperative launch, or 0.
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

    @property
    def machine(self) -> MachineState:
        """The machine that it runs on."""

    @property
    def code(self) -> CodeState:
        """The bound kernel."""

    @property
    def param_allocation(self) -> Allocation:
        """The kernel's parameters in memory."""

    def parameter(self, offset: int, dtype: np.dtype) -> Lanes:
        """A kernel parameter as one-element lanes."""

    def cancel_cluster(self) -> int | None:
        """Linear index of the first CTA of a cluster that has not started and now will not; None where there is none."""

    def cta_coordinates(self, linear: int) -> Dim:
        """Grid coordinates of a CTA."""

    def describe(self) -> str:
        """For messages: how much was launched."""
