"""tcgen05.ld, tcgen05.st and tcgen05.wait. PTX ISA, "Tensor Memory and Register Load/Store Instructions".

A warp can access the 32 lanes of its partition, from lane 32 (index modulo 4) on. Its address gives the first of them,
or 0, which NVIDIA's own code passes in every warp; another partition is an error. Bits of the lane above 127 are ignored:
kernels that run on a B200 add 128 for the second CTA of a pair. Registers get their values when the load is executed,
which the manual allows a thread to rely on ("Register dependencies, same thread"); that the memory may be written again is
known after ``tcgen05.wait::ld`` alone, and what a store has written may be used after ``tcgen05.wait::st``. Until then
:mod:`~ptxkit.emulator.tensor_core.tcgen05.accesses` refuses what conflicts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ptxkit.emulator.access.site import Loaded
from ptxkit.emulator.arrays import Index, Lanes
from ptxkit.emulator.simt.step import B32, U32, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.tensor_core.collective import collective
from ptxkit.emulator.tensor_core.tcgen05.accesses import BAND, Access, Region
from ptxkit.emulator.tensor_core.tcgen05.fences import Fences
from ptxkit.emulator.tensor_core.tcgen05.fragments import MAX_REGISTERS, SHAPES, Fragment, fragment, registers
from ptxkit.emulator.tensor_core.tcgen05.memory import PARTITION, PARTITIONS, TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.warps import Warps, require_target, warp_threads
from ptxkit.errors import MemoryFault
from ptxkit.isa.model import Immediate, Operand
from ptxkit.isa.types import TYPES

_REPEATS = "x1 x2 x4 x8 x16 x32 x64 x128"
_SEVERAL = "x2 x4 x8 x16 x32 x64 x128"
_ROWS = "32x32b 16x32bx2"
"""Shapes in which the registers of a thread are in one lane, which tcgen05.ld.red has."""
_REDUCING = frozenset((101, 103, 110))
"""Architectures with tcgen05.ld.red."""


class Transfers:
    """The loads and stores of a wave that have not been waited for, by warp."""

    def __init__(self, wave: WaveState) -> None:
        self.open: dict[tuple[str, int, int], list[Access]] = {}


class _Transfer:
    """Base class of ld and st: the form and its operands.

    Attributes:
        kind: ``"load"`` or ``"store"``.
        base: address operand, with its constant offset.
    """

    def __init__(
        self, b: Binding, kind: Literal["load", "store"], operands: list[Operand | None], packed: bool
    ) -> None:
        require_target(b)
        self.where, self.kind, self.packed = b.where, kind, packed
        shape, repeat = b.form["shape"], int(b.form["num"][1:])
        self.count = registers(shape, repeat)
        if self.count > MAX_REGISTERS:
            raise b.fail(f".{shape} does not exist with .x{repeat}: it would have {self.count} registers a thread")
        split = 0
        if shape == "16x32bx2":
            split = self._split(b, operands.pop(1) if len(operands) > 1 else None)
        (where,) = operands
        self.base: Operand
        self.base, self.offset = b.address(where)
        self.fragment: Fragment = fragment(shape, repeat, split, packed)

    @staticmethod
    def _split(b: Binding, operand: Operand | None) -> int:
        if not isinstance(operand, Immediate) or not isinstance(operand.value, int):
            raise b.fail(f".16x32bx2 takes a constant, the columns from its first half to the second, not {operand}")
        return operand.value

    def cells(self, x: Group, warps: Warps, at: Lanes) -> tuple[Index, Index, Index]:
        """SM, lane and column of each register, (W, registers, 32), after checks. The access is recorded as in flight."""
        memory = x.wave.part(TensorMemory)
        addresses = warps.uniform(at, "the tensor memory address") + self.offset
        lanes = np.empty(len(warps), np.int64)
        columns = np.empty(len(warps), np.int64)
        f = self.fragment
        for w, value in enumerate(addresses.tolist()):
            lane, column = address(value)
            cta, who = int(warps.cta[w]), warps.name(w)
            verb = "loads" if self.kind == "load" else "stores"
            own = int(warps.warp[w]) % PARTITIONS
            if lane // PARTITION % PARTITIONS not in (0, own):
                reach = f"lanes {PARTITION * own} to {PARTITION * own + PARTITION - 1}"
                raise MemoryFault(
                    f"{self.where}: {who} {verb} from lane {lane} on; it can access {reach} only, and its address must give "
                    "the first of them or 0"
                )
            if lane % PARTITION not in ((0,) if f.height == 32 else (0, 16)):
                raise MemoryFault(
                    f"{self.where}: {who} {verb} from lane {lane} on; this shape begins at a multiple of {f.height} lanes"
                )
            memory.require_columns(cta, column, f.width, self.where, who, verb)
            lanes[w] = PARTITION * own + lane % PARTITION
            columns[w] = column
            if memory.tracked:
                self._note(x, memory, (cta, int(warps.warp[w])), who, int(lanes[w]), column)
        sm = memory.sm[warps.cta][:, None, None]
        return sm, lanes[:, None, None] + f.lanes, columns[:, None, None] + f.columns

    def _note(self, x: Group, memory: TensorMemory, warp: tuple[int, int], who: str, lane: int, column: int) -> None:
        f = self.fragment
        bands = range(lane // BAND, (lane + f.height) // BAND)
        regions: tuple[Region, ...] = memory.regions(warp[0], bands, column, column + f.width)
        if self.kind == "load":
            memory.accesses.require(("write", "store"), self.where, who, "reads", regions)
        else:
            memory.accesses.require(("write", "read"), self.where, who, "writes", regions)
        row = warp[0] * x.wave.shape[1] + warp[1]
        for kind in ("operation",) if self.kind == "load" else ("operation", "operand"):
            x.wave.part(Fences).require(kind, row, self.where, who, regions)
        for races in x.wave.races:
            if races.tensor_memory is not None:
                races.tensor_memory.compare(self.kind, self.where, who, warp_threads(row), regions)
        access = memory.accesses.begin(self.kind, self.where, who, regions)
        x.wave.part(Transfers).open.setdefault((self.kind, *warp), []).append(access)


@blocking("tcgen05.ld.sync.aligned.<shape>.<num>{.pack::16b}.b32", shape=SHAPES, num=_REPEATS)
def _load(b: Binding) -> Step | Gated:
    out, *rest = b.operands
    what = _Transfer(b, "load", rest, b.form.has("pack__16b"))
    destinations: tuple[Typed, ...] = tuple((o, B32) for o in b.elements(out))
    _require_count(b, what, destinations)

    def load(x: Group, at: Lanes) -> Loaded:
        warps = Warps(x, b.where)
        sm, lanes, columns = what.cells(x, warps, at)
        words = x.wave.part(TensorMemory).words
        got = words[sm, lanes, columns]
        if what.packed:
            got = got & np.uint32(0xFFFF) | words[sm, lanes, columns + 1] << np.uint32(16)
        values = warps.spread(got)
        return values if len(values) > 1 else values[0]

    return collective(b, Step(load, ((what.base, U32),), destinations))


@blocking("tcgen05.ld.red.sync.aligned.<shape>.<num>.<op>{.abs}{.NaN}.f32", shape=_ROWS, num=_SEVERAL, op="min max")
@blocking("tcgen05.ld.red.sync.aligned.<shape>.<num>.<op>.<t>", shape=_ROWS, num=_SEVERAL, op="min max", t="u32 s32")
def _load_reduced(b: Binding) -> Step | Gated:
    """A load that also gives each thread the minimum or maximum of what it loads, which is from columns of one lane.

    The two accesses of ``.16x32bx2`` are reduced separately: the threads t and t + 16, which load from the same lane, get a
    result each.
    """
    if b.target not in _REDUCING:
        raise b.fail("needs sm_103a or sm_103f, or sm_110a; sm_100 has no tcgen05.ld.red")
    out, reduced, *rest = b.operands
    what = _Transfer(b, "load", rest, False)
    t = TYPES[b.form.get("t") or "f32"]
    destinations: tuple[Typed, ...] = tuple((o, t) for o in b.elements(out))
    _require_count(b, what, destinations)
    least, magnitude, propagates = b.form["op"] == "min", bool(b.form.get("abs")), bool(b.form.get("NaN"))

    def load(x: Group, at: Lanes) -> tuple[Lanes, ...]:
        warps = Warps(x, b.where)
        sm, lanes, columns = what.cells(x, warps, at)
        got = x.wave.part(TensorMemory).words[sm, lanes, columns].view(t.dtype)
        found = _extreme(np.abs(got) if magnitude else got, least, propagates)
        return *warps.spread(got), *warps.spread(found)

    return collective(b, Step(load, ((what.base, U32),), (*destinations, (reduced, t))))


def _extreme(values: Lanes, least: bool, propagates: bool) -> Lanes:
    """(W, 1, 32), the minimum or maximum along the registers of (W, registers, 32); -0 is less than +0.

    Args:
        propagates: a NaN gives NaN; otherwise NaNs are ignored if there is another value.
    """
    pick = np.min if least else np.max
    if values.dtype.kind != "f":
        return pick(values, axis=1, keepdims=True)
    nan = np.isnan(values)
    out = pick(np.where(nan, np.float32(np.inf if least else -np.inf), values), axis=1, keepdims=True)
    zero = values == 0
    negative = np.signbit(values) & zero
    wanted = (negative if least else zero & ~negative).any(1, keepdims=True)
    out = np.where(out == 0, np.where(wanted == least, np.float32(-0.0), np.float32(0.0)), out)
    missing = (nan.any if propagates else nan.all)(axis=1, keepdims=True)
    return np.where(missing, np.uint32(0x7FFFFFFF).view(np.float32), out)


@blocking("tcgen05.st.sync.aligned.<shape>.<num>{.unpack::16b}.b32", shape=SHAPES, num=_REPEATS)
def _store(b: Binding) -> Step | Gated:
    *rest, given = b.operands
    what = _Transfer(b, "store", rest, b.form.has("unpack__16b"))
    values: tuple[Typed, ...] = tuple((o, B32) for o in b.elements(given))
    _require_count(b, what, values)

    def store(x: Group, at: Lanes, *lanes: Lanes) -> None:
        warps = Warps(x, b.where)
        data = np.stack([warps.gather(v.view(np.uint32)) for v in lanes], axis=1)
        sm, rows, columns = what.cells(x, warps, at)
        words = x.wave.part(TensorMemory).words
        if what.packed:
            words[sm, rows, columns] = data & np.uint32(0xFFFF)
            words[sm, rows, columns + 1] = data >> np.uint32(16)
        else:
            words[sm, rows, columns] = data
        x.wave.launch.machine.version += 1

    return collective(b, Step(store, ((what.base, U32), *values)))


def _require_count(b: Binding, what: _Transfer, given: tuple[Typed, ...]) -> None:
    if len(given) != what.count:
        raise b.fail(f"{len(given)} registers; this form has {what.count}")


@blocking("tcgen05.<op>.sync.aligned", op="wait::ld wait::st")
def _wait(b: Binding) -> Step | Gated:
    require_target(b)
    kind = "load" if b.form["op"] == "wait::ld" else "store"

    def wait(x: Group) -> None:
        warps = Warps(x, b.where)
        memory, transfers = x.wave.part(TensorMemory), x.wave.part(Transfers)
        for cta, warp in zip(warps.cta.tolist(), warps.warp.tolist(), strict=True):
            for access in transfers.open.pop((kind, cta, warp), ()):
                memory.accesses.end(access)
                row = cta * x.wave.shape[1] + warp
                x.wave.part(Fences).complete("transfer", row, access.where, access.who, access.regions)
                for races in x.wave.races:
                    if races.tensor_memory is not None:
                        races.tensor_memory.record(kind, access.where, access.who, warp_threads(row), access.regions)

    return collective(b, Step(wait))
