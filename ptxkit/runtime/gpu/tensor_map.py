"""Tensor maps in the encoding of the GPU: the driver's cuTensorMapEncodeTiled, Im2col and Im2colWide."""

from __future__ import annotations

import ctypes
from typing import Any

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime.gpu.driver import INVALID_VALUE, Driver
from ptxkit.runtime.tensor_map.elements import ELEMENT_TYPES
from ptxkit.runtime.tensor_map.limits import ALIGNMENT, BYTES, SWIZZLES, Encoding

_SM_100_TYPES = frozenset(t.number for t in ELEMENT_TYPES.values() if t.packed)
_SM_100_SWIZZLES = frozenset(n for n, name in enumerate(SWIZZLES) if "atom" in name)


def encode(driver: Driver, gpu: str, capability: tuple[int, int], m: Encoding) -> bytes:
    """The 128 bytes of a checked description.

    Args:
        driver: encodes it, in the calling thread's context.
        gpu, capability: the GPU's name, for messages, and its compute capability.

    Raises:
        UnavailableError: this GPU has no tensor maps, or not of this kind. UsageError: the driver rejects a
            description that passed the checks.
    """
    if capability < (9, 0):
        raise UnavailableError(f"{gpu} has no tensor maps; they need sm_90 or later")
    rank = len(m.dimensions)
    # inside a larger buffer at an address that is a multiple of 64: ctypes aligns to 16 at most
    raw = (ctypes.c_ubyte * (BYTES + ALIGNMENT))()
    start = -ctypes.addressof(raw) % ALIGNMENT
    mode: tuple[Any, ...] = ()
    if m.im2col is None:
        function = "cuTensorMapEncodeTiled"
        extent: tuple[Any, ...] = ((ctypes.c_uint32 * rank)(*m.box),)
    elif m.along_w is not None:
        if capability < (10, 0):
            raise UnavailableError(f"{gpu} lacks tensor maps for im2col along W; they need sm_100 or later")
        function = "cuTensorMapEncodeIm2colWide"
        (low, *_), (high, *_), channels, pixels = m.im2col
        extent = ctypes.c_int(low), ctypes.c_int(high), ctypes.c_uint32(channels), ctypes.c_uint32(pixels)
        mode = (ctypes.c_int(m.along_w),)
    else:
        function = "cuTensorMapEncodeIm2col"
        lower, upper, channels, pixels = m.im2col
        corners = [(ctypes.c_int * len(c))(*c) for c in (lower, upper)]
        extent = (*corners, ctypes.c_uint32(channels), ctypes.c_uint32(pixels))
    code = driver.call(
        function,
        ctypes.c_void_p(ctypes.addressof(raw) + start),
        ctypes.c_int(m.element),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(m.address),
        (ctypes.c_uint64 * rank)(*m.dimensions),
        (ctypes.c_uint64 * max(1, rank - 1))(*m.strides),
        *extent,
        (ctypes.c_uint32 * rank)(*m.element_strides),
        ctypes.c_int(0),  # CU_TENSOR_MAP_INTERLEAVE_NONE
        *mode,
        ctypes.c_int(m.swizzle),
        ctypes.c_int(m.l2_promotion),
        ctypes.c_int(m.oob_fill),
    )
    if code == INVALID_VALUE and capability < (10, 0) and (m.element in _SM_100_TYPES or m.swizzle in _SM_100_SWIZZLES):
        raise UnavailableError(f"{gpu} lacks this element type or swizzle; it needs sm_100 or later")
    if code:
        raise UsageError(f"the driver refuses the tensor map {m}: {driver.message(code)}")
    return bytes(raw[start : start + BYTES])
