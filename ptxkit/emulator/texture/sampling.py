"""Fetches: from coordinates to the words that an instruction returns, for n points at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.texture import addressing, cube, filtering
from ptxkit.emulator.texture.addressing import BORDER, CLAMP, Indices
from ptxkit.emulator.texture.formats import Words, as_words, border_texel
from ptxkit.emulator.texture.texels import DIMENSIONS, GlobalMemory, Sampler, TexelObject

Levels = NDArray[np.float64]
Slice = tuple[NDArray[np.generic], NDArray[np.int64]]


@dataclass
class Place:
    """Where n points are in a texture.

    Attributes:
        coordinates: along x, y and z: (n,) floats, or integers for whole coordinates.
        layer: (n,), of the texels; for a cube the face.
        offsets: constant texels added along each axis.
    """

    coordinates: list[NDArray[Any]]
    layer: Indices
    offsets: tuple[int, ...] = ()


class Fetcher:
    """Reads one texture.

    Attributes:
        touched: bytes of the texels that have been read, in all layers and levels.
    """

    def __init__(self, texture: TexelObject, memory: GlobalMemory) -> None:
        assert texture.sampler is not None
        self.texture = texture
        self.memory = memory
        self.sampler: Sampler = texture.sampler
        self.dimensions = DIMENSIONS[texture.kind]
        self.border = border_texel(self.sampler, texture.channels, texture.dtype)
        self.touched = 0

    # -- fetches -------------------------------------------------------------------------------------------------------

    def whole(self, place: Place, level: Indices | None) -> Words:
        """Texels by whole coordinates, (n, channels).

        Without a level, coordinates outside of the texture give 0. With one the nearest texel is read, of the last layer for
        one that does not exist, and a level that the texture does not have gives 0.
        """
        out = np.zeros((len(place.layer), self.texture.channels), np.uint32)
        levels = np.zeros(len(place.layer), np.int64) if level is None else level
        for number in range(self.texture.levels):
            here = np.flatnonzero(levels == number)
            extent = self.texture.extent(number)
            index = [place.coordinates[k][here].astype(np.int64) for k in range(self.dimensions)]
            if place.offsets and self.texture.kind != "linear":  # they have no effect on linear memory
                index = [i + n for i, n in zip(index, place.offsets, strict=True)]
            layer = place.layer[here] if level is None else np.minimum(place.layer[here], self.texture.layers - 1)
            inside = layer < self.texture.layers
            if level is None:
                for k, i in enumerate(index):
                    inside &= (i >= 0) & (i < extent[k])
            index = [np.clip(i, 0, extent[k] - 1) for k, i in enumerate(index)]
            found = self._gather(number, np.where(inside, layer, 0), index, ~inside)
            out[here] = np.where(inside[:, None], as_words(found, self.sampler.scaled), 0)
        return out

    def filtered(self, place: Place, level: Levels) -> Words:
        """Texels by float coordinates, (n, channels), at a level of detail that is not yet limited."""
        s, texture = self.sampler, self.texture
        if texture.levels == 1:
            return self._at_level(place, 0, np.arange(len(place.layer)))
        steps = [np.floor(n * addressing.FRACTION) / addressing.FRACTION for n in (s.mip_bias, s.mip_least, s.mip_most)]
        detail = np.floor(level * addressing.FRACTION) / addressing.FRACTION + steps[0]
        detail = np.clip(np.clip(detail, steps[1], steps[2]), 0, texture.levels - 1)
        if not s.mip_linear:
            return self._by_level(place, np.floor(detail + 0.5).astype(np.int64))
        return self._between_levels(place, detail)

    def _by_level(self, place: Place, level: Indices) -> Words:
        out = np.zeros((len(level), self.texture.channels), np.uint32)
        for number in np.unique(level):
            here = np.flatnonzero(level == number)
            out[here] = self._at_level(place, int(number), here)
        return out

    def _between_levels(self, place: Place, detail: Levels) -> Words:
        fixed = np.floor(detail * addressing.FRACTION).astype(np.int64)
        low, up = fixed >> 8, fixed & 255
        out = np.zeros((len(low), self.texture.channels), np.uint32)
        for number in np.unique(low):
            here = np.flatnonzero(low == number)
            above = min(int(number) + 1, self.texture.levels - 1)
            slices = self._slices(place, int(number), here, addressing.FRACTION - up[here])
            out[here] = self._combined(slices + self._slices(place, above, here, up[here]))
        return out

    def gathered(self, place: Place, component: int) -> Words:
        """The component of the four texels that a linear filter would read, (n, 4), counter-clockwise from the lower left."""
        n = len(place.layer)
        here = np.arange(n)
        if component >= self.texture.channels:
            return np.zeros((n, 4), np.uint32)
        pairs = [self._around(place, k, 0, here, BORDER) for k in range(2)]
        columns = []
        for x_high, y_high in ((0, 1), (1, 1), (1, 0), (0, 0)):
            index = [pairs[0].high if x_high else pairs[0].low, pairs[1].high if y_high else pairs[1].low]
            columns.append(as_words(self._read(place, 0, here, index), self.sampler.scaled)[:, component])
        return np.stack(columns, -1)

    # -- one level -----------------------------------------------------------------------------------------------------

    def _at_level(self, place: Place, level: int, here: Indices) -> Words:
        if not self.sampler.linear:
            index = [addressing.nearest(self._position(place, k, level, here)) for k in range(self.dimensions)]
            return as_words(self._read(place, level, here, index), self.sampler.scaled)
        return self._combined(self._slices(place, level, here, np.full(len(here), addressing.FRACTION)))

    def _slices(self, place: Place, level: int, here: Indices, whole: Indices) -> list[Slice]:
        """The texels that a filter of one level combines, (k, n, channels), and their weights, (k, n), by slice.

        Args:
            whole: what the weights of the level add up to.
        """
        if not self.sampler.linear:
            index = [addressing.nearest(self._position(place, k, level, here)) for k in range(self.dimensions)]
            return [(self._read(place, level, here, index)[None], whole[None])]
        around = [self._around(place, k, level, here) for k in range(self.dimensions)]
        corners = []
        for corner in range(1 << self.dimensions):
            index = [n.high if corner >> k & 1 else n.low for k, n in enumerate(around)]
            corners.append(self._read(place, level, here, index))
        weights = filtering.weights([n.weight for n in around], whole)
        if self.sampler.seamless:
            beyond = [self._beyond_corner(place, level, here, around, corner) for corner in range(4)]
            weights = [cube.without_corners(weights[0], np.stack(beyond))]
        each = len(corners) // len(weights)
        return [(np.stack(corners[k * each : (k + 1) * each]), weight) for k, weight in enumerate(weights)]

    def _beyond_corner(
        self, place: Place, level: int, here: Indices, around: list[addressing.Neighbours], corner: int
    ) -> NDArray[np.bool_]:
        """Where a texel is beyond a corner of a cube."""
        x, y = (n.high if corner >> k & 1 else n.low for k, n in enumerate(around))
        return cube.across(place.layer[here] % 6, x, y, self.texture.extent(level)[0])[3]

    def _combined(self, slices: list[Slice]) -> Words:
        dtype = slices[0][0].dtype
        spread = [(texels, np.broadcast_to(weight[..., None], texels.shape)) for texels, weight in slices]
        if dtype.kind == "f":
            return filtering.floats([(t.astype(np.float64), w) for t, w in spread], dtype).view(np.uint32)
        wide = filtering.integers([(t.astype(np.int64), w) for t, w in spread], dtype)
        most = np.iinfo(np.uint16 if dtype.kind == "u" else np.int16).max
        return np.maximum(wide / most, -1.0).astype(np.float32).view(np.uint32)

    # -- texels --------------------------------------------------------------------------------------------------------

    def _position(self, place: Place, axis: int, level: int, here: Indices) -> addressing.Positions:
        x = place.coordinates[axis][here]
        size = self.texture.extent(level)[axis]
        found = addressing.position(x, size, self.sampler.normalized, self.sampler.address[axis])
        return found + place.offsets[axis] if place.offsets else found

    def _around(
        self, place: Place, axis: int, level: int, here: Indices, mode: int | None = None
    ) -> addressing.Neighbours:
        if mode is None:
            mode = BORDER if self.sampler.seamless else self.sampler.address[axis]
        return addressing.neighbours(self._position(place, axis, level, here), self.texture.extent(level)[axis], mode)

    def _read(self, place: Place, level: int, here: Indices, index: list[Indices]) -> NDArray[np.generic]:
        """Texels (n, channels) at indices that may be outside of the texture."""
        extent = self.texture.extent(level)
        layer = place.layer[here]
        if self.sampler.seamless and self.sampler.linear:
            face, x, y, _ = cube.across(layer % 6, index[0], index[1], extent[0])
            return self._gather(level, layer - layer % 6 + face, [x, y])
        outside = np.zeros(len(here), np.bool_)
        inner = []
        for axis, i in enumerate(index):
            mode = self.sampler.address[axis]
            found, out = addressing.addressed(i, extent[axis], CLAMP if self.sampler.seamless else mode)
            inner.append(found)
            outside |= out
        texels = self._gather(level, layer, inner, outside)
        return np.where(outside[:, None], self.border, texels) if BORDER in self.sampler.address else texels

    def _gather(
        self, level: int, layer: Indices, index: list[Indices], outside: NDArray[np.bool_] | None = None
    ) -> NDArray[np.generic]:
        texels = self.texture.level(level, self.memory)
        zero = np.zeros_like(layer)
        x, y, z = [*index, zero, zero][:3]
        read = len(layer) - (0 if outside is None else int(np.count_nonzero(outside)))
        self.touched += read * self.texture.texel
        return np.asarray(texels[layer, z, y, x])
