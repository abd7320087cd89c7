"""Asynchronous stores and reductions, mostly to shared memory of the cluster. PTX ISA, "st.async", "red.async"."""

from __future__ import annotations

from functools import partial

import numpy as np

from ptxkit.emulator.access.shared_memory import ClusterSite
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Bytes, Elements, Lanes, Mask
from ptxkit.emulator.instructions.atomic_operations import apply_in_order, operation_for
from ptxkit.emulator.instructions.atomics import AtomicSite
from ptxkit.emulator.instructions.load_store import site_for
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.simt.asynchronous import MBARRIER, Operation
from ptxkit.emulator.simt.step import Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite, address_type
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.errors import TrapError
from ptxkit.isa.types import TYPES


def _rows_of_bytes(data: Lanes) -> Bytes:
    return np.ascontiguousarray(data).view(np.uint8).reshape(len(data), -1)


class _Remote:
    """The destination and mbarrier of one instruction, both in one CTA of the cluster."""

    def __init__(self, b: Binding, dtype: np.dtype, count: int) -> None:
        self.operand, offset = b.address(b.operands[0])
        self.type = address_type(b, self.operand)
        self.site = ClusterSite(b.where, b.index, offset, dtype, count, True)
        self.barrier = BarrierSite(b, b.operands[2], "shared::cluster", key=1)
        self.where, self.number = b.where, b.index

    @property
    def sources(self) -> tuple[Typed, Typed]:
        return (self.operand, self.type), self.barrier.source

    def resolve(self, x: Group, to: Lanes, barrier: Lanes, other: bool) -> tuple[Lanes, Lanes]:
        """Element index in the wave's shared memory, and barrier, of each active lane.

        Args:
            other: the CTA must not be the executing one.
        """
        wave = x.wave
        active = x.active()
        index, _, start = self.site._flat(x, widen(to))
        cells = np.broadcast_to(index, x.shape)[active] + start
        words = self.barrier.index(x, barrier)
        wave.part(Mbarriers).check(x, words, self.where)
        words = np.broadcast_to(words, x.shape)[active]
        cta = cells * self.site.size // wave.shared_stride
        if wave.launch.cluster_size == 1:
            self._fail(x, active, "the cluster has one CTA; asynchronous stores need more")
        if (cta != words * 8 // wave.shared_stride).any():
            bad = active.copy()
            bad[active] = cta != words * 8 // wave.shared_stride
            self._fail(x, bad, "the destination and the mbarrier are in different CTAs")
        own = np.broadcast_to(x.cta, x.shape)[active]
        if other and (cta == own).any():
            bad = active.copy()
            bad[active] = cta == own
            self._fail(x, bad, "the destination is in the executing CTA; it must be in another one of the cluster")
        x.tally.add(self.number, "shared_to_shared", x.lanes * self.site.size)
        wave.launch.machine.version += 1
        return cells, words

    def note(self, x: Group, cells: Lanes, words: Lanes, data: Lanes | None) -> None:
        """Report the written elements to the race check: stores of ``data``, a row for each, or reductions if None."""
        for races in x.wave.races:
            sizes = np.full(1, self.site.size)
            threads = x.thread[x.active()]
            accessed = [(True, cells * self.site.size, sizes)]
            sources = None if data is None else partial(_rows_of_bytes, data)
            races.operations.completing(self.where, threads, words, accessed, data is None, sources)

    def _fail(self, x: Group, bad: Mask, why: str) -> None:
        cta, thread = x.first(bad)
        raise TrapError(f"{self.where}: thread {thread} of CTA {cta}: {why}")


@effect(
    "st.async{.weak}{.<scope>}{.<space>}.mbarrier::complete_tx::bytes{.<vec>}.<t>",
    scope="cluster",
    space="shared::cluster",
    vec="v2 v4",
    t="b32 b64 u32 u64 s32 s64 f32 f64",
)
def _store(b: Binding) -> Step:
    t, values = TYPES[b.form["t"]], b.elements(b.operands[1])
    if len(values) != int((b.form["vec"] or "v1")[1:]):
        raise b.fail(f"{len(values)} registers for .{b.form['vec'] or 'scalar'}")
    if t.bytes * len(values) > 16:
        raise b.fail(f"{t.bytes * len(values)} bytes; a store has at most 16")
    remote = _Remote(b, t.dtype, len(values))

    def store(x: Group, to: Lanes, barrier: Lanes, *lanes: Lanes) -> None:
        at, words = remote.resolve(x, to, barrier, other=False)
        active = x.active()
        data = np.stack([np.broadcast_to(v, x.shape)[active] for v in lanes], axis=-1)
        remote.note(x, at, words, data)
        if len(lanes) == 1:
            data = data[:, 0]
        wave = x.wave
        cells = remote.site.rows(wave.shared.view(t.dtype))

        def perform(which: Elements) -> None:
            cells[at[which]] = data[which]
            wave.part(Mbarriers).complete_tx(words[which], remote.site.size, remote.where)

        def poison() -> None:
            wave.shared.reshape(-1, remote.site.size)[at] = POISON

        wave.queue.submit(Operation(x.thread[active], perform, poison, barrier=words, tx=remote.site.size), MBARRIER)

    return Step(store, (*remote.sources, *((v, t) for v in values)))


_TYPES_OF = {
    "inc": "u32",
    "dec": "u32",
    "min": "u32 s32",
    "max": "u32 s32",
    "and": "b32",
    "or": "b32",
    "xor": "b32",
    "add": "u32 s32 u64 s64",
}


@effect(
    "red.async.relaxed.cluster{.<space>}{.<mechanism>}.<op>.<t>",
    space="shared::cluster",
    mechanism="mbarrier::complete_tx::bytes",
    op=" ".join(_TYPES_OF),
    t="b32 u32 s32 u64 s64",
)
def _reduce(b: Binding) -> Step:
    op, name = b.form["op"], b.form["t"]
    if name not in _TYPES_OF[op].split():
        raise b.fail(f"{op} does not take .{name}")
    t = TYPES[name]
    remote = _Remote(b, t.dtype, 1)
    operation = operation_for(op, name)

    def reduce(x: Group, to: Lanes, barrier: Lanes, value: Lanes) -> None:
        at, words = remote.resolve(x, to, barrier, other=True)
        remote.note(x, at, words, None)
        values = np.broadcast_to(value, x.shape)[x.active()].copy()
        wave = x.wave
        cells = wave.shared.view(t.dtype)

        def perform(which: Elements) -> None:
            apply_in_order(cells, at[which], operation, (values[which],))
            wave.part(Mbarriers).complete_tx(words[which], t.bytes, remote.where)

        wave.queue.submit(Operation(x.thread[x.active()], perform, barrier=words, tx=t.bytes), MBARRIER)

    return Step(reduce, (*remote.sources, (b.operands[1], t)))


@effect(
    "st.async{.mmio}.release.<scope>{.<space>}.<t>",
    scope="gpu sys",
    space="global",
    t="b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64",
)
def _release_store(b: Binding) -> Step:
    """A store to global memory, which PTX only requires to be complete at the end of the CTA; it is performed at once."""
    if b.target < 100:
        raise b.fail("needs sm_100 or newer")
    operand, offset = b.address(b.operands[0])
    t = TYPES[b.form["t"]]
    site = site_for(b, b.form["space"], operand, offset, t.dtype, 1, write=True)
    return Step(
        lambda x, a, v: site.store(x, widen(a), (v,)), ((operand, address_type(b, operand)), (b.operands[1], t))
    )


@effect(
    "red.async{.mmio}.release.<scope>{.<space>}.add.<t>", scope="gpu sys cluster", space="global", t="u32 s32 u64 s64"
)
def _release_add(b: Binding) -> Step:
    """A reduction in global memory, which is performed at once like the store."""
    if b.target < 100:
        raise b.fail("needs sm_100 or newer")
    operand, offset = b.address(b.operands[0])
    t = TYPES[b.form["t"]]
    site = AtomicSite(b, "add", t.name, b.form["space"], (operand, offset), 1)

    def add(x: Group, base: Lanes, value: Lanes) -> None:
        site.run(x, base, np.add, ((value,),))

    return Step(add, ((operand, address_type(b, operand)), (b.operands[1], t)))
