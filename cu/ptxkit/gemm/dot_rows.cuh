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

// TOKENS: rows of a. BATCH: vectors of a lane in flight, of each of MATRICES with as many rows as b.
template <int TOKENS_, int BATCH_, int MATRICES_ = 1>
struct DotTile {
    static constexpr int TOKENS = TOKENS_, BATCH = BATCH_, MATRICES = MATRICES_;
    static constexpr int RESIDENT = 4 * BATCH * (MATRICES + TOKENS) <= 32 ? 4 : 3;  // CTAs of an SM, by the registers of these vectors
};

// When b is read: after the previous grid, or before its end if it does not write b, with a next grid that does so.
enum class DotFollows { AT_ONCE, BEFORE_NEXT, WITH_WEIGHTS };

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

// `store` takes a sum for each matrix, and the numbers of the rows of a and of b. All rows are whole vectors.
template <class Tile, DotFollows FOLLOWS = DotFollows::AT_ONCE, class T, class Store>
__device__ __forceinline__ void dot_products(const T* a, const T* const (&b)[Tile::MATRICES], const DotSizes& size, const Store& store) {
    constexpr int TOKENS = Tile::TOKENS, BATCH = Tile::BATCH, MATRICES = Tile::MATRICES;
    constexpr unsigned ELEMENTS = 16 / sizeof(T), STEP = 32 * ELEMENTS;
    __shared__ float of_warps[DOT_WARPS][MATRICES][TOKENS];
    if constexpr (FOLLOWS == DotFollows::AT_ONCE) follow_previous_grid();
    else if constexpr (FOLLOWS == DotFollows::BEFORE_NEXT) follow_previous_grid_later();
    else launch_next_grid();
    const unsigned lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned parts = DOT_WARPS / size.across, part = warp / size.across, first = blockIdx.x * size.across;
    const unsigned row = min(first + warp % size.across, size.n - 1), token = blockIdx.y * TOKENS;  // beyond the last: not stored

    unsigned x = part * BATCH * STEP + lane * ELEMENTS;
    const unsigned advance = parts * BATCH * STEP;
    const T *from[MATRICES], *from_a[TOKENS];
#pragma unroll
    for (int i = 0; i < MATRICES; i++) from[i] = b[i] + static_cast<size_t>(row) * size.b_pitch + x;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) from_a[t] = a + static_cast<size_t>(min(token + t, size.m - 1)) * size.a_pitch + x;
    auto vector = [](const T* at) { return reinterpret_cast<const uint4*>(at); };
    float sums[MATRICES][TOKENS] = {};
    bool waits = FOLLOWS == DotFollows::WITH_WEIGHTS;
#pragma unroll 1
    for (; x < size.k; x += advance) {
        uint4 vectors[BATCH][MATRICES] = {}, tokens[BATCH][TOKENS] = {};
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
#pragma unroll
            for (int i = 0; i < MATRICES; i++) {
                if (x + u * STEP < size.k) vectors[u][i] = ld_global_L1_no_allocate(vector(from[i] + u * STEP));
            }
        }
        if (waits) wait_for_previous_grid();
        waits = false;
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
            for (int i = 0; i < MATRICES; i++) {
#pragma unroll
                for (int t = 0; t < TOKENS; t++) sums[i][t] = dot<T>(vectors[u][i], tokens[u][t], sums[i][t]);
            }
        }
#pragma unroll
        for (int i = 0; i < MATRICES; i++) from[i] += advance;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) from_a[t] += advance;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) sums[i][t] += shfl_sync_bfly(all_lanes, sums[i][t], apart);
            if (lane == 0) of_warps[warp][i][t] = sums[i][t];
        }
    }
    barrier_sync();
    // The sums of the warps are added in the order of their numbers.
    for (unsigned i = threadIdx.x; i < TOKENS * size.across; i += DOT_THREADS) {
        const unsigned t = i / size.across, of_row = i % size.across;
        float found[MATRICES];
#pragma unroll
        for (int j = 0; j < MATRICES; j++) {
            found[j] = of_warps[of_row][j][t];
            for (unsigned other = 1; other < parts; other++) found[j] += of_warps[other * size.across + of_row][j][t];
        }
        if (token + t < size.m && first + of_row < size.n) store(found, token + t, first + of_row);
    }
}

}  // namespace ptxkit
