"""mbarrier objects: the 8 bytes of shared memory that each consists of, and the arithmetic on them.

PTX ISA, "Asynchronous Barriers". The hardware's layout is not documented; here the 64 bits are, from the lowest: 20
bits of pending arrivals, 20 of expected arrivals, 21 of the tx-count in two's complement, the parity of the current
phase, and the bits 01. Neither zeros nor the poison value have these bits, so that uninitialised mbarriers are detected.
"""

from __future__ import annotations

from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask
from ptxkit.emulator.memory.layout import plain
from ptxkit.emulator.simt.threads import Group, Synchroniser, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.waiters import Waiters
from ptxkit.errors import TrapError

MAX_COUNT = (1 << 20) - 1
"""The largest number of arrivals, and the largest tx-count either way (PTX ISA, "mbarrier object")."""

INVALIDATED = 0xCBCB_CBCB_CBCB_CB00
"""The word that mbarrier.inval writes. It is neither a valid mbarrier nor the value of uninitialised memory."""

_EXPECTED, _TX, _PHASE, _VALID = 20, 40, 61, 62
_COUNT_BITS = np.uint64(MAX_COUNT)
_TX_BITS = np.uint64((1 << 21) - 1)

Fields: TypeAlias = tuple[Index, Index, Index, Index]
"""Pending and expected arrivals, tx-count, and phase parity of barriers."""


def pack(pending: Index, expected: Index, tx: Index | int, phase: Index | int) -> Addresses:
    """The words of barriers with these fields."""
    fields = pending | expected << _EXPECTED | (tx & int(_TX_BITS)) << _TX | phase << _PHASE | 1 << _VALID
    return np.asarray(fields, np.int64).view(np.uint64)


def unpack(words: Addresses) -> Fields:
    """The fields of barrier words."""
    pending = (words & _COUNT_BITS).astype(np.int64)
    expected = (words >> np.uint64(_EXPECTED) & _COUNT_BITS).astype(np.int64)
    tx = (words >> np.uint64(_TX) & _TX_BITS).astype(np.int64)
    return pending, expected, (tx ^ (1 << 20)) - (1 << 20), parity(words).astype(np.int64)


def parity(words: Addresses) -> Addresses:
    """Parity of the current, incomplete phase."""
    return words >> np.uint64(_PHASE) & np.uint64(1)


class Mbarriers(Synchroniser):
    """The mbarrier objects of one wave.

    An mbarrier is identified by its index among the 8-byte words of the wave's shared memory (int64).
    """

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.waiters = Waiters(wave, self)
        self._completions: NDArray[np.int64] | None = None

    @property
    def words(self) -> NDArray[np.uint64]:
        """All of the wave's shared memory."""
        return self.wave.shared.view(np.uint64)

    # -- what the scheduler asks -------------------------------------------------------------------------------------

    def waiting(self) -> list[tuple[Group, int]]:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        return self.waiters.waiting()

    def note(self, group: Group, instructions: list[int]) -> str:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        return self.waiters.note(group, instructions)

    def force(self) -> bool:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        return self.waiters.force()

    def time_out(self) -> bool:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        return self.waiters.time_out()

    # -- what instructions do ----------------------------------------------------------------------------------------

    def init(self, x: Group, index: Index, counts: Lanes, where: Where) -> None:
        """Initialise mbarriers with these expected counts (lane arrays)."""
        bad = (counts < 1) | (counts > MAX_COUNT)
        if bad.any() and (np.broadcast_to(bad, x.shape) & x.active()).any():
            count = int(np.broadcast_to(counts, x.shape)[np.broadcast_to(bad, x.shape) & x.active()][0])
            self._fail(x, where, bad, f"an expected count of {count}; it is 1 to {MAX_COUNT:,}")
        active = x.active()
        at = np.broadcast_to(index, x.shape)[active]
        expected = np.broadcast_to(counts, x.shape)[active].astype(np.int64)
        self.words[at] = pack(expected, expected, 0, 0)
        self._phases()[at] = 0
        self.wave.launch.machine.version += 1

    def invalidate(self, x: Group, index: Index, where: Where) -> None:
        """Invalidate mbarriers, so that their memory can be reused. Several threads may invalidate the same one."""
        self.check(x, index, where, or_invalidated=True)
        self.words[np.broadcast_to(index, x.shape)[x.active()]] = INVALIDATED

    def update(
        self,
        x: Group,
        index: Index,
        where: Where,
        arrivals: Index | int = 0,
        tx: Index | int = 0,
        drop: bool = False,
        may_complete: bool = True,
        states: bool = False,
    ) -> Addresses | None:
        """Expect-tx, then arrive-on, by every thread of ``x``, from which no phase gets more arrivals than it lacks
        (:meth:`turns`).

        Args:
            index, arrivals, tx: lane arrays or numbers, int64: barrier, arrivals, and what is added to the tx-count.
            drop: later phases expect as many arrivals fewer.
            may_complete: the arrival may complete the phase.
            states: return the word before each lane's arrival, as a lane array; else None.
        """
        self.check(x, index, where)
        arrivals, tx = np.asarray(arrivals, np.int64), np.asarray(tx, np.int64)
        at, counts, bytes_ = self._per_barrier(x, index, arrivals, tx)
        words = self.words
        pending, expected, outstanding, phase = unpack(words[at])
        found = self._found(x, index, arrivals) if states else None
        self._advance(x, where, at, counts, bytes_, drop, may_complete, (pending, expected, outstanding, phase))
        self.wave.launch.machine.version += 1
        return found

    def complete_tx(self, at: Index, nbytes: Index | int, where: Where | None = None) -> None:
        """complete_tx: subtract ``nbytes`` (one number, or (E,)) from the tx-counts of the mbarriers ``at``, (E,) int64.

        The operations of one instruction complete one by one, in this order. If their bytes are more than the phase of an
        mbarrier lacks, it completes with the operation that makes the tx-count 0, and the others count for the next phase.
        """
        amounts: Index = np.broadcast_to(np.asarray(nbytes, np.int64), at.shape)
        each, inverse = np.unique(at, return_inverse=True)
        total = np.bincount(inverse, amounts, len(each)).astype(np.int64)
        self._check_words(each, where)
        fields = unpack(self.words[each])
        pending, _, outstanding, _ = fields
        beyond = (pending == 0) & (outstanding > 0) & (total > outstanding)
        if beyond.any():
            first, left = np.zeros_like(total), []
            for k in np.flatnonzero(beyond).tolist():
                elements = np.flatnonzero(inverse == k)
                end = np.flatnonzero(np.cumsum(amounts[elements]) == outstanding[k])
                if len(end):
                    first[k] = outstanding[k]
                    left.append(elements[end[0] + 1 :])
            some = np.flatnonzero(first)
            if len(some):
                pending, expected, outstanding, phase = (v[some] for v in fields)
                now = pending, expected, outstanding, phase
                self._advance(None, where, each[some], np.zeros_like(some), -first[some], False, True, now)
                total, fields = total - first, unpack(self.words[each])
                for races in self.wave.races:
                    races.operations.left_over(at, np.concatenate(left))
        self._advance(None, where, each, np.zeros_like(each), -total, False, True, fields)
        self.wave.launch.machine.version += 1

    def arrive(self, at: Index, where: Where | None = None) -> None:
        """One arrival for each of ``at``, (E,) int64, as asynchronous operations trigger them, one after the other."""
        at, counts = np.unique(at, return_counts=True)
        self._check_words(at, where)
        while len(at):
            fields = unpack(self.words[at])
            lacking, _, outstanding, _ = fields
            # those that complete the phase come first, so that the others count for the next one
            now = np.where((outstanding == 0) & (lacking > 0), np.minimum(counts, lacking), counts)
            self._advance(None, where, at, now, np.zeros_like(at), False, True, fields)
            left = counts > now
            at, counts = at[left], (counts - now)[left]
        self.wave.launch.machine.version += 1

    def completed(self, index: Index, phase: Addresses) -> Mask:
        """Lanes for which the phase with parity ``phase`` of ``index`` has completed."""
        return parity(self.words[index]) != phase

    def lacks(self, at: Index) -> tuple[Index, Index]:
        """The arrivals and the bytes that the current phases of the mbarriers ``at`` lack."""
        pending, _, outstanding, _ = unpack(self.words[at])
        return pending, outstanding

    def check(self, x: Group, index: Index, where: Where, or_invalidated: bool = False) -> None:
        """Raise if a lane names memory that holds no barrier, or with ``or_invalidated`` none that was invalidated."""
        valid = (self.words[index] >> np.uint64(_VALID)) == 1
        if or_invalidated:
            valid = valid | (self.words[index] == np.uint64(INVALIDATED))
        if not valid.all():
            bad = ~np.broadcast_to(valid, x.shape) & x.active()
            if bad.any():
                at = int(np.broadcast_to(index, x.shape)[bad][0])
                self._fail(x, where, bad, self._not_one(at))

    def _check_words(self, at: Index, where: Where | None) -> None:
        if self.wave.ended is not None:
            ended = self.wave.ended[at * 8 // self.wave.shared_stride]
            if ended.any():
                k = at[np.argmax(ended)]
                self._refuse(None, where, k, f"{self.name(k)} is in the shared memory of this CTA, which has exited")
        valid = (self.words[at] >> np.uint64(_VALID)) == 1
        if not valid.all():
            k = at[np.argmin(valid)]
            self._refuse(None, where, k, self._not_one(int(k)))

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def _phases(self) -> NDArray[np.int64]:
        if self._completions is None:
            self._completions = np.zeros(len(self.wave.shared) // 8, np.int64)
        return self._completions

    def _per_barrier(self, x: Group, index: Index, arrivals: Index, tx: Index) -> tuple[Index, Index, Index]:
        """Distinct barriers with the sums of both amounts."""
        shape = np.broadcast_shapes(index.shape, arrivals.shape or (1, 1, 1), tx.shape or (1, 1, 1))
        axes = tuple(k for k in range(3) if shape[k] == 1 and x.shape[k] != 1)
        if x.mask is None:
            lanes: Index = np.full(shape, np.prod([x.shape[k] for k in axes], dtype=np.int64))
        else:
            lanes = x.mask.sum(axes, keepdims=True, dtype=np.int64)
        at = np.broadcast_to(index, shape).reshape(-1)
        lanes = lanes.reshape(-1)
        counts = np.broadcast_to(arrivals, shape).reshape(-1) * lanes
        bytes_ = np.broadcast_to(tx, shape).reshape(-1) * lanes
        if x.mask is not None:
            here = lanes > 0
            at, counts, bytes_ = at[here], counts[here], bytes_[here]
        if len(at) > 1 and not (at[1:] > at[:-1]).all():
            at, inverse = np.unique(at, return_inverse=True)
            counts = np.bincount(inverse, counts, len(at)).astype(np.int64)
            bytes_ = np.bincount(inverse, bytes_, len(at)).astype(np.int64)
        return at, counts, bytes_

    def _advance(
        self,
        x: Group | None,
        where: Where | None,
        at: Index,
        counts: Index,
        tx: Index,
        drop: bool,
        may_complete: bool,
        fields: Fields,
    ) -> None:
        """Apply sums to distinct barriers ``at``, complete phases, and wake the threads that wait for them."""
        pending, expected, outstanding, phase = fields
        pending, outstanding = pending - counts, outstanding + tx
        bad = (pending < 0) | (pending > MAX_COUNT) | (np.abs(outstanding) > MAX_COUNT)
        if bad.any():
            k = int(np.argmax(bad))
            if pending[k] < 0:
                lacks, arrivals = pending[k] + counts[k], "arrival" + "s" * int(counts[k] != 1)
                why = f"{counts[k]} {arrivals} at {self.name(at[k])}, whose phase lacks {lacks}: " + (
                    "initialise it with more arrivals, or wait for this phase before the arrivals of the next one"
                    if lacks
                    else "it lacks bytes only; wait for it (mbarrier.try_wait) before an arrival at the next phase"
                )
            elif pending[k] > MAX_COUNT:
                why = f"{pending[k]:,} pending arrivals at {self.name(at[k])}; the limit is {MAX_COUNT:,}"
            else:
                why = f"a tx-count of {outstanding[k]:,} at {self.name(at[k])}; the limit is {MAX_COUNT:,}"
            self._refuse(x, where, at[k], why)
        if drop:
            expected = expected - counts
        done = (pending == 0) & (outstanding == 0)
        if done.any():
            if not may_complete:
                k = int(np.argmax(done))
                self._refuse(x, where, at[k], f".noComplete, but the arrival completes the phase of {self.name(at[k])}")
            pending = np.where(done, expected, pending)
            phase = phase ^ done
            self.words[at] = pack(pending, expected, outstanding, phase)
            self._phases()[at[done]] += 1
            for races in self.wave.races:
                races.operations.phase_over(at[done])
            self.waiters.wake()
        else:
            self.words[at] = pack(pending, expected, outstanding, phase)

    def _found(self, x: Group, index: Index, arrivals: Index) -> Addresses:
        """The word before each lane's arrival, if lanes arrive in order and no phase completes in between."""
        active = x.active()
        at = np.broadcast_to(index, x.shape)[active]
        counts = np.broadcast_to(arrivals, x.shape)[active]
        order = np.argsort(at, kind="stable")
        before = np.cumsum(counts[order]) - counts[order]
        starts = np.flatnonzero(np.concatenate(([True], at[order][1:] != at[order][:-1])))
        before -= np.repeat(before[starts], np.diff(np.append(starts, len(at))))
        out = np.zeros(x.shape, np.uint64)
        earlier = np.empty(len(at), np.int64)
        earlier[order] = before
        out[active] = self.words[at] - earlier.astype(np.uint64)
        return out

    def turns(self, x: Group, index: Index, arrivals: Index | int) -> list[Group]:
        """The parts of ``x`` that arrive one after the other: ``[x]``, or, if an mbarrier would get more arrivals than its
        phase lacks, one lane of each mbarrier at a time, so that the others arrive in the phases that follow."""
        nothing = np.asarray(0, np.int64)
        at, counts, _ = self._per_barrier(x, index, np.asarray(arrivals, np.int64), nothing)
        if (counts <= unpack(self.words[at])[0]).all():
            return [x]
        active = x.active()
        at = np.broadcast_to(index, x.shape)[active]
        order = np.argsort(at, kind="stable")
        starts = np.flatnonzero(np.concatenate(([True], at[order][1:] != at[order][:-1])))
        lengths = np.diff(np.append(starts, len(at)))
        turn = np.empty(len(at), np.int64)
        turn[order] = np.arange(len(at)) - np.repeat(starts, lengths)
        of_lane = np.full(x.shape, -1)
        of_lane[active] = turn
        return [part for k in range(int(lengths.max())) if (part := x.narrow(of_lane == k)) is not None]

    # -- messages ----------------------------------------------------------------------------------------------------

    def name(self, at: int) -> str:
        """The text that names an mbarrier: its address in shared memory, and its variable."""
        address = int(at) * 8 % self.wave.shared_stride
        layout = self.wave.launch.code.layout
        below = [(base, name) for name, base in layout.shared.items() if base <= address]
        if not below:
            return f"the mbarrier at {address:#x}"
        base, name = max(below)
        return f"the mbarrier at {address:#x} ({plain(name)}{f'+{address - base}' if address > base else ''})"

    def _not_one(self, at: int) -> str:
        """The message about memory that holds no mbarrier, with the reason if it is known."""
        invalidated = int(self.words[at]) == INVALIDATED
        reason = "mbarrier.inval has invalidated it" if invalidated else "never initialised, or overwritten"
        return f"{self.name(at)} is no mbarrier: {reason}"

    def describe(self, at: int) -> str:
        """The text that names an mbarrier, and the arrivals and bytes that its current phase lacks."""
        word = self.words[at : at + 1]
        if int(word[0]) >> _VALID != 1:
            return f"{self.name(at)}, which is not initialised"
        pending, expected, tx, phase = (int(v[0]) for v in unpack(word))
        number = int(self._phases()[at])
        nbytes = f"lacks {pending} of {expected} arrivals and {max(tx, 0):,} bytes"
        if tx < 0:
            nbytes += f"; {-tx:,} bytes more than were expected have arrived"
        return f"phase {number} (parity {phase}) of {self.name(at)}, which {nbytes}"

    def _refuse(self, x: Group | None, where: Where | None, at: int, why: str) -> NoReturn:
        if x is None:
            cta = self.wave.cta_coordinates(int(at) * 8 // self.wave.shared_stride)
            raise TrapError(f"{where}: an asynchronous operation in CTA {cta}: {why}" if where else f"CTA {cta}: {why}")
        raise self._error(x, where, x.active(), why)

    def _fail(self, x: Group, where: Where, bad: Mask, why: str) -> NoReturn:
        raise self._error(x, where, np.broadcast_to(bad, x.shape) & x.active(), why)

    def _error(self, x: Group, where: Where | None, bad: Mask, why: str) -> TrapError:
        cta, thread = x.first(bad)
        return TrapError(f"{where}: thread {thread} of CTA {cta}: {why}")
