"""Copies and reductions of tensor boxes. PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor",
"cp.async.bulk.prefetch.tensor"."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Elements, Lanes
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.simt.asynchronous import EVERY, MBARRIER, Operation
from ptxkit.emulator.simt.step import Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.emulator.tma.box_reductions import Reduction, floats, reduction
from ptxkit.emulator.tma.boxes import SHARED_ALIGNMENT, Boxes
from ptxkit.emulator.tma.bulk_operation import MECHANISM, unread_at_exit
from ptxkit.emulator.tma.spans import Runs
from ptxkit.emulator.tma.tensor_operands import MapOperand, Pointer, Region, coordinates_of
from ptxkit.errors import TrapError
from ptxkit.isa.types import TYPES

_DIMS = "1d 2d 3d 4d 5d"
_LOADS = "tile im2col im2col::w im2col::w::128 tile::gather4"
_WITH_INFO = ("im2col", "im2col::w", "im2col::w::128")
"""Load modes with the operand im2colInfo."""
_PAIRS = "cta_group::1 cta_group::2"
_REDUCTIONS = "tile im2col_no_offs"
_STORES = f"{_REDUCTIONS} tile::scatter4"


class _Load:
    """cp.async.bulk.tensor from global to shared memory."""

    def __init__(self, b: Binding, space: str, multicast: bool, mode: str) -> None:
        operands = list(b.operands)
        if b.form.has("L2__cache_hint"):
            operands.pop()
        if len(operands) != 3 + multicast + (mode in _WITH_INFO):
            raise b.fail("wrong number of operands")
        info = operands.pop(3) if mode in _WITH_INFO else None
        self.where, self.number = b.where, b.index
        self.remote = space == "shared::cluster"
        self.to = Pointer(b, operands[0])
        self.map = MapOperand(b, operands[1], mode, info)
        self.pair = b.form["group"] == "cta_group::2"
        if b.form["group"] and b.target < 100:
            raise b.fail(f".{b.form['group']} needs sm_100 or newer")
        self.barrier = BarrierSite(b, operands[2], "shared::cluster" if self.pair else space, key=1)
        self.multicast = multicast
        masks: tuple[Typed, ...] = ((operands[3], TYPES["u16"]),) if multicast else ()
        sources = (self.to.source, self.map.source, self.barrier.source, *masks, *self.map.coordinates)
        self.step = Step(self.issue, sources)

    def issue(self, x: Group, to: Lanes, base: Lanes, barrier: Lanes, *rest: Lanes) -> None:
        """Check the operation and submit it to the queue."""
        for part, address in self.map.parts(x, base):
            for group, halo in self.map.halos(part, rest[self.multicast :]):
                self._one(group, self.map.boxes(group, address, halo), to, barrier, *rest)

    def _one(self, x: Group, boxes: Boxes, to: Lanes, base: Lanes, *rest: Lanes) -> None:
        wave = x.wave
        active = x.active()
        runs = Runs(self.where, x, np.full(np.count_nonzero(active), boxes.shared_bytes, np.int64))
        coordinates = coordinates_of(runs, rest[self.multicast :])
        region = Region(runs, boxes, coordinates, "reads")
        target = runs.in_shared(runs.lanes(self.to.lanes(to)), "writes", self.remote, SHARED_ALIGNMENT).start
        index = self.barrier.index(x, base)
        barrier = runs.lanes(index)
        threads = x.thread[active]
        stride = wave.shared_stride
        element = np.arange(len(threads))
        if self.multicast:
            element, cta = self._receivers(runs, runs.lanes(rest[0]))
            runs.require_running(cta, element)
            target = cta * stride + target[element] % stride
            signalled = cta
            if self.pair:  # in each pair, the CTA whose rank has the same parity as that of the mbarrier operand
                parity = wave.cluster_rank[barrier[element] * 8 // stride] % 2
                signalled = cta - wave.cluster_rank[cta] % 2 + parity
            barrier = signalled * (stride >> 3) + barrier[element] % (stride >> 3)
            threads = threads[element]
            for writes in wave.generic_writes:
                writes.replaced(target, runs.sizes[element])
        else:
            wave.part(Mbarriers).check(
                x, index, self.where
            )  # the mbarriers of a multicast are checked when it completes
            self._require_near(runs, target // stride, barrier * 8 // stride)
        region.count(x, self.number, "global_to_shared")
        wave.launch.machine.version += 1
        for races in wave.races:
            accessed = [(True, target, np.full(len(target), boxes.shared_bytes))]
            sources = partial(coordinates.__getitem__, element)
            races.operations.completing(self.where, threads, barrier, accessed, sources=sources)
        shared, where = wave.shared, self.where

        def perform(which: Elements) -> None:
            sources = element[which]
            if self.multicast:
                sources, inverse = np.unique(sources, return_inverse=True)
                data = region.read(sources)[inverse]
            else:
                data = region.read(sources)
            boxes.put(shared, target[which], data)
            wave.part(Mbarriers).complete_tx(barrier[which], boxes.nbytes, where)

        def poison() -> None:
            boxes.put(shared, target, np.full((len(target), boxes.nbytes), POISON, np.uint8))

        wave.queue.submit(Operation(threads, perform, poison, barrier=barrier, tx=boxes.nbytes), MBARRIER)

    def _require_near(self, runs: Runs, home: NDArray[np.int64], signalled: NDArray[np.int64]) -> None:
        """The mbarriers must be in the CTAs of the destinations, or with .cta_group::2 in their pairs."""
        rank = runs.x.wave.cluster_rank
        if self.pair:
            bad = np.not_equal(home - rank[home] % 2, signalled - rank[signalled] % 2)
            if bad.any():
                runs.fail(bad, "the destination and the mbarrier are in CTAs of different pairs")
            return
        bad = np.not_equal(home, signalled)
        if bad.any():
            runs.fail(
                bad,
                "the destination and the mbarrier are in different CTAs; with .cta_group::2 they may be in a pair's",
            )

    def _receivers(self, runs: Runs, masks: Lanes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The copies of a multicast: for each, the number of its element, and the index of the receiving CTA in the wave."""
        wave = runs.x.wave
        size = wave.launch.cluster_size
        bad: NDArray[np.bool_] = masks >= 1 << size
        if bad.any():
            runs.fail(bad, f"the mask {int(masks[np.argmax(bad)]):#x} names CTAs beyond a cluster of {size}")
        element, rank = np.nonzero(masks[:, None] >> np.arange(16, dtype=np.uint16) & np.uint16(1))
        cta = runs.cta[element]
        return element, cta - wave.cluster_rank[cta] + rank


class _Store:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor from shared to global memory.

    Args:
        op: the reduction; "" for a copy.
    """

    def __init__(self, b: Binding, op: str = "") -> None:
        operands = list(b.operands)
        if b.form.has("L2__cache_hint"):
            operands.pop()
        if len(operands) != 2:
            raise b.fail("wrong number of operands")
        self.where, self.number, self.op = b.where, b.index, op
        self.map = MapOperand(b, operands[0], b.form["mode"])
        self.source = Pointer(b, operands[1])
        self.step = Step(self.issue, (self.source.source, self.map.source, *self.map.coordinates))

    def issue(self, x: Group, source: Lanes, base: Lanes, *coordinates: Lanes) -> None:
        """Check the operation and submit it to the queue."""
        for part, address in self.map.parts(x, base):
            self._one(part, self.map.boxes(part, address), source, coordinates)

    def _one(self, x: Group, boxes: Boxes, source: Lanes, lanes: tuple[Lanes, ...]) -> None:
        wave = x.wave
        machine = wave.launch.machine
        active = x.active()
        count = int(np.count_nonzero(active))
        runs = Runs(self.where, x, np.full(count, boxes.shared_bytes, np.int64))
        coordinates = coordinates_of(runs, lanes)
        # PTX ISA, "Restriction on Tensor Copy instructions"
        bad = np.asarray((coordinates < 0).any(1))
        if bad.any():
            at = ", ".join(map(str, coordinates[np.argmax(bad)]))
            runs.fail(bad, f"writes a box at ({at}); a box that is written starts at coordinates of at least 0")
        if not self.op and boxes.element.name == "b4x16_p64":
            raise TrapError(self.map.at(x, "a copy to global memory does not take elements of type .b4x16_p64"))
        operation = reduction(self.op, boxes.element.name) if self.op else None
        if self.op and operation is None:
            raise TrapError(self.map.at(x, f"{self.op} does not take elements of type .{boxes.element.name}"))
        region = Region(runs, boxes, coordinates, "writes")
        start = runs.in_shared(runs.lanes(self.source.lanes(source)), "reads", False, SHARED_ALIGNMENT).start
        leaders = None if self.op else runs.leaders(start, coordinates)
        distinct = EVERY if leaders is None else np.unique(leaders)
        region.count(x, self.number, "shared_to_global", distinct, updates=bool(self.op))
        machine.version += 1
        for races in wave.races:
            races.operations.grouped(MECHANISM, self.where, x.thread[active], start, runs.sizes, False)
        shared, threads = wave.shared, x.thread[active]
        held = np.empty((0, boxes.nbytes), np.uint8)
        unread = np.ones(count, np.bool_)

        def chosen(which: Elements) -> NDArray[np.int64]:
            return np.arange(count)[which] if leaders is None else np.unique(leaders[which])

        def capture(which: Elements) -> None:
            nonlocal held
            if not len(held):
                held = np.empty((count, boxes.nbytes), np.uint8)
            late = chosen(which)
            late = late[unread[late]]
            if len(late):
                held[late] = boxes.get(shared, start[late])
                unread[late] = False

        def perform(which: Elements) -> None:
            elements = chosen(which)
            if unread.all():
                data = boxes.get(shared, start[elements])
            else:
                capture(elements)
                data = held[elements]
            if operation is None:
                region.write(elements, data, None)
            else:
                with machine.atomic_lock:
                    for k, e in enumerate(elements.tolist()) if wave.arithmetic else ():
                        checked = partial(self._checked, operation, wave, int(threads[e]), boxes.element.name)
                        region.write(elements[k : k + 1], data[k : k + 1], checked)
                    if not wave.arithmetic:
                        region.write(elements, data, operation)
            machine.version += 1

        def poison() -> None:
            elements = chosen(EVERY)
            region.write(elements, np.full((len(elements), boxes.nbytes), POISON, np.uint8), None)

        operation_ = Operation(threads, perform, None if self.op else poison, capture, leader=leaders)
        operation_.lost = lambda element: unread_at_exit(x, self.where, int(threads[element]))
        wave.queue.submit(operation_, MECHANISM)

    def _checked(self, operation: Reduction, wave: WaveState, thread: int, name: str, old: Lanes, new: Lanes) -> Lanes:
        """A reduction of elements of the type ``name`` that passes its results to the hooks."""
        result = operation(old, new)
        for hooks in wave.arithmetic:
            produced, before, given = (floats(v, name) for v in (result, old, new))
            if produced is not None and before is not None and given is not None:
                hooks.produced(wave, self.where, thread, produced, (before, given))
        return result


@effect(
    "cp.async.bulk.tensor.<dim>.<to>.global{.<mode>}.mbarrier::complete_tx::bytes{.multicast::cluster}{.<group>}{.L2::cache_hint}",
    dim=_DIMS,
    to="shared::cta shared::cluster",
    mode=_LOADS,
    group=_PAIRS,
)
@effect(
    "cp.async.bulk.tensor.<dim>.<mode>.<to>.global.mbarrier::complete_tx::bytes{.multicast::cluster}{.<group>}{.L2::cache_hint}",
    dim=_DIMS,
    to="shared::cta shared::cluster",
    mode=_LOADS,
    group=_PAIRS,
)
@effect(
    "cp.async.bulk.tensor.<dim>.<to>.global.mbarrier::complete_tx::bytes.<mode>{.multicast::cluster}{.<group>}{.L2::cache_hint}",
    dim=_DIMS,
    to="shared::cta shared::cluster",
    mode=_LOADS,
    group=_PAIRS,
)
def _load(b: Binding) -> Step:
    multicast = b.form.has("multicast__cluster")
    if multicast and b.form["to"] != "shared::cluster":
        raise b.fail("a multicast goes to shared::cluster")
    return _Load(b, b.form["to"], multicast, b.form["mode"]).step


@effect("cp.async.bulk.tensor.<dim>.global.shared::cta{.<mode>}.bulk_group{.L2::cache_hint}", dim=_DIMS, mode=_STORES)
@effect("cp.async.bulk.tensor.<dim>.<mode>.global.shared::cta.bulk_group{.L2::cache_hint}", dim=_DIMS, mode=_STORES)
def _store(b: Binding) -> Step:
    return _Store(b).step


@effect(
    "cp.reduce.async.bulk.tensor.<dim>.global.shared::cta.<op>{.<mode>}.bulk_group{.L2::cache_hint}",
    dim=_DIMS,
    op="add min max inc dec and or xor",
    mode=_REDUCTIONS,
)
def _reduce(b: Binding) -> Step:
    return _Store(b, b.form["op"]).step


@effect("cp.async.bulk.prefetch.tensor.<dim>.L2.global{.<mode>}{.L2::cache_hint}", dim=_DIMS, mode=_LOADS)
def _prefetch(b: Binding) -> Step:
    """A prefetch has no effect, but its tensor map must be valid."""
    mode = b.form["mode"]
    operand = MapOperand(b, b.operands[0], mode, b.operands[1] if mode in _WITH_INFO else None)

    def prefetch(x: Group, base: Lanes, *coordinates: Lanes) -> None:
        for part, address in operand.parts(x, base):
            for group, halo in operand.halos(part, coordinates):
                operand.boxes(group, address, halo)

    return Step(prefetch, (operand.source, *operand.coordinates))
