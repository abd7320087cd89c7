"""The instructions atom and red. PTX ISA, "atom", "red".

:class:`AtomicSite` finds the cells that the lanes access and counts the accesses;
:mod:`ptxkit.emulator.instructions.atomic_operations` computes the new values. The manual excludes local memory, but a generic
address may lie in it: a GPU performs such an atomic if one lane of the warp executes it, and so does the emulator. For several
lanes it reports a fault.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.access.generic import by_space
from ptxkit.emulator.access.global_memory import GlobalSite
from ptxkit.emulator.access.local_memory import LocalSite
from ptxkit.emulator.access.shared_memory import ClusterSite
from ptxkit.emulator.access.site import Loaded, Site, scoped, widen
from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask
from ptxkit.emulator.instructions.atomic_operations import TYPES_OF, Operation, apply_in_order, changed, operation_for
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.pattern import Pattern
from ptxkit.emulator.memory.traffic import atomic_sectors, atomic_wavefronts, wavefronts
from ptxkit.emulator.simt.step import B64, Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Immediate, Operand, Register
from ptxkit.isa.types import TYPES

_SEM = "relaxed acquire release acq_rel"
_SCOPES = "cta cluster gpu sys"
_SPACES = "global shared shared::cta shared::cluster"


def is_loop(op: str, t: str, count: int, space: str) -> bool:
    """Whether the GPU has no instruction for the operation, so that ptxas generates a loop of a load and a compare-and-swap.

    This follows the SASS of sm_80 and sm_90a: instructions on shared memory exist for 32-bit integers, and for exchange and
    compare-and-swap of 64 bits; those on global memory exist for everything except single 16-bit elements.
    """
    bits = TYPES[t].bits
    if space == "global":
        return bits == 16 and count == 1
    if op in ("exch", "cas"):
        return bits not in (32, 64)
    return t not in ("b32", "u32", "s32")


class _AtomicSectors(GlobalSite):
    """Atomics on global memory: lanes of a warp that update the same word are processed in separate passes."""

    def sectors(self, addresses: Lanes, mask: Mask | None, shape: tuple[int, int, int]) -> int:
        """Sectors of one execution, summed over the passes."""
        return atomic_sectors(addresses, self.size, mask, shape)


class _AtomicBanks(ClusterSite):
    """Atomics on shared memory: each of the lanes that access the same word takes a wavefront of its own.

    Two exceptions were measured on an H200. A compare-and-swap takes two wavefronts for each pass. A reduction that adds the
    constant 1 (``ATOMS.POPC.INC``) counts the lanes of each word, so that they share one wavefront.
    """

    def __init__(
        self, arguments: tuple[Where, int, int, DTypeLike, int, bool], cluster: bool, op: str, increments: bool
    ) -> None:
        super().__init__(*arguments)
        self.cluster = cluster
        self.swaps = op == "cas"
        self.increments = increments

    def wavefronts(self, addresses: Lanes, mask: Mask | None, shape: tuple[int, int, int]) -> tuple[int, int]:
        """Wavefronts of one execution, and those beyond the minimum."""
        if self.increments:
            return wavefronts(addresses, self.size, mask, shape)
        passes, conflicts = atomic_wavefronts(addresses, self.size, mask, shape)
        return passes * 2 if self.swaps else passes, conflicts

    def count_lanes(self, x: Group, p: Pattern, index: Index, start: int, aggregated: bool) -> None:
        """Add this execution to the counters; if ``aggregated``, each warp makes one access."""
        if aggregated and p.remote is None:
            x.tally.access(self.number, self.space, x.lanes * self.nbytes, 0, x.warps, 0, x.lanes)
        else:
            self._count(x, p, index, start)


def adds_one(value: Operand | None) -> bool:
    """Whether the value of an addition is the constant 1."""
    return isinstance(value, Immediate) and value.value == 1


def may_poll(name: str, op: str, value: Operand | None) -> bool:
    """Whether a loop may wait with it, so that other groups, for which it waits, are executed first: a compare-and-swap or an
    exchange that takes a lock, or an ``atom`` that only reads, such as ``atomicAdd(&flag, 0)``.

    Args:
        name: ``"atom"`` or ``"red"``. value: its last operand.
    """
    return op in ("cas", "exch") or (
        name == "atom" and op in ("add", "or", "xor") and isinstance(value, Immediate) and value.value == 0
    )


def combines(name: str, op: str, t: str, space: str) -> bool:
    """Whether one lane combines the values of its warp and accesses memory, where ptxas can see that all have one address.

    Args:
        name: ``"atom"`` or ``"red"``. space: "" for a generic address.
    """
    combined = ("add", "min", "max", "and", "or", "xor") if name == "red" else ("add",)
    return op in combined and t in ("b32", "u32", "s32") and space != ""


class _LocalAtomics(LocalSite):
    """Atomics whose generic address lies in local memory."""

    def cells(self, x: Group, base: Addresses) -> Lanes:
        """Element index of each active lane in the wave's local memory.

        Raises:
            MemoryFault: several lanes of a warp execute it.
        """
        crowded = (x.active().sum(-1, keepdims=True) > 1) & x.active()
        if crowded.any():
            why = (
                "in local memory, where only one lane of a warp may execute an atomic; give it global or shared memory"
            )
            self.fail(x, base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF), crowded, lambda a: why)
        return np.broadcast_to(self.locate(x, base)[1], x.shape)[x.active()]


class AtomicSite:
    """The accesses of one atomic instruction: finds the cells of its lanes in each state space, and applies the operation."""

    def __init__(self, b: Binding, op: str, name: str, space: str, address: tuple[Operand | None, int], count: int) -> None:
        operand, offset = address
        self.register = operand.name if isinstance(operand, Register) else ""
        arguments: tuple[Where, int, int, DTypeLike, int, bool] = (
            b.where,
            b.index,
            offset,
            TYPES[name].dtype,
            count,
            True,
        )
        self.space = space
        self.glob = _AtomicSectors(*arguments)
        self.combined = GlobalSite(*arguments)
        self.glob.atomic = self.combined.atomic = True
        self.local = _LocalAtomics(*arguments)
        increments = b.instruction.name == "red" and op == "add" and name in ("u32", "s32") and adds_one(b.operands[-1])
        self.shared = _AtomicBanks(arguments, space not in ("shared", "shared::cta"), op, increments)
        self.aggregates = combines(b.instruction.name, op, name, space)
        sites: tuple[tuple[Site, str], ...] = (
            (self.glob, "global"),
            (self.combined, "global"),
            (self.shared, "shared"),
        )
        for site, where in sites:
            site.space = f"{where}.loop" if is_loop(op, name, count, where) else where
        self.offset = offset
        self.count = count
        # what stores may have written separately: a word may hold two halves, and a cell of 64 bits two words
        self.unit = np.dtype("u2" if "16" in name else "u4")
        self.ordering = scoped(b.form.get("sem") or "relaxed", b.form.get("scope") or "")

    def _has_one_address(self, x: Group) -> bool:
        """Whether the text shows that all threads of a warp have the same address."""
        code = x.frame.function
        k = code.register_index.get(self.register)
        return k is None or bool(code.uniform >> k & 1)

    def run(
        self, x: Group, base: Lanes, operation: Operation, values: tuple[tuple[Lanes, ...], ...]
    ) -> tuple[Lanes, ...]:
        """Perform the operation for the active lanes; returns the old values, one lane array for each element."""
        aggregated = self.aggregates and self._has_one_address(x)
        base = np.broadcast_to(widen(base), x.shape)
        if self.space:
            with x.wave.launch.machine.atomic_lock:
                return self._one(
                    x, base, "global" if self.space == "global" else "shared", operation, values, aggregated
                )
        out: tuple[Lanes, ...] = ()
        for space, part, lanes in by_space(x, base, self.offset):
            with x.wave.launch.machine.atomic_lock:
                got = self._one(part, base, space, operation, values, aggregated)
            out = tuple(np.where(lanes, g, o) for g, o in zip(got, out, strict=True)) if out else got
        return out

    def _one(
        self,
        x: Group,
        base: Addresses,
        space: str,
        operation: Operation,
        values: tuple[tuple[Lanes, ...], ...],
        aggregated: bool,
    ) -> tuple[Lanes, ...]:
        active = x.active()
        allocation: Allocation | None = None
        if space == "global":
            for races in x.wave.races:
                addresses = base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
                races.flagged(x, addresses, self.ordering, True)
            try:
                site = self.combined if aggregated else self.glob
                allocation, start, p = site.locate(x, base, x.mask)
                cells = allocation.typed(self.glob.dtype)
                index = np.broadcast_to(p.indices, x.shape)[active] + start
            except LookupError:
                return self._scattered(x, base, operation, values)
            site.count_traffic(x, p, int(base.reshape(-1)[p.first]) + self.offset)
        elif space == "local":
            index = self.local.cells(x, base)
            cells = x.wave.local.reshape(-1).view(self.local.dtype)
        else:
            found, p, start = self.shared._flat(x, base)
            cells = x.wave.shared.view(self.shared.dtype)
            index = np.broadcast_to(found, x.shape)[active] + start
            for writes in x.wave.generic_writes:
                writes.wrote(index, self.shared.size, self.shared.where)
            for races in x.wave.races:
                s = self.shared
                races.touch(x, s.where, index, s.size, True, self.ordering, s.cluster)
            self.shared.count_lanes(x, p, found, start, aggregated)
        return self._apply(x, allocation, cells, index, active, operation, values)

    def _apply(
        self,
        x: Group,
        allocation: Allocation | None,
        cells: Lanes,
        index: Index,
        active: Mask,
        operation: Operation,
        values: tuple[tuple[Lanes, ...], ...],
    ) -> tuple[Lanes, ...]:
        out = []
        for k in range(self.count):
            lanes = tuple(np.broadcast_to(v, x.shape)[active] for v in values[k])
            old = np.zeros(x.shape, cells.dtype)
            at = index * self.count + k
            found = old[active] = apply_in_order(cells, at, operation, lanes)
            if changed(cells, at, found):
                x.wave.launch.machine.version += 1
            if allocation is not None and allocation.sentinel is not None:
                self.glob.notice_unwritten(x, allocation, found.view(self.unit))
            out.append(old)
        return tuple(out)

    def _scattered(
        self, x: Group, base: Addresses, operation: Operation, values: tuple[tuple[Lanes, ...], ...]
    ) -> tuple[Lanes, ...]:
        out: list[Lanes] = [np.zeros(x.shape, self.glob.dtype) for _ in range(self.count)]
        chosen = np.argwhere(x.active())
        addresses = base[x.active()] + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        for a, lanes in x.wave.launch.machine.memory.partition(addresses):
            at = tuple(chosen[lanes].T)
            index = ((addresses[lanes] - np.uint64(a.base)) >> np.uint64(self.glob.shift)).view(np.int64)
            for k in range(self.count):
                v = tuple(np.broadcast_to(o, x.shape)[at] for o in values[k])
                cells, cell = a.typed(self.glob.dtype), index * self.count + k
                found = out[k][at] = apply_in_order(cells, cell, operation, v)
                if changed(cells, cell, found):
                    x.wave.launch.machine.version += 1
                if a.sentinel is not None:
                    self.glob.notice_unwritten(x, a, found.view(self.unit))
        self.glob._count_scattered(x, base)
        return tuple(out)


def _make(b: Binding, returns: bool) -> Step:
    form = b.form
    op, name, vec = form["op"], form["t"], form.get("vec") or ""
    if name not in TYPES_OF[op].split():
        raise b.fail(f"{op} does not take .{name}")
    half = name in ("f16", "bf16", "f16x2", "bf16x2")
    if op == "add" and half != form.has("noftz"):
        raise b.fail(".noftz goes with the half types")
    if form.get("hint") and form["space"] not in ("", "global"):
        raise b.fail(".L2::cache_hint is for global memory")
    t = TYPES[name]
    operands = list(b.operands)
    destination = operands.pop(0) if returns else None
    address = operands.pop(0)
    if form.get("hint"):
        operands.pop()
    operand, offset = b.address(address)
    count = int(vec[1:]) if vec else 1
    sets: list[list[Operand | None]] = [list(b.elements(o)) for o in operands]
    if any(len(s) != count for s in sets) or len(sets) != (2 if op == "cas" else 1):
        raise b.fail("wrong number of operands")
    site = AtomicSite(b, op, name, form["space"], (operand, offset), count)
    function = operation_for(op, name)
    polls = may_poll(b.instruction.name, op, b.operands[-1])
    width = b.register_type(operand)
    pointer = TYPES["u32"] if width is not None and width.bits == 32 else B64
    sources: tuple[Typed, ...] = ((operand, pointer), *((o, t) for s in sets for o in s))
    outs: tuple[Typed, ...] = tuple((d, t) for d in b.elements(destination)) if returns else ()

    def run(x: Group, base: Lanes, *lanes: Lanes) -> Loaded:
        """The old values. ``red`` has no destination for them, but the check for uninitialised values needs them."""
        values = tuple(tuple(lanes[s * count + k] for s in range(len(sets))) for k in range(count))
        got = site.run(x, base.view(np.uint64) if base.dtype.itemsize == 8 else base, function, values)
        for hooks in x.wave.arithmetic if op in _COMPUTING else ():
            for old, given in zip(got, values, strict=True):
                operands = (old, *(np.broadcast_to(v, x.shape) for v in given))
                hooks.computed(x, b.where, t, function(*operands), operands)
        if polls:
            x.wave.spin()
        return got if count > 1 else got[0]

    return Step(run, sources, outs)


_COMPUTING = ("add", "min", "max")
"""Operations whose result may be a floating-point number that is none of the operands."""

_OPS = "add and or xor exch inc dec min max cas"
_T = "b16 b32 b64 b128 u32 s32 u64 s64 f32 f64 f16 bf16 f16x2 bf16x2"


@effect(
    "atom{.<sem>}{.<scope>}{.<space>}.<op>{.noftz}{.<hint>}{.<vec>}.<t>",
    sem=_SEM,
    scope=_SCOPES,
    space=_SPACES,
    op=_OPS,
    hint="L2::cache_hint",
    vec="v2 v4 v8",
    t=_T,
)
def _atom(b: Binding) -> Step:
    return _make(b, returns=True)


@effect(
    "red{.<sem>}{.<scope>}{.<space>}.<op>{.noftz}{.<hint>}{.<vec>}.<t>",
    sem="relaxed release",
    scope=_SCOPES,
    space=_SPACES,
    op=_OPS.replace("exch ", "").replace(" cas", ""),
    hint="L2::cache_hint",
    vec="v2 v4 v8",
    t=_T,
)
def _red(b: Binding) -> Step:
    return _make(b, returns=False)
