"""Bytes of global memory to which a kernel has copied undefined ones, such as the padding of structures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class UndefinedStores:
    """The bytes of one allocation that hold undefined values, with the store that wrote each.

    A later store of defined values, or a copy from the host, clears them.
    """

    def __init__(self, nbytes: int) -> None:
        self._numbers: NDArray[np.int32] = np.zeros(nbytes, np.int32)
        self._texts: list[str] = []

    def mark(self, octets: NDArray[np.int64], text: str) -> None:
        """``octets``, byte offsets, have become undefined; ``text`` describes the store."""
        if text not in self._texts:
            self._texts.append(text)
        self._numbers[octets] = self._texts.index(text) + 1

    def clear(self, start: int, nbytes: int) -> None:
        """A run of bytes has been overwritten."""
        self._numbers[start : start + nbytes] = 0

    def clear_elements(self, offsets: NDArray[np.int64], size: int) -> None:
        """Elements of ``size`` bytes have been overwritten."""
        for k in range(size):
            self._numbers[offsets + k] = 0

    def describe(self, start: int, nbytes: int) -> str:
        """The undefined bytes of a run: how many, the first, and the store that wrote that one; "" if there are none."""
        found = np.flatnonzero(self._numbers[start : start + nbytes])
        if not len(found):
            return ""
        first = int(found[0])
        text = self._texts[int(self._numbers[start + first]) - 1]
        return f"{len(found):,} of {nbytes:,} bytes are uninitialised, first byte {first:,}: {text}"
