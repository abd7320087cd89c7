"""Texture and surface objects of the emulated machine, and the texels that they hold.

A kernel takes the handle of an object. The texels of most kinds are copied from global memory before a launch, as the driver
copies them to a CUDA array; textures of linear memory read global memory itself.
"""

from __future__ import annotations

import itertools
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptxkit.emulator.arrays import Bytes, Lanes
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.footprint import Footprint

IN_PLACE = ("linear", "pitch2d")
DIMENSIONS = {"1d": 1, "2d": 2, "3d": 3, "1d_layered": 1, "2d_layered": 2, "cube": 2, "cube_layered": 2, "linear": 1,
              "pitch2d": 2}  # fmt: skip
"""Kind of a texture -> the number of its coordinates, without layers and faces."""
GEOMETRIES = {
    "1d": ("1d", "linear"),
    "2d": ("2d", "pitch2d"),
    "3d": ("3d",),
    "a1d": ("1d_layered",),
    "a2d": ("2d_layered",),
    "cube": ("cube",),
    "acube": ("cube_layered",),
}
"""Geometry of an instruction -> the kinds of textures that it is for."""


@dataclass(frozen=True)
class Sampler:
    """How a texture is read.

    Attributes:
        address: of coordinates outside of the texture along x, y and z: 0 wrap, 1 clamp, 2 mirror, 3 border.
        linear: filter between texels. normalized: coordinates from 0 to 1. scaled: integers are read as floats.
        border: R, G, B and A outside of the texture, for the mode border.
        mip_linear, mip_bias, mip_least, mip_most: filter between levels, and the level of detail.
        seamless: filters across the edges of the faces of a cube.
    """

    address: tuple[int, int, int]
    linear: bool
    normalized: bool
    scaled: bool
    border: tuple[float, float, float, float]
    mip_linear: bool
    mip_bias: float
    mip_least: float
    mip_most: float
    seamless: bool


class GlobalMemory(Protocol):
    """The global memory that texels come from."""

    def slice(self, address: int, nbytes: int) -> Bytes:
        """The bytes at an address."""

    def owner(self, address: int) -> Allocation | None:
        """The allocation that contains an address."""


class TexelObject:
    """A texture object, or without a sampler a surface object.

    Attributes:
        kind: of :data:`DIMENSIONS`.
        width, height, depth, layers, levels: sizes in texels; ``layers`` counts the faces of cubes.
        channels, dtype: of a texel.
        address: of the array in global memory.
        handle: what a kernel takes; 0 before it is registered.
    """

    def __init__(
        self,
        kind: str,
        width: int,
        height: int,
        depth: int,
        layers: int,
        levels: int,
        channels: int,
        dtype: np.dtype[Any],
        address: int,
        sampler: Sampler | None,
    ) -> None:
        self.kind = kind
        self.width, self.height, self.depth = width, height, depth
        self.layers, self.levels = layers, levels
        self.channels, self.dtype = channels, dtype
        self.address = address
        self.sampler = sampler
        self.handle = 0
        self._levels: list[Lanes] = []

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return self.channels * self.dtype.itemsize

    @property
    def what(self) -> str:
        """For messages: ``texture``, ``surface``."""
        return "surface" if self.sampler is None else "texture"

    def extent(self, level: int) -> tuple[int, int, int]:
        """Width, height and depth of a level."""
        return max(1, self.width >> level), max(1, self.height >> level), max(1, self.depth >> level)

    def shape(self, level: int) -> tuple[int, int, int, int, int]:
        """The shape of a level: layers, depth, height, width, channels."""
        width, height, depth = self.extent(level)
        return self.layers, depth, height, width, self.channels

    def copy(self, memory: GlobalMemory, footprint: Footprint | None = None) -> None:
        """Take the texels from global memory."""
        if self.kind not in IN_PLACE:
            self._levels = [level.copy() for level in self._view(memory)]

    def write_back(self, memory: GlobalMemory) -> None:
        """Write the texels to global memory, where they came from."""
        for there, here in zip(self._view(memory), self._levels, strict=True):
            there[...] = here
        owner = memory.owner(self.address)
        if owner is not None:
            owner.initialise(self.address - owner.base, sum(level.nbytes for level in self._levels))

    def level(self, number: int, memory: GlobalMemory) -> Lanes:
        """The texels of a level, of :meth:`shape`; not a copy."""
        return self._view(memory)[0] if self.kind in IN_PLACE else self._levels[number]

    def _view(self, memory: GlobalMemory) -> list[Lanes]:
        found, address = [], self.address
        for number in range(self.levels):
            shape = self.shape(number)
            nbytes = int(np.prod(shape)) * self.dtype.itemsize
            found.append(memory.slice(address, nbytes).view(self.dtype).reshape(shape))
            address += nbytes
        return found

    def describe(self) -> str:
        """For messages: ``a 2d texture of 640 x 480 texels``."""
        sizes = " x ".join(str(n) for n in (self.width, self.height, self.depth)[: DIMENSIONS[self.kind]])
        layers = f" and {self.layers} layers" if self.layers > 1 else ""
        return f"a {self.kind} {self.what} of {sizes} texels{layers}"


FIRST_HANDLE = 0x7E00_0001
"""Handles are numbers that are neither addresses nor likely values of other arguments."""


def register(objects: MutableMapping[int, object], made: TexelObject) -> None:
    """Give an object a handle that no other has had."""
    made.handle = next(_HANDLES)
    objects[made.handle] = made


_HANDLES = itertools.count(FIRST_HANDLE)
