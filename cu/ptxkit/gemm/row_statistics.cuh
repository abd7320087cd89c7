// Hooks of wgmma_product for layer normalization: of the rows of a, from the tiles that the product has in shared
// memory, and of the rows of c, from the sums in the registers of a cluster.
#pragma once
#include "ptxkit/gemm/linear_output.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/rows/normalize.cuh"

namespace ptxkit {

// 8 elements of 16 bits.
template <class T>
__device__ __forceinline__ void unpack_eight(float (&v)[8], const uint4& words) {
    const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = Convert<T>::low(pairs[i]);
        v[2 * i + 1] = Convert<T>::high(pairs[i]);
    }
}

template <class T>
__device__ __forceinline__ void load_eight(float (&v)[8], const unsigned char* from) {
    unpack_eight<T>(v, *reinterpret_cast<const uint4*>(from));
}

// c = layer_norm(a) w^T + bias from the product of a and the folded weights: two warps sum the rows of each tile of a
// during the products, and consumers wait for the statistics before they normalize their sums.
//
// Each thread takes the first element that it sees of a row as a pivot, and sums the deviations from it and their
// squares. The distance of the pivot from the mean is at most the root of k times the standard deviation, as for
// every element of the row, so that in the worst case, a row with one large element that is the pivot, the variance
// loses as many digits as k has; docs/ffn.md.
template <class T, class Tile>
struct ObservedRows {
    static constexpr int BM = Tile::BM, BUFFERS = 2, OBSERVERS = 2, THREADS = 32 * OBSERVERS;
    static constexpr bool EARLY = false, LATE = false, REQUESTS = false;
    static constexpr int full_at = BUFFERS * BM * 8, empty_at = full_at + 8 * BUFFERS, BYTES = empty_at + 8 * BUFFERS;
    static_assert(BM % THREADS == 0, "as many rows for each thread");

    FoldedColumns columns;
    unsigned n;
    float inverse_k, eps;
    Ring<BUFFERS> at;

    template <class Out>
    __device__ __forceinline__ void finished(Out&) const {}

    struct Observer {
        float pivot[BM / THREADS], sum[BM / THREADS] = {}, squares[BM / THREADS] = {};
    };

    __device__ __forceinline__ unsigned full(unsigned char* memory) const {
        return cvta_to_shared(memory) + full_at + 8 * at.stage;
    }
    __device__ __forceinline__ unsigned empty(unsigned char* memory) const {
        return cvta_to_shared(memory) + empty_at + 8 * at.stage;
    }
    // Mean and rstd of a row of the tile.
    __device__ __forceinline__ float2& of_row(unsigned char* memory, unsigned row) const {
        return reinterpret_cast<float2*>(memory)[at.stage * BM + row];
    }

    __device__ __forceinline__ void init(unsigned char* memory) const {
        init_ring<BUFFERS>(full(memory), OBSERVERS, empty(memory), 4 * Tile::CONSUMERS);
    }

    __device__ __forceinline__ void observe(Observer& rows, const unsigned char* tile, unsigned valid,
                                            bool first) const {
#pragma unroll
        for (int r = 0; r < BM / THREADS; r++) {
            const unsigned offset = (threadIdx.x - 32 + r * THREADS) * WGMMA_ROW_BYTES;
            float sum = 0.0f, squares = 0.0f;  // of this tile: short sums are more accurate
#pragma unroll
            for (int c = 0; c < WGMMA_BK; c += 8) {
                if (c >= valid) break;
                float v[8];
                load_eight<T>(v, tile + swizzled<WGMMA_ROW_BYTES>(offset + 2 * c));
                if (c == 0 && first) rows.pivot[r] = v[0];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float away = v[i] - rows.pivot[r];
                    sum += away;
                    squares = fmaf(away, away, squares);
                }
            }
            rows.sum[r] += sum;
            rows.squares[r] += squares;
        }
    }

    __device__ __forceinline__ void observed(unsigned char* memory, const Observer& rows) {
        mbarrier_wait(empty(memory), at.parity ^ 1);
#pragma unroll
        for (int r = 0; r < BM / THREADS; r++) {
            const float away = rows.sum[r] * inverse_k;
            const float variance = fmaxf(fmaf(-away, away, rows.squares[r] * inverse_k), 0.0f);
            of_row(memory, threadIdx.x - 32 + r * THREADS) = {rows.pivot[r] + away, inverse_sqrt(variance + eps)};
        }
        __syncwarp();
        if (laneid() == 0) mbarrier_arrive(full(memory));
        at.advance();
    }

    template <int ROWS, int COLS>
    __device__ __forceinline__ void complete(unsigned char* memory, float (&sums)[ROWS][COLS], unsigned row,
                                             unsigned col) {
        const unsigned lane = laneid(), first = row % BM + threadIdx.x % 128 / 32 * 16 + lane / 4;
        float2 upper[ROWS], lower[ROWS];  // mean and rstd
        mbarrier_wait(full(memory), at.parity);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            upper[i] = of_row(memory, first + 64 * i);
            lower[i] = of_row(memory, first + 64 * i + 8);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty(memory));
        at.advance();
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float* d = &sums[i][j];
                const unsigned c = col + 2 * j + lane % 4 * 2;
                const float2 v = columns.normalized(d[0], d[1], upper[i].x, upper[i].y, c, n);
                const float2 w = columns.normalized(d[2], d[3], lower[i].x, lower[i].y, c, n);
                d[0] = v.x, d[1] = v.y, d[2] = w.x, d[3] = w.y;
            }
        }
    }
};

// c = layer_norm(a b^T + bias), where the CTAs of a cluster have the n columns of the same rows: CTA `rank` those
// from BN rank on. A warp sends mean and sum of squared deviations of its part of each row to the warp with the same
// rows in every CTA (st.async), and combines those that it receives. The buffer of a tile is written again two tiles
// later, by warps that have received the next tile's records from this one, which it sends after it has read the
// buffer.
template <class T, class Tile>
struct NormalizedRows {
    static constexpr int BM = Tile::BM, BN = Tile::BN, CTAS = Tile::CLUSTER_N, BUFFERS = 2, OBSERVERS = 0;
    static constexpr bool EARLY = false, LATE = false, REQUESTS = false;
    static constexpr int WARPS = 4 * Tile::CONSUMERS, record = 8, records_at = 8 * BUFFERS * WARPS;
    static constexpr int BYTES = records_at + BUFFERS * CTAS * BM * record;
    static_assert(Tile::CLUSTER_M == 1, "the CTAs of a cluster have the same rows");

    const T* bias;
    const T* gamma;
    const T* beta;
    unsigned n;
    float eps;
    Ring<BUFFERS> at;

    struct Observer {};
    __device__ __forceinline__ void observe(Observer&, const unsigned char*, unsigned, bool) const {}
    __device__ __forceinline__ void observed(unsigned char*, const Observer&) {}
    template <class Out>
    __device__ __forceinline__ void finished(Out&) const {}

    __device__ __forceinline__ void init(unsigned char* memory) const {
        for (int i = 0; i < BUFFERS * WARPS; i++) mbarrier_init(cvta_to_shared(memory) + 8 * i, 1);
        fence_mbarrier_init_release_cluster();
    }

    // Columns of a row that a CTA has.
    __device__ __forceinline__ float columns(unsigned rank) const {
        return min(max(static_cast<int>(n - rank * BN), 0), BN);
    }

    // The sum over the four threads that have a row.
    static __device__ __forceinline__ float row_sum(float v) { return warp_sum<4>(v); }

    // Calls f(column, index of its sums) for each pair of columns of this thread. No lambda: NVRTC 13.0 takes a generic
    // lambda for host code.
    template <int COLS, class F>
    static __device__ __forceinline__ void each_pair(unsigned col, F f) {
#pragma unroll
        for (int j = 0; j < COLS; j += 4) f(col + 2 * j, j);
    }

    template <int ROWS, int COLS>
    __device__ __forceinline__ void complete(unsigned char* memory, float (&sums)[ROWS][COLS], unsigned row,
                                             unsigned col) {
        const unsigned lane = laneid(), quad = lane % 4, rank = CTAS > 1 ? cluster_ctarank() : 0;
        const unsigned warp = threadIdx.x / 32 - 4, first = row % BM + warp % 4 * 16 + lane / 4;
        const unsigned barrier = cvta_to_shared(memory) + 8 * (at.stage * WARPS + warp);
        // mean and squares that CTA `cta` has sent of the row 8 half below row 64 i of this thread
        auto record_of = [&](unsigned cta, int i, int half) -> const float2& {
            const unsigned row = first + 64 * i + 8 * half;
            return reinterpret_cast<const float2*>(memory + records_at)[(at.stage * CTAS + cta) * BM + row];
        };
        col += 2 * quad;
        each_pair<COLS>(col, [&](unsigned c, int j) {
            const unsigned pair = pair_of(bias, 0, c, 1, n);
            const float x = Convert<T>::low(pair), y = Convert<T>::high(pair);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                sums[i][j] += x, sums[i][j + 1] += y;
                sums[i][j + 2] += x, sums[i][j + 3] += y;
            }
        });
        const float here = columns(rank), inverse_here = here > 0.0f ? 1.0f / here : 0.0f;
        float mean[ROWS][2], rstd[ROWS][2];
        if (CTAS > 1 && lane == 0) mbarrier_arrive_expect_tx(barrier, CTAS * ROWS * 16 * record);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = 0.0f, squares = 0.0f;
                each_pair<COLS>(col, [&](unsigned c, int j) {
                    if (c < n) sum += sums[i][j + 2 * half] + sums[i][j + 2 * half + 1];
                });
                const float part = row_sum(sum) * inverse_here;
                each_pair<COLS>(col, [&](unsigned c, int j) {
                    const float x = sums[i][j + 2 * half] - part, y = sums[i][j + 2 * half + 1] - part;
                    if (c < n) squares = fmaf(x, x, fmaf(y, y, squares));
                });
                squares = row_sum(squares);
                if constexpr (CTAS == 1) {
                    mean[i][half] = part;
                    rstd[i][half] = inverse_sqrt(fmaf(squares, inverse_here, eps));
                }
#pragma unroll
                for (unsigned cta = quad; cta < (CTAS > 1 ? CTAS : 0); cta += 4) {
                    const unsigned to = cvta_to_shared(&record_of(rank, i, half));
                    st_async_shared_cluster(mapa_shared_cluster(to, cta), make_float2(part, squares),
                                            mapa_shared_cluster(barrier, cta));
                }
            }
        }
        if constexpr (CTAS > 1) {
            mbarrier_wait(barrier, at.parity);
            const float inverse_n = 1.0f / n;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float sum = 0.0f, squares = 0.0f;
#pragma unroll
                    for (unsigned cta = quad; cta < CTAS; cta += 4) {
                        sum = fmaf(columns(cta), record_of(cta, i, half).x, sum);
                    }
                    mean[i][half] = row_sum(sum) * inverse_n;
#pragma unroll
                    for (unsigned cta = quad; cta < CTAS; cta += 4) {
                        const float2 part = record_of(cta, i, half);
                        const float away = part.x - mean[i][half];
                        squares += fmaf(columns(cta) * away, away, part.y);
                    }
                    rstd[i][half] = inverse_sqrt(fmaf(row_sum(squares), inverse_n, eps));
                }
            }
        }
        __syncwarp();  // all lanes have read the records
        at.advance();
        each_pair<COLS>(col, [&](unsigned c, int j) {
            const unsigned scale = pair_of(gamma, 0, c, 1, n), shift = pair_of(beta, 0, c, 1, n);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const float g = q % 2 ? Convert<T>::high(scale) : Convert<T>::low(scale);
                    const float b = q % 2 ? Convert<T>::high(shift) : Convert<T>::low(shift);
                    sums[i][j + q] = fmaf((sums[i][j + q] - mean[i][q / 2]) * rstd[i][q / 2], g, b);
                }
            }
        });
    }
};

}  // namespace ptxkit
