"""Arrays in host memory that libraries share: imports other libraries' arrays, and exports the emulator's memory."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

DLPACK_CPU, _CUDA_HOST = 1, 3  # DLDeviceType, dlpack.h
_DLPACK_CODES = {  # DLDataTypeCode of types that numpy has none for
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
_TYPE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 52}  # offset of DLTensor.dtype in the structure of a capsule


def is_masked(value: object) -> bool:
    """Whether a value is an array with a mask; ``numpy.ma`` is not imported for this, which takes 10 ms."""
    masked = sys.modules.get("numpy.ma")  # a program with a masked array has imported it
    return isinstance(value, getattr(masked, "MaskedArray", ()))


def host_array(value: Any) -> np.ndarray[Any, Any] | None:
    """An object with DLPack or ``__array_interface__`` as a numpy array of the same memory; None when it is not the host's.

    DLPack before version 1 does not state whether the consumer may write, so numpy returns a read-only array, to which
    results could not be copied back. If the object also converts to a writeable numpy array of the same memory, that
    array is returned.
    """
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__") or value.__dlpack_device__()[0] not in (DLPACK_CPU, _CUDA_HOST):
        return None
    array: np.ndarray[Any, Any] = np.from_dlpack(value)
    if not array.flags.writeable and hasattr(value, "__array__"):
        other = np.asarray(value)
        if other.__array_interface__["data"][0] == array.__array_interface__["data"][0]:
            return other
    return array


class _Shared:
    """Memory for ``numpy.asarray`` that is valid for as long as ``owner`` lives, and keeps it alive."""

    def __init__(self, data: np.ndarray[Any, Any], owner: object) -> None:
        self.__array_interface__ = data.__array_interface__
        self.keep = data, owner


def shared_array(
    data: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any], owner: object
) -> np.ndarray[Any, Any]:
    """Bytes as an array of that shape and type, which keeps ``owner`` alive."""
    return np.asarray(_Shared(data, owner)).view(dtype).reshape(shape)


def dlpack(array: np.ndarray[Any, Any], **options: Any) -> Any:
    """A DLPack capsule of a numpy array, including types of ml_dtypes: numpy exports the bits, and this function sets the type.

    Raises:
        BufferError: DLPack has no such type.
    """
    code = _DLPACK_CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.dtype.itemsize}").__dlpack__(**options)
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    address = api.PyCapsule_GetPointer(capsule, name)
    ctypes.c_uint8.from_address(address + _TYPE_OFFSET[name]).value = code
    return capsule
