"""bar/barrier of a CTA, and barrier.cluster.

PTX ISA, "bar, barrier", "barrier.cluster". ``bar`` is ``barrier.aligned``: the lanes of a warp execute it together. Without
``.aligned`` lanes may arrive separately.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes, distinct
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.step import PRED, U32, Binding, Gate, Gated, Step
from ptxkit.emulator.simt.table import blocking, effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.cluster_barrier import ClusterBarrier
from ptxkit.emulator.sync.cta_barriers import CtaBarriers
from ptxkit.errors import TrapError
from ptxkit.isa.model import Negated, Operand

BARRIERS = 16


class BarrierGate(Gate):
    """The gate of bar.sync and barrier.red: threads wait until all have arrived."""

    def __init__(
        self, where: Where, number: Operand | None, count: Operand | None, vote: Operand | None, aligned: bool
    ) -> None:
        self.where = where
        self.warp = WarpGate(where, None) if aligned else None
        self.aligned = self.converges = aligned
        self.number = number
        self.count = count
        self.vote = vote
        self.reads = (number, count, vote)

    def enter(self, group: Group, block: int) -> Group | None:
        if self.warp is not None:
            complete = self.warp.enter(group, block)
            if complete is None:
                return None
            group = complete
        numbers = operand_lanes(group, self.number, U32.dtype)
        if numbers.size == 1:
            return self._arrive(group, block, int(numbers.flat[0]))
        if self.aligned:
            refuse_several_numbers(group, numbers, self.where)
        rest: Group | None = group
        for number in distinct(np.broadcast_to(numbers, group.shape)[group.active()]):
            if rest is None:
                break
            part, rest = group.wave.split(rest, operand_lanes(rest, self.number, U32.dtype) == number)
            if part is not None:
                passed = self._arrive(part, block, int(number))
                if passed is not None:
                    part.wave.wake(passed, block, passed=True)
        return None

    def _arrive(self, group: Group, block: int, number: int) -> Group | None:
        count = arrival_count(group, self.count, self.where)
        if number >= BARRIERS:
            raise TrapError(f"{self.where}: barrier {number}; a CTA has 0 to {BARRIERS - 1}")
        votes = None
        if self.vote is not None:
            operand = self.vote
            negated = isinstance(operand, Negated)
            votes = operand_lanes(group, operand.operand if isinstance(operand, Negated) else operand, PRED.dtype)
            votes = ~votes if negated else votes
        return group if group.wave.part(CtaBarriers).arrive(group, number, count, block, votes, self.where) else None


def refuse_several_numbers(group: Group, numbers: Lanes, where: Where) -> None:
    """Check that all lanes of a warp name the same barrier, as an aligned instruction requires.

    Raises:
        TrapError: lanes of a warp name different ones.
    """
    active, wide = group.active(), np.broadcast_to(numbers, group.shape)
    lowest = np.where(active, wide, np.uint32(0xFFFFFFFF)).min(-1, keepdims=True)
    other = active & (wide != lowest)
    if not other.any():
        return
    n, w, lane = (int(k[0]) for k in np.nonzero(other))
    cta, thread = group.first(other)
    raise TrapError(
        f"{where}: thread {thread} of CTA {cta} names barrier {int(wide[n, w, lane])}, and another lane of its warp barrier "
        f"{int(lowest[n, w, 0])}; the lanes of a warp execute it together, with one number"
    )


def arrival_count(group: Group, operand: Operand | None, where: Where) -> int:
    """The thread count of a barrier instruction; 0 where it names none."""
    if operand is None:
        return 0
    lanes = operand_lanes(group, operand, U32.dtype)
    active = lanes if lanes.size == 1 else np.broadcast_to(lanes, group.shape)[group.active()]
    count = int(active.flat[0])
    if lanes.size > 1 and (active != count).any():
        raise TrapError(f"{where}: threads of one barrier name different thread counts")
    if count % 32:
        raise TrapError(f"{where}: {count} threads; the count must be a multiple of the warp size")
    return count


@blocking("bar{.cta}.sync")
@blocking("barrier{.cta}.sync{.aligned}")
def _bar_sync(b: Binding) -> Gated:
    number, count = (*b.operands, None)[:2]
    return Gated(BarrierGate(b.where, number, count, None, aligned(b)))


def aligned(b: Binding) -> bool:
    """Whether the lanes of a warp have to execute the instruction together."""
    return b.instruction.name == "bar" or b.form.has("aligned")


def together(b: Binding, step: Step) -> Step | Gated:
    """``step``, after a gate for whole warps where the instruction is aligned."""
    return Gated(WarpGate(b.where, None), step) if aligned(b) else step


@effect("bar{.cta}.arrive")
@effect("barrier{.cta}.arrive{.aligned}")
def _bar_arrive(b: Binding) -> Step | Gated:
    number, count = b.operands
    where, one_number = b.where, aligned(b)

    def arrive(x: Group, numbers: Lanes, counts: Lanes) -> None:
        if numbers.size > 1 and one_number:
            refuse_several_numbers(x, numbers, where)
        names = distinct(np.broadcast_to(numbers, x.shape)[x.active()])
        for name in names:
            part = x if len(names) == 1 else x.narrow(numbers == name)
            if part is not None:
                lanes = np.broadcast_to(counts, part.shape)[part.active()]
                part.wave.part(CtaBarriers).arrive(part, int(name), int(lanes[0]), None, None, where)

    return together(b, Step(arrive, ((number, U32), (count, U32))))


@blocking("bar{.cta}.red.<op>.<t>", op="popc and or", t="u32 pred")
@blocking("barrier{.cta}.red.<op>{.aligned}.<t>", op="popc and or", t="u32 pred")
def _bar_red(b: Binding) -> Gated:
    operands = b.operands
    destination, number, *rest = operands
    count = rest[0] if len(rest) == 2 else None
    op, t = b.form["op"], U32 if b.form["t"] == "u32" else PRED
    if (op == "popc") != (t is U32):
        raise b.fail("popc gives .u32, and and or give .pred")

    def result(x: Group, numbers: Lanes) -> Lanes:
        # threads released from different barriers may have been joined to one group since
        names = distinct(np.broadcast_to(numbers, x.shape)[x.active()])
        row = 1 if op == "and" else 0
        barriers = x.wave.part(CtaBarriers)
        lanes = x.select(barriers.result(int(names[0]), row))
        for name in names[1:]:
            lanes = np.where(numbers == name, x.select(barriers.result(int(name), row)), lanes)
        return lanes.astype(np.uint32) if op == "popc" else lanes != 0

    return Gated(
        BarrierGate(b.where, number, count, rest[-1], aligned(b)), Step(result, ((number, U32),), ((destination, t),))
    )


class _ClusterGate(Gate):
    def __init__(self, where: Where, aligned: bool) -> None:
        self.where = where
        self.warp = WarpGate(where, None) if aligned else None
        self.aligned = self.converges = aligned

    def enter(self, group: Group, block: int) -> Group | None:
        if self.warp is not None:
            complete = self.warp.enter(group, block)
            if complete is None:
                return None
            group = complete
        return group.wave.part(ClusterBarrier).enter(group, block, self.where)


@effect("barrier.cluster.arrive{.<sem>}{.aligned}", sem="release relaxed")
def _cluster_arrive(b: Binding) -> Step | Gated:
    where, relaxed = b.where, b.form["sem"] == "relaxed"
    return together(b, Step(lambda x: x.wave.part(ClusterBarrier).arrive(x, where, relaxed)))


@blocking("barrier.cluster.wait{.acquire}{.aligned}")
def _cluster_wait(b: Binding) -> Gated:
    return Gated(_ClusterGate(b.where, aligned(b)))
