// Products with one or two rows of a as dot products with rows of b, by fma: c^T = b a^T, limited by reading b.
//
// A warp reads a row of b in pieces of 512 contiguous bytes, of which it has BATCH in flight, straight into registers: no shared memory,
// no barrier and no tensor map, so that the first bytes are requested a few hundred cycles after the launch, and whole rows of DRAM
// are read together. The rows of a are in L1 after the first CTA of an SM has read them.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

constexpr int DOT_WARPS = 8;
constexpr int DOT_THREADS = 32 * DOT_WARPS;

// TOKENS: rows of a. BATCH: vectors of a lane in flight.
template <int TOKENS_, int BATCH_>
struct DotTile {
    static constexpr int TOKENS = TOKENS_, BATCH = BATCH_;
    static constexpr int RESIDENT = 4 * BATCH * (1 + TOKENS) <= 32 ? 4 : 3;  // CTAs of an SM, by the registers of these vectors
};

// The sizes of a product; `across`: rows of a CTA, whose warps divide k.
struct DotSizes {
    unsigned m, n, k, a_pitch, b_pitch, across;
};

// Adds the products of two vectors of 16-bit elements.
template <class T>
__device__ __forceinline__ float dot(const uint4& x, const uint4& y, float sum) {
    const unsigned of_x[4] = {x.x, x.y, x.z, x.w}, of_y[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = fmaf(Convert<T>::low(of_x[i]), Convert<T>::low(of_y[i]), sum);
        sum = fmaf(Convert<T>::high(of_x[i]), Convert<T>::high(of_y[i]), sum);
    }
    return sum;
}

// `store` takes a sum, and the numbers of the rows of a and of b. All rows are whole vectors.
template <class Tile, class T, class Store>
__device__ __forceinline__ void dot_products(const T* a, const T* b, const DotSizes& size, const Store& store) {
    constexpr int TOKENS = Tile::TOKENS, BATCH = Tile::BATCH;
    constexpr unsigned ELEMENTS = 16 / sizeof(T), STEP = 32 * ELEMENTS;
    __shared__ float of_warps[DOT_WARPS][TOKENS];
    follow_previous_grid();
    const unsigned lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned parts = DOT_WARPS / size.across, part = warp / size.across, first = blockIdx.x * size.across;
    const unsigned row = min(first + warp % size.across, size.n - 1), token = blockIdx.y * TOKENS;  // beyond the last: not stored

    unsigned x = part * BATCH * STEP + lane * ELEMENTS;
    const unsigned advance = parts * BATCH * STEP;
    const T *from = b + static_cast<size_t>(row) * size.b_pitch + x, *from_a[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) from_a[t] = a + static_cast<size_t>(min(token + t, size.m - 1)) * size.a_pitch + x;
    auto vector = [](const T* at) { return reinterpret_cast<const uint4*>(at); };
    float sums[TOKENS] = {};
#pragma unroll 1
    for (; x < size.k; x += advance) {
        uint4 vectors[BATCH] = {}, tokens[BATCH][TOKENS] = {};
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (x + u * STEP < size.k) vectors[u] = ld_global_L1_no_allocate(vector(from + u * STEP));
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                if (x + u * STEP < size.k) tokens[u][t] = ld_global(vector(from_a[t] + u * STEP));
            }
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
#pragma unroll
            for (int t = 0; t < TOKENS; t++) sums[t] = dot<T>(vectors[u], tokens[u][t], sums[t]);
        }
        from += advance;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) from_a[t] += advance;
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sums[t] += shfl_sync_bfly(all_lanes, sums[t], apart);
        if (lane == 0) of_warps[warp][t] = sums[t];
    }
    barrier_sync();
    // The sums of the warps are added in the order of their numbers.
    for (unsigned i = threadIdx.x; i < TOKENS * size.across; i += DOT_THREADS) {
        const unsigned t = i / size.across, of_row = i % size.across;
        float sum = of_warps[of_row][t];
        for (unsigned other = 1; other < parts; other++) sum += of_warps[other * size.across + of_row][t];
        if (token + t < size.m && first + of_row < size.n) store(sum, token + t, first + of_row);
    }
}

}  // namespace ptxkit
