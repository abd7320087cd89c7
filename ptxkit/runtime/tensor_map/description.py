"""Tensor maps: how an array in global memory is cut into boxes, for the copies by which the TMA unit moves them.

One description serves both devices. A GPU's driver encodes it (:mod:`ptxkit.runtime.gpu.tensor_map`), the emulator has an
encoding of its own (:mod:`ptxkit.emulator.tma.tensor_map`); the rules of the driver
(:mod:`ptxkit.runtime.tensor_map.rules`) are checked on both::

    a = device.upload(...)                               # (1024, 512), bfloat16
    kernel(ptxkit.TensorMap(a, box=(128, 64), swizzle="128B"), ..., grid=..., block=...)

The kernel takes it as ``const __grid_constant__ CUtensorMap``: any structure of 128 bytes that is aligned to 64. In a
workload's ``Launch`` the array is named instead: ``args=(TensorMap("a", box=(128, 64)), ...)``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from ptxkit.errors import LaunchError, UsageError
from ptxkit.runtime.buffers import DeviceArray, Memory
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.tensor_map.elements import contiguous_strides, element_type, shape_in
from ptxkit.runtime.tensor_map.im2col import Im2col
from ptxkit.runtime.tensor_map.limits import (
    ALIGNMENT,
    ALONG_W,
    BYTES,
    L2_PROMOTIONS,
    MAX_BOX,
    MAX_ELEMENT_STRIDE,
    MAX_RANK,
    OOB_FILLS,
    SWIZZLES,
    Encoding,
    choice,
    plural,
    whole_numbers,
)
from ptxkit.runtime.tensor_map.rules import check_array, check_box, check_columns
from ptxkit.runtime.texture.layout import TexelObject, Texels


class Encoder(Memory, Protocol):
    """The memory of a device that can address arrays of other libraries, and that encodes tensor maps."""

    def foreign(self, value: Any, what: str) -> int | np.ndarray[Any, Any] | None:
        """The device address of another library's array, or a numpy array that shares its memory if that is host memory;
        None if the object is not an array.

        Args:
            what: begins error messages.
        """

    def tensor_map(self, m: Encoding) -> bytes:
        """A tensor map as kernels on the device read it."""

    def texel_object(self, texels: Texels) -> TexelObject:
        """A texture or surface object; its texels are not copied yet."""


class Described(Protocol):
    """A description of an array: a TensorMap, a Texture or a Surface."""

    @property
    def array(self) -> Any:
        """The array, its address, or its name."""


@dataclass(frozen=True)
class TensorMap:
    """An array in global memory and the boxes that kernels copy of it. Shapes are numpy's: the last dimension is contiguous.

    Attributes:
        array: a device array, an array of another library, a numpy array (copied to the device, and back, by a call of the
            kernel), an address as ``np.uint64`` together with ``shape`` and ``dtype``, or in a ``Launch`` the name of an input,
            output or temporary.
        box: elements of a box in each dimension, 1 to 256. In the last one they are a multiple of 16 bytes. All of a box fits
            into shared memory.
        swizzle: ``"none"``, ``"32B"``, ``"64B"``, ``"128B"``: how 16-byte atoms of a box are permuted in shared memory, so that
            its columns lie in different banks; ``"128B_atom_32B"``, ``"128B_atom_32B_flip_8B"`` and ``"128B_atom_64B"`` permute
            larger ones, on sm_100 and later. A row of the box must fit into the swizzle's span; a shorter one leaves a gap.
        element_strides: distance of the copied elements in each dimension, 1 to 8; 1 in the last dimension.
        interleave: ``"none"``; the layouts NC/8HWC8 and NC/16HWC16 are not offered.
        l2_promotion: ``"none"``, ``"64B"``, ``"128B"``, ``"256B"``: how much a miss brings into L2.
        oob_fill: ``"zeros"`` or ``"nan"`` (floats only): the value of elements outside the array in a load.
        strides: bytes, one a dimension, as numpy's; None for a C-contiguous array.
        shape: instead of the array's own, one to five dimensions.
        dtype: instead of the array's own: a numpy dtype, or one of ``ELEMENT_TYPES``. ``"tfloat32"`` rounds float32 on
            the way in, the types ``_ftz`` flush subnormal numbers in reductions. Types without a name, such as float8, are
            moved as the unsigned integer of their size.
        offset: bytes from the array's start to the first element.
        im2col: instead of ``box``, for copies in im2col mode.

    Raises:
        UsageError: arguments that are invalid for every array.
    """

    array: Any
    box: tuple[int, ...] = ()
    swizzle: str = "none"
    element_strides: tuple[int, ...] | None = None
    interleave: str = "none"
    l2_promotion: str = "none"
    oob_fill: str = "zeros"
    strides: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    offset: int = 0
    im2col: Im2col | None = None

    def __post_init__(self) -> None:
        if self.box is None:
            raise UsageError("TensorMap: box takes a tuple of whole numbers, not None")
        for name in ("box", "element_strides", "strides", "shape"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_numbers(name, value))
        choice("swizzle", self.swizzle, SWIZZLES)
        choice("l2_promotion", self.l2_promotion, L2_PROMOTIONS)
        choice("oob_fill", self.oob_fill, OOB_FILLS)
        if self.interleave != "none":
            choice("interleave", self.interleave, ("none", "16B", "32B"))
            raise UsageError(
                f"TensorMap: interleave {self.interleave!r} (NC/8HWC8, NC/16HWC16) is not offered; lay the array out with the "
                "channels last and leave it out"
            )
        if self.im2col is not None and self.box:
            raise UsageError("TensorMap: box and im2col are for different modes of copying; give one of them")
        rank = self.rank
        if not 1 <= rank <= MAX_RANK:
            raise UsageError(f"TensorMap: box has {rank} dimensions; a tensor map has 1 to {MAX_RANK}")
        for name in ("element_strides", "strides", "shape"):
            value = getattr(self, name)
            if value is not None and len(value) != rank:
                what = "box" if self.im2col is None else "the array"
                raise UsageError(
                    f"TensorMap: {name} {value} needs one number for each of the {rank} dimensions of {what}"
                )
        if not all(1 <= n <= MAX_BOX for n in self.box):
            raise UsageError(f"TensorMap: box {self.box} must be 1 to {MAX_BOX} in each dimension; copy more boxes")
        if not all(1 <= n <= MAX_ELEMENT_STRIDE for n in self.element_strides or ()):
            raise UsageError(
                f"TensorMap: element_strides {self.element_strides} must be 1 to {MAX_ELEMENT_STRIDE} in each dimension"
            )
        if self.element_strides is not None and self.element_strides[-1] != 1:
            raise UsageError(
                f"TensorMap: element_strides {self.element_strides} must end with 1: the last dimension has no stride"
            )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.box) if self.im2col is None else len(self.im2col.lower) + 2

    def encode(self, device: Encoder) -> np.ndarray[Any, Any]:
        """The 128 bytes that a kernel on ``device`` reads, as uint8: for maps that lie in global memory, aligned to 64.

        The array must stay alive while kernels use the map.

        Raises:
            UsageError: the array or the box breaks a rule. LaunchError: the array is not on the device.
        """
        address = device_address(self, device, "TensorMap")
        if isinstance(address, np.ndarray):
            raise LaunchError("TensorMap: the array is in host memory; pass device.upload of it")
        return np.frombuffer(device.tensor_map(self.describe(address)), np.uint8)

    def describe(self, address: int) -> Encoding:
        """The arguments of the driver's encoder for an array at ``address``, after all checks.

        Raises:
            UsageError: names the rule and the fix.
        """
        element = element_type(self.array, self.dtype)
        shape = self.shape or shape_in(self.array, element)
        rank = len(shape)
        if rank != self.rank:
            what = f"box {self.box} has" if self.im2col is None else "im2col needs"
            raise UsageError(
                f"{what} {plural(self.rank, 'dimension')}, the array {plural(rank, 'dimension')} "
                f"{shape}; give one number each, or the shape to see it in"
            )
        strides = self.strides or contiguous_strides(shape, element.bits)
        address += self.offset
        check_array(address, shape, strides, element)
        check_box(self, element)
        im2col = along_w = None
        if self.im2col is not None:
            check_columns(self.im2col, shape)
            i = self.im2col
            im2col = i.lower[::-1], i.upper[::-1], i.channels, i.pixels
            along_w = None if i.along_w is None else ALONG_W.index(i.along_w)
        return Encoding(
            element.number,
            address,
            shape[::-1],
            strides[-2::-1],
            self.box[::-1],
            (self.element_strides or (1,) * rank)[::-1],
            SWIZZLES.index(self.swizzle),
            L2_PROMOTIONS.index(self.l2_promotion),
            OOB_FILLS.index(self.oob_fill),
            im2col,
            along_w,
        )

    def with_array(self, array: Any) -> TensorMap:
        """The same description of another array."""
        return replace(self, array=array)

    def __repr__(self) -> str:
        shown = [repr(self.array) if not isinstance(self.array, np.ndarray) else f"array{self.array.shape}"]
        given = [f for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"TensorMap({', '.join(shown + [f'{f.name}={getattr(self, f.name)!r}' for f in given])})"


def device_address(m: Described, memory: Encoder, what: str) -> int | np.ndarray[Any, Any]:
    """Address of the array of a description, or the array itself if it is in host memory.

    Args:
        what: begins messages.

    Raises:
        LaunchError: it is on another device, or no array.
    """
    array = m.array
    if isinstance(array, DeviceArray):
        if array.memory is not memory:
            raise LaunchError(f"{what}: {array!r} is not on {memory.name}; upload it there")
        return array.address
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, np.uint64):
        return int(array)
    if isinstance(array, str):
        raise LaunchError(f"{what}: {array!r} is a name, which only a Launch can look up; pass the array")
    found = (
        memory.foreign(array, what)
        if hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
        else None
    )
    if found is None:
        raise LaunchError(f"{what}: a {type(m).__name__} is of an array or of np.uint64(address), not of {array!r}")
    return found


def check_parameter(kernel: str, p: Parameter) -> None:
    """Raise LaunchError unless a parameter takes tensor maps."""
    if p.kind != "struct" or p.size != BYTES or p.align < ALIGNMENT:
        raise LaunchError(
            f"{kernel}: {p.label} got a TensorMap, which is for const __grid_constant__ CUtensorMap "
            f"({BYTES} bytes, aligned to {ALIGNMENT}; this one is aligned to {p.align})"
        )
