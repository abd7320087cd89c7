"""Asynchronous operations that a program has issued, and when the emulator performs them.

PTX promises of an asynchronous operation only that it is complete once the program has waited for it. A
:class:`Queue` of each wave holds the operations, and performs them as early or as late as PTX allows (``completion`` of a
launch):

- ``"eager"``: an operation is performed when it is issued, so that waits have no effect.
- ``"latest-legal"``: an operation is performed when a wait of the program forces it. Until then its destination holds
  poison values, and its source is not read. A missing wait then gives a wrong result.
- ``"random"``: at a point in between that a seed selects (:mod:`ptxkit.emulator.simt.random_times`).

How to use it. An instruction makes one :class:`Operation` for all threads that execute it together, with one
*element* per thread (or per warpgroup, where that acts as one), and hands it to :meth:`Queue.submit` with its
completion mechanism (:mod:`ptxkit.emulator.simt.mechanism`). Everything that can fail (bounds, alignment) is checked
before that, so that the message names the thread that issued it. ``perform(which)`` does the work of the elements
``which``, an index for the arrays of the operation: :data:`EVERY` or an integer array. The mechanisms:

- groups (:class:`Groups`: ``cp.async``, bulk copies, ``wgmma``): ``owner`` is the wave-wide index of the thread
  (``x.thread[x.active()]``) whose group the element belongs to; of a warpgroup take its first thread.
  ``*.commit_group`` calls :meth:`Queue.commit`, and ``*.wait_group N`` calls :meth:`Queue.wait`, which performs what
  the executing threads have to see.
- :data:`MBARRIER`: ``barrier`` is the index of each element's mbarrier among the 8-byte words of the wave's shared
  memory (``wave.shared.view(np.uint64)``). ``perform`` ends with ``wave.part(Mbarriers).complete_tx(barrier[which],
  bytes)``, and ``tx`` says how many bytes, so that :meth:`OnBarriers.force` performs no more than a phase requires. It is
  called when all threads wait.

``poison()`` overwrites the destinations. It is called when the operation is issued, but not in eager mode. An
operation that adds to its destination has none. An operation copies the register values that it needs when it is created,
since the program may change the registers later. An operation that reads shared memory and writes elsewhere also has
``capture(which)``, which copies the bytes of the source: ``wait_group.read`` calls it. After the end of the CTA its source no
longer exists. ``wgmma`` reads shared memory in ``perform``, keeps the accumulators of its chain in the closure and poisons
the registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from ptxkit.emulator.arrays import Bytes, Elements, Index, Lanes, Mask
from ptxkit.emulator.simt.hooks import RaceHooks
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.random_times import RandomTimes
from ptxkit.emulator.simt.selection import Selection
from ptxkit.errors import FaultError

P = TypeVar("P", bound="Pending")

EVERY = slice(None)
"""Selects all elements of an operation."""


@dataclass(eq=False)
class Operation:
    """The operations that one instruction has issued for the threads that executed it together: E elements.

    Attributes:
        owner: (E,) int64, wave-wide index of the thread that an element belongs to.
        perform: performs the elements ``which``.
        poison: overwrites every destination; None where old values remain legal.
        capture: copies the source of the elements ``which``, for a later ``perform``; None if ``perform`` reads no shared
            memory.
        barrier: (E,) int64, the mbarrier that an element completes on; None for group mechanisms.
        tx: bytes of the complete_tx operation that an element performs on its mbarrier, a number or (E,) int64; None if it
            arrives there instead.
        group: (E,) int64, number of the group that an element belongs to; set by the queue.
        leader: (E,) int64, the element that stands for several that do the same; None where each stands for itself.
        lost: makes the error for an element whose source was not read when its CTA ended; None where that does no harm.
        left: elements that have not been performed; None means all of them. The queue maintains it.
        unread: elements that have not been captured, in the same form.
        serial: order of issue.
    """

    owner: Index
    perform: Callable[[Elements], None]
    poison: Callable[[], None] | None = None
    capture: Callable[[Elements], None] | None = None
    barrier: Index | None = None
    tx: Index | int | None = None
    group: Index | None = None
    leader: Index | None = None
    lost: Callable[[int], FaultError] | None = None
    left: Index | None = None
    unread: Index | None = None
    serial: int = 0

    @property
    def remaining(self) -> int:
        """How many elements are not performed yet."""
        return len(self.owner) if self.left is None else len(self.left)

    def precede(self, follower: Operation) -> None:
        """Let ``follower``, the same operation on other memory, be captured and performed right after this one."""
        self.perform = _both(self.perform, follower.perform)
        if self.capture is not None and follower.capture is not None:
            self.capture = _both(self.capture, follower.capture)

    def run(self, chosen: Mask) -> bool:
        """Perform the remaining elements for which ``chosen``, (E,) bool, holds; True when none remains."""
        if self.left is None:
            if chosen.all():
                self.left = np.zeros(0, np.int64)  # before performing it, which may complete a phase of an mbarrier
                self.perform(EVERY)
                return True
            self.left = np.arange(len(self.owner))
        now = self.left[chosen[self.left]]
        if len(now):
            self.left = self.left[~chosen[self.left]]
            self.perform(now)
        return len(self.left) == 0

    def on(self, barriers: Index) -> Index:
        """The remaining elements that complete on ``barriers``."""
        assert self.barrier is not None
        if self.left is None:
            return np.flatnonzero(np.isin(self.barrier, barriers))
        return self.left[np.isin(self.barrier[self.left], barriers)]

    def amounts(self, which: Index) -> tuple[Index, Index]:
        """The arrivals and the bytes that the elements ``which`` bring to their mbarriers."""
        nothing: Index = np.zeros(len(which), np.int64)
        if self.tx is None:
            return nothing + 1, nothing
        return nothing, np.broadcast_to(np.asarray(self.tx, np.int64), self.owner.shape)[which]

    def read(self, chosen: Mask) -> None:
        """Capture the sources of the remaining elements for which ``chosen``, (E,) bool, holds."""
        if self.capture is None:
            return
        if self.unread is None:
            self.unread = np.arange(len(self.owner))
        now = self.unread[chosen[self.unread]]
        if len(now):
            self.capture(now)
            self.unread = self.unread[~chosen[self.unread]]

    def abandoned(self) -> Index:
        """The elements that are neither performed nor captured, where no other element that does the same is."""
        size = len(self.owner)
        done: Mask = np.ones(size, np.bool_)
        done[np.arange(size) if self.left is None else self.left] = False
        if self.unread is not None:
            read: Mask = np.ones(size, np.bool_)
            read[self.unread] = False
            done |= read
        if self.leader is None:
            return np.flatnonzero(~done)
        known: Mask = np.zeros(size, np.bool_)
        known[self.leader[done]] = True
        return np.flatnonzero(~known[self.leader])


def _both(first: Callable[[Elements], None], second: Callable[[Elements], None]) -> Callable[[Elements], None]:
    def both(which: Elements) -> None:
        first(which)
        second(which)

    return both


Chosen: TypeAlias = tuple[Operation, Index]
"""An operation and some of its elements."""

Lacks: TypeAlias = Callable[[Index], tuple[Index, Index]]
"""Gives the arrivals and the bytes that the current phases of mbarriers lack."""


class Pending:
    """Operations of one mechanism that have been issued and not been performed."""

    def __init__(self, threads: int) -> None:
        self.operations: list[Operation] = []

    def submit(self, operation: Operation) -> None:
        """Add an operation."""
        self.operations.append(operation)

    def complete(self, operation: Operation, which: Index) -> bool:
        """Perform the elements ``which`` before any wait; False if that was done already."""
        if operation not in self.operations:
            return False
        before = operation.remaining
        chosen = np.zeros(len(operation.owner), np.bool_)
        chosen[which] = True
        if operation.run(chosen):
            self.operations.remove(operation)
            return True
        return operation.remaining < before

    def finish(self) -> None:
        """Every thread has exited: perform the operations that still have an effect, and drop the others."""

    def describe(self, operation: Operation, name: Callable[[int], str]) -> str:
        """The text that names what completes an operation; ``name`` gives the text for an mbarrier."""
        return ""


class Groups(Pending):
    """Operations that threads commit in groups and wait for by their number.

    Attributes:
        committed: (threads,) how many groups each thread has committed.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.committed: Index = np.zeros(threads, np.int64)

    def submit(self, operation: Operation) -> None:
        operation.group = self.committed[operation.owner]
        self.operations.append(operation)

    def wait(self, threads: Index, newest: int, reading: bool) -> None:
        """Perform the groups of ``threads`` but for the ``newest`` ones; if ``reading``, only read their sources."""
        if not self.operations:
            return
        bound = np.full(len(self.committed), -1, np.int64)
        bound[threads] = self.committed[threads] - newest
        remaining = []
        for operation in self.operations:
            assert operation.group is not None
            chosen = operation.group < bound[operation.owner]
            if reading:
                operation.read(chosen)
                remaining.append(operation)
            elif not chosen.any() or not operation.run(chosen):
                remaining.append(operation)
        self.operations = remaining

    def drain(self, threads: Index, before: int) -> None:
        """Perform what ``threads`` issued, committed or not, before the operation with the serial number ``before``."""
        mine = np.zeros(len(self.committed), np.bool_)
        mine[threads] = True
        self.operations = [o for o in self.operations if o.serial > before or not o.run(mine[o.owner])]

    def finish(self) -> None:
        """Perform the operations whose source has been captured: their writes to global memory remain visible.

        Raises:
            FaultError: :attr:`Operation.lost`, of a source that has not been read.
        """
        operations, self.operations = self.operations, []
        for operation in operations:
            abandoned = operation.abandoned()
            if operation.unread is not None:
                read = np.ones(len(operation.owner), np.bool_)
                read[operation.unread] = False
                operation.run(read)
            if operation.lost is not None and len(abandoned):
                raise operation.lost(int(abandoned[0]))

    def describe(self, operation: Operation, name: Callable[[int], str]) -> str:
        assert operation.group is not None
        behind = self.committed[operation.owner] - operation.group
        return "not committed" if (behind == 0).any() else f"{int(behind.max()) - 1} newer"


class OrderedGroups(Groups):
    """Operations of one thread, or warpgroup, that complete in the order of their issue, as those of ``wgmma`` do."""

    def complete(self, operation: Operation, which: Index) -> bool:
        if operation not in self.operations:
            return False
        before = sum(o.remaining for o in self.operations)
        self.drain(operation.owner[which], operation.serial)
        return sum(o.remaining for o in self.operations) < before


class OnBarriers(Pending):
    """Operations that complete on mbarriers."""

    def force(self, wanted: Index, lacks: Lacks) -> bool:
        """Perform what the current phases of the mbarriers ``wanted`` require.

        Of each mbarrier the oldest operations are performed, until its phase completes; those that the phase does not
        require stay pending. An mbarrier whose phase they do not complete keeps all of them. If this holds for every
        mbarrier, all operations on ``wanted`` are performed, so that a deadlock is reported with what is lacking then.

        Args:
            wanted: distinct mbarriers in ascending order.

        Returns:
            False if no operation completes on ``wanted``.
        """
        some = [(o, elements) for o in self.operations if len(elements := o.on(wanted))]
        if not some:
            return False
        for operation, now in self._required(some, wanted, lacks):
            chosen: Mask = np.zeros(len(operation.owner), np.bool_)
            chosen[now] = True
            if operation.run(chosen):
                self.operations.remove(operation)
        return True

    def _required(self, some: list[Chosen], wanted: Index, lacks: Lacks) -> list[Chosen]:
        """The part of ``some``, in the order of issue, that completes phases; all of it if it completes none."""
        barrier = np.concatenate([o.barrier[k] for o, k in some if o.barrier is not None])
        amounts = [o.amounts(k) for o, k in some]
        order = np.argsort(barrier, kind="stable")
        at = np.searchsorted(wanted, barrier[order])
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        done: Mask = np.ones(len(at), np.bool_)
        for lacking, each in zip(lacks(wanted), zip(*amounts, strict=True), strict=True):
            total = np.cumsum(np.concatenate(each)[order])
            before = np.concatenate(([0], total[starts[1:] - 1]))
            done &= total - np.repeat(before, np.diff(starts, append=len(at))) == lacking[at]
        ends = np.flatnonzero(done)
        if not len(ends):
            return some
        last = np.full(len(wanted), -1)
        last[at[ends[::-1]]] = ends[::-1]  # the first of each mbarrier is assigned last
        required: Mask = np.zeros(len(at), np.bool_)
        required[order] = np.arange(len(at)) <= last[at]
        bounds = np.cumsum([len(k) for _, k in some])[:-1]
        return [(o, k[part]) for (o, k), part in zip(some, np.split(required, bounds), strict=True)]

    def waiting_on(self, barriers: Index) -> list[tuple[Index, Index]]:
        """The operations that complete on ``barriers`` and are not performed: all mbarriers of each, and its elements."""
        found = [(o.barrier, o.on(barriers)) for o in self.operations if o.barrier is not None]
        return [(all_, elements) for all_, elements in found if len(elements)]

    def finish(self) -> None:
        """Perform all operations, because no wait prevents them: they update mbarriers, and may cancel clusters."""
        operations, self.operations = self.operations, []
        for operation in operations:
            operation.run(np.ones(len(operation.owner), np.bool_))

    def describe(self, operation: Operation, name: Callable[[int], str]) -> str:
        assert operation.barrier is not None
        left = operation.barrier if operation.left is None else operation.barrier[operation.left]
        return ", ".join(sorted({name(int(at)) for at in left.tolist()}))


MBARRIER: Mechanism[OnBarriers] = Mechanism("mbarrier", OnBarriers)
"""The mechanism of operations that complete on an mbarrier; several families of instructions use it."""


class Queue:
    """Operations in flight in one wave.

    Args:
        threads: number of threads of the wave.
        eager: operations are performed when they are issued.
        races: the hooks that are called at commits and waits.

    Attributes:
        pending: the operations of each mechanism, in the order of first use.
        issued: how many operations were issued.
        followers: operations on other memory that the next ones to be issued precede, in this order.
    """

    def __init__(
        self, threads: int, eager: bool, races: tuple[RaceHooks, ...] = (), times: RandomTimes | None = None
    ) -> None:
        self.threads = threads
        self.eager = eager
        self.races = races
        self.times = times
        self.pending: dict[Mechanism[Pending], Pending] = {}
        self.issued = 0
        self.followers: list[Operation] = []

    def of(self, mechanism: Mechanism[P]) -> P:
        """The pending operations of a mechanism."""
        found = self.pending.get(mechanism)
        if found is None:
            found = self.pending[mechanism] = mechanism.pending(self.threads)
        return found  # type: ignore[return-value]

    def submit(self, operation: Operation, mechanism: Mechanism[P], deferred: bool = False) -> None:
        """Issue an operation; one that is ``deferred`` waits for its mbarrier in eager mode, too."""
        if self.eager and not deferred:
            operation.perform(EVERY)
            return
        if operation.poison is not None:
            operation.poison()
        if self.followers:
            operation.precede(self.followers.pop(0))
        self.issued += 1
        operation.serial = self.issued
        pending = self.of(mechanism)
        pending.submit(operation)
        if self.times is not None:
            self.times.issued(len(operation.owner), lambda which: pending.complete(operation, which))

    def commit(self, x: Selection, mechanism: Mechanism[Groups]) -> None:
        """The threads of ``x`` close their group."""
        for races in self.races:
            races.operations.commit(x, mechanism)
        if not self.eager:
            self.of(mechanism).committed[x.thread[x.active()]] += 1

    def wait(self, x: Selection, mechanism: Mechanism[Groups], newest: int, reading: bool = False) -> None:
        """Perform the groups of the threads of ``x`` but for the ``newest`` ones.

        Args:
            reading: only the sources must have been read (``wait_group.read``).
        """
        for races in self.races:
            races.operations.wait(x, mechanism, newest)
        if mechanism in self.pending:
            self.of(mechanism).wait(x.thread[x.active()], newest, reading)

    def force(self, barriers: Index, lacks: Lacks) -> bool:
        """No thread can continue: perform what the phases of ``barriers`` require, for which threads wait.

        See :meth:`OnBarriers.force`. False if no operation completes on ``barriers``.
        """
        pending = self.of(MBARRIER)
        if self.times is None or not pending.operations:
            return pending.force(barriers, lacks)
        return any(pending.force(barriers[k : k + 1], lacks) for k in self.times.order(len(barriers)))

    def finish(self) -> None:
        """Every thread has exited."""
        for pending in list(self.pending.values()):
            pending.finish()
        self.pending.clear()


class Collected(Queue):
    """A queue that keeps what is issued, for the caller to perform."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, False)
        self.operations: list[Operation] = []

    def submit(self, operation: Operation, mechanism: Mechanism[P], deferred: bool = False) -> None:
        self.operations.append(operation)


def windows(flat: Bytes, unit: int, count: int) -> Lanes:
    """A view of ``flat`` whose row ``i`` is the run of ``count`` units of ``unit`` bytes (1, 2, 4, 8, 16) from unit ``i`` on.

    ``windows(a, 16, n)[starts]`` gathers rows of 16 n bytes, and assigning to it scatters them.
    """
    dtype = np.dtype(f"u{min(unit, 8)}")
    rows = flat[: len(flat) // unit * unit].view(dtype).reshape(-1, unit // dtype.itemsize)
    n = len(rows) - count + 1
    step, inner = rows.strides
    return np.lib.stride_tricks.as_strided(rows, (max(n, 0), count, rows.shape[1]), (step, step, inner), writeable=True)
