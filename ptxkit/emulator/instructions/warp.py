"""Warp collectives: shfl, vote, match, redux, elect, activemask, bar.warp.sync.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync". The forms of shfl and vote without .sync, of
modules for targets before sm_70, are executed by the lanes that execute them together, as by the machine code that ptxas
generates for them: they wait for no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Index, Lanes, Mask, Words
from ptxkit.emulator.instructions.warp_gate import FULL, ActiveGate, WarpGate, ready, wave_wide
from ptxkit.emulator.simt.step import B32, PRED, U32, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking, effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.errors import TrapError
from ptxkit.isa.model import Immediate, Operand
from ptxkit.isa.types import TYPES
from ptxkit.targets import FEATURES, needs

_LANE = np.arange(32, dtype=np.int64)[None, None]
_UNPREDICTABLE = np.uint32(0xCBCBCBCB)
"""The value that a lane reads from a lane that is not in its mask or has exited. PTX leaves it undefined, and a use of it is
reported as the use of an uninitialised value. Correct programs ignore it, as in the last steps of a reduction."""
_BIT = (np.uint64(1) << np.arange(32, dtype=np.uint64)).astype(np.uint32)[None, None]

D = TypeVar("D", bound=np.generic)


def full(x: Group, lanes: NDArray[D]) -> NDArray[D]:
    """``lanes`` in the selection's whole shape."""
    return np.broadcast_to(lanes, x.shape)


def ballot(x: Group, predicate: Mask, members: Words | np.uint32) -> Words:
    """For each lane, the bit mask of the members of its mask whose predicate holds."""
    votes = full(x, predicate) if x.mask is None else full(x, predicate) & x.mask
    bits: Words = np.where(votes, _BIT, np.uint32(0)).sum(-1, keepdims=True, dtype=np.uint32)
    return bits & members


def gated(b: Binding, members: Operand | None, step: Step) -> Gated:
    """``step`` after the gate for the lanes that ``members`` names."""
    synchronises = "sync" in b.instruction.modifiers
    return Gated(WarpGate(b.where, members, step=step) if synchronises else ActiveGate(), step)


def with_members(b: Binding, count: int) -> tuple[Operand | None, ...]:
    """The ``count`` operands of a collective; the last, its member mask, names every lane where the form has none.

    Raises:
        UnsupportedError: the instruction has another number of operands.
    """
    operands = b.operands if "sync" in b.instruction.modifiers else (*b.operands, Immediate(FULL))
    if len(operands) != count:
        raise b.fail(f"{len(b.operands)} operands; it has {count if operands is b.operands else count - 1}")
    return operands


def _shuffle_source(mode: str, b: Words, c: Words) -> tuple[Index, Mask]:
    """Source lane and whether it is in range, per lane, by the ISA's pseudo code."""
    lane = (b & np.uint32(31)).astype(np.int64)
    segment = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
    clamp = (c & np.uint32(31)).astype(np.int64)
    high = (_LANE & segment) | (clamp & ~segment)
    low = _LANE & segment
    match mode:
        case "up":
            j = _LANE - lane
            inside = j >= high
        case "down":
            j = _LANE + lane
            inside = j <= high
        case "bfly":
            j = _LANE ^ lane
            inside = j <= high
        case _:
            j = low | (lane & ~segment)
            inside = j <= high
    return np.where(inside, j, _LANE), inside


@blocking("shfl.sync.<mode>.b32", mode="up down bfly idx")
@blocking("shfl.<mode>.b32", mode="up down bfly idx")
def _shfl(b: Binding) -> Gated:
    destination, a, lane, clamp, members = with_members(b, 5)
    value, predicate = b.pair(destination)
    mode = b.form["mode"]
    memo: dict[tuple[int, int], tuple[Index, Mask]] = {}  # the last uniform lane and clamp

    def shuffle(x: Group, av: Lanes, bv: Words, cv: Words, m: Words) -> tuple[Lanes, Mask]:
        moved, inside = exchange(av, bv, cv)
        if x.mask is None and m.size == 1 and int(m.flat[0]) == FULL:
            return moved, inside
        source, _ = _shuffle_source(mode, bv, cv)
        readable = ballot(x, np.ones((1, 1, 1), np.bool_), m)
        lost = (readable >> source.astype(np.uint32)) & np.uint32(1) == 0
        here = np.broadcast_to(lost, x.shape) & x.active()
        if here.any():
            x.wave.lost = wave_wide(x, here)
        return np.where(lost, _UNPREDICTABLE, moved), inside

    def exchange(av: Lanes, bv: Words, cv: Words) -> tuple[Lanes, Mask]:
        if bv.size == 1 and cv.size == 1:
            key = (int(bv.flat[0]), int(cv.flat[0]))
            known = memo.get(key)
            if known is None:
                source, inside = _shuffle_source(mode, bv, cv)
                known = source[0, 0], inside
                memo.clear()
                memo[key] = known
            if av.shape[2] == 1:
                return av, known[1]
            return av.take(known[0], axis=2), known[1]
        source, inside = _shuffle_source(mode, bv, cv)
        shape = np.broadcast_shapes(av.shape, source.shape)
        return np.take_along_axis(np.broadcast_to(av, shape), np.broadcast_to(source, shape), axis=2), inside

    outs: tuple[Typed, ...] = ((value, B32), (predicate, PRED))
    step = Step(shuffle, ((a, B32), (lane, U32), (clamp, U32), (members, U32)), outs)
    return gated(b, members, step)


@blocking("vote.sync.<mode>.pred", mode="all any uni")
@blocking("vote.<mode>.pred", mode="all any uni")
def _vote(b: Binding) -> Gated:
    destination, predicate, members = with_members(b, 3)
    mode = b.form["mode"]

    def vote(x: Group, p: Mask, m: Words) -> Mask:
        bits = ballot(x, p, m)
        here = ballot(x, np.ones((1, 1, 1), np.bool_), m)
        if mode == "any":
            return bits != 0
        return bits == here if mode == "all" else (bits == here) | (bits == 0)

    return gated(b, members, Step(vote, ((predicate, PRED), (members, U32)), ((destination, PRED),)))


@blocking("vote.sync.ballot.b32")
@blocking("vote.ballot.b32")
def _ballot(b: Binding) -> Gated:
    destination, predicate, members = with_members(b, 3)
    step = Step(ballot, ((predicate, PRED), (members, U32)), ((destination, U32),))
    return gated(b, members, step)


@effect("activemask.b32")
def _activemask(b: Binding) -> Step:
    def active(x: Group) -> Words:
        return ballot(x, np.ones((1, 1, 1), np.bool_), np.uint32(0xFFFFFFFF))

    return Step(active, (), ((b.operands[0], U32),))


@blocking("match.<mode>.sync.<t>", mode="any all", t="b32 b64")
def _match(b: Binding) -> Gated:
    destination, a, members = b.operands
    value, predicate = b.pair(destination)
    t = TYPES[b.form["t"]]
    every = b.form["mode"] == "all"

    def match(x: Group, av: Lanes, m: Words) -> tuple[Words, Mask]:
        av = full(x, av)
        equal = av[..., :, None] == av[..., None, :]
        equal &= x.active()[..., None, :]
        bits = np.where(equal, _BIT[:, :, None, :], np.uint32(0)).sum(-1, dtype=np.uint32) & m
        if not every:
            return bits, bits != 0
        here = ballot(x, np.ones((1, 1, 1), np.bool_), m)
        same = bits == here
        return np.where(same, here, np.uint32(0)), same

    if predicate is not None and not every:
        raise b.fail("match.any has no predicate destination")
    outs: tuple[Typed, ...] = ((value, U32), (predicate, PRED))
    return gated(b, members, Step(match, ((a, t), (members, U32)), outs))


def _reduce_members(
    x: Group, a: Lanes, m: Words, neutral: np.generic | bool, reduce: Callable[[Lanes], Lanes]
) -> Lanes:
    """``reduce`` over each lane's members. Lanes of one warp may name different, disjoint masks."""
    a = full(x, a)
    m = full(x, m)
    active = x.active()
    first = m[..., :1] if x.mask is None else np.where(active, m, 0).max(-1, keepdims=True)
    if ((m == first) | ~active).all():
        inside = active & ((first & _BIT) != 0)
        return reduce(np.where(inside, a, neutral))
    inside = ((m[..., :, None] & _BIT[:, :, None, :]) != 0) & active[..., None, :]
    spread = np.broadcast_to(a[..., None, :], inside.shape)
    return reduce(np.where(inside, spread, neutral))[..., 0]


@blocking("redux.sync.<op>.<t>", op="add min max and or xor", t="u32 s32 b32")
def _redux(b: Binding) -> Gated:
    destination, a, members = b.operands
    op, t = b.form["op"], TYPES[b.form["t"]]
    if (op in ("and", "or", "xor")) != (t.name == "b32"):
        raise b.fail("and, or and xor take .b32, the others .u32 or .s32")
    info = np.iinfo(t.dtype)
    neutral = {"add": 0, "min": info.max, "max": info.min, "and": info.max, "or": 0, "xor": 0}[op]
    function = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]

    def redux(x: Group, av: Lanes, m: Words) -> Lanes:
        return _reduce_members(
            x, av, m, t.dtype.type(neutral), lambda v: function.reduce(v, axis=-1, keepdims=True, dtype=t.dtype)
        )

    return gated(b, members, Step(redux, ((a, t), (members, U32)), ((destination, t),)))


@blocking("redux.sync.<op>{.abs}{.NaN}.f32", op="min max")
def _redux_f32(b: Binding) -> Gated:
    destination, a, members = b.operands
    form, t = b.form, TYPES["f32"]
    if b.target < 100:
        raise b.fail(f"needs {needs(FEATURES['redux.f32'].rule)}")
    sign = 1 if form["op"] == "min" else -1
    canonical = np.uint32(0x7FFFFFFF).view(np.float32)

    def redux(x: Group, av: Lanes, m: Words) -> Lanes:
        v = np.abs(av) if form.has("abs") else av
        nan = np.isnan(v)
        # the first pass ignores NaNs; with .NaN, the result is NaN if a member is
        filled = np.where(nan, np.float32(sign * np.inf), v)
        pick = np.min if sign > 0 else np.max
        out = _reduce_members(x, filled, m, np.float32(sign * np.inf), lambda w: pick(w, axis=-1, keepdims=True))
        missing = _reduce_members(
            x,
            nan,
            m,
            not form.has("NaN"),
            lambda w: (np.any if form.has("NaN") else np.all)(w, axis=-1, keepdims=True),
        )
        return np.where(missing, canonical, out)

    return gated(b, members, Step(redux, ((a, t), (members, U32)), ((destination, t),)))


@blocking("elect.sync")
def _elect(b: Binding) -> Gated:
    destination, members = b.operands
    value, predicate = b.pair(destination)

    def elect(x: Group, m: Words) -> tuple[Words, Mask]:
        here = ballot(x, np.ones((1, 1, 1), np.bool_), m)
        if (here == 0).any() and (full(x, here == 0) & x.active()).any():
            raise TrapError(f"{b.where}: the member mask names no lane that is there")
        lowest = here & (~here + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.uint32)
        return leader, lowest == _BIT

    outs: tuple[Typed, ...] = ((value, U32), (predicate, PRED))
    return gated(b, members, Step(elect, ((members, U32),), outs))


@blocking("bar.warp.sync")
def _warp_sync(b: Binding) -> Gated:
    return Gated(_SyncGate(b.where, b.operands[0]))


class _SyncGate(WarpGate):
    """Lets a lane pass when all lanes in its mask wait at a bar.warp.sync, which need not be the same instruction."""

    def enter(self, group: Group, block: int) -> Group | None:
        wave = group.wave
        passed: Group | None = group
        named = None
        whole = not wave.divergence.open and group.resume != 2 and self._all_named(group)
        if whole and (group.mask is None or _whole(group)):
            out = [group]
        else:
            other = wave.parked(group, block)
            passed, out, named = self._gather(group if other is None else wave.join(other, group), block)
        for races in wave.races if out else ():
            races.warps_met(out, named)
        return passed

    def _gather(self, group: Group, block: int) -> tuple[Group | None, list[Group], Words]:
        """The part of ``group`` that may pass, all groups that pass now, at any instruction, and the mask of each lane."""
        wave = group.wave
        places = [(group, block)]
        places += [(g, b) for (_, b), g in wave.waiting.items() if isinstance(wave.gate_at(b), _SyncGate)]
        named = np.zeros(wave.shape, np.uint32)  # the mask of each lane that waits here, else 0
        for g, b in places:
            gate = wave.gate_at(b)
            assert isinstance(gate, _SyncGate)
            here = g.full_mask()
            named = np.where(here, gate.named(g, here), named)
        done_lanes = ready(wave.live, named)
        if done_lanes.any():
            if wave.divergence.open:
                wave.divergence.check(done_lanes, block, named)
            self.compare_masks(wave, done_lanes, named, places)
        passed = None
        out = []
        for g, b in places:
            if g is not group:
                wave.parked(g, b)
            done, left = wave.split(g, g.select(done_lanes))
            if left is not None:
                wave.park(left, b)
            if done is None:
                continue
            out.append(done)
            if g is group:
                passed = done
            else:
                wave.wake(done, b, passed=True)
        return passed, out, named


def _whole(x: Group) -> bool:
    """Whether the group contains all lanes of its warps that have not exited."""
    live, mask = x.wave.live, x.active()
    here = mask if live is None else mask | ~x.select(live)
    return bool((here.all(-1) | ~mask.any(-1)).all())
