"""Checks launch arguments against a kernel's parameters and packs them into its parameter buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.errors import LaunchError
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.parameters import Parameter

Foreign = Callable[[Any, str], int | None]
"""Finds the device address of a foreign object (DLPack, ``__cuda_array_interface__``), or None if it is none."""


class Bound:
    """Arguments in place.

    Attributes:
        buffer: the parameter buffer, each argument at its offset.
        keep: what must stay alive while the launch may run.
        host: numpy arrays that were passed, with their parameter's index, for the caller to upload.
    """

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.keep: list[Any] = []
        self.host: list[tuple[Parameter, np.ndarray[Any, Any]]] = []

    def put(self, parameter: Parameter, data: bytes) -> None:
        """Bytes of one argument."""
        self.buffer[parameter.offset : parameter.offset + parameter.size] = data

    def address(self, parameter: Parameter, address: int) -> None:
        """A pointer."""
        self.put(parameter, address.to_bytes(8, "little"))


def buffer_size(parameters: tuple[Parameter, ...]) -> int:
    """Bytes of the parameter buffer."""
    return max((p.offset + p.size for p in parameters), default=0)


def bind(kernel: str, parameters: tuple[Parameter, ...], values: tuple[Any, ...], foreign: Foreign) -> Bound:
    """Check and pack.

    Args:
        kernel: for messages.
        values: one a parameter.
        foreign: how the device reads objects that are neither numpy nor its own.

    Raises:
        LaunchError: names the argument and what to pass instead.
    """
    if len(values) != len(parameters):
        listed = ", ".join(p.label.split(" ", 1)[1] for p in parameters)
        raise LaunchError(f"{kernel} takes {len(parameters)} argument(s), got {len(values)}: {listed or 'none'}")
    bound = Bound(buffer_size(parameters))
    for p, value in zip(parameters, values, strict=True):
        _one(bound, kernel, p, value, foreign)
    return bound


def _one(bound: Bound, kernel: str, p: Parameter, value: Any, foreign: Foreign) -> None:
    if isinstance(value, np.ndarray) and value.ndim == 0 and p.kind in ("int", "float"):
        value = value[()]
    if p.kind in ("pointer", "word"):
        _pointer(bound, kernel, p, value, foreign)
    elif p.kind == "struct":
        _struct(bound, kernel, p, value)
    else:
        _number(bound, kernel, p, value)


def _wrong(kernel: str, p: Parameter, value: Any, mend: str) -> LaunchError:
    if isinstance(value, np.generic):
        got = f"a numpy {value.dtype}"
    elif isinstance(value, np.ndarray):
        got = f"an array of {value.dtype}"
    else:
        got = f"a Python {type(value).__name__}"
    return LaunchError(f"{kernel}: {p.label} got {got}; pass {mend}")


def _pointer(bound: Bound, kernel: str, p: Parameter, value: Any, foreign: Foreign) -> None:
    if isinstance(value, DeviceArray):
        bound.address(p, value.address)
        bound.keep.append(value)
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise _wrong(kernel, p, value, "an array of numbers")
        if not value.flags.c_contiguous:
            raise LaunchError(
                f"{kernel}: {p.label} is not C-contiguous (shape {value.shape}, strides {value.strides}); "
                "pass np.ascontiguousarray of it"
            )
        bound.host.append((p, value))
    elif isinstance(value, np.uint64):
        bound.address(p, int(value))
    elif p.kind == "word" and isinstance(value, np.int64):
        bound.put(p, value.tobytes())
    elif p.kind == "word" and isinstance(value, int) and not isinstance(value, (bool, np.generic)):
        if not -(2**63) <= value < 2**64:
            raise LaunchError(f"{kernel}: {p.label} cannot hold {value}")
        bound.put(p, (value & (2**64 - 1)).to_bytes(8, "little"))
    else:
        address = (
            None
            if isinstance(value, (int, float, complex, str, bytes, np.generic)) or value is None
            else foreign(value, f"{kernel}: {p.label}")
        )
        if address is None:
            raise _wrong(
                kernel, p, value, "a numpy array, a DeviceArray, an object with DLPack, or np.uint64(0) for null"
            )
        bound.address(p, address)
        bound.keep.append(value)


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


def _number(bound: Bound, kernel: str, p: Parameter, value: Any) -> None:
    dtype = p.dtype
    assert dtype is not None
    if isinstance(value, np.generic):
        same = value.dtype == dtype
        if not same and p.kind == "int" and not p.signed_known:
            same = value.dtype.kind in "iu" and value.dtype.itemsize == dtype.itemsize
        if not same and value.dtype.itemsize == dtype.itemsize and dtype.kind in "iu" and value.dtype.kind in "iu":
            same = int(value) == int(value.astype(dtype))  # the other signedness, same number
        if not same:
            raise _wrong(kernel, p, value, f"np.{dtype.name}(...)")
        bound.put(p, value.tobytes())
        return
    if isinstance(value, bool) and dtype.kind == "b":
        bound.put(p, bytes([value]))
        return
    if isinstance(value, int) and not isinstance(value, bool) and dtype.kind in "iu":
        info = np.iinfo(dtype)
        high = info.max if p.signed_known else 2 * info.max + 1
        if not info.min <= value <= high:
            raise LaunchError(f"{kernel}: {p.label} cannot hold {value}")
        bound.put(p, (value & ((1 << 8 * p.size) - 1)).to_bytes(p.size, "little"))
        return
    if isinstance(value, float) and dtype.kind == "f":
        bound.put(p, dtype.type(value).tobytes())
        return
    raise _wrong(kernel, p, value, f"np.{dtype.name}(...)")
