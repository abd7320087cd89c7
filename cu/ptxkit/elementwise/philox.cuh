// Philox4x32-10, a counter-based random number generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011. Four random words are a function of a counter and a key, so that any thread can compute the
// numbers of any element, without state and as often as needed.
#pragma once
#include "ptxkit/ptx/integer.cuh"

namespace ptxkit {

__device__ __forceinline__ uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned long long a = mul_wide_u32(counter.x, 0xd2511f53), b = mul_wide_u32(counter.z, 0xcd9e8d57);
        counter = make_uint4(static_cast<unsigned>(b >> 32) ^ counter.y ^ key.x, static_cast<unsigned>(b),
                             static_cast<unsigned>(a >> 32) ^ counter.w ^ key.y, static_cast<unsigned>(a));
        key.x += 0x9e3779b9;
        key.y += 0xbb67ae85;
    }
    return counter;
}

// The random words of elements 4 * quad to 4 * quad + 3, under a 64-bit seed.
__device__ __forceinline__ uint4 philox_quad(unsigned long long quad, unsigned long long seed) {
    return philox4x32_10(make_uint4(quad, quad >> 32, 0, 0), make_uint2(seed, seed >> 32));
}

// The random word of one element.
__device__ __forceinline__ unsigned philox_element(unsigned long long element, unsigned long long seed) {
    uint4 words = philox_quad(element / 4, seed);
    return element & 2 ? (element & 1 ? words.w : words.z) : (element & 1 ? words.y : words.x);
}

// The random words of N elements that begin with element i; N and i are multiples of 4.
template <int N>
struct RandomWords {
    unsigned word[N];

    __device__ __forceinline__ RandomWords(long long i, unsigned long long seed) {
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            uint4 quad = philox_quad((i + j) / 4ull, seed);
            word[j] = quad.x, word[j + 1] = quad.y, word[j + 2] = quad.z, word[j + 3] = quad.w;
        }
    }
};

}  // namespace ptxkit
