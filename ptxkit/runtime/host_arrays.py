"""Other libraries' arrays in host memory, as numpy arrays that share it."""

from __future__ import annotations

from typing import Any

import numpy as np

_CPU, _CUDA_HOST = 1, 3  # DLDeviceType, dlpack.h


def host_array(value: Any) -> np.ndarray[Any, Any] | None:
    """An object with DLPack or ``__array_interface__`` as a numpy array of the same memory; None when it is not the host's.

    DLPack before version 1 does not tell whether the consumer may write, and numpy then hands out a read-only array, to which
    nothing would come back. Where the library also converts to a writeable numpy array of the same memory, that one is taken.
    """
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__") or value.__dlpack_device__()[0] not in (_CPU, _CUDA_HOST):
        return None
    array: np.ndarray[Any, Any] = np.from_dlpack(value)
    if not array.flags.writeable and hasattr(value, "__array__"):
        other = np.asarray(value)
        if other.__array_interface__["data"][0] == array.__array_interface__["data"][0]:
            return other
    return array
