// Products with few rows of a that read b from device memory into registers, in rows of any length: c^T = b a^T by mma.sync.
//
// A vector of 16 bytes that a lane copies is a part of two operands of mma.sync: the instruction adds products over k, so
// that any order of the elements of k serves which is the same in both operands. Lane 4 g + t takes the vector of row g with
// elements 8 t to 8 t + 7 of 32, for b as for a, so that no element passes from one lane to another.
//
// Rows whose pitch is no multiple of 16 bytes begin at different places of a vector. The rows of a tile are those that begin
// at the same place: every eighth row if the pitch is odd. Their vectors are aligned, each byte of b is read once, and
// the few rows of a are shifted instead.
#pragma once
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

constexpr int DIRECT_WARPS = 8;
constexpr int DIRECT_K = 32;  // elements of k in a step of a warp: four vectors
constexpr int VECTOR_ELEMENTS = 8;

// TOKENS: rows of a, 8 or a multiple of 16. ROWS: groups of 8 rows of b of a warp. STAGES: of the ring of a warp. A stage
// has a vector of each lane for each group of rows of b, and two for each group of rows of a.
template <int TOKENS_, int ROWS_, int STAGES_>
struct DirectTile {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_, STAGES = STAGES_, GROUPS = TOKENS_ / 8;
    static constexpr int SUMS = (TOKENS_ + 15) / 16;  // instructions for 8 rows of b
    static constexpr int VECTORS = ROWS_ + 2 * GROUPS;
    static_assert(TOKENS_ * ROWS_ * 8 * 4 <= STAGES_ * VECTORS * 512, "the sums of a warp replace its ring");
};

__device__ __forceinline__ void mma_k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) {
    mma_sync_m16n8k16_f32_bf16_bf16(d, a, b);
}
__device__ __forceinline__ void mma_k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) {
    mma_sync_m16n8k16_f32_f16_f16(d, a, b);
}

// The sizes of a product. `period`: rows of b from one to the next that begins at the same place of `align` elements.
// `across`: groups of warps with different rows; the warps of a group divide k.
struct DirectSizes {
    unsigned m, n, k, a_pitch, b_pitch, period, align, across;
};

// A word of two elements, number `first` of a row and the next, without those before the row.
__device__ __forceinline__ unsigned from_row_on(unsigned word, int first) {
    return first >= 0 ? word : first == -1 ? word & 0xffff0000u : 0u;
}

// A vector of elements, number `first` of a row and the next ones, likewise.
__device__ __forceinline__ uint4 from_row_on(const uint4& v, int first) {
    return {from_row_on(v.x, first), from_row_on(v.y, first + 2), from_row_on(v.z, first + 4), from_row_on(v.w, first + 6)};
}

template <class Tile, class T, class Out>
__device__ __forceinline__ void direct_product(const T* a, const T* b, const Out& output, const DirectSizes& size) {
    constexpr int TOKENS = Tile::TOKENS, ROWS = Tile::ROWS, STAGES = Tile::STAGES, GROUPS = Tile::GROUPS;
    constexpr unsigned STAGE = Tile::VECTORS * 512;
    extern __shared__ __align__(16) unsigned char shared[];
    const unsigned lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), group = lane / 4;
    const unsigned ctas = cluster_nctarank(), rank = ctas > 1 ? cluster_ctarank() : 0;
    const unsigned of_cta = DIRECT_WARPS / size.across, parts = of_cta * ctas, part = rank * of_cta + warp / size.across;
    const unsigned token_tiles = (size.m - 1) / TOKENS + 1, cluster = blockIdx.x / ctas;
    const unsigned tile = cluster / token_tiles, token = cluster % token_tiles * TOKENS;
    const unsigned place = tile % size.period, first = tile / size.period * size.across * ROWS * 8;
    const unsigned of_warp = first + warp % size.across * ROWS * 8;  // among the rows at this place
    const int shift = place * (size.b_pitch % size.align) % size.align, k = size.k;
    const int steps = (k + shift - 1) / DIRECT_K + 1, column = lane % 4 * VECTOR_ELEMENTS - shift;

    // Of this lane: the next element of k to copy, the same in memory, and how many of its rows there are.
    int x = part * DIRECT_K + column;
    const unsigned row = place + size.period * (of_warp + group), row_a = token + group;
    const T* from = b + static_cast<size_t>(row) * size.b_pitch + x;
    const T* from_a = a + static_cast<size_t>(row_a) * size.a_pitch + x;
    const size_t stride = static_cast<size_t>(8) * size.period * size.b_pitch, stride_a = static_cast<size_t>(8) * size.a_pitch;
    const unsigned rows = row < size.n ? (size.n - 1 - row) / (8 * size.period) + 1 : 0;
    const unsigned rows_a = row_a < size.m ? (size.m - 1 - row_a) / 8 + 1 : 0;
    unsigned before[GROUPS];  // elements by which the vectors of a begin before those of b
#pragma unroll
    for (int i = 0; i < GROUPS; i++) before[i] = ((row_a + 8 * i) * size.a_pitch + x) % VECTOR_ELEMENTS;
    const bool shifts = size.a_pitch % VECTOR_ELEMENTS != 0 || shift % VECTOR_ELEMENTS != 0;
    // Bytes of the aligned vector from element number `first` of a row on that belong to the row, or are before it.
    auto present = [&](int first, bool there) {
        return there && first > -VECTOR_ELEMENTS ? max(0, min(k - first, VECTOR_ELEMENTS)) * 2 : 0;
    };
    auto copy = [&](unsigned to) {
        const int bytes = present(x, true);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            cp_async_cg_shared_global_L2_128B(to + i * 512, from + i * stride, i < rows ? bytes : 0);
        }
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const T* at = from_a + i * stride_a - before[i];
            const int first = x - int(before[i]);
            cp_async_cg_shared_global(to + (ROWS + 2 * i) * 512, at, present(first, i < rows_a));
            if (shifts) {
                cp_async_cg_shared_global(to + (ROWS + 2 * i + 1) * 512, at + VECTOR_ELEMENTS,
                                          present(first + VECTOR_ELEMENTS, i < rows_a));
            }
        }
        cp_async_commit_group();
        x += parts * DIRECT_K;
        from += parts * DIRECT_K;
        from_a += parts * DIRECT_K;
    };

    float sums[ROWS][Tile::SUMS][4] = {};
    follow_previous_grid();
    const unsigned ring = cvta_to_shared(shared) + warp * STAGES * STAGE + lane * 16, end = ring + STAGES * STAGE;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy(ring + i * STAGE);
    unsigned at = ring, refill = end - STAGE;
#pragma unroll 1
    for (int step = part; step < steps; step += parts) {
        cp_async_wait_group<STAGES - 2>();
        uint4 vectors[ROWS], tokens[GROUPS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) vectors[i] = ld_shared_v4(at + i * 512);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) tokens[i] = ld_shared_v4(at + (ROWS + 2 * i) * 512);
        if (shifts) {
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                tokens[i] = shifted<sizeof(T)>(tokens[i], ld_shared_v4(at + (ROWS + 2 * i + 1) * 512), before[i] * sizeof(T));
            }
        }
        copy(refill);
        refill = at;
        at = at + STAGE == end ? ring : at + STAGE;
        if (const int first = step * DIRECT_K + column; first < 0) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) vectors[i] = from_row_on(vectors[i], first);
#pragma unroll
            for (int i = 0; i < GROUPS; i++) tokens[i] = from_row_on(tokens[i], first);
        }
#pragma unroll
        for (int j = 0; j < Tile::SUMS; j++) {
            const uint4 upper = tokens[2 * j], lower = 2 * j + 1 < GROUPS ? tokens[(2 * j + 1) % GROUPS] : uint4{0, 0, 0, 0};
            const unsigned low[4] = {upper.x, lower.x, upper.y, lower.y}, high[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const unsigned first[2] = {vectors[i].x, vectors[i].y}, second[2] = {vectors[i].z, vectors[i].w};
                mma_k16(sums[i][j], low, first, T());
                mma_k16(sums[i][j], high, second, T());
            }
        }
    }

    // The sums of the warps are added in the order of their numbers, then those of the CTAs.
    cp_async_wait_all();
    barrier_sync();
    constexpr int of_one = TOKENS * ROWS * 8;
    float* of_warps = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++) {
            float* to = of_warps + warp * of_one + (8 * j + group) * ROWS * 8 + 8 * i + lane % 4 * 2;
            to[0] = sums[i][j / 2][j % 2 * 2];
            to[1] = sums[i][j / 2][j % 2 * 2 + 1];
        }
    }
    barrier_sync();
    // Sum number i of the tile, in the place of those of the first part.
    const unsigned width = size.across * ROWS * 8, count = TOKENS * width;
    auto place_of = [&](unsigned i) {
        const unsigned x = i % width, y = i / width;
        return of_warps + x / (ROWS * 8) * of_one + y * ROWS * 8 + x % (ROWS * 8);
    };
    auto sum_of_warps = [&](const float* of) {
        float sum = of[0];
        for (unsigned other = 1; other < of_cta; other++) sum += of[other * size.across * of_one];
        return sum;
    };
    auto store = [&](float sum, unsigned i) {
        const unsigned col = place + size.period * (first + i % width), y = token + i / width;
        if (y < size.m && col < size.n) output.store(sum, y, col, output.bias_of(col));
    };
    constexpr unsigned THREADS = DIRECT_WARPS * 32;
    if (ctas == 1) {
        for (unsigned i = threadIdx.x; i < count; i += THREADS) store(sum_of_warps(place_of(i)), i);
        return;
    }
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        float* of = place_of(i);
        *of = sum_of_warps(of);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    for (unsigned i = rank * THREADS + threadIdx.x; i < count; i += ctas * THREADS) {
        const unsigned of = cvta_to_shared(place_of(i));
        float sum = ld_shared_cluster_f32(mapa_shared_cluster(of, 0));
        for (unsigned other = 1; other < ctas; other++) sum += ld_shared_cluster_f32(mapa_shared_cluster(of, other));
        store(sum, i);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA exits while another one reads its sums
}

}  // namespace ptxkit
