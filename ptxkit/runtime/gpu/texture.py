"""Texture and surface objects of a GPU: CUDA arrays, the copies of their texels, and the objects that kernels take.

CUDA driver API, "cuArray3DCreate", "cuMipmappedArrayCreate", "cuMemcpy3DAsync", "cuTexObjectCreate", "cuSurfObjectCreate".
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.runtime.gpu.driver import INVALID_VALUE, Driver
from ptxkit.runtime.texture.layout import FORMATS, IN_PLACE, Texels

_LAYERED, _SURFACE, _CUBE, _GATHER = 1, 2, 4, 8  # CUDA_ARRAY3D_*
_READ_AS_INTEGER, _NORMALIZED, _EXACT_TRILINEAR, _SEAMLESS = 0x01, 0x02, 0x20, 0x40  # CU_TRSF_*
_ARRAY, _MIPMAPPED, _LINEAR, _PITCH2D = 0, 1, 2, 3  # CU_RESOURCE_TYPE_*
_DEVICE_MEMORY, _ARRAY_MEMORY = 2, 3  # CU_MEMORYTYPE_*


class _ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class _Side(ctypes.Structure):
    """The source or the destination in a CUDA_MEMCPY3D."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("z", ctypes.c_size_t),
        ("lod", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        ("source", _Side),
        ("destination", _Side),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )


class _Linear(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("nbytes", ctypes.c_size_t),
    )


class _Pitch2d(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("pitch", ctypes.c_size_t),
    )


class _Resource(ctypes.Union):
    _fields_ = (
        ("array", ctypes.c_void_p),
        ("linear", _Linear),
        ("pitch2d", _Pitch2d),
        ("reserved", ctypes.c_int * 32),
    )


class _ResourceDescriptor(ctypes.Structure):
    """CUDA_RESOURCE_DESC."""

    _fields_ = (("type", ctypes.c_int), ("resource", _Resource), ("flags", ctypes.c_uint))


class _TextureDescriptor(ctypes.Structure):
    """CUDA_TEXTURE_DESC."""

    _fields_ = (
        ("address", ctypes.c_int * 3),
        ("filter", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("anisotropy", ctypes.c_uint),
        ("mip_filter", ctypes.c_int),
        ("mip_bias", ctypes.c_float),
        ("mip_least", ctypes.c_float),
        ("mip_most", ctypes.c_float),
        ("border", ctypes.c_float * 4),
        ("reserved", ctypes.c_int * 12),
    )


class GpuTexels:
    """A texture or surface object on a GPU, with its CUDA array if it has one.

    Args:
        driver: calls the functions. enter: makes the context of the GPU current in the calling thread.
        check: raises the error of a result code.
        later: takes functions that destroy what the GPU may still use.

    Raises:
        UsageError: the driver refuses the description.
    """

    def __init__(
        self,
        driver: Driver,
        enter: Callable[[], None],
        check: Callable[[int], None],
        later: Callable[[Callable[[], object]], object],
        texels: Texels,
    ) -> None:
        self.texels = texels
        self._driver, self._enter, self._check = driver, enter, check
        self._filled = False
        self._arrays: list[Any] = []  # one for each level
        undo: list[tuple[str, Any]] = []
        enter()

        def destroy() -> None:
            for function, handle in reversed(undo):
                driver.call(function, handle)

        try:
            resource = self._resource(undo)
            handle = ctypes.c_uint64()
            if texels.sampling is None:
                self._made(driver.call("cuSurfObjectCreate", ctypes.byref(handle), ctypes.byref(resource)))
                undo.append(("cuSurfObjectDestroy", handle))
            else:
                described = self._sampler()
                arguments = ctypes.byref(handle), ctypes.byref(resource), ctypes.byref(described), None
                self._made(driver.call("cuTexObjectCreate", *arguments))
                undo.append(("cuTexObjectDestroy", handle))
        except BaseException:
            destroy()
            raise
        self.handle = handle.value
        self._finalizer = weakref.finalize(self, later, destroy)
        self._finalizer.atexit = False

    def _made(self, code: int) -> None:
        if code == INVALID_VALUE:
            t = self.texels
            raise UsageError(
                f"the driver refuses a {'surface' if t.sampling is None else 'texture'} {t.kind} of {t.width} x {t.height} x "
                f"{t.depth} texels, {t.layers} layers, {t.levels} levels, {t.channels} channels of {t.dtype} at {t.address:#x}"
            )
        self._check(code)

    def _resource(self, undo: list[tuple[str, Any]]) -> _ResourceDescriptor:
        t = self.texels
        out = _ResourceDescriptor()
        number = FORMATS[t.dtype.name]
        if t.kind == "linear":
            out.type = _LINEAR
            out.resource.linear = _Linear(t.address, number, t.channels, t.nbytes)
            return out
        if t.kind == "pitch2d":
            out.type = _PITCH2D
            out.resource.pitch2d = _Pitch2d(t.address, number, t.channels, t.width, t.height, t.width * t.texel)
            return out
        flat = t.kind.startswith("1d")
        flags = _SURFACE if t.sampling is None else _GATHER if t.kind == "2d" and t.levels == 1 else 0
        flags |= _LAYERED if t.kind.endswith("layered") else 0
        flags |= _CUBE if t.kind.startswith("cube") else 0
        depth = (
            t.depth if t.kind == "3d" else t.layers if t.layers > 1 or "layered" in t.kind or "cube" in t.kind else 0
        )
        descriptor = _ArrayDescriptor(t.width, 0 if flat else t.height, depth, number, t.channels, flags)
        array = ctypes.c_void_p()
        if t.levels == 1:
            self._made(self._driver.call("cuArray3DCreate_v2", ctypes.byref(array), ctypes.byref(descriptor)))
            undo.append(("cuArrayDestroy", array))
            self._arrays = [array]
            out.type = _ARRAY
        else:
            arguments = ctypes.byref(array), ctypes.byref(descriptor), ctypes.c_uint(t.levels)
            self._made(self._driver.call("cuMipmappedArrayCreate", *arguments))
            undo.append(("cuMipmappedArrayDestroy", array))
            for level in range(t.levels):
                one = ctypes.c_void_p()
                self._check(
                    self._driver.call("cuMipmappedArrayGetLevel", ctypes.byref(one), array, ctypes.c_uint(level))
                )
                self._arrays.append(one)
            out.type = _MIPMAPPED
        out.resource.array = array
        return out

    def _sampler(self) -> _TextureDescriptor:
        s = self.texels.sampling
        assert s is not None
        out = _TextureDescriptor()
        out.address[:] = s.address
        out.filter = int(s.linear)
        out.flags = _EXACT_TRILINEAR | (_NORMALIZED if s.normalized else 0) | (_SEAMLESS if s.seamless else 0)
        out.flags |= 0 if s.scaled else _READ_AS_INTEGER
        out.mip_filter, out.mip_bias = int(s.mip_linear), s.mip_bias
        out.mip_least, out.mip_most = s.mip_least, s.mip_most
        out.border[:] = s.border
        return out

    def refresh(self, stream: int) -> None:
        """Copy the texels to the CUDA array, on a stream."""
        if self.texels.kind in IN_PLACE or (self._filled and not self.texels.always):
            return
        self._filled = True
        self._copy(stream, write=True)

    def write_back(self, stream: int) -> None:
        """Copy the texels of a surface to global memory, on a stream."""
        if self.texels.sampling is None:
            self._copy(stream, write=False)

    def mark(self, footprint: Any) -> None:
        """Nothing: a GPU follows no footprints."""

    def _copy(self, stream: int, write: bool) -> None:
        t, address = self.texels, self.texels.address
        self._enter()
        for level, array in enumerate(self._arrays):
            width, height, depth = t.extent(level)
            memory = _Side(type=_DEVICE_MEMORY, device=address, pitch=width * t.texel, height=height)
            inside = _Side(type=_ARRAY_MEMORY, array=array.value)
            source, destination = (memory, inside) if write else (inside, memory)
            copy = _Copy(source, destination, width * t.texel, height, depth * t.layers)
            self._check(self._driver.call("cuMemcpy3DAsync_v2", ctypes.byref(copy), ctypes.c_void_p(stream)))
            address += t.level_bytes(level)
