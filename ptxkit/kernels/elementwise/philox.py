"""Philox4x32-10 on numpy arrays, as ``cu/ptxkit/elementwise/philox.cuh`` has it.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptxkit.workload.parallel import in_threads

Words = npt.NDArray[np.uint32]

CHUNK = 1 << 15  # counters computed at a time, so that temporary arrays stay in the cache
_LOW = np.uint64(0xFFFFFFFF)


def philox4x32_10(counter: Words, key: tuple[int, int]) -> Words:
    """Random words from counters; both of shape (4, n), uint32. ``key`` is two 32-bit words."""
    x, y, z, w = (row.astype(np.uint64) for row in counter)
    k0, k1 = key
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x, np.uint64(0xCD9E8D57) * z
        x, y = (b >> np.uint64(32)) ^ y ^ np.uint64(k0), b & _LOW
        z, w = (a >> np.uint64(32)) ^ w ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x, y, z, w]).astype(np.uint32)


def random_words(count: int, seed: int) -> Words:
    """The words of elements 0 to ``count`` - 1 under a 64-bit seed: element i has word i % 4 of counter i / 4."""
    words = np.empty((-(-count // 4), 4), np.uint32)

    def fill(first: int) -> None:
        quads = np.arange(first, min(first + CHUNK, len(words)), dtype=np.uint64)
        counter = np.zeros((4, len(quads)), np.uint32)
        counter[0], counter[1] = quads & _LOW, quads >> np.uint64(32)
        words[first : first + CHUNK] = philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32)).T

    in_threads(fill, range(0, len(words), CHUNK))
    return words.reshape(-1)[:count]
