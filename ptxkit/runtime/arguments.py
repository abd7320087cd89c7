"""Checks launch arguments against a kernel's parameters and packs them into its parameter buffer.

Accepted arguments for each kind of parameter:

======= =============================================================================================================
pointer a :class:`~ptxkit.runtime.buffers.DeviceArray`; a C-contiguous numpy array, whose memory is copied to the device
        and, if it is writeable, back; an object with DLPack or ``__cuda_array_interface__``, which is used in place where
        the device can reach it and like a numpy array where it is in host memory; a raw address as ``np.uint64``; or None,
        the null pointer. Where the C++ type is known, the array's elements must be what it points to:
        :mod:`ptxkit.runtime.elements` has the table
int     a numpy integer of the same width whose value fits, or a Python int that fits; ``bool`` takes True and False
float   a numpy scalar of the same dtype, or a Python float, which is rounded to it
struct  as many bytes: ``bytes``, a ctypes structure, a numpy record or array; for a CUtensorMap, which is 128 bytes aligned to
        64, a :class:`~ptxkit.runtime.tensor_map.description.TensorMap`
bits    a numpy scalar of that width, or a Python int that fits, with or without sign
word    the same as a pointer, or ``np.int64``, if neither the PTX nor a C++ name determines whether it is a pointer
any     a :class:`Slot`, for an array or a number that is given at each launch (:meth:`ptxkit.runtime.kernel.Kernel.unbound`)
======= =============================================================================================================

Any other argument is an error that names the parameter. Widths are never converted implicitly: ``np.float64`` for a ``float``
and ``np.int64`` for an ``int`` are errors.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ptxkit.errors import LaunchError, UsageError
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.elements import dtype_of
from ptxkit.runtime.host_arrays import is_masked
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.tensor_map.description import Encoder, TensorMap, check_parameter, device_address
from ptxkit.runtime.tensor_map.limits import Encoding
from ptxkit.runtime.texture.description import Surface, Texture, check_object_parameter
from ptxkit.runtime.texture.layout import TexelObject, Texels

KEPT_MAPS = 4096
"""Encoded tensor maps that a launch with open arguments keeps, by the address of the array: an allocator gives the same
addresses again, for each layer of a model others."""


@dataclass(frozen=True)
class Slot:
    """An argument that is given at each launch: an array by its address, or a number.

    Attributes:
        index: the position of its value among those of a launch.
        dtype: of the array's elements, or of the number.
        shape: of the array, for tensor maps; None for a number.
    """

    index: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None


_CELLS: dict[tuple[str, int], Any] = {
    ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
    ("i", 1): ctypes.c_int8,
    ("i", 2): ctypes.c_int16,
    ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64,
    ("u", 1): ctypes.c_uint8,
    ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32,
    ("u", 8): ctypes.c_uint64,
    ("b", 1): ctypes.c_bool,
}
"""Kind and size of a numpy dtype -> the C type of a number that is given at each launch."""


@dataclass(frozen=True)
class OpenArgument:
    """Where the value of a :class:`Slot` belongs in a parameter buffer.

    Attributes:
        index: of the slot.
        offset: in the buffer, in bytes.
        cell: C type of an address or a number; None for a tensor map.
        encode: from the address of an array to its tensor map; None for others.
    """

    index: int
    offset: int
    cell: Any = None
    encode: Callable[[int], bytes] | None = None

    def packed(self, value: float) -> bytes:
        """The bytes of a value."""
        return self.encode(int(value)) if self.encode is not None else bytes(self.cell(value))


class Bound:
    """The packed arguments of a launch.

    Attributes:
        buffer: the parameter buffer, each argument at its offset.
        keep: objects that must stay alive until the launch is complete.
        host: numpy arrays that were passed, with their parameter, for the caller to upload.
        encoders: parameter index -> function from the device address of an array to its encoded tensor map.
        open: arguments that are given at each launch.
        objects: texture and surface objects, whose texels are copied before and after each launch.
    """

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.keep: list[Any] = []
        self.host: list[tuple[Parameter, np.ndarray[Any, Any]]] = []
        self.encoders: dict[int, Callable[[int], bytes]] = {}
        self.open: list[OpenArgument] = []
        self.objects: list[TexelObject] = []

    def put(self, parameter: Parameter, data: bytes) -> None:
        """Store the bytes of one argument."""
        self.buffer[parameter.offset : parameter.offset + parameter.size] = data

    def cells(self, buffer: ctypes.Array[Any]) -> list[tuple[int, int, ctypes.Array[Any]]]:
        """Where the values of the open arguments belong in a copy of the parameter buffer: ``cells[:] = values[first:last]``
        for each (first, last, cells), of arguments side by side whose indices follow each other. Tensor maps are left out."""
        base = ctypes.addressof(buffer)
        runs: list[tuple[Any, int, int, int]] = []
        for a in sorted((a for a in self.open if a.encode is None), key=lambda a: a.offset):
            cell, offset, first, last = runs[-1] if runs else (None, 0, 0, 0)
            if cell is a.cell and (a.index, a.offset) == (last, offset + (last - first) * ctypes.sizeof(cell)):
                runs[-1] = cell, offset, first, last + 1
            else:
                runs.append((a.cell, a.offset, a.index, a.index + 1))
        return [(first, last, (cell * (last - first)).from_address(base + at)) for cell, at, first, last in runs]

    def address(self, parameter: Parameter, address: int) -> None:
        """Store a pointer, or the tensor map of the array at the address."""
        encode = self.encoders.get(parameter.index)
        self.put(parameter, encode(address) if encode else address.to_bytes(8, "little"))


def buffer_size(parameters: tuple[Parameter, ...]) -> int:
    """Bytes of the parameter buffer."""
    return max((p.offset + p.size for p in parameters), default=0)


def bind(kernel: str, parameters: tuple[Parameter, ...], values: tuple[Any, ...], memory: Encoder) -> Bound:
    """Check and pack.

    Args:
        kernel: for messages.
        values: one for each parameter.
        memory: where device arrays must be, and how the device addresses arrays of other libraries.

    Raises:
        LaunchError: names the argument and what to pass instead.
    """
    if len(values) != len(parameters):
        listed = ", ".join(f"{p.name or p.index + 1} ({p.wants})" for p in parameters)
        plural = "" if len(parameters) == 1 else "s"
        raise LaunchError(f"{kernel} takes {len(parameters)} argument{plural}, got {len(values)}: {listed or 'none'}")
    bound = Bound(buffer_size(parameters))
    for p, value in zip(parameters, values, strict=True):
        _one(bound, kernel, p, value, memory)
    return bound


def _one(bound: Bound, kernel: str, p: Parameter, value: Any, memory: Encoder) -> None:
    if isinstance(value, np.ndarray) and value.ndim == 0 and p.kind in ("int", "float", "bits"):
        value = value[()]
    # a 64-bit parameter that the kernel never dereferences may still be a pointer: one that is only compared, or not
    # used
    unused = p.size == 8 and not p.signed_known and _is_array(value)
    if isinstance(value, Slot):
        _slot(bound, kernel, p, value)
    elif isinstance(value, TensorMap):
        _tensor_map(bound, kernel, p, value, memory)
    elif isinstance(value, (Texture, Surface)):
        _texels(bound, kernel, p, value, memory)
    elif p.texels and _is_array(value):
        raise LaunchError(
            f"{kernel}: {p.label} got {described(value)}; the kernel uses it as a cuda{p.texels}Object_t, pass "
            f"ptxkit.{p.texels}(array)"
        )
    elif p.kind in ("pointer", "word") or unused:
        _pointer(bound, kernel, p, value, memory)
    elif p.kind == "struct":
        _struct(bound, kernel, p, value)
    else:
        _number(bound, kernel, p, value)


def _is_array(value: Any) -> bool:
    if isinstance(value, np.generic):  # scalars have an __array_interface__, too
        return False
    protocols = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")
    return isinstance(value, DeviceArray) or any(hasattr(value, name) for name in protocols)


def _wrong(kernel: str, p: Parameter, value: Any, expected: str) -> LaunchError:
    advice = f"pass {expected}"
    if p.size == 4 and not p.cpp and isinstance(value, (np.ndarray, DeviceArray)):
        advice = (
            "PTX with 32-bit addresses can take no array; compile it for 64-bit addresses (.address_size 64, .param .u64), "
            f"or pass {expected} if this parameter is a number"
        )
    return LaunchError(f"{kernel}: {p.label} got {described(value)}; {advice}")


def described(value: Any) -> str:
    """What a value is, for messages: ``a Python float``, ``a numpy float64``, ``an array of int32``."""
    if value is None:
        return "None"
    if isinstance(value, np.generic):
        return f"a numpy {value.dtype}"
    if isinstance(value, (np.ndarray, DeviceArray)):
        return f"an array of {value.dtype}"
    if type(value).__module__ == "builtins":
        return f"a Python {type(value).__name__}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _pointer(bound: Bound, kernel: str, p: Parameter, value: Any, memory: Encoder) -> None:
    if isinstance(value, DeviceArray):
        if value.memory is not memory:
            raise LaunchError(f"{kernel}: {p.label} got {value!r}; the kernel runs on {memory.name}, upload it there")
        _check_element(kernel, p, value, value.dtype, value.nbytes)
        bound.address(p, value.address)
        bound.keep.append(value)
    elif isinstance(value, np.ndarray):
        _host_array(bound, kernel, p, value)
    elif isinstance(value, np.uint64) or value is None:
        bound.address(p, int(value or 0))
    elif p.kind == "word" and isinstance(value, np.int64):
        bound.put(p, value.tobytes())
    else:
        found = memory.foreign(value, f"{kernel}: {p.label}") if _is_array(value) else None
        if found is None:
            expected = "a numpy array, a DeviceArray, an object with DLPack, or None for a null pointer"
            raise _wrong(
                kernel, p, value, expected if p.kind == "pointer" else f"{expected}, or np.int64 if it is a number"
            )
        bound.keep.append(value)
        if isinstance(found, np.ndarray):
            _host_array(bound, kernel, p, found)
        else:
            _check_element(kernel, p, value, dtype_of(value), None)
            bound.address(p, found)


def _check_element(kernel: str, p: Parameter, value: Any, dtype: np.dtype[Any] | None, nbytes: int | None) -> None:
    objection = p.element.objection(dtype, nbytes) if p.element is not None and dtype is not None else None
    if objection is not None:
        raise LaunchError(f"{kernel}: {p.label} got an array of {dtype}; {objection}")


def _host_array(bound: Bound, kernel: str, p: Parameter, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.hasobject:
        raise _wrong(kernel, p, array, "an array of numbers")
    if is_masked(array):
        raise LaunchError(
            f"{kernel}: {p.label} got a masked array; a kernel sees no mask, pass .filled(value) or .data of it"
        )
    _check_element(kernel, p, array, array.dtype, array.nbytes)
    if not array.flags.c_contiguous:
        raise LaunchError(
            f"{kernel}: {p.label} is not C-contiguous (shape {array.shape}, strides {array.strides}); "
            "pass np.ascontiguousarray of it"
        )
    start = address_of(array)
    for _, other in bound.host:
        first = address_of(other)
        same = (start, array.nbytes) == (first, other.nbytes)
        if not same and start < first + other.nbytes and first < start + array.nbytes:
            raise LaunchError(f"{kernel}: {p.label} shares part of its memory with another argument; upload the whole")
    bound.host.append((p, array))


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Host address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def _slot(bound: Bound, kernel: str, p: Parameter, slot: Slot) -> None:
    cell: Any = ctypes.c_uint64
    if slot.shape is not None:
        if p.kind not in ("pointer", "word") and (p.size != 8 or p.signed_known):
            raise LaunchError(f"{kernel}: {p.label} got an array of {slot.dtype}; pass a number: {p.wants}")
        _check_element(kernel, p, slot, slot.dtype, math.prod(slot.shape) * slot.dtype.itemsize)
    else:
        if p.kind not in ("int", "float", "bits") or not _same(p, slot.dtype.type(0)):
            raise LaunchError(f"{kernel}: {p.label} got a number of {slot.dtype}; pass {p.wants}")
        cell = _CELLS.get((slot.dtype.kind, slot.dtype.itemsize))
        if cell is None:
            raise LaunchError(f"{kernel}: {p.label} got a number of {slot.dtype}, which cannot be given at each launch")
    bound.open.append(OpenArgument(slot.index, p.offset, cell))


def _struct(bound: Bound, kernel: str, p: Parameter, value: Any) -> None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    elif isinstance(value, (np.generic, np.ndarray)) and not value.dtype.hasobject:
        data = value.tobytes()
    elif isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        data = bytes(value)
    else:
        raise _wrong(kernel, p, value, f"{p.size} bytes: a numpy record, a ctypes structure or bytes")
    if len(data) != p.size:
        raise LaunchError(f"{kernel}: {p.label} got {len(data)} bytes")
    bound.put(p, data)


def _tensor_map(bound: Bound, kernel: str, p: Parameter, value: TensorMap, memory: Encoder) -> None:
    check_parameter(kernel, p)

    def described(address: int) -> Encoding:
        try:
            return value.describe(address)
        except UsageError as error:
            raise LaunchError(f"{kernel}: {p.label}: {error}") from None

    def encode(address: int) -> bytes:
        return memory.tensor_map(described(address))

    bound.encoders[p.index] = encode
    if isinstance(value.array, Slot):
        described(0)  # reports errors that do not depend on the address now
        bound.open.append(OpenArgument(value.array.index, p.offset, encode=lru_cache(maxsize=KEPT_MAPS)(encode)))
        return
    found = device_address(value, memory, f"{kernel}: {p.label}")
    if isinstance(found, np.ndarray):
        encode(0)  # report errors that do not depend on the address before anything is copied
        _host_array(bound, kernel, p, found)
    else:
        bound.keep.append(value.array)
        bound.address(p, found)


def _texels(bound: Bound, kernel: str, p: Parameter, value: Texture | Surface, memory: Encoder) -> None:
    check_object_parameter(kernel, p, value)
    if isinstance(value.array, Slot):
        raise LaunchError(f"{kernel}: {p.label}: a {type(value).__name__} cannot be given at each launch")

    def described(address: int) -> Texels:
        try:
            return value.describe(address)
        except UsageError as error:
            raise LaunchError(f"{kernel}: {p.label}: {error}") from None

    def encode(address: int) -> bytes:
        made = memory.texel_object(described(address))
        bound.objects.append(made)
        return made.handle.to_bytes(8, "little")

    bound.encoders[p.index] = encode
    described(0)  # report errors that do not depend on the address before anything is copied
    found = device_address(value, memory, f"{kernel}: {p.label}")
    if isinstance(found, np.ndarray):
        _host_array(bound, kernel, p, found)
    else:
        bound.keep.append(value.array)
        bound.address(p, found)


def _number(bound: Bound, kernel: str, p: Parameter, value: Any) -> None:
    dtype = p.dtype
    if isinstance(value, np.generic):
        if not _same(p, value):
            raise _wrong(kernel, p, value, _fix(p, value))
        bound.put(p, value.tobytes())
    elif isinstance(value, bool):
        if dtype is None or dtype.kind != "b":
            raise _wrong(kernel, p, value, _fix(p, value))
        bound.put(p, bytes([value]))
    elif isinstance(value, int) and p.kind in ("int", "bits") and (dtype is None or dtype.kind in "iu"):
        low, high = -(1 << 8 * p.size - 1), (1 << 8 * p.size) - 1
        if dtype is not None and p.signed_known:
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if not low <= value <= high:
            raise LaunchError(f"{kernel}: {p.label} cannot hold {value}")
        bound.put(p, (value & ((1 << 8 * p.size) - 1)).to_bytes(p.size, "little"))
    elif isinstance(value, float) and p.kind == "float":
        with np.errstate(over="ignore"):
            rounded = np.array(value).astype(dtype)
        if math.isfinite(value) and not np.isfinite(rounded.astype(np.float64)):
            raise LaunchError(f"{kernel}: {p.label} cannot hold {value}")
        bound.put(p, rounded.tobytes())
    else:
        raise _wrong(kernel, p, value, _fix(p, value))


def _same(p: Parameter, value: np.generic) -> bool:
    """Whether a numpy scalar has the same value in the type of the parameter."""
    if p.dtype is None:
        return value.dtype.itemsize == p.size and value.dtype.kind != "V"
    if value.dtype == p.dtype or (p.dtype.name.startswith("float8") and value.dtype == np.uint8):
        return True
    if value.dtype.itemsize != p.size or value.dtype.kind not in "iu" or p.dtype.kind not in "iu":
        return False
    return not p.signed_known or int(value) == int(value.astype(p.dtype))


def _fix(p: Parameter, value: Any) -> str:
    if p.dtype is None:
        return f"a numpy scalar of {p.size} bytes, such as np.int{8 * p.size}(...)"
    if p.dtype.kind == "b":
        return "True, False or np.bool_(...)"
    if p.dtype.kind in "iu" and isinstance(value, np.integer) and value.dtype.itemsize == p.size:
        return f"a value that {p.dtype.name} can hold, not {value}"
    return f"{'np' if hasattr(np, p.dtype.name) else 'ml_dtypes'}.{p.dtype.name}(...)"
