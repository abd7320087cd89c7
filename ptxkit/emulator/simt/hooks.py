"""The hooks through which the checks of a launch follow its execution.

A wave holds a tuple of hooks of each kind. Instructions loop over it, so that a launch without a check pays for an empty loop,
and the arguments of a hook are only computed if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask, Words
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.types import PtxType

Sources = Callable[[], NDArray[np.generic]]
"""Returns (E, n) values that are equal for operations of one instruction that write equal data, such as the source's address.

Operations that write the same data to the same bytes are not reported, in whichever order they are performed.
"""


class AccessSite(Protocol):
    """An instruction that accesses shared memory: its position, bytes of each lane, and memory ordering semantics."""

    where: Where
    size: int
    ordering: str
    cluster: bool


class OperationHooks(Protocol):
    """Hooks for asynchronous operations and mbarriers. An mbarrier is identified by its word's index in the wave."""

    def commit(self, x: Selection, mechanism: Mechanism[object]) -> None:
        """The threads of ``x`` commit their group."""

    def wait(self, x: Selection, mechanism: Mechanism[object], newest: int) -> None:
        """The threads of ``x`` have waited for all of their groups except the ``newest`` ones."""

    def grouped(
        self,
        mechanism: Mechanism[object],
        where: Where,
        threads: Index,
        starts: Index,
        sizes: Index,
        write: bool,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads``, (E,), access runs of bytes (E,) of the wave's shared memory and belong to groups."""

    def multiplied(self, mechanism: Mechanism[object], where: Where, owners: Index, chunks: Index) -> None:
        """Matrix products of warpgroups with the first threads ``owners``, (E,), read 16-byte units, (E, n)."""

    def initialised(self, x: Selection, where: Where, index: Lanes) -> None:
        """mbarrier.init, a plain write."""

    def invalidated(self, x: Selection, where: Where, index: Lanes) -> None:
        """mbarrier.inval, a plain write of one value."""

    def arrived(self, x: Selection, where: Where, index: Index, relaxed: bool, within_cta: bool) -> None:
        """The threads of ``x`` arrive; the scope is ``.cta`` if ``within_cta``."""

    def used(self, x: Selection, where: Where, index: Index) -> None:
        """The threads of ``x`` change the tx-count, which puts nothing in order."""

    def waited(self, x: Selection, where: Where, index: Index, done: Mask, relaxed: bool, within_cta: bool) -> None:
        """The lanes ``done`` have observed that a phase is complete; the scope is ``.cta`` if ``within_cta``."""

    def phase_over(self, at: Index) -> None:
        """The current phase of the distinct mbarriers ``at`` is complete."""

    def completing(
        self,
        where: Where,
        threads: Index,
        at: Index,
        runs: list[tuple[bool, Index, Index]],
        strong: bool = False,
        sources: Sources | None = None,
    ) -> None:
        """Operations of ``threads``, (E,), complete on the mbarriers ``at``; ``runs`` are (written, starts, sizes)."""

    def left_over(self, at: Index, which: Index) -> None:
        """Of operations on the mbarriers ``at``, which complete now, those at ``which`` count for a later phase."""

    def arrive_after(self, mechanism: Mechanism[object], x: Selection, where: Where, index: Index) -> None:
        """An arrival when all operations of the thread so far are complete, as cp.async.mbarrier.arrive makes it."""

    def issued(self, mechanism: Mechanism[object], threads: Index) -> tuple[Index, Index]:
        """Agents and intervals of operations that ``threads`` issue now."""


class TensorCells(Protocol):
    """Cells of one SM's tensor memory: 16-lane bands, and columns from ``low`` to ``high``."""

    @property
    def sm(self) -> int:
        """Index of the SM in the wave."""

    @property
    def bands(self) -> tuple[int, ...]:
        """Groups of 16 lanes."""

    @property
    def low(self) -> int:
        """First column."""

    @property
    def high(self) -> int:
        """Column after the last."""


class TensorMemoryHooks(Protocol):
    """Accesses to tensor memory; see :mod:`ptxkit.emulator.racecheck.tensor_memory`."""

    def compare(self, kind: str, where: Where, who: str, threads: Index, cells: Iterable[TensorCells]) -> None:
        """``threads`` are about to access cells."""

    def record(
        self,
        kind: str,
        where: Where,
        who: str,
        threads: Index,
        cells: Iterable[TensorCells],
        operation: tuple[Index, Index] | None = None,
    ) -> None:
        """An access of ``threads``; ``operation`` is the agent and the interval of one of the tensor cores."""

    def fence(self, threads: Index, before: bool) -> None:
        """``threads`` have executed tcgen05.fence::before_thread_sync, or ::after_thread_sync if not ``before``."""

    def forget(self, cells: Iterable[TensorCells]) -> None:
        """Cells have been deallocated."""


class RaceHooks(Protocol):
    """Hooks for accesses to shared memory, and for the synchronisation that orders them."""

    @property
    def compares(self) -> bool:
        """Whether accesses are compared with each other, and not only followed."""

    @property
    def operations(self) -> OperationHooks:
        """The hooks for asynchronous operations."""

    @property
    def tensor_memory(self) -> TensorMemoryHooks | None:
        """The same of tensor memory; None where only what copies have written is followed."""

    def read(self, x: Selection, site: AccessSite, index: Index, start: int) -> None:
        """Lanes of ``x`` read the elements ``index + start``, of the site's size."""

    def write(self, x: Selection, site: AccessSite, index: Index, start: int, data: Lanes) -> None:
        """Lanes of ``x`` are about to write ``data``, a row for each lane."""

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
        """The active lanes of ``x`` access one element of ``size`` bytes each."""

    def runs(self, x: Selection, where: Where, starts: Index, sizes: Index, write: bool) -> None:
        """The active lanes of ``x`` access runs of bytes of their own CTA, as ld and st do."""

    def flagged(self, x: Selection, addresses: Addresses, ordering: str, write: bool) -> None:
        """Lanes of ``x`` make strong accesses to global memory (addresses, uint64), which may put others in order."""

    def fence(self, x: Selection, within_cta: bool = False) -> None:
        """The threads of ``x`` have executed a memory fence, whose scope is ``.cta`` if ``within_cta``."""

    def fence_initialisations(self, x: Selection) -> None:
        """The threads of ``x`` have executed fence.mbarrier_init."""

    def proxy_fence(self, x: Selection) -> None:
        """The threads of ``x`` have executed fence.proxy.async for shared memory."""

    def warps_met(self, groups: Sequence[Selection], masks: Words | None) -> None:
        """Threads of these selections have synchronised at bar.warp.sync, those of one warp with the same member mask.

        Args:
            masks: the member mask of each lane, wave shape; None if all are full.
        """

    def met(self, x: Selection) -> None:
        """In each CTA, all threads that have not exited have synchronised at a barrier."""

    def arrived(self, number: int, x: Selection) -> None:
        """The threads of ``x`` arrive at barrier ``number`` of their CTA."""

    def complete(self, number: int, ctas: Mask, waiting: Mask) -> None:
        """Barrier ``number`` of ``ctas`` has completed; the lanes ``waiting`` (wave shape) continue."""

    def cluster_arrived(self, x: Selection, relaxed: bool) -> None:
        """The threads of ``x`` have executed barrier.cluster.arrive."""

    def cluster_complete(self, clusters: Mask) -> None:
        """A phase of barrier.cluster has completed."""

    def cluster_waited(self, x: Selection) -> None:
        """The threads of ``x`` have completed barrier.cluster.wait."""

    def ended(self, ctas: Mask) -> None:
        """The last threads of ``ctas``, (CTAs of the wave,), have exited."""


class ProxyHooks(Protocol):
    """Hooks for writes to shared memory through the generic proxy and the async proxy, and for proxy fences."""

    def wrote(self, cells: Index, size: int, where: Where) -> None:
        """The generic proxy has written the elements ``cells`` of ``size`` bytes each by the instruction ``where``."""

    def fence(self, x: Selection, space: str) -> None:
        """fence.proxy.async by the threads of ``x``; ``space`` is ``""``, ``"shared::cta"`` or ``"shared::cluster"``."""

    def replaced(self, starts: Index, sizes: Index) -> None:
        """The async proxy has overwritten these runs of bytes, so that they need no fence."""

    def unseen(self, starts: Index, sizes: Index) -> Mask:
        """Which of these runs of bytes contain a write that is not visible to the async proxy."""

    def unseen_rows(self, rows: Index) -> Mask:
        """Which elements, of (E, n) rows of 16 bytes, contain a write that is not visible to the async proxy."""

    def reason(self, rows: Index) -> str:
        """Why the async proxy may not see rows of 16 bytes, (n,), with the instruction that wrote the first such row."""


class ArithmeticHooks(Protocol):
    """Hooks for arithmetic whose results are written to memory, as by atomics."""

    def computed(self, x: Any, where: Where, t: PtxType, result: Lanes, operands: tuple[Lanes, ...]) -> None:
        """The lanes of the group ``x`` have computed ``result`` from ``operands``; all have the type ``t``."""

    def produced(self, wave: Any, where: Where, thread: int, result: Lanes, operands: Sequence[Lanes]) -> None:
        """An operation that the thread ``thread`` of ``wave`` issued computes ``result`` from ``operands``, of any shapes."""


class StackHooks(Protocol):
    """Hooks for local memory that is not written by an instruction of the program."""

    def returned(self, threads: Index, start: int, nbytes: int) -> None:
        """A function that the driver provides, such as malloc, has written its result to the stacks of ``threads``."""


class DivergenceHooks(Protocol):
    """Hooks for branches that separate lanes of a warp."""

    @property
    def open(self) -> object:
        """Whether the lanes of any warp are separated."""

    def opened(self, one: Selection, other: Selection, serial: int, block: int, meet: int) -> None:
        """The branch of ``block``, in the frame ``serial``, has separated two groups that meet again at ``meet``."""

    def check(self, here: Mask, block: int, members: Words | None = None) -> None:
        """The lanes ``here`` (wave shape) wait at, or are about to pass, the gate of ``block``."""

    def crossing(self, here: Mask, serial: int, block: int) -> None:
        """The lanes ``here`` wait at an aligned instruction: the others of their warps must not wait at another one."""
