"""Boxes of tensor maps: their bytes in global memory, and the layout of these bytes in shared memory.

Everything that depends on the map alone is computed once per map: the offsets of a box's rows, and the order in which a
swizzle permutes its atoms. Copies of many boxes at once, which are usual, then need one gather and one scatter.

Boxes of 4-bit and 6-bit elements are boxes of the bytes or 4-byte words that contain them: the map and the instruction count
elements, and everything here counts these units. With padding, the words of each 16 elements begin at a multiple of 16 bytes of
shared memory (PTX ISA, "Sub-byte types", "Restriction on Tensor Copy instructions").

In shared memory a box is dense, innermost dimension first. A swizzle permutes atoms by the bits of their absolute address
(PTX ISA, "Swizzling modes"; CUTLASS, ``cute/swizzle.hpp``). If rows are narrower than the span of the swizzle, each begins at a
multiple of the span, and the bytes in between are not written (observed on an H200).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Bytes, Elements, Index, Lanes, Mask
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.footprint import READ, Footprint
from ptxkit.emulator.simt.asynchronous import windows
from ptxkit.emulator.tma.box_reductions import Reduction
from ptxkit.emulator.tma.tensor_map import ELEMENTS, MAGIC, Element

UNIT = np.dtype(np.complex128)
"""A numpy type of sixteen bytes: numpy copies it faster than two elements of eight."""

SHARED_ALIGNMENT = 128
"""Alignment of a box in shared memory in bytes (PTX ISA, "Tensor copy restrictions")."""

PERIOD = 1024
"""Number of bytes after which every swizzle pattern repeats."""

_SWIZZLES = {
    (1, 0): ((0x080, 3),),
    (2, 0): ((0x180, 3),),
    (3, 0): ((0x380, 3),),
    (3, 1): ((0x180, 2),),
    (3, 2): ((0x180, 2), (0x080, 4)),
    (3, 3): ((0x080, 1),),
}
"""(mode, atomicity) -> (address bits, shift): these address bits are shifted right and combined with the address by XOR."""


_SPANS = (0, 32, 64, 128)
"""Swizzle mode -> number of bytes within which it permutes atoms."""


class Boxes:
    """A decoded tensor map. Dimensions are innermost first, D of them; a box has R rows of ``row_bytes`` bytes.

    Attributes:
        address: of the first element.
        element: type of an element.
        dims, strides, steps, counts: (D,) int64: elements of the array, bytes from one to the next, elements that a box
            advances at a time, and how many it takes.
        nbytes: of a box without gaps, which is also the number of bytes that its copy reports to an mbarrier.
        shared_row: bytes of a row in shared memory, with its padding.
        pitch, shared_bytes: bytes from one row to the next in shared memory, and bytes that a box occupies there.
        atom: bytes that a swizzle moves as a unit.

    Raises:
        ValueError: the map is not valid; the message contains the reason.
    """

    def __init__(self, record: Lanes) -> None:
        if bytes(record["magic"]) != MAGIC:
            raise ValueError("there is no tensor map; pass a TensorMap, or one that TensorMap.encode made")
        rank = int(record["rank"])
        self.element: Element = ELEMENTS[int(record["elemtype"]) % len(ELEMENTS)]
        self.address = int(record["global_address"])
        self.rank = rank
        self.dims = record["global_dim"][:rank].astype(np.int64) + 1
        self.steps = record["element_stride"][:rank].astype(np.int64)
        self.strides: NDArray[np.int64] = np.concatenate(
            ([self.element.nbytes], record["global_stride"][: rank - 1].astype(np.int64))
        )
        self.counts, self.rows = self._counts(record)
        self._narrow()
        self.mode = int(record["swizzle_mode"]), int(record["swizzle_atomicity"])
        self.fills_nan = bool(record["fill_mode"])
        self._check(record)
        self.row_bytes = int(self.counts[0]) * self.element.nbytes
        self.nbytes = self.rows * self.row_bytes
        self.pitch = _SPANS[self.mode[0]] or self.shared_row
        self.shared_bytes = self.rows * self.pitch
        self.atom = np.dtype(np.uint64) if self.mode == (3, 2) else UNIT
        self.spans = (self.counts - 1) * self.steps + 1
        self._orders: dict[int, Index] = {}

    def _counts(self, record: Lanes) -> tuple[NDArray[np.int64], int]:
        """Elements that a box takes in each dimension, and its rows."""
        counts: NDArray[np.int64] = -(-record["box_dim"][: self.rank].astype(np.int64) // np.maximum(self.steps, 1))
        return counts, int(counts[1:].prod())

    def _narrow(self) -> None:
        """Count the units that contain elements of less than 8 bits instead of these elements.

        Raises:
            ValueError: rows of the array or of a box do not consist of whole units.
        """
        element = self.element
        count, size = int(self.counts[0]), int(self.dims[0])
        self.shared_row = count if element.padded else count * element.nbytes
        if not element.narrow:
            return
        rows = 128 if element.padded else 2
        if size % rows or (count != 128 if element.padded else count % element.unit):
            box = "is 128" if element.padded else f"is a multiple of {element.unit}"
            raise ValueError(
                f"rows of {size} elements of type .{element.name} and a box of {count}: rows are a multiple of {rows}, and the "
                f"first dimension of the box {box}"
            )
        if element.padded and (self.address % 32 or (self.strides[1:] % 32).any()):
            raise ValueError(
                f"the address {self.address:#x} and the strides {self.strides[1:]} of elements of type .{element.name} must be "
                "multiples of 32"
            )
        self.dims = self.dims.copy()
        self.dims[0], self.counts[0] = (self.units(n) for n in (size, count))
        self.shared_row = count if element.padded else int(self.counts[0])

    def units(self, elements: int) -> int:
        """The number of bytes or words that contain a number of narrow elements."""
        return elements * self.element.narrow // (8 * self.element.nbytes)

    def in_units(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Coordinates, (E, D), with the first one counted in units."""
        if not self.element.narrow:
            return coordinates
        found = coordinates.copy()
        found[:, 0] = coordinates[:, 0] * self.element.narrow // (8 * self.element.nbytes)
        return found

    def _check(self, record: Lanes) -> None:
        if not 1 <= self.rank <= 5:
            raise ValueError(f"the tensor map has {self.rank} dimensions")
        if record["interleave_layout"]:
            raise ValueError("interleaved tensor maps are not emulated")
        if self.mode[0] == 4 or (self.mode[0] and self.mode not in _SWIZZLES):
            raise ValueError(f"swizzle mode {self.mode[0]} with atomicity {self.mode[1]} is not emulated")
        if self.address % 16 or (self.strides[1:] % 16).any():
            raise ValueError(
                f"the tensor map's address {self.address:#x} and strides {self.strides[1:]} must be multiples of 16"
            )
        if self.element.padded and self.mode not in ((0, 0), (3, 0), (3, 1), (3, 3)):
            raise ValueError(
                f"elements of type .{self.element.name} take no swizzle, or that of 128 bytes without flip"
            )
        if self.fills_nan and self.element.narrow:
            raise ValueError(f"elements of type .{self.element.name} cannot be filled with NaN")
        if (self.steps < 1).any() or self.steps[0] != 1:
            raise ValueError(f"element strides {self.steps}: they are at least 1, and 1 in the innermost dimension")
        row = self.shared_row
        if (self.counts < 1).any() or row % 16 or row > (_SPANS[self.mode[0]] or row):
            raise ValueError(f"a box row of {row} bytes: it is a multiple of 16, and at most the swizzle's span")

    def describe(self) -> str:
        """The text that describes the map in messages."""
        shape = " x ".join(map(str, self.dims[::-1]))
        return f"a tensor map of {shape} .{self.element.name}"

    # -- tables ------------------------------------------------------------------------------------------------------

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(R, D - 1): element offsets of a row's start from the box's origin in the outer dimensions."""
        outer = self.counts[1:]
        grid = np.indices(tuple(outer[::-1])).reshape(len(outer), self.rows)[::-1].T
        places: NDArray[np.int64] = grid.astype(np.int64) * self.steps[1:]
        return places

    @cached_property
    def row_offsets(self) -> NDArray[np.int64]:
        """(R,): bytes from the box's first element to the start of each row, in global memory."""
        return self.places @ self.strides[1:]

    @cached_property
    def unit_offsets(self) -> NDArray[np.int64]:
        """Units of 16 bytes from the box's first element to each unit of the box, in global memory."""
        row = np.arange(self.row_bytes // 16, dtype=np.int64)
        return ((self.row_offsets >> 4)[:, None] + row).reshape(-1)

    @property
    def distinct(self) -> bool:
        """Whether no two rows of a box overlap in global memory."""
        offsets = np.sort(self.row_offsets)
        return len(offsets) < 2 or int(np.diff(offsets).min()) >= self.row_bytes

    def order(self, at: int) -> NDArray[np.int64]:
        """The swizzled position of each atom of a box at shared address ``at``, in atoms from ``at``, in dense order.

        If rows fill the span, this is a permutation that is its own inverse.
        """
        at %= PERIOD
        found = self._orders.get(at)
        if found is None:
            size = self.atom.itemsize
            rows = self.pitch * np.arange(self.rows, dtype=np.int64)
            address = at + (rows[:, None] + np.arange(0, self.shared_row, size)).reshape(-1)
            moved = address.copy()
            for bits, shift in _SWIZZLES.get(self.mode, ()):
                moved ^= (address & bits) >> shift
            found = self._orders[at] = (moved - at) // size
        return found

    # -- shared memory -----------------------------------------------------------------------------------------------

    def put(self, shared: NDArray[np.uint8], at: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Write dense boxes (E, nbytes) to shared memory at byte offsets ``at``, (E,), multiples of 128."""
        if self.element.padded:
            for chosen, places in self._padded_places(at):
                words = np.ascontiguousarray(data[chosen]).view(np.uint32).reshape(*places.shape, -1)
                shared.view(np.uint32).reshape(-1, 4)[places, : words.shape[-1]] = words
            return
        for chosen, order in self._by_order(at):
            boxes: Lanes = data[chosen]
            starts = at[chosen]
            if order is not None and self.pitch > self.row_bytes:
                shared.view(self.atom)[(starts // self.atom.itemsize)[:, None] + order] = boxes.view(self.atom)
                continue
            if order is not None:
                boxes = boxes.view(self.atom).take(order, axis=1)
            windows(shared, 16, self.nbytes // 16)[starts >> 4] = boxes.view(np.uint64).reshape(len(boxes), -1, 2)

    def get(self, shared: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Dense boxes (E, nbytes) from shared memory at byte offsets ``at``."""
        out = np.empty((len(at), self.nbytes), np.uint8)
        if self.element.padded:
            for chosen, places in self._padded_places(at):
                words = shared.view(np.uint32).reshape(-1, 4)[places, : self.element.narrow // 2]
                out[chosen] = words.reshape(len(words), -1).view(np.uint8)
            return out
        for chosen, order in self._by_order(at):
            starts = at[chosen]
            if order is not None and self.pitch > self.row_bytes:
                boxes = shared.view(self.atom)[(starts // self.atom.itemsize)[:, None] + order]
            else:
                boxes = windows(shared, 16, self.nbytes // 16)[starts >> 4].reshape(len(starts), -1)
                if order is not None:
                    boxes = boxes.view(self.atom).take(order, axis=1)
            out[chosen] = boxes.view(np.uint8)
        return out

    def _padded_places(self, at: NDArray[np.int64]) -> list[tuple[Elements, Index]]:
        """(which boxes, (boxes, units): the 16 bytes of shared memory of each 16 elements)."""
        phases = at % PERIOD
        groups = [(np.flatnonzero(phases == p), self.order(int(p))) for p in np.unique(phases)]
        return [(chosen, (at[chosen] >> 4)[:, None] + order) for chosen, order in groups]

    def _by_order(self, at: NDArray[np.int64]) -> list[tuple[Elements, Index | None]]:
        """Groups boxes by the order of their atoms: (which boxes, the order; None without swizzle)."""
        if not self.mode[0]:
            return [(slice(None), None)]
        phases = at % PERIOD
        if (phases == phases[0]).all():
            return [(slice(None), self.order(int(phases[0])))]
        return [(np.flatnonzero(phases == p), self.order(int(p))) for p in np.unique(phases)]

    # -- global memory -----------------------------------------------------------------------------------------------

    def rows_at(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E, R, D - 1): coordinates in the outer dimensions at which the rows of boxes start."""
        return coordinates[:, None, 1:] + self.places

    def misplaced(self, coordinates: NDArray[np.int64]) -> tuple[NDArray[np.bool_], str]:
        """(E,): which boxes cannot start at their coordinates, and the text that says why of the first.

        A box starts at a multiple of 16 bytes of a row (PTX ISA, "Bounding Box"), with padded elements at a multiple of 128.
        """
        unit = self.element.unit
        if unit:
            odd: NDArray[np.bool_] = coordinates[:, 0] % unit != 0
            first = int(coordinates[np.argmax(odd), 0])
            return odd, f"at element {first} of a row; for .{self.element.name} it has to be a multiple of {unit}"
        bad: NDArray[np.bool_] = (coordinates[:, 0] * self.element.nbytes & 15) != 0
        first = int(coordinates[np.argmax(bad), 0])
        offset = first * self.element.nbytes
        return bad, f"at column {first}, {offset} bytes into a row; it has to be a multiple of 16"

    def inside(self, coordinates: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(E,): which boxes at these coordinates, (E, D), are completely inside of the array."""
        return np.all((coordinates >= 0) & (coordinates + self.spans <= self.dims), 1)

    def extent(self, coordinates: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First address, end address and number of the bytes of boxes inside of the array; (E,) each.

        A box completely outside of the array has 0 bytes, and its addresses are undefined.
        """
        first = np.maximum(0, -(coordinates // self.steps))
        last = np.minimum(self.counts - 1, (self.dims - 1 - coordinates) // self.steps)
        taken = np.maximum(0, last - first + 1)
        low = self.address + (coordinates + first * self.steps) @ self.strides
        high = self.address + (coordinates + last * self.steps) @ self.strides + self.element.nbytes
        return low, high, taken.prod(1) * self.element.nbytes

    def sectors(self, coordinates: NDArray[np.int64]) -> int:
        """Number of 32-byte sectors of boxes, counted separately for each row."""
        rows = self.rows_at(coordinates)
        valid = ((rows >= 0) & (rows < self.dims[1:])).all(2)
        first = np.maximum(coordinates[:, 0], 0)
        last = np.minimum(coordinates[:, 0] + self.counts[0], self.dims[0])
        start = self.address + rows @ self.strides[1:] + (first * self.element.nbytes)[:, None]
        length = np.maximum(last - first, 0)[:, None] * self.element.nbytes
        touched = np.where(length > 0, (start + length + 31 >> 5) - (start >> 5), 0)
        return int(touched[valid].sum())

    def read(self, a: Allocation, coordinates: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read dense boxes (E, nbytes) from the allocation ``a``; elements outside of the array get the fill value."""
        whole = self.inside(coordinates)
        if whole.all():
            data = self._read_whole(a, coordinates)
        else:
            data = np.empty((len(coordinates), self.nbytes), np.uint8)
            if whole.any():
                data[whole] = self._read_whole(a, coordinates[whole])
            data[~whole] = self._read_partly(a, coordinates[~whole])
        return data

    def _units(self, a: Allocation, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E, units): indices in ``a`` of the 16-byte units of boxes inside of the array."""
        starts: NDArray[np.int64] = coordinates @ self.strides + (self.address - a.base)
        return (starts >> 4)[:, None] + self.unit_offsets

    def _read_whole(self, a: Allocation, coordinates: NDArray[np.int64]) -> NDArray[np.uint8]:
        data: Bytes = a.typed(UNIT).take(self._units(a, coordinates)).view(np.uint8)
        return data if self.element.convert is None else self.element.convert(data)

    def _elements(self, a: Allocation, coordinates: NDArray[np.int64], writes: bool = False) -> tuple[Index, Mask]:
        """Index in ``a`` of every element of boxes, (E, R, n), 0 for elements outside of the array; and which are inside.

        Args:
            writes: all of the last 16 bytes of a row count as inside, even if the array ends within them, because an H200
                writes whole units of 16 bytes. It reads single elements.
        """
        end = int(self.dims[0])
        if writes:
            unit = max(1, 16 // self.element.nbytes)
            end = -(-end // unit) * unit
        row = self.rows_at(coordinates)
        rows: Mask = np.all((row >= 0) & (row < self.dims[1:]), 2)
        column = coordinates[:, :1] + np.arange(self.counts[0])
        columns = (column >= 0) & (column < end)
        valid = rows[:, :, None] & columns[:, None, :]
        starts = row @ self.strides[1:] + (self.address - a.base)
        index = starts[:, :, None] // self.element.nbytes + column[:, None, :]
        return np.where(valid, index, 0), valid

    def mark(self, footprint: Footprint, a: Allocation, coordinates: NDArray[np.int64], kind: str) -> None:
        """Note the bytes of the elements of boxes that are inside of the array."""
        index, valid = self._elements(a, coordinates, writes=kind != READ)
        footprint.elements(a, index[valid] * self.element.nbytes, self.element.nbytes, kind)

    def _read_partly(self, a: Allocation, coordinates: NDArray[np.int64]) -> NDArray[np.uint8]:
        index, valid = self._elements(a, coordinates)
        found = a.typed(self.element.bits)[index]
        if self.element.convert is not None:
            found = self.element.convert(found.view(np.uint8)).view(found.dtype)
        fill = found.dtype.type(self.element.nan if self.fills_nan else 0)
        data: Lanes = np.where(valid, found, fill)
        return data.reshape(len(coordinates), -1).view(np.uint8)

    def write(self, a: Allocation, coordinates: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Write those elements of dense boxes, (E, nbytes), that are inside of the array."""
        whole = self.inside(coordinates)
        if whole.any():
            chosen = slice(None) if whole.all() else whole
            a.typed(UNIT)[self._units(a, coordinates[chosen])] = np.ascontiguousarray(data[chosen]).view(UNIT)
        if not whole.all():
            index, valid = self._elements(a, coordinates[~whole], writes=True)
            values = np.ascontiguousarray(data[~whole]).view(self.element.bits).reshape(valid.shape)
            a.typed(self.element.bits)[index[valid]] = values[valid]

    def reduce(
        self, a: Allocation, coordinates: NDArray[np.int64], data: NDArray[np.uint8], operation: Reduction
    ) -> None:
        """Reduce dense boxes, (E, nbytes), into global memory, one after the other.

        Args:
            operation: on arrays of the element's type.
        """
        assert self.element.dtype is not None
        cells, values = a.typed(self.element.dtype), data.view(self.element.dtype)
        for e in range(len(coordinates)):
            index, valid = self._elements(a, coordinates[e : e + 1], writes=True)
            at, new = index[valid], values[e].reshape(valid.shape[1:])[valid[0]]
            if self.distinct:
                cells[at] = operation(cells[at], new)
            else:
                for k in range(len(at)):
                    cells[at[k : k + 1]] = operation(cells[at[k : k + 1]], new[k : k + 1])
