"""The driver API calls that a launch needs, through ctypes: a prepared call costs half a microsecond of host time.

The structures are those of cuda.h, "CUlaunchConfig" and "CUlaunchAttribute".
"""

from __future__ import annotations

import ctypes
from typing import Any

from ptxkit.errors import UnavailableError

ATTRIBUTE_COOPERATIVE = 2
ATTRIBUTE_CLUSTER_DIMENSION = 4
ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
FUNCTION_MAX_DYNAMIC_SHARED = 8
FUNCTION_NON_PORTABLE_CLUSTER = 14

INVALID_VALUE = 1  # CUresult
OUT_OF_MEMORY = 2
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
INVALID_CLUSTER_SIZE = 912


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a value in a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """libcuda, with the few functions that are called directly.

    Raises:
        UnavailableError: no driver library.
    """

    def __init__(self) -> None:
        for name in ("libcuda.so.1", "nvcuda.dll"):
            try:
                # PyDLL keeps the interpreter lock: releasing and acquiring it would take as long as a launch, about 1 us
                self.library = ctypes.PyDLL(name)
                self.waiting = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise UnavailableError("the NVIDIA driver's library (libcuda.so.1) cannot be loaded; install the driver")

    def message(self, code: int) -> str:
        """``CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered``."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        self.library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(name.value or b'error').decode()}: {(text.value or str(code).encode()).decode()}"

    def call(self, function: str, *arguments: Any, wait: bool = False) -> int:
        """Result code of a driver function; with ``wait``, the interpreter lock is released during the call."""
        code: int = getattr(self.waiting if wait else self.library, function)(*arguments)
        return code


def reference(address: int) -> Any:
    """An address as an argument of a driver function; the caller keeps what is there."""
    return ctypes.byref(ctypes.c_char.from_address(address))


def launch_config(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    stream: int,
    cluster: tuple[int, int, int] | None,
    cooperative: bool,
    programmatic: bool = False,
) -> LaunchConfig:
    """A CUlaunchConfig; its attributes live as long as it does."""
    attributes: list[tuple[int, tuple[int, ...]]] = []
    if cluster is not None:
        attributes.append((ATTRIBUTE_CLUSTER_DIMENSION, cluster))
    if cooperative:
        attributes.append((ATTRIBUTE_COOPERATIVE, (1,)))
    if programmatic:
        attributes.append((ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
    array = (LaunchAttribute * max(1, len(attributes)))()
    for slot, (number, values) in zip(array, attributes, strict=False):
        slot.id = number
        for k, value in enumerate(values):
            slot.value[k] = value
    config = LaunchConfig()
    config.grid[:], config.block[:] = grid, block
    config.shared, config.stream, config.count = shared, stream, len(attributes)
    config.attributes = ctypes.cast(array, ctypes.POINTER(LaunchAttribute))
    config.keep = array
    return config
