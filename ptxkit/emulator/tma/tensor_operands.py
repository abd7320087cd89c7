"""Operands of tensor instructions: the tensor map with the coordinates, and the global memory that the boxes access."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Elements, Index, Lanes
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.footprint import ATOMIC, READ, WRITE, Footprint
from ptxkit.emulator.simt.asynchronous import EVERY
from ptxkit.emulator.simt.step import S32, Binding, Typed
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarrier_instructions import address_type
from ptxkit.emulator.tma.box_reductions import Reduction
from ptxkit.emulator.tma.boxes import Boxes
from ptxkit.emulator.tma.im2col import decode
from ptxkit.emulator.tma.listed_rows import four_rows
from ptxkit.emulator.tma.spans import Runs
from ptxkit.emulator.tma.tensor_map import ALIGNMENT, BYTES, LAYOUT
from ptxkit.errors import MemoryFault, TrapError
from ptxkit.isa.model import Address, Immediate, Operand
from ptxkit.isa.types import TYPES
from ptxkit.targets import FEATURES, needs

_MODES = {"im2col_no_offs": 1, "im2col": 1, "im2col::w": 2, "im2col::w::128": 3}
"""Mode of an instruction -> mode of the tensor map; 0 for all others."""
_HALOS = {2: 512, 3: 32}
"""Mode of the tensor map -> the limit of wHalo."""


class Pointer:
    """An address operand: a register, which is a source of the step, and a constant offset."""

    def __init__(self, b: Binding, operand: Operand | None) -> None:
        self.operand, offset = b.address(operand)
        self.source: Typed = (self.operand, address_type(b, self.operand))
        self.offset = np.uint64(offset & 0xFFFF_FFFF_FFFF_FFFF)

    def lanes(self, base: Lanes) -> Lanes:
        """Address of each lane, uint64, in the shape of ``base``."""
        return widen(base) + self.offset


class MapOperand(Pointer):
    """The operand ``[tensorMap, {c0, c1, ...}]``.

    Args:
        mode: of the instruction: ``"im2col"``, which has offsets (one for each spatial dimension), ``"im2col_no_offs"``,
            ``"im2col::w"`` or ``"im2col::w::128"``, which have wHalo and wOffset, ``"tile::gather4"`` or ``"tile::scatter4"``,
            which have the coordinates of four rows, or any other string for tiles.

    Attributes:
        coordinates: sources of the step: the coordinates, followed by the offsets, or by wHalo and wOffset.
    """

    def __init__(self, b: Binding, operand: Operand | None, mode: str = "", info: Operand | None = None) -> None:
        super().__init__(b, operand)
        self.where = b.where
        self.rank = int(b.form["dim"][0])
        assert isinstance(operand, Address)
        self.four = mode in ("tile::gather4", "tile::scatter4")
        if self.four and (self.rank != 2 or b.target < 100):
            raise b.fail(f".{mode} needs .2d" if self.rank != 2 else f".{mode} needs {needs(FEATURES['tcgen05'].rule)}")
        if len(operand.coordinates) != (5 if self.four else self.rank):
            raise b.fail(f"{len(operand.coordinates)} coordinates for .{b.form['dim']}")
        self.mode = _MODES.get(mode, 0)
        if self.mode > 1 and (b.target < 100 or (self.mode == 3 and b.target >= 120)):
            raise b.fail(f".{mode} needs sm_100{'a, sm_103a or sm_110a' if self.mode == 3 else ' or newer'}")
        offsets: tuple[Operand | None, ...] = ()
        if self.mode > 1:
            offsets = b.elements(info)
            if self.rank < 3 or len(offsets) != 2:
                raise b.fail(
                    f"{len(offsets)} operands for .{mode} with .{b.form['dim']}; it takes 3 to 5 dimensions, wHalo and wOffset"
                )
        elif self.mode:
            offsets = b.elements(info) if mode == "im2col" else (Immediate(0),) * (self.rank - 2)
            if self.rank < 3 or len(offsets) != self.rank - 2:
                raise b.fail(
                    f"{len(offsets)} im2col offsets for .{b.form['dim']}; it takes 3 to 5 dimensions, and 2 offsets fewer"
                )
        self.coordinates: tuple[Typed, ...] = tuple((c, S32) for c in operand.coordinates)
        self.coordinates += tuple((o, TYPES["u16"]) for o in offsets)

    def parts(self, x: Group, base: Lanes) -> list[tuple[Group, int]]:
        """Divides the group by tensor map, of which there is usually one: (threads, address of the map)."""
        addresses = self.lanes(base)
        if addresses.size == 1:
            return [(x, int(addresses.flat[0]))]
        active = np.broadcast_to(addresses, x.shape)[x.active()]
        if (active == active[0]).all():
            return [(x, int(active[0]))]
        found = [(x.narrow(addresses == a), int(a)) for a in np.unique(active)]
        return [(part, a) for part, a in found if part is not None]

    def halos(self, x: Group, coordinates: tuple[Lanes, ...]) -> list[tuple[Group, int]]:
        """Divides the group by wHalo, of which there is usually one: (threads, wHalo); 0 in the modes that have none.

        Raises:
            TrapError: wHalo or wOffset is out of range.
        """
        if self.mode < 2:
            return [(x, 0)]
        active = x.active()
        for name, lanes, limit in zip(("wHalo", "wOffset"), coordinates[-2:], (_HALOS[self.mode], 32), strict=True):
            given = np.broadcast_to(lanes, x.shape)[active]
            if (given >= limit).any():
                raise TrapError(self.at(x, f"{name} is {int(given.max())}; it must be less than {limit}"))
        values = np.broadcast_to(coordinates[-2], x.shape)
        found = [(x.narrow(values == v), int(v)) for v in np.unique(values[active])]
        return [(part, v) for part, v in found if part is not None]

    def boxes(self, x: Group, address: int, halo: int = 0) -> Boxes:
        """The decoded map.

        Args:
            halo: see :meth:`halos`.

        Raises:
            MemoryFault, TrapError: the address holds no tensor map, or one that is not valid for the instruction.
        """
        memory = x.wave.launch.machine.memory
        if address % ALIGNMENT:
            raise MemoryFault(self.at(x, f"the tensor map at {address:#x} is not aligned to {ALIGNMENT} bytes"))
        a = memory.find(address)
        if a is None or address + BYTES > a.base + a.nbytes:
            raise MemoryFault(self.at(x, f"reads a tensor map at {address:#x}: {memory.explain(address, BYTES)}"))
        try:
            record = memory.record(a, address - a.base, BYTES)
            boxes = four_rows(record) if self.four else decode(record, halo)
            mode = 0 if self.four else int(np.frombuffer(record, LAYOUT)[0]["mode"])
        except ValueError as error:
            raise TrapError(self.at(x, str(error))) from None
        if boxes.rank != self.rank:
            raise TrapError(self.at(x, f"the tensor map has {boxes.rank} dimensions, the instruction {self.rank}"))
        if mode != self.mode:
            names = ("tiles", *list(_MODES)[1:])
            raise TrapError(self.at(x, f"the instruction is for {names[self.mode]}, the tensor map for {names[mode]}"))
        return boxes

    def at(self, x: Group, why: str) -> str:
        """A message with the first thread of ``x``."""
        cta, thread = x.first(x.active())
        x.wave.flush_output()
        return f"{self.where}: thread {thread} of CTA {cta}: {why}"


class Region:
    """The global memory that the E boxes of an instruction access.

    Args:
        coordinates: (E, D) int64, in im2col mode followed by the offsets.

    Raises:
        MemoryFault: some of it is outside every allocation.
    """

    def __init__(self, runs: Runs, boxes: Boxes, coordinates: NDArray[np.int64], verb: str) -> None:
        memory = runs.x.wave.launch.machine.memory
        bad, why = boxes.misplaced(coordinates)
        if bad.any():
            runs.fail(bad, f"{verb} a box {why}")
        given, coordinates = coordinates, boxes.in_units(coordinates)
        self.boxes, self.coordinates = boxes, coordinates
        low, high, self.touched = boxes.extent(coordinates)
        some = self.touched > 0
        # for a box completely outside of the array any allocation is fine, since nothing is read
        only = memory.find(int(low[some].min())) if some.any() else runs.x.wave.launch.param_allocation
        self.parts: list[tuple[Allocation, Index]] = []
        if only is not None and (not some.any() or int(high[some].max()) <= only.base + only.nbytes):
            self.parts.append((only, np.arange(len(some))))
            return
        for k in np.flatnonzero(some):
            a = memory.find(int(low[k]))
            if a is None or int(high[k]) > a.base + a.nbytes:
                why = memory.explain(int(low[k]), int(high[k] - low[k]))
                at = ", ".join(map(str, given[k]))
                runs.fail(np.arange(len(some)) == k, f"{verb} a box at ({at}) in {boxes.describe()}: {why}")
        starts = np.where(some, low, low[some][0]).astype(np.uint64)
        self.parts = memory.partition(starts)

    def count(self, x: Group, number: int, direction: str, which: Elements = EVERY, updates: bool = False) -> None:
        """Add bytes and sectors of the boxes ``which`` to the counters.

        Args:
            updates: a reduction, whose result depends on what it overwrites.
        """
        x.tally.add(number, direction, int(self.touched[which].sum()))
        if (footprint := x.wave.launch.footprint) is not None:
            kind = ATOMIC if updates else READ if direction == "global_to_shared" else WRITE
            self._mark(footprint, np.arange(len(self.touched))[which], kind)
        for a, _ in self.parts:
            if direction != "global_to_shared" and a.undefined_stores is not None:
                a.undefined_stores.clear(0, a.nbytes)  # which bytes are overwritten is not examined
        if (direction == "global_to_shared" or updates) and any(a.sentinel is not None for a, _ in self.parts):
            x.tally.add(number, UNWRITTEN, 1)
        if x.tally.traffic:
            x.tally.add(number, f"sectors.{direction}", self.boxes.sectors(self.coordinates[which]))

    def _mark(self, footprint: Footprint, elements: NDArray[np.int64], kind: str) -> None:
        """Note the bytes of the boxes ``elements`` that are inside of the array."""
        elements = elements[self.touched[elements] > 0]
        for a, chosen in self._each(elements) if len(elements) else ():
            self.boxes.mark(footprint, a, self.coordinates[elements[chosen]], kind)

    def _each(self, elements: NDArray[np.int64]) -> list[tuple[Allocation, Elements]]:
        """Groups the boxes ``elements`` by allocation: (allocation, positions in ``elements``)."""
        if len(self.parts) == 1:
            return [(self.parts[0][0], slice(None))]
        found = [(a, np.flatnonzero(np.isin(elements, mine))) for a, mine in self.parts]
        return [(a, chosen) for a, chosen in found if len(chosen)]

    def read(self, elements: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read boxes: (len(elements), nbytes)."""
        each = self._each(elements)
        if len(each) == 1:
            return self.boxes.read(each[0][0], self.coordinates[elements])
        out = np.empty((len(elements), self.boxes.nbytes), np.uint8)
        for a, chosen in each:
            out[chosen] = self.boxes.read(a, self.coordinates[elements[chosen]])
        return out

    def write(self, elements: NDArray[np.int64], data: NDArray[np.uint8], operation: Reduction | None) -> None:
        """Write boxes, or reduce them into memory."""
        for a, chosen in self._each(elements):
            coordinates = self.coordinates[elements[chosen]]
            if operation is None:
                self.boxes.write(a, coordinates, data[chosen])
            else:
                self.boxes.reduce(a, coordinates, data[chosen], operation)


def coordinates_of(runs: Runs, coordinates: tuple[Lanes, ...]) -> NDArray[np.int64]:
    """(E, D) coordinates, from one lane array for each dimension."""
    return np.stack([runs.lanes(c) for c in coordinates], axis=-1).astype(np.int64)
