"""Arrays in device memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from ptxkit.arguments import TEXT, Rule, takes, whole
from ptxkit.errors import UsageError
from ptxkit.runtime.host_arrays import DLPACK_CPU, dlpack, is_masked, shared_array
from ptxkit.runtime.sealed import Sealed


class Memory(Protocol):
    """The operations of a device that an array uses."""

    name: str

    def allocate(self, nbytes: int, name: str) -> int:
        """Address of new memory."""

    def free(self, address: int) -> None:
        """Free memory."""

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous array to the device and wait for it."""

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Wait for the device and copy to a contiguous array."""

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set every byte."""

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """Copy memory of the device, after earlier launches."""

    def digests(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """The digest of each piece of memory, given by address and number of bytes."""

    def digest(self, address: int, nbytes: int) -> int:
        """A 64-bit hash of the bytes and their positions; different contents collide with a probability of 2^-64."""

    def staging(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Host memory for a copy of an array."""

    def poison(self, address: int, nbytes: int, value: int) -> None:
        """Set all bytes to a sentinel, and mark the array as uninitialised if the device tracks initialisation."""


def contiguous(given: Any, what: str) -> np.ndarray[Any, Any]:
    """An array as contiguous memory.

    Raises:
        UsageError: it is not C-contiguous, or holds Python objects.
    """
    try:
        array: np.ndarray[Any, Any] = np.asarray(given)
    except ValueError as error:
        raise UsageError(f"{what} cannot become a numpy array: {error}") from None
    if is_masked(given):
        raise UsageError(f"{what} is a masked array; a device array has no mask, pass .filled(value) or .data of it")
    if array.dtype.kind == "U" and not isinstance(given, np.ndarray):
        raise UsageError(f"{what} is text; pass an array of numbers")
    if array.dtype.hasobject:
        raise UsageError(f"{what} holds Python objects; pass an array of numbers")
    if not array.flags.c_contiguous:
        raise UsageError(f"{what} is not C-contiguous (strides {array.strides}); pass np.ascontiguousarray of it")
    return array


class DeviceArray:
    """An array in device memory, freed when nothing refers to it any more.

    Attributes:
        shape, dtype: as numpy's.
        address: of its first byte.
        name: for messages.
        memory: the device it is on.
    """

    _owner: object = None  # what the memory belongs to, if it is not this array

    @takes(memory=Rule("a device", lambda value: hasattr(value, "allocate")), name=TEXT)
    def __init__(self, memory: Memory, shape: int | tuple[int, ...], dtype: Any, name: str = "") -> None:
        self.shape = _shape(shape)
        self.dtype = _dtype(dtype)
        self.name = name
        self.memory = memory
        self.address = memory.allocate(self.nbytes, name)
        self._base: DeviceArray | None = None  # of a view: the array that owns the memory
        self._finalizer = weakref.finalize(self, _release, memory, self.address)
        self._finalizer.atexit = False  # the memory is freed with the process, and the driver may be unloaded first

    @classmethod
    def at(
        cls, memory: Memory, address: int, shape: tuple[int, ...], dtype: Any, name: str, owner: object
    ) -> DeviceArray:
        """An array in memory that belongs to something else, which the array keeps alive: a variable of a module."""
        out: DeviceArray = object.__new__(cls)
        out.shape, out.dtype, out.name, out.memory, out.address = _shape(shape), _dtype(dtype), name, memory, address
        out._base, out._owner = None, owner
        out._finalizer = weakref.finalize(out, _keep, memory, address)
        out._finalizer.atexit = False
        return out

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, after everything that was launched before.

        Raises:
            FaultError: a kernel launched before failed.
        """
        out = np.empty(self.shape, self.dtype)
        if out.nbytes:
            self.memory.read(self.address, out)
        return out

    def on_device(self) -> DeviceArray:
        """The array itself, as other results of peers have it: see :class:`ptxkit.bench.peers.base.OnDevice`."""
        return self

    def staged(self) -> np.ndarray[Any, Any]:
        """As :meth:`numpy`, in memory of the device's :meth:`MakesArrays.staging`."""
        out = self.memory.staging(self.shape, self.dtype)
        if out.nbytes:
            self.memory.read(self.address, out)
        return out

    def copy_from(self, array: Any) -> None:
        """Overwrite with a host array, or an array of the same device, of the same size in bytes.

        Raises:
            UsageError: another size, or not contiguous.
        """
        if isinstance(array, DeviceArray) and array.memory is self.memory and array.nbytes == self.nbytes:
            if self.nbytes:
                self.memory.copy(self.address, array.address, self.nbytes)
            return
        data = contiguous(array, self.name or "the array")
        if data.nbytes != self.nbytes:
            raise UsageError(f"{data.nbytes} bytes do not fill {self!r}")
        if data.nbytes:
            self.memory.write(self.address, data)

    def fill(self, value: int) -> None:
        """Set every byte to ``value`` (0 to 255).

        Raises:
            UsageError: ``value`` is not a byte.
        """
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= 255:
            raise UsageError(f"fill sets every byte to a number from 0 to 255, not to {value!r}")
        if self.nbytes:
            self.memory.fill(self.address, self.nbytes, value)

    def digest(self) -> int:
        """A 64-bit hash that shows whether the array has changed; computed on the device, after all earlier launches.

        Raises:
            FaultError: a kernel launched before failed.
        """
        return self.memory.digest(self.address, self.nbytes) if self.nbytes else 0

    @takes(value=whole(0, 255))
    def poison(self, value: int) -> None:
        """Set every byte to ``value`` and make the array uninitialised: the emulator's ``initcheck`` reports a kernel that uses
        an element before it is written.
        """
        if self.nbytes:
            self.memory.poison(self.address, self.nbytes, value)

    def view(self, dtype: Any, shape: int | tuple[int, ...] | None = None) -> DeviceArray:
        """The same memory as elements of another type, for a kernel that reads it as such.

        Args:
            dtype: of the elements.
            shape: None keeps all dimensions but the last, whose length follows from the size of the elements.

        Raises:
            UsageError: the elements do not fill the array.
        """
        made = _dtype(dtype)
        row = self.shape[-1] * self.dtype.itemsize if self.shape else self.nbytes
        if shape is None:
            given = (*self.shape[:-1], row // made.itemsize if made.itemsize else 0)
        else:
            given = _shape(shape)
        if prod(given) * made.itemsize != self.nbytes:
            raise UsageError(f"{self!r} cannot be viewed as {made} of shape {given}: it has {self.nbytes:,} bytes")
        out: DeviceArray = object.__new__(DeviceArray)
        out.shape, out.dtype, out.name, out.memory, out.address = given, made, self.name, self.memory, self.address
        out._base, out._finalizer, out._owner = self, self._finalizer, self._owner
        return out

    def _on_host(self, protocol: str) -> np.ndarray[Any, Any]:
        """The array's memory as a numpy array, if it is host memory.

        Raises:
            AttributeError: it is a GPU's.
        """
        view = getattr(self.memory, "host_view", None)
        if view is None:
            raise AttributeError(f"an array on {self.memory.name} has no {protocol}; .numpy() copies it to the host")
        return shared_array(view(self.address, self.nbytes), self.shape, self.dtype, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """For ``np.asarray``: the emulator's memory, or a copy of a GPU's memory.

        Raises:
            ValueError: ``copy=False``, and the memory is a GPU's or the type another.
        """
        if hasattr(self.memory, "host_view"):
            shared = self._on_host("__array__")
            return np.array(shared, dtype, copy=copy)
        if copy is False:
            raise ValueError(f"an array on {self.memory.name} cannot be converted without a copy")
        return self.numpy().astype(self.dtype if dtype is None else dtype, copy=False)

    @property
    def __dlpack__(self) -> Callable[..., Any]:
        """DLPack of the array's own memory: ``np.from_dlpack`` and ``torch.from_dlpack`` share it. Only in the emulator."""
        array = self._on_host("__dlpack__")
        return lambda **options: dlpack(array, **options)

    @property
    def __dlpack_device__(self) -> Callable[[], tuple[int, int]]:
        """``(kDLCPU, 0)``. Only in the emulator."""
        self._on_host("__dlpack_device__")
        return lambda: (DLPACK_CPU, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol: torch, CuPy and Numba take the array without a copy. Only on a GPU."""
        stream = getattr(self.memory, "stream_handle", None)
        if stream is None:
            raise AttributeError(f"an array on {self.memory.name} is not in a GPU's memory")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": stream or 1,  # 1 is the legacy default stream; 0 is not allowed
            "version": 3,
        }

    def free(self) -> None:
        """Free the memory now."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"DeviceArray({self.name or 'unnamed'}, {self.shape}, {self.dtype}, on {self.memory.name})"


def _shape(given: Any) -> tuple[int, ...]:
    """A shape as a tuple.

    Raises:
        UsageError: it is not one or several whole numbers of at least 0.
    """
    parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in parts):
        raise UsageError(f"an array cannot have the shape {given!r}")
    return tuple(int(n) for n in parts)


def _dtype(given: Any) -> np.dtype[Any]:
    """A type of elements.

    Raises:
        UsageError: numpy has no such type, or its elements are Python objects.
    """
    try:
        found: np.dtype[Any] = np.dtype(given)
    except TypeError:
        raise UsageError(f"{given!r} is not a type of array elements; pass a numpy dtype such as np.float32") from None
    if found.hasobject:
        raise UsageError("device memory holds no Python objects; pass a numpy dtype such as np.float32")
    return found


def _release(memory: Memory, address: int) -> None:
    memory.free(address)


def _keep(memory: Memory, address: int) -> None:
    """The memory is not the array's own."""


class MakesArrays(Sealed):
    """The base of all devices: makes arrays in the memory of the device."""

    def digests(self: Memory, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """The digest of each piece of memory; a GPU computes them together."""
        return [self.digest(address, nbytes) for address, nbytes in pieces]

    def copy(self: Memory, address: int, source: int, nbytes: int) -> None:
        """Copy memory of the device, after earlier launches."""
        data = np.empty(nbytes, np.uint8)
        self.read(source, data)
        self.write(address, data)

    def staging(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Host memory for a copy of an array; a GPU has page-locked memory for large ones, which is used again."""
        return np.empty(shape, dtype)

    def undefined_bytes(self, address: int, nbytes: int) -> str:
        """A text about the bytes to which launches have copied uninitialised ones; "" if none are known.

        A GPU does not follow them, so that its text is always "".
        """
        return ""

    @takes(name=TEXT)
    def upload(self: Memory, array: Any, name: str = "") -> DeviceArray:
        """A copy of a C-contiguous array.

        Raises:
            UsageError: it is not C-contiguous, or holds Python objects.
            UnavailableError: the device has too little memory.
        """
        data = contiguous(array, name or "the array")
        out = DeviceArray(self, data.shape, data.dtype, name)
        out.copy_from(data)
        return out

    @takes(name=TEXT)
    def empty(self: Memory, shape: int | tuple[int, ...], dtype: Any, name: str = "") -> DeviceArray:
        """An uninitialised array; in the emulator, every byte has the poison value.

        Raises:
            UnavailableError: the device has too little memory.
        """
        return DeviceArray(self, shape, dtype, name)
