"""Registers as machine code has them: one array, of which the lane arrays of a frame are views."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.allocations import POISON, poison
from ptxkit.emulator.native.context import NOWHERE
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.simt.threads import Frame, Registers


def address_of(array: NDArray[np.generic]) -> int:
    """Where the content of an array is."""
    return int(array.__array_interface__["data"][0])


class Storage:
    """The registers of one frame for machine code.

    Attributes:
        bytes: of all rows. views: by register, in the wave's shape. current: what the frame has of them.
    """

    def __init__(self, places: Places, shape: tuple[int, int, int]) -> None:
        ctas, warps, _ = shape
        self.bytes = np.full(ctas * warps * places.row_bytes, POISON, np.uint8)
        self.views: list[Lanes] = []
        for k, t in enumerate(places.code.register_types):
            dtype = t.dtype
            strides = (warps * places.row_bytes, places.row_bytes, dtype.itemsize)
            view: Lanes = np.ndarray(shape, dtype, self.bytes, places.offsets[k], strides)
            if dtype.kind == "b":
                view[...] = True
            self.views.append(view)
        self.current: Registers = [None] * len(self.views)
        self._places = places
        self._rows: dict[tuple[int, np.dtype], NDArray[np.generic]] = {}
        self.address = address_of(self.bytes)
        self.constants = np.zeros(max(1, len(places.frame)), np.int64)

    def rows(self, k: int, dtype: np.dtype) -> NDArray[np.generic]:
        """A register as a type of its width, (warps of the wave, 32)."""
        found = self._rows.get((k, dtype))
        if found is None:
            offset, step = self._places.offsets[k], self._places.row_bytes
            shape = (len(self.bytes) // step, LANES)
            found = self._rows[k, dtype] = np.ndarray(shape, dtype, self.bytes, offset, (step, dtype.itemsize))
        return found

    def take(self, frame: Frame, touched: tuple[int, ...]) -> None:
        """Let the frame's registers be in this storage."""
        registers, current, views = frame.registers, self.current, self.views
        poisons = bool(frame.function.undefined)  # else every register is written before it is read
        for k in touched:
            value = registers[k]
            if value is current[k] and value is not None:
                frame.owned[k] = True
                continue
            view = views[k]
            if value is not None:
                view[...] = value
            elif poisons:
                view[...] = poison(view.dtype)
            registers[k] = current[k] = view
            frame.owned[k] = True
        frame.dirty = True

    def hold(self, frame: Frame, touched: tuple[int, ...]) -> None:
        """The frame's registers are in this storage already: machine code has made the call."""
        for k in touched:
            frame.registers[k] = self.current[k] = self.views[k].view()
            frame.owned[k] = True
        frame.dirty = True

    def give(self, frame: Frame, written: tuple[int, ...]) -> None:
        """New views for the frame, because address patterns of the old ones are remembered by their identity."""
        registers, current, views = frame.registers, self.current, self.views
        for k in written:
            registers[k] = current[k] = views[k].view()


class LevelArrays:
    """What calls of machine code by machine code use at one level.

    Attributes:
        standing: the next block of each lane. constants: addresses of variables and parameters in local memory.
        storages: by entry of the function, its registers. stamp: of the call for which there is a frame.
    """

    def __init__(self, rows: int, constants: int) -> None:
        self.standing = np.full((rows, LANES), NOWHERE, np.uint32)
        self.constants = np.zeros(max(1, constants), np.int64)
        self.storages: dict[int, Storage] = {}
        self.stamp = 0
