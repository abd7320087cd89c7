"""Textures and surfaces of arrays, as arguments of kernels: one description for both devices.

::

    image = np.random.rand(480, 640).astype(np.float32)
    kernel(ptxkit.Texture(image, filter="linear", address="clamp"), out, grid=..., block=...)

The kernel takes a ``cudaTextureObject_t`` or ``cudaSurfaceObject_t``. In a workload's ``Launch`` the array is named instead:
``args=(Texture("image", filter="linear"), ...)``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import isfinite, prod
from typing import Any

import numpy as np

from ptxkit.arguments import FLAG, Rule, check, shown, whole
from ptxkit.errors import LaunchError, UsageError
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.texture.layout import (
    ADDRESS_MODES,
    FILTERS,
    FORMATS,
    IN_PLACE,
    KINDS,
    PITCH_ALIGNMENT,
    READS,
    SURFACE_KINDS,
    Sampling,
    Texels,
)
from ptxkit.targets.textures import MOST_PITCH_BYTES, texel_refusal

_BY_RANK = {1: "1d", 2: "2d", 3: "3d"}
DIMENSIONS = {"l": "layers", "f": "faces", "z": "depth", "y": "height", "x": "width"}
"""Letter of :data:`KINDS` -> the name of the dimension."""
_REAL = Rule(
    "a finite number",
    lambda value: (
        isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and isfinite(value)
    ),
)


def _one_of(owner: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"{owner}: {name} takes one of {', '.join(allowed)}, not {shown(value)}")


@dataclass(frozen=True)
class _Image:
    """What textures and surfaces have in common; see there."""

    array: Any
    kind: str = ""
    channels: int = 1
    shape: tuple[int, ...] | None = None
    dtype: Any = None

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _check(self, kinds: tuple[str, ...]) -> None:
        if self.kind:
            _one_of(self._owner, "kind", self.kind, kinds)
        if not isinstance(self.channels, int | np.integer) or self.channels not in (1, 2, 4):
            raise UsageError(f"{self._owner}: channels takes 1, 2 or 4, not {shown(self.channels)}")
        if self.shape is not None:
            if not isinstance(self.shape, tuple):
                raise UsageError(f"{self._owner}: shape takes a tuple, not {shown(self.shape)}")
            for n in self.shape:
                check(f"{self._owner}: a dimension of shape", n, whole(1))

    def _element(self) -> np.dtype[Any]:
        given = getattr(self.array, "dtype", None) if self.dtype is None else self.dtype
        if given is None or (self.dtype is None and isinstance(self.array, np.generic)):
            raise UsageError(f"{self._owner}: the type of the array's elements is not known; give dtype")
        found: np.dtype[Any] | None = None
        with suppress(TypeError):  # another library's type
            found = np.dtype(given)
        if found is None or found.name not in FORMATS or not found.isnative:
            raise UsageError(f"{self._owner}: there are no texels of {given}; dtype is one of {', '.join(FORMATS)}")
        return found

    def _extent(self) -> tuple[str, dict[str, int]]:
        """The kind, and the sizes by letter of :data:`KINDS`."""
        shape = self.shape
        if shape is None:
            given = getattr(self.array, "shape", None)
            if given is None or isinstance(self.array, np.generic):
                raise UsageError(f"{self._owner}: the shape of the array is not known; give shape")
            shape = tuple(int(n) for n in given)
            if self.channels > 1:
                if not shape or shape[-1] != self.channels:
                    raise UsageError(
                        f"{self._owner}: channels={self.channels} needs them in the last dimension of the array, "
                        f"whose shape is {shape}"
                    )
                shape = shape[:-1]
        kind = self.kind or _BY_RANK.get(len(shape), "")
        if not kind:
            raise UsageError(f"{self._owner}: an array of shape {shape} needs its kind, one of {', '.join(KINDS)}")
        letters = KINDS[kind]
        if len(shape) != len(letters):
            wanted = ", ".join(DIMENSIONS[c] for c in letters)
            raise UsageError(f"{self._owner}: {kind} has the dimensions ({wanted}); the array's shape is {shape}")
        if not all(shape):
            raise UsageError(f"{self._owner}: the array of shape {shape} is empty")
        sizes = dict(zip(letters, shape, strict=True))
        if "f" in sizes and (sizes["f"] != 6 or sizes["y"] != sizes["x"]):
            raise UsageError(f"{self._owner}: {kind} has 6 square faces; the array's shape is {shape}")
        named = {DIMENSIONS[letter]: size for letter, size in sizes.items()}
        if (refusal := texel_refusal(kind, named, surface=self._owner == "Surface")) is not None:
            raise UsageError(f"{self._owner}: {refusal}; use several, or another kind")
        return kind, sizes

    def _texels(self, address: int, sampling: Sampling | None, levels: int, always: bool) -> Texels:
        kind, sizes = self._extent()
        texels = Texels(
            kind,
            sizes["x"],
            sizes.get("y", 1),
            sizes.get("z", 1),
            sizes.get("l", 1) * sizes.get("f", 1),
            levels,
            self.channels,
            self._element(),
            address,
            sampling,
            always,
        )
        held = getattr(self.array, "nbytes", None)
        if held is None and getattr(self.array, "shape", None) is not None:
            held = prod(self.array.shape) * texels.dtype.itemsize
        if not isinstance(self.array, np.generic) and held is not None and held < texels.nbytes:
            what = f"{levels} levels of " if levels > 1 else ""
            raise UsageError(f"{self._owner}: {what}{tuple(sizes.values())} texels of {texels.texel} bytes are "
                             f"{texels.nbytes:,} bytes; the array has {held:,}")  # fmt: skip
        pitch = texels.width * texels.texel
        if kind == "pitch2d" and pitch % PITCH_ALIGNMENT and texels.height > 1:
            raise UsageError(
                f"{self._owner}: a row of pitch2d must be a multiple of {PITCH_ALIGNMENT} bytes, not {pitch}; pad the rows, "
                "or use 2d"
            )
        if kind == "pitch2d" and pitch > MOST_PITCH_BYTES:
            raise UsageError(
                f"{self._owner}: a row of pitch2d has at most {MOST_PITCH_BYTES:,} bytes, not {pitch:,}; use 2d, or several"
            )
        return texels

    def __repr__(self) -> str:
        shown_array = repr(self.array) if not isinstance(self.array, np.ndarray) else f"array{self.array.shape}"
        given = [f for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"{self._owner}({', '.join([shown_array, *(f'{f.name}={getattr(self, f.name)!r}' for f in given)])})"


@dataclass(frozen=True, repr=False)
class Texture(_Image):
    """An array that a kernel reads through a texture object (``cudaTextureObject_t``).

    The kinds ``linear`` and ``pitch2d`` read the array in place. For every other kind the texels are copied to a CUDA array
    before each launch.

    Attributes:
        array: a device array, an array of another library, a numpy array (copied to the device), an address as ``np.uint64``
            together with ``shape`` and ``dtype``, or in a ``Launch`` the name of an input, output or temporary.
        kind: ``1d``, ``2d``, ``3d``, ``1d_layered``, ``2d_layered``, ``cube``, ``cube_layered``, ``linear`` (one dimension,
            read by whole coordinates) or ``pitch2d``; the default follows from the number of dimensions. Shapes are numpy's,
            without the channels: (width,), (height, width), (depth, height, width), (layers, width), (layers, height, width),
            (6, width, width), (layers, 6, width, width).
        channels: of a texel: 1, 2 or 4. With more than one they are the last dimension of the array.
        shape, dtype: instead of the array's own. A dtype is uint8, int8, uint16, int16, uint32, int32, float16 or float32.
        address: ``wrap``, ``clamp``, ``mirror`` or ``border`` for coordinates outside of the texture, or a tuple of one for
            each of x, y and z. As in CUDA, ``wrap`` and ``mirror`` need normalised coordinates.
        filter: ``point``, or ``linear`` between the 2, 4 or 8 nearest texels, for texels that are read as floats.
        normalized: coordinates from 0 to 1 instead of 0 to the size.
        read: ``element``, or ``normalized``: integers of 8 and 16 bits become floats from 0 (signed: -1) to 1.
        border: R, G, B and A of the mode ``border``.
        levels: of detail (mipmaps). The array then has one dimension and holds all levels one after another, each of half the
            size (rounded down, at least 1) of the one before, and ``shape`` is that of level 0; coordinates are normalised.
        mip_filter: ``point`` or ``linear`` between levels. mip_bias: is added to the level. mip_clamp: least and greatest
            level.
        seamless: filters across the edges of a cube.
        refresh: False for an array that does not change while the launch is prepared: it is copied once.

    Raises:
        UsageError: arguments that are invalid for every array.
    """

    address: str | tuple[str, ...] = "clamp"
    filter: str = "point"
    normalized: bool = False
    read: str = "element"
    border: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    levels: int = 1
    mip_filter: str = "point"
    mip_bias: float = 0.0
    mip_clamp: tuple[float, float] | None = None
    seamless: bool = False
    refresh: bool = True

    def __post_init__(self) -> None:
        self._check(tuple(KINDS))
        modes = self.address if isinstance(self.address, tuple) else (self.address,)
        if not 1 <= len(modes) <= 3:
            raise UsageError(f"Texture: address takes a mode, or one to three of them, not {shown(self.address)}")
        for mode in modes:
            _one_of("Texture", "address", mode, ADDRESS_MODES)
        _one_of("Texture", "filter", self.filter, FILTERS)
        _one_of("Texture", "mip_filter", self.mip_filter, FILTERS)
        _one_of("Texture", "read", self.read, READS)
        for name in ("normalized", "seamless", "refresh"):
            check(f"Texture: {name}", getattr(self, name), FLAG)
        check("Texture: levels", self.levels, whole(1, 16))
        check("Texture: mip_bias", self.mip_bias, _REAL)
        for name, count in (("border", 4), ("mip_clamp", 2)):
            value = getattr(self, name)
            if value is not None:
                if not isinstance(value, tuple) or len(value) != count:
                    raise UsageError(f"Texture: {name} takes {count} numbers, not {shown(value)}")
                for n in value:
                    check(f"Texture: a number of {name}", n, _REAL)
        if {"wrap", "mirror"}.intersection(modes) and not self.normalized and self.kind != "linear":
            raise UsageError(
                "Texture: address wrap and mirror need normalized=True; without it CUDA takes them for clamp"
            )
        if self.levels > 1 and (not self.normalized or self.shape is None):
            raise UsageError("Texture: levels need normalized=True, and shape of level 0; the array holds all levels")
        if self.seamless and not self.kind.startswith("cube"):
            raise UsageError("Texture: seamless is for the kinds cube and cube_layered")
        if self.kind in IN_PLACE and self.levels > 1:
            raise UsageError(f"Texture: {self.kind} has one level")

    def describe(self, address: int) -> Texels:
        """What a device makes a texture object of, for an array at ``address``.

        Raises:
            UsageError: names the rule and the fix.
        """
        kind, _ = self._extent()
        axes = sum(letter in "xyz" for letter in KINDS[kind])
        given = self.address if isinstance(self.address, tuple) else (self.address,) * axes
        modes = [ADDRESS_MODES.index(mode) for mode in given[:axes]]
        # a GPU filters along dimensions that a texture does not have, too, where the mode is border
        modes += [ADDRESS_MODES.index("clamp")] * (3 - len(modes))
        dtype = self._element()
        scaled = self.read == "normalized"
        if scaled and (dtype.kind not in "iu" or dtype.itemsize > 2):
            raise UsageError(f"Texture: read='normalized' is for integers of 8 and 16 bits, not for {dtype}")
        if self.filter == "linear" and dtype.kind in "iu" and not scaled:
            hint = "; use read='normalized'" if dtype.itemsize < 4 else ""
            raise UsageError(f"Texture: filter='linear' needs texels that are read as floats, not {dtype}{hint}")
        low, high = self.mip_clamp or (0.0, float(self.levels - 1))
        r, g, b, a = (float(n) for n in self.border)
        sampling = Sampling(
            (modes[0], modes[1], modes[2]),
            self.filter == "linear",
            self.normalized,
            scaled,
            (r, g, b, a),
            self.mip_filter == "linear",
            float(self.mip_bias),
            float(low),
            float(high),
            self.seamless,
        )
        return self._texels(address, sampling, self.levels, self.refresh)

    def with_array(self, array: Any) -> Texture:
        """The same description of another array."""
        return replace(self, array=array)


@dataclass(frozen=True, repr=False)
class Surface(_Image):
    """An array that a kernel reads and writes through a surface object (``cudaSurfaceObject_t``).

    Its texels are copied to a CUDA array before each launch, and back after it.

    Attributes:
        array: as of a :class:`Texture`.
        kind: ``1d``, ``2d``, ``3d``, ``1d_layered``, ``2d_layered``, ``cube`` or ``cube_layered``.
        channels, shape, dtype: as of a :class:`Texture`.

    Raises:
        UsageError: arguments that are invalid for every array.
    """

    def __post_init__(self) -> None:
        self._check(SURFACE_KINDS)

    def describe(self, address: int) -> Texels:
        """What a device makes a surface object of, for an array at ``address``.

        Raises:
            UsageError: names the rule and the fix.
        """
        return self._texels(address, None, 1, True)

    def with_array(self, array: Any) -> Surface:
        """The same description of another array."""
        return replace(self, array=array)


def check_object_parameter(kernel: str, p: Parameter, value: Texture | Surface) -> None:
    """Raise LaunchError unless a parameter takes the handle of a texture or surface object."""
    what = type(value).__name__
    if p.size != 8 or p.kind in ("float", "struct") or (p.kind == "pointer" and p.cpp):
        raise LaunchError(
            f"{kernel}: {p.label} got a {what}, which is for cuda{what}Object_t (an unsigned integer of 64 bits)"
        )
