"""What a device needs to make a texture or surface object: the texels, where they come from, and the sampler.

CUDA driver API, "cuTexObjectCreate", "cuSurfObjectCreate", "cuArray3DCreate"; CUDA C++ programming guide, "Texture Functions",
"Surface Functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

KINDS = {
    "1d": "x",
    "2d": "yx",
    "3d": "zyx",
    "1d_layered": "lx",
    "2d_layered": "lyx",
    "cube": "fyx",
    "cube_layered": "lfyx",
    "linear": "x",
    "pitch2d": "yx",
}
"""Kind of a texture -> the dimensions of its array: layers, faces of a cube, and z, y and x."""
IN_PLACE = ("linear", "pitch2d")
"""Kinds whose fetches read the array itself. For the others its texels are copied to a CUDA array."""
SURFACE_KINDS = ("1d", "2d", "3d", "1d_layered", "2d_layered", "cube", "cube_layered")
ADDRESS_MODES = ("wrap", "clamp", "mirror", "border")
"""CUaddress_mode, in the order of its numbers."""
FILTERS = ("point", "linear")
"""CUfilter_mode, in the order of its numbers."""
READS = ("element", "normalized")
FORMATS = {
    "uint8": 0x01,
    "uint16": 0x02,
    "uint32": 0x03,
    "int8": 0x08,
    "int16": 0x09,
    "int32": 0x0A,
    "float16": 0x10,
    "float32": 0x20,
}
"""Name of a numpy dtype -> CUarray_format."""
PITCH_ALIGNMENT = 32  # CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT of every GPU since sm_20


@dataclass(frozen=True)
class Sampling:
    """How a texture is read; see :class:`ptxkit.runtime.texture.description.Texture`.

    Attributes:
        address: modes along x, y and z, by number.
        linear: filter between texels. normalized: coordinates from 0 to 1. scaled: integers are read as floats.
        border: R, G, B and A outside of the texture, for the mode ``border``.
        mip_linear, mip_bias, mip_least, mip_most: filter between levels, and the level of detail.
        seamless: filters across the edges of the faces of a cube.
    """

    address: tuple[int, int, int]
    linear: bool
    normalized: bool
    scaled: bool
    border: tuple[float, float, float, float]
    mip_linear: bool = False
    mip_bias: float = 0.0
    mip_least: float = 0.0
    mip_most: float = 0.0
    seamless: bool = False


@dataclass(frozen=True)
class Texels:
    """An array of texels in global memory, and what is made of it.

    Attributes:
        kind: one of :data:`KINDS`.
        width, height, depth: of level 0 in texels; dimensions that the kind does not have are 1.
        layers: layers, faces of a cube, or faces of all layers of cubes.
        levels: of detail; the texels of all of them lie one after another.
        channels: 1, 2 or 4. dtype: of a channel.
        address: of the first texel in global memory.
        sampling: of a texture; None for a surface.
        always: the texels are copied again before each launch.
    """

    kind: str
    width: int
    height: int
    depth: int
    layers: int
    levels: int
    channels: int
    dtype: np.dtype[Any]
    address: int
    sampling: Sampling | None
    always: bool = True

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return self.channels * self.dtype.itemsize

    def extent(self, level: int) -> tuple[int, int, int]:
        """Width, height and depth of a level in texels."""
        return max(1, self.width >> level), max(1, self.height >> level), max(1, self.depth >> level)

    def level_bytes(self, level: int) -> int:
        """Bytes of all layers of a level."""
        width, height, depth = self.extent(level)
        return width * height * depth * self.layers * self.texel

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return sum(self.level_bytes(level) for level in range(self.levels))


class TexelObject(Protocol):
    """A texture or surface object of a device, which lives until nothing refers to it.

    Attributes:
        handle: what a kernel takes.
    """

    handle: int

    def refresh(self, stream: int) -> None:
        """Copy the texels of the array to the object, on a stream, if they may have changed since the last launch."""

    def write_back(self, stream: int) -> None:
        """Copy the texels of a surface to the array, on a stream; nothing for a texture."""

    def mark(self, footprint: Any) -> None:
        """Note in the footprint of a launch, in the emulator, which memory the copies read and write."""
