"""Builtins of GCC that nvcc takes in device code, and NVRTC lacks: macros for CUDA's functions."""

from __future__ import annotations

import numpy as np

import ptxkit

SOURCE = """
extern "C" __global__ void k(long long* y, const unsigned long long* v) {
    unsigned long long x = v[threadIdx.x];
    long long* p = y + 12 * threadIdx.x;
    p[0] = __builtin_popcount(x); p[1] = __builtin_popcountll(x); p[2] = __builtin_clz(x); p[3] = __builtin_clzl(x);
    p[4] = __builtin_ctz(x); p[5] = __builtin_ctzll(x); p[6] = __builtin_ffs(x); p[7] = __builtin_ffsl(x);
    p[8] = __builtin_parity(x); p[9] = __builtin_parityll(x); p[10] = __builtin_bswap16(x); p[11] = __builtin_bswap32(x);
}
"""
VALUES = (0x123456789ABCDEF1, 0x8000000180000000, 0x00F0000001004020, 0xFFFFFFFFFFFFFFFF)


def test_builtins_have_the_values_that_gcc_documents():
    def low_zeros(value):
        return (value & -value).bit_length() - 1

    y = np.zeros((len(VALUES), 12), np.int64)
    module = ptxkit.compile(SOURCE, device=ptxkit.device("emulator"))
    module["k"](y, np.array(VALUES, np.uint64), grid=1, block=len(VALUES))
    for row, x in zip(y.tolist(), VALUES, strict=True):
        low = x & 0xFFFFFFFF
        counts = [low.bit_count(), x.bit_count(), 32 - low.bit_length(), 64 - x.bit_length(), low_zeros(low), low_zeros(x)]
        further = [low_zeros(low) + 1, low_zeros(x) + 1, low.bit_count() % 2, x.bit_count() % 2]
        swapped = [int.from_bytes((x & (1 << bits) - 1).to_bytes(bits // 8, "little"), "big") for bits in (16, 32)]
        assert row == counts + further + swapped
