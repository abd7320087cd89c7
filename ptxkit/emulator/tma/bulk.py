"""The instructions for bulk copies and reductions, their groups, and st.bulk.

PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.prefetch", "cp.async.bulk.commit_group", "st.bulk".
:mod:`ptxkit.emulator.tma.bulk_operation` executes them.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.atomic_operations import operation_for
from ptxkit.emulator.instructions.cp_async import newest
from ptxkit.emulator.simt.step import U32, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tma.bulk_operation import MECHANISM, BulkOperation, MemoryOperand, Reduction
from ptxkit.emulator.tma.spans import Runs, fill
from ptxkit.isa.types import TYPES


@effect(
    "cp.async.bulk.<to>.global.mbarrier::complete_tx::bytes{.<multicast>}{.<hint>}",
    to="shared::cta shared::cluster",
    multicast="multicast::cluster",
    hint="L2::cache_hint",
)
@effect(
    "cp.async.bulk.<to>.global.mbarrier::complete_tx::bytes.<hint>.<multicast>",
    to="shared::cta shared::cluster",
    multicast="multicast::cluster",
    hint="L2::cache_hint",
)
def _load(b: Binding) -> Step:
    operands = list(b.operands)
    if b.form["hint"]:
        operands.pop()
    multicast = b.form.has("multicast")
    if multicast and b.form["to"] != "shared::cluster":
        raise b.fail("a multicast goes to shared::cluster")
    return BulkOperation(b, (b.form["to"], "global"), operands, multicast=multicast).step


@effect("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
def _to_cluster(b: Binding) -> Step:
    return BulkOperation(b, ("shared::cluster", "shared::cta"), list(b.operands)).step


@effect("cp.async.bulk.global.shared::cta.bulk_group{.<hint>}{.cp_mask}", hint="L2::cache_hint")
def _store(b: Binding) -> Step:
    operands = list(b.operands)
    if b.form["hint"]:
        operands.pop(3)
    masked = b.form.has("cp_mask")
    if masked and b.target < 100:
        raise b.fail("needs sm_100 or newer")
    return BulkOperation(b, ("global", "shared::cta"), operands, byte_mask=masked).step


_TO_SHARED = {"add": "u32 s32 u64", "min": "u32 s32", "max": "u32 s32", "inc": "u32", "dec": "u32"}
_TO_GLOBAL = {
    "add": "u32 s32 u64 f32 f64 f16 bf16",
    "min": "u32 s32 u64 s64 f16 bf16",
    "max": "u32 s32 u64 s64 f16 bf16",
    "inc": "u32",
    "dec": "u32",
}
_OPS = "and or xor add inc dec min max"


@effect(
    "cp.reduce.async.bulk.<to>.shared::cta.<mechanism>{.<hint>}.<op>{.noftz}.<t>",
    to="global shared::cluster",
    mechanism="bulk_group mbarrier::complete_tx::bytes",
    hint="L2::cache_hint",
    op=_OPS,
    t="f16 bf16 b32 u32 s32 b64 u64 s64 f32 f64",
)
def _reduction(b: Binding) -> Step:
    form = b.form
    op, name, to = form["op"], form["t"], form["to"]
    if (to == "global") != (form["mechanism"] == "bulk_group"):
        raise b.fail("bulk_group goes with global, an mbarrier with shared::cluster")
    bitwise = "b32 b64" if to == "global" else "b32"
    allowed = (_TO_GLOBAL if to == "global" else _TO_SHARED).get(op, bitwise)
    if name not in allowed.split():
        raise b.fail(f"{op} does not take .{name}")
    if form.has("noftz") != (op == "add" and name in ("f16", "bf16")):
        raise b.fail(".noftz goes with add on .f16 and .bf16, which need it")
    operands = list(b.operands)
    if form["hint"]:
        operands.pop()
    reduction = Reduction(operation_for(op, name), TYPES[name].dtype, name)
    return BulkOperation(b, (to, "shared::cta"), operands, reduction=reduction).step


@effect("cp.async.bulk.prefetch.L2.global{.<hint>}", hint="L2::cache_hint")
def _prefetch(b: Binding) -> Step:
    """A prefetch has no effect, but its size and address must be multiples of 16."""
    address = MemoryOperand(b, b.operands[0])
    where = b.where

    def prefetch(x: Group, base: Lanes, size: Lanes) -> None:
        runs = Runs(where, x, np.broadcast_to(size, x.shape)[x.active()].astype(np.int64))
        bad = (address.lanes(runs, base) & np.uint64(15)) != 0
        if bad.any():
            runs.fail(bad, "misaligned, bulk operations need a multiple of 16")

    return Step(prefetch, (address.source, (b.operands[1], U32)))


@effect("st.bulk{.weak}{.<space>}", space="shared::cta")
def _fill(b: Binding) -> Step:
    """st.bulk writes zeros, synchronously. PTX ISA, "st.bulk"."""
    address = MemoryOperand(b, b.operands[0])
    if getattr(b.operands[2], "value", None) != 0:
        raise b.fail(f"the initial value must be 0, found {b.operands[2]}")
    if b.target < 100:
        raise b.fail("needs sm_100 or newer")
    where = b.where
    size = b.register_type(b.operands[1])

    def zero(x: Group, base: Lanes, size: Lanes) -> None:
        sizes = np.broadcast_to(size, x.shape)[x.active()].astype(np.int64)
        runs = Runs(where, x, sizes, multiple=8)
        wave = x.wave
        target = runs.in_shared(address.lanes(runs, base), "writes", remote=False, alignment=8)
        for races in wave.races:
            races.runs(x, where, target.start, sizes, True)
        fill(target, sizes, 0)
        for writes in wave.generic_writes:
            for start, n in zip(target.start.tolist(), sizes.tolist(), strict=True):
                writes.wrote(np.arange(start >> 3, start + n >> 3), 8, where)
        wave.launch.machine.version += 1

    return Step(zero, (address.source, (b.operands[1], U32 if size is None or size.bits == 32 else TYPES["u64"])))


@effect("cp.async.bulk.commit_group")
def _commit(b: Binding) -> Step:
    return Step(lambda x: x.wave.queue.commit(x, MECHANISM))


@effect("cp.async.bulk.wait_group{.read}")
def _wait_group(b: Binding) -> Step:
    n, reading = newest(b), b.form.has("read")
    return Step(lambda x: x.wave.queue.wait(x, MECHANISM, n, reading))
