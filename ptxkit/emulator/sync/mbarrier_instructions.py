"""The mbarrier instructions. PTX ISA, "mbarrier.init" to "mbarrier.pending_count".

ptxas also accepts the state space before semantics and scope, so that some instructions have a second pattern.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.access.shared_memory import ClusterSite, SharedSite
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Addresses, Lanes
from ptxkit.emulator.memory.layout import plain
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.step import PRED, U32, U64, Binding, Gate, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking, effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarriers import Mbarriers, parity, unpack
from ptxkit.isa.model import Operand, Symbol
from ptxkit.isa.types import PtxType

_CTA = "shared shared::cta"
_ANY = "shared shared::cta shared::cluster"
_SCOPES = "cta cluster"


def address_type(b: Binding, operand: Operand) -> PtxType:
    """The type of an address operand: u32 for a 32-bit register, which contains an address in shared memory, else u64."""
    t = b.register_type(operand)
    return U32 if t is not None and t.bits == 32 else U64


class BarrierSite:
    """The mbarrier operand ``[address]`` of an instruction.

    Args:
        key: distinguishes several shared-memory operands of an instruction, whose address patterns are cached.
    """

    def __init__(self, b: Binding, operand: Operand | None, space: str, key: int = 0) -> None:
        self.operand, offset = b.address(operand)
        self.type = address_type(b, self.operand)
        kind = SharedSite if space in ("shared", "shared::cta") else ClusterSite
        self.site = kind(b.where, b.index if not key else -(4 * b.index + key), offset, np.dtype("u8"), 1, True)
        self.symbol: int | None = None
        if isinstance(self.operand, Symbol):
            if self.operand.name not in b.layout.shared:
                raise b.fail(f"{plain(self.operand.name)} is not a shared variable")
            self.symbol = b.layout.shared[self.operand.name] + self.operand.offset

    @property
    def source(self) -> Typed:
        """The address as a source of the step."""
        return self.operand, self.type

    def index(self, x: Group, base: Lanes) -> Lanes:
        """The mbarrier of each lane, as an index of 8-byte words in the wave's shared memory (int64)."""
        index, _, start = self.site._flat(x, widen(base))
        return index + start

    def fetch(self, group: Group) -> Lanes:
        """:meth:`index` for a gate, which reads its operands itself."""
        if self.symbol is not None:
            base = group.wave.shared_address(group, self.symbol, np.uint64)
        else:
            base = operand_lanes(group, self.operand, self.type.dtype)
        return self.index(group, base)


@effect("mbarrier.init{.<space>}.b64", space=_CTA)
def _init(b: Binding) -> Step:
    at = BarrierSite(b, b.operands[0], b.form["space"])

    def init(x: Group, base: Lanes, counts: Lanes) -> None:
        index = at.index(x, base)
        for races in x.wave.races:
            races.operations.initialised(x, b.where, index)
        x.wave.part(Mbarriers).init(x, index, counts, b.where)

    return Step(init, (at.source, (b.operands[1], U32)))


@effect("mbarrier.inval{.<space>}.b64", space=_CTA)
def _inval(b: Binding) -> Step:
    at = BarrierSite(b, b.operands[0], b.form["space"])

    def invalidate(x: Group, base: Lanes) -> None:
        index = at.index(x, base)
        for races in x.wave.races:
            races.operations.invalidated(x, b.where, index)
        x.wave.part(Mbarriers).invalidate(x, index, b.where)

    return Step(invalidate, (at.source,))


@effect("mbarrier.<op>{.relaxed}{.<scope>}{.<space>}.b64", op="expect_tx complete_tx", scope=_SCOPES, space=_ANY)
@effect("mbarrier.<op>.<space>.relaxed.<scope>.b64", op="expect_tx complete_tx", scope=_SCOPES, space=_ANY)
def _transactions(b: Binding) -> Step:
    at = BarrierSite(b, b.operands[0], b.form["space"])
    sign = 1 if b.form["op"] == "expect_tx" else -1

    def transact(x: Group, base: Lanes, nbytes: Lanes) -> None:
        index = at.index(x, base)
        for races in x.wave.races:
            races.operations.used(x, b.where, index)
        x.wave.part(Mbarriers).update(x, index, b.where, tx=sign * nbytes.astype(np.int64))

    return Step(transact, (at.source, (b.operands[1], U32)))


@effect(
    "mbarrier.<op>{.<how>}{.<sem>}{.<scope>}{.<space>}.b64",
    op="arrive arrive_drop",
    how="expect_tx noComplete",
    sem="release relaxed",
    scope=_SCOPES,
    space=_ANY,
)
@effect(
    "mbarrier.<op>{.<how>}.<space>.<sem>.<scope>.b64",
    op="arrive arrive_drop",
    how="expect_tx noComplete",
    sem="release relaxed",
    scope=_SCOPES,
    space=_ANY,
)
def _arrive(b: Binding) -> Step:
    form = b.form
    state, address, *rest = b.operands
    if form["space"] == "shared::cluster" and state is not None:
        raise b.fail("an arrival at another CTA's barrier has no result; write _ as its destination")
    if form["how"] and not rest:
        raise b.fail(f".{form['how']} needs a count")
    at = BarrierSite(b, address, form["space"])
    expects, drop, may_complete = form["how"] == "expect_tx", form["op"] == "arrive_drop", form["how"] != "noComplete"
    relaxed, within_cta = form["sem"] == "relaxed", form["scope"] != "cluster"

    def arrive(x: Group, base: Lanes, *count: Lanes) -> Addresses | None:
        amount = count[0].astype(np.int64) if count else 1
        index = at.index(x, base)
        barriers = x.wave.part(Mbarriers)
        barriers.check(x, index, b.where)
        found: Addresses | None = None
        for part in barriers.turns(x, index, 1 if expects else amount):
            for races in x.wave.races:
                races.operations.arrived(part, b.where, index, relaxed, within_cta)
            got = barriers.update(
                part,
                index,
                b.where,
                arrivals=1 if expects else amount,
                tx=amount if expects else 0,
                drop=drop,
                may_complete=may_complete,
                states=state is not None,
            )
            found = got if found is None or got is None else np.where(part.active(), got, found)
        return found

    sources: tuple[Typed, ...] = (at.source, *((r, U32) for r in rest))
    return Step(arrive, sources, () if state is None else ((state, U64),))


@effect("mbarrier.pending_count.b64")
def _pending_count(b: Binding) -> Step:
    count, state = b.operands
    return Step(lambda s: unpack(s)[0].astype(np.uint32), ((state, U64),), ((count, U32),), pure=True)


class _Wait:
    """The test for a completed phase, which test_wait and try_wait share."""

    def __init__(self, b: Binding) -> None:
        self.destination, address, self.phase, *_ = b.operands
        self.at = BarrierSite(b, address, b.form["space"] or "shared::cluster")
        self.by_parity = b.form.has("parity")
        self.type = U32 if self.by_parity else U64
        self.where = b.where
        self.number = b.index
        self.relaxed, self.within_cta = b.form["sem"] == "relaxed", b.form["scope"] != "cluster"

    def expected(self, lanes: Lanes) -> Lanes:
        """Parity of the phase that is tested."""
        return lanes.astype(np.uint64) & np.uint64(1) if self.by_parity else parity(lanes)

    def step(self) -> Step:
        def test(x: Group, base: Lanes, phase: Lanes) -> Lanes:
            index = self.at.index(x, base)
            barriers = x.wave.part(Mbarriers)
            barriers.check(x, index, self.where)
            done = barriers.completed(index, self.expected(phase))
            for races in x.wave.races:
                races.operations.waited(x, self.where, index, done, self.relaxed, self.within_cta)
            failed = ~done & x.active()  # what inactive lanes would observe does not count
            if failed.any():
                x.wave.spin()
                barriers.waiters.polled[self.number] = np.broadcast_to(index, x.shape)[failed]
            else:
                barriers.waiters.polled.pop(self.number, None)
            return done

        sources: tuple[Typed, ...] = (self.at.source, (self.phase, self.type))
        return Step(test, sources, ((self.destination, PRED),))


@effect("mbarrier.test_wait{.parity}{.<sem>}{.<scope>}{.<space>}.b64", sem="acquire relaxed", scope=_SCOPES, space=_CTA)
@effect("mbarrier.test_wait{.parity}.<space>.<sem>.<scope>.b64", sem="acquire relaxed", scope=_SCOPES, space=_CTA)
def _test_wait(b: Binding) -> Step:
    return _Wait(b).step()


class _TryWaitGate(Gate):
    """Passes the lanes whose phase is complete; the others are suspended until it is."""

    def __init__(self, wait: _Wait) -> None:
        self.wait = wait
        self.reads = (wait.at.operand, wait.phase)

    def enter(self, group: Group, block: int) -> Group | None:
        wait, wave = self.wait, group.wave
        index = wait.at.fetch(group)
        wave.part(Mbarriers).check(group, index, wait.where)
        phase = wait.expected(operand_lanes(group, wait.phase, wait.type.dtype))
        done, left = wave.split(group, wave.part(Mbarriers).completed(index, phase))
        if left is not None:
            if left is not group:
                index = wait.at.fetch(left)
                phase = wait.expected(operand_lanes(left, wait.phase, wait.type.dtype))
            wave.part(Mbarriers).waiters.sleep(left, block, index, phase)
        return done


@blocking(
    "mbarrier.try_wait{.parity}{.<sem>}{.<scope>}{.<space>}.b64", sem="acquire relaxed", scope=_SCOPES, space=_CTA
)
@blocking("mbarrier.try_wait{.parity}.<space>.<sem>.<scope>.b64", sem="acquire relaxed", scope=_SCOPES, space=_CTA)
def _try_wait(b: Binding) -> Gated:
    wait = _Wait(b)
    return Gated(_TryWaitGate(wait), wait.step())
