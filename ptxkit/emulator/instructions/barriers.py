"""bar/barrier of a CTA, and barrier.cluster.

PTX ISA, "bar, barrier", "barrier.cluster". ``bar`` is ``barrier.aligned``: the lanes of a warp execute it together. Without
``.aligned`` they may come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.emulator.engine.binder import PRED, U32, Binding, Gate, Gated, Step
from ptxkit.emulator.engine.table import blocking, effect
from ptxkit.emulator.instructions.branches import operand_lanes
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.errors import TrapError
from ptxkit.isa.model import Negated, Operand

if TYPE_CHECKING:
    from ptxkit.emulator.engine.code import Block
    from ptxkit.emulator.engine.threads import Group
    from ptxkit.emulator.engine.wave import Wave

BARRIERS = 16


@dataclass
class _Barrier:
    """One barrier number, in every CTA of the wave.

    Attributes:
        mask: lanes that wait, wave shape.
        extra: threads that arrived without waiting, per CTA.
        count: expected threads per CTA, 0 for all that live; set by the first to arrive.
        votes: predicate of the waiting lanes (barrier.red).
    """

    mask: Any
    extra: Any
    count: Any
    votes: Any = None
    groups: list[tuple[Group, int]] = field(default_factory=list)
    result: Any = None


class CtaBarriers:
    """The sixteen barriers of each CTA of a wave."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.barriers: dict[int, _Barrier] = {}

    def get(self, number: int) -> _Barrier:
        """The barrier with this number."""
        b = self.barriers.get(number)
        if b is None:
            n = self.wave.shape[0]
            b = self.barriers[number] = _Barrier(
                np.zeros(self.wave.shape, np.bool_), np.zeros(n, np.int64), np.zeros(n, np.int64)
            )
        return b

    def arrive(self, group: Group, number: int, count: int, block: Block | None, votes: Any, where: Any) -> bool:
        """``group`` arrives; it waits at ``block``, unless that is None. True when it may go on at once.

        Args:
            count: threads the barrier expects, 0 for every live thread of the CTA.
            votes: the predicate to reduce, or None.
        """
        wave = self.wave
        b = self.get(number)
        everybody = group.lanes == wave.live_lanes and not b.groups
        if everybody and block is not None and (count == 0 or (count == wave.shape[1] * 32 and not b.extra.any())):
            if votes is not None:
                self._reduce(b, np.broadcast_to(votes, group.shape) & group.active(), slice(None))
            if wave.races is not None:
                wave.races.met(group)
            return True
        mask = group.full_mask()
        ctas = mask.any((1, 2))
        clash = ctas & (b.count != 0) & (b.count != count) & (b.mask.any((1, 2)) | (b.extra != 0))
        if clash.any():
            c = int(np.nonzero(clash)[0][0])
            raise TrapError(
                f"{where}: barrier {number} of CTA {wave.cta_coordinates(c)} is used with {count} threads "
                f"while others wait for {int(b.count[c])}"
            )
        b.count[ctas] = count
        if wave.races is not None:
            wave.races.arrived(number, group)
        if block is None:
            b.extra += np.where(mask.any(-1), 32, 0).sum(-1)
        else:
            b.mask |= mask
            b.groups.append((group, block.index))
            if votes is not None:
                full = np.zeros(wave.shape, np.bool_)
                if group.rows:
                    full[group.c, group.w] = np.broadcast_to(votes, group.shape)[:, 0]
                else:
                    full[:] = votes
                b.votes = full & mask if b.votes is None else np.where(mask, full, b.votes)
        self._complete(number, b)
        wave.launch.machine.version += 1
        return False

    def _complete(self, number: int, b: _Barrier) -> None:
        wave = self.wave
        live = np.ones(wave.shape, np.bool_) if wave.live is None else wave.live
        someone = b.mask.any((1, 2)) | (b.extra != 0)
        all_here = (b.mask | ~live).all((1, 2)) & b.mask.any((1, 2))
        whole_warps = ((b.mask | ~live).all(-1) & b.mask.any(-1)).sum(-1) * 32
        done = someone & np.where(b.count == 0, all_here, whole_warps + b.extra >= b.count)
        if not done.any():
            return
        if b.votes is not None:
            self._reduce(b, b.votes & b.mask, done)
        if wave.races is not None:
            wave.races.complete(number, done, b.mask)
        b.mask[done] = False
        b.extra[done] = 0
        b.count[done] = 0
        groups, b.groups = b.groups, []
        for group, block in groups:
            lanes = done[group.cta]
            out, left = wave.split(group, lanes)
            if left is not None:
                b.groups.append((left, block))
            if out is not None:
                wave.wake(out, block, passed=True)

    def _reduce(self, b: _Barrier, votes: Any, ctas: Any) -> None:
        """Number of true predicates per CTA, and whether all of the participants' are true."""
        live = np.ones(self.wave.shape, np.bool_) if self.wave.live is None else self.wave.live
        if b.result is None:
            b.result = np.zeros((2, self.wave.shape[0]), np.int64)
        # b.mask is empty on the direct path, where every live lane takes part
        part = b.mask if b.mask.any() else live
        b.result[0, ctas] = votes.sum((1, 2))[ctas]
        b.result[1, ctas] = (votes | ~part).all((1, 2))[ctas]

    def threads_left(self) -> None:
        """Some threads have exited: barriers may be complete without them."""
        for number, b in self.barriers.items():
            if b.groups:
                self._complete(number, b)

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that waits at a barrier, with its block."""
        return [place for b in self.barriers.values() for place in b.groups]

    def note(self, group: Group, block: Block) -> str:
        """For the deadlock report: how many threads a barrier still lacks."""
        for number, b in self.barriers.items():
            for g, _ in b.groups:
                if g is group:
                    c = int(group.c[0]) if group.rows else int(np.nonzero(b.mask.any((1, 2)))[0][0])
                    here = int(b.mask[c].sum() + b.extra[c])
                    want = int(b.count[c]) or self.wave.launch.threads
                    return f", at barrier {number} with {here} of {want} threads there"
        return ""


class ClusterBarrier:
    """barrier.cluster: the phase of each cluster, and the phase in which each lane last arrived."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.size = wave.launch.cluster_size
        clusters = wave.shape[0] // self.size
        self.phase = np.zeros(clusters, np.int64)
        self.arrived: Any = None
        self.open: Any = None  # lanes that have arrived and not waited yet
        self.arrived_phase: Any = None
        self.sleepers: list[tuple[Group, int]] = []

    def arrive(self, group: Group, where: Any, relaxed: bool = False) -> None:
        """The lanes of ``group`` arrive; if ``relaxed`` they pass on what they knew at their last fence."""
        wave = self.wave
        if self.arrived is None:
            self.arrived = np.zeros(wave.shape, np.bool_)
            self.open = np.zeros(wave.shape, np.bool_)
            self.arrived_phase = np.full(wave.shape, -1, np.int64)
        mask = group.full_mask()
        twice = mask & self.open
        if twice.any():
            cta, thread = group.first(group.select(twice) if group.rows else twice)
            raise TrapError(f"{where}: thread {thread} of CTA {cta} arrives twice without waiting in between")
        phases = np.repeat(self.phase, self.size)[:, None, None]
        self.arrived |= mask
        self.open |= mask
        np.copyto(self.arrived_phase, phases, where=mask)
        if wave.races is not None:
            wave.races.cluster_arrived(group, relaxed)
        self._complete()
        wave.launch.machine.version += 1

    def _complete(self) -> None:
        wave = self.wave
        here = self.arrived if wave.live is None else self.arrived | ~wave.live
        done = here.reshape(len(self.phase), -1).all(-1) & self.arrived.reshape(len(self.phase), -1).any(-1)
        if not done.any():
            return
        self.phase[done] += 1
        if wave.races is not None:
            wave.races.cluster_complete(done)
        self.arrived[np.repeat(done, self.size)] = False
        sleepers, self.sleepers = self.sleepers, []
        for group, block in sleepers:
            wave.wake(group, block, passed=False)

    def enter(self, group: Group, block: Block, where: Any) -> Group | None:
        """barrier.cluster.wait: the lanes whose phase is over."""
        phases = np.repeat(self.phase, self.size)[:, None, None]
        if self.arrived_phase is None:
            raise TrapError(f"{where}: waits without having arrived")
        mine = group.select(self.arrived_phase)
        active = group.active()
        if (active & (mine < 0)).any():
            raise TrapError(f"{where}: waits without having arrived")
        done, left = self.wave.split(group, mine < (group.select(phases) if group.rows else phases))
        if left is not None:
            self.sleepers.append((left, block.index))
        if done is not None:
            self.open &= ~done.full_mask()
            if done.wave.races is not None:
                done.wave.races.cluster_waited(done)
        return done

    def threads_left(self) -> None:
        """Exited threads count as arrived."""
        if self.arrived is not None and self.arrived.any():
            self._complete()

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that waits, with its block."""
        return list(self.sleepers)

    def note(self, group: Group) -> str:
        """For the deadlock report: how many threads of the cluster have arrived."""
        if not any(g is group for g, _ in self.sleepers):
            return ""
        first = int(group.c[0]) if group.rows else int(np.nonzero(group.active())[0][0])
        ctas = slice(first // self.size * self.size, (first // self.size + 1) * self.size)
        live = self.size * self.wave.launch.threads if self.wave.live is None else int(self.wave.live[ctas].sum())
        return f", at barrier.cluster with {int(self.arrived[ctas].sum())} of {live} threads of the cluster there"


class BarrierGate(Gate):
    """bar.sync and barrier.red."""

    def __init__(
        self, where: Any, number: Operand | None, count: Operand | None, vote: Operand | None, aligned: bool
    ) -> None:
        self.where = where
        self.warp = WarpGate(where, None) if aligned else None
        self.aligned = self.converges = aligned
        self.number = number
        self.count = count
        self.vote = vote
        self.reads = (number, count, vote)

    def enter(self, group: Group, block: Block) -> Group | None:
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
        for number in np.unique(np.broadcast_to(numbers, group.shape)[group.active()]):
            if rest is None:
                break
            part, rest = group.wave.split(rest, operand_lanes(rest, self.number, U32.dtype) == number)
            if part is not None:
                passed = self._arrive(part, block, int(number))
                if passed is not None:
                    part.wave.wake(passed, block.index, passed=True)
        return None

    def _arrive(self, group: Group, block: Block, number: int) -> Group | None:
        count = arrival_count(group, self.count, self.where)
        if number >= BARRIERS:
            raise TrapError(f"{self.where}: barrier {number}; a CTA has 0 to {BARRIERS - 1}")
        votes = None
        if self.vote is not None:
            operand = self.vote
            negated = isinstance(operand, Negated)
            votes = operand_lanes(group, operand.operand if isinstance(operand, Negated) else operand, PRED.dtype)
            votes = ~votes if negated else votes
        return group if group.wave.barriers.arrive(group, number, count, block, votes, self.where) else None


def refuse_several_numbers(group: Group, numbers: Any, where: Any) -> None:
    """An aligned barrier has one number in a warp.

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


def arrival_count(group: Group, operand: Operand | None, where: Any) -> int:
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
    return b.instruction.name == "bar" or bool(b.form.get("aligned"))


def together(b: Binding, step: Step) -> Step | Gated:
    """``step``, behind a gate for whole warps where the instruction is aligned."""
    return Gated(WarpGate(b.where, None), step) if aligned(b) else step


@effect("bar{.cta}.arrive")
@effect("barrier{.cta}.arrive{.aligned}")
def _bar_arrive(b: Binding) -> Step | Gated:
    number, count = b.operands
    where, one_number = b.where, aligned(b)

    def arrive(x: Group, numbers: Any, counts: Any) -> None:
        if numbers.size > 1 and one_number:
            refuse_several_numbers(x, numbers, where)
        names = np.unique(np.broadcast_to(numbers, x.shape)[x.active()])
        for name in names:
            part = x if len(names) == 1 else x.narrow(numbers == name)
            if part is not None:
                lanes = np.broadcast_to(counts, part.shape)[part.active()]
                part.wave.barriers.arrive(part, int(name), int(lanes[0]), None, None, where)

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

    def result(x: Group, numbers: Any) -> Any:
        # threads that different barriers let go may have met again before they get here
        names = np.unique(np.broadcast_to(numbers, x.shape)[x.active()])
        row = 1 if op == "and" else 0
        lanes = x.wave.barriers.get(int(names[0])).result[row][x.cta]
        for name in names[1:]:
            lanes = np.where(numbers == name, x.wave.barriers.get(int(name)).result[row][x.cta], lanes)
        return lanes.astype(np.uint32) if op == "popc" else lanes != 0

    return Gated(
        BarrierGate(b.where, number, count, rest[-1], aligned(b)), Step(result, ((number, U32),), ((destination, t),))
    )


class _ClusterGate(Gate):
    def __init__(self, where: Any, aligned: bool) -> None:
        self.where = where
        self.warp = WarpGate(where, None) if aligned else None
        self.aligned = self.converges = aligned

    def enter(self, group: Group, block: Block) -> Group | None:
        if self.warp is not None:
            complete = self.warp.enter(group, block)
            if complete is None:
                return None
            group = complete
        return group.wave.cluster_barrier.enter(group, block, self.where)


@effect("barrier.cluster.arrive{.<sem>}{.aligned}", sem="release relaxed")
def _cluster_arrive(b: Binding) -> Step | Gated:
    where, relaxed = b.where, b.form["sem"] == "relaxed"
    return together(b, Step(lambda x: x.wave.cluster_barrier.arrive(x, where, relaxed)))


@blocking("barrier.cluster.wait{.acquire}{.aligned}")
def _cluster_wait(b: Binding) -> Gated:
    return Gated(_ClusterGate(b.where, aligned(b)))
