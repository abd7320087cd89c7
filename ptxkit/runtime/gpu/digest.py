"""Hashes of arrays, computed on the GPU, which show whether arrays have changed without a copy to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SOURCE = """
// Adds up a hash of each 8-byte word and its place; the bytes beyond the last whole word make one word more.
__device__ unsigned long long mixed(unsigned long long x) {  // the finalizer of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
// One row of CTAs for each piece, which is an address and a number of bytes
extern "C" __global__ void digest(const unsigned long long* pieces, unsigned long long* sums) {
    const unsigned long long* words = reinterpret_cast<const unsigned long long*>(pieces[2 * blockIdx.y]);
    const unsigned long long nbytes = pieces[2 * blockIdx.y + 1], n = nbytes / 8;
    unsigned long long found = 0;
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
        found += mixed(words[i] ^ (i + 1) * 0x9e3779b97f4a7c15ull);
    if (blockIdx.x == 0 && threadIdx.x == 0 && nbytes % 8) {
        unsigned long long last = 0;
        for (unsigned long long i = n * 8; i < nbytes; ++i)
            last = last << 8 | reinterpret_cast<const unsigned char*>(words)[i];
        found += mixed(last ^ (n + 1) * 0x9e3779b97f4a7c15ull);
    }
    for (int offset = 16; offset; offset /= 2) found += __shfl_down_sync(0xffffffffu, found, offset);
    if (threadIdx.x % 32 == 0 && found) atomicAdd(sums + blockIdx.y, found);
}
"""
CTAS = 1056
CTA_BYTES = 2048  # bytes that a CTA reads in one iteration
MOST = 32768  # pieces of a launch: fewer than the rows that a grid can have on any GPU (ptxkit/targets/sm.py)


class Digests:
    """Computes digests on one device.

    Args:
        device: a device that runs kernels.
    """

    def __init__(self, device: Any) -> None:
        from ptxkit.compiler.nvrtc import compile_source
        from ptxkit.targets import lowest_target

        image = compile_source(SOURCE, target=device.target or lowest_target(()), name="digest.cu")
        self._device = device
        self._kernel = device.load(image, SOURCE)["digest"]
        self._room(64)

    def _room(self, count: int) -> None:
        """Make memory for this many pieces."""
        self._pieces = self._device.empty((count, 2), np.uint64, "digest: pieces")
        self._sums = self._device.empty(count, np.uint64, "digest")

    def of(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """The digest of each piece of memory, after everything that was launched before.

        Args:
            pieces: address, a multiple of 8, and number of bytes of each.
        """
        if len(pieces) > MOST:
            return [*self.of(pieces[:MOST]), *self.of(pieces[MOST:])]
        if not pieces:
            return []
        if len(pieces) > self._sums.size:
            self._room(min(MOST, 2 * len(pieces)))
        self._device.write(self._pieces.address, np.array(pieces, np.uint64))
        self._device.fill(self._sums.address, 8 * len(pieces), 0)
        parts = max(1, min(CTAS, max(nbytes for _, nbytes in pieces) // CTA_BYTES))
        launch: Callable[[], None] = self._kernel.prepare(
            self._pieces, self._sums, grid=(parts, len(pieces)), block=256
        )
        launch()
        found = np.empty(len(pieces), np.uint64)
        self._device.read(self._sums.address, found)
        return [int(value) for value in found]
