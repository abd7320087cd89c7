"""Page-locked host memory for copies from a GPU, which is used again.

The operating system provides new memory page by page, which for hundreds of megabytes takes far longer than the copy itself.
Into page-locked memory, the GPU copies without a copy by the driver.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from math import prod
from typing import Any, Protocol

import numpy as np

SMALLEST = 1 << 20  # bytes of an array below which new memory takes no time that counts
LIMIT = 4 << 30  # bytes of page-locked memory at most, which the operating system cannot use for anything else
UNIT = 2 << 20  # sizes are rounded up to multiples of it


class Calls(Protocol):
    """The driver, as :class:`ptxkit.runtime.gpu.driver.Driver`."""

    def call(self, function: str, *arguments: Any, wait: bool = False) -> int:
        """Result code of a driver function."""


class Staging:
    """Makes host arrays whose memory is used again once nothing refers to them.

    It is allocated in the present context, and is freed only to make room for larger pieces, or with the process.

    Args:
        driver: allocates page-locked memory.
    """

    def __init__(self, driver: Calls) -> None:
        self._driver = driver
        self._free: list[tuple[int, int]] = []  # size and address of pieces
        self._returned: deque[tuple[int, int]] = deque()  # by finalizers, which run at any time in any thread
        self.allocated = 0  # bytes

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised array, in ordinary memory if it is small or there is no more page-locked one."""
        nbytes = prod(shape) * dtype.itemsize
        piece = self._piece(-(-nbytes // UNIT) * UNIT) if nbytes >= SMALLEST else None
        if piece is None:
            return np.empty(shape, dtype)
        owner = (ctypes.c_ubyte * nbytes).from_address(piece[1])
        weakref.finalize(owner, self._returned.append, piece).atexit = False
        return np.frombuffer(memoryview(owner), np.uint8).view(dtype).reshape(shape)

    def _piece(self, size: int) -> tuple[int, int] | None:
        """Size and address of a piece that is at least this large; None if there is none."""
        while self._returned:
            self._free.append(self._returned.popleft())
        found = min((piece for piece in self._free if piece[0] >= size), default=None)
        if found is not None:
            self._free.remove(found)
            return found
        while self._free and self.allocated + size > LIMIT:
            smaller = self._free.pop()
            self._driver.call("cuMemFreeHost", ctypes.c_void_p(smaller[1]), wait=True)
            self.allocated -= smaller[0]
        if self.allocated + size > LIMIT:
            return None
        address = ctypes.c_void_p()
        code = self._driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0, wait=True)
        if code or not address.value:
            return None
        self.allocated += size
        return size, address.value
