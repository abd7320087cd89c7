"""Hashes of arrays, computed on the GPU, which show whether an array has changed without a copy to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SOURCE = """
// Adds up a hash of each 8-byte word and its place; the bytes beyond the last whole word make one word more.
__device__ unsigned long long mixed(unsigned long long x) {  // the finalizer of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
extern "C" __global__ void digest(unsigned long long address, unsigned long long nbytes, unsigned long long* sum) {
    const unsigned long long* words = reinterpret_cast<const unsigned long long*>(address);
    const unsigned long long n = nbytes / 8;
    unsigned long long found = 0;
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
        found += mixed(words[i] ^ (i + 1) * 0x9e3779b97f4a7c15ull);
    if (blockIdx.x == 0 && threadIdx.x == 0 && nbytes % 8) {
        unsigned long long last = 0;
        for (unsigned long long i = n * 8; i < nbytes; ++i)
            last = last << 8 | reinterpret_cast<const unsigned char*>(address)[i];
        found += mixed(last ^ (n + 1) * 0x9e3779b97f4a7c15ull);
    }
    for (int offset = 16; offset; offset /= 2) found += __shfl_down_sync(0xffffffffu, found, offset);
    if (threadIdx.x % 32 == 0 && found) atomicAdd(sum, found);
}
"""
CTAS = 1056
CTA_BYTES = 2048  # bytes that a CTA reads in one iteration


class Digests:
    """Computes digests on one device.

    Args:
        device: a device that runs kernels.
    """

    def __init__(self, device: Any) -> None:
        from ptxkit.compiler.nvrtc import compile_source
        from ptxkit.targets import lowest_target

        image = compile_source(SOURCE, target=device.target or lowest_target(()), name="digest.cu")
        self._kernel = device.load(image, SOURCE)["digest"]
        self._sum = device.empty(1, np.uint64, "digest")

    def of(self, address: int, nbytes: int) -> int:
        """The digest of ``nbytes`` bytes at ``address``, a multiple of 8, after everything that was launched before."""
        self._sum.fill(0)
        grid = max(1, min(CTAS, nbytes // CTA_BYTES))
        launch: Callable[[], None] = self._kernel.prepare(
            np.uint64(address), np.uint64(nbytes), self._sum, grid=grid, block=256
        )
        launch()
        return int(self._sum.numpy()[0])
