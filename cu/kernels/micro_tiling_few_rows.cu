// f32 matrix product with few rows, step 12 of micro_tiling_matmul.cu: c = a b with up to 16 rows takes as long as reading
// b, which has all the bytes.
//
// Threads load vectors of b into registers, without shared memory: a group of ACROSS threads covers a strip of 4 ACROSS
// columns or of fewer, and the groups of a CTA, and the CTAs of a cluster, take different rows of b, four at a time. A thread has
// BATCH times four vectors in flight. The elements of a that belong to four rows of b are one vector of each row of a,
// which all threads of a group read from L1. At the end the sums of the groups are added in shared memory, and those of
// the CTAs in the order of their ranks through distributed shared memory.
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

// Four numbers, `apart` elements from each other, of which the first `count` are read; the others are zero. WIDE: they are
// contiguous, aligned, and all are read. STREAMED: they are read once.
template <bool WIDE, bool STREAMED>
__device__ __forceinline__ void load4(float (&to)[4], const float* from, int apart, int count) {
    if constexpr (WIDE) {
        const uint4* vector = reinterpret_cast<const uint4*>(from);
        const uint4 v = STREAMED ? ld_global_L1_no_allocate(vector) : ld_global(vector);
        to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y), to[2] = __uint_as_float(v.z),
        to[3] = __uint_as_float(v.w);
    } else {
#pragma unroll
        for (int s = 0; s < 4; ++s)
            to[s] = s < count ? __uint_as_float(ld_global(reinterpret_cast<const unsigned*>(from + s * apart))) : 0;
    }
}

// How elements of b are read. ELEMENTS: one by one. SHIFTED: by vectors, whose sums are shifted at the end. VECTORS: by vectors, of
// which n has whole ones.
enum Access { ELEMENTS, SHIFTED, VECTORS };

// Moves the vector that begins `by` elements after the first of `own` to the front; `next` are the elements after `own`.
__device__ __forceinline__ void shift(float (&own)[4], const float (&next)[3], int by) {
    float window[7] = {own[0], own[1], own[2], own[3], next[0], next[1], next[2]};
#pragma unroll
    for (int i = 0; i < 5; ++i) window[i] = by & 2 ? window[i + 2] : window[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i] = by & 1 ? window[i + 1] : window[i];
}

// gridDim.x: strips times the CTAs of a cluster. gridDim.y: groups of ROWS rows. Dynamic shared memory: 16 ROWS THREADS
// bytes. WIDE: k is a multiple of 4. cols: of a strip, a multiple of 4.
template <int ROWS, int ACROSS, int BATCH, int THREADS, bool WIDE, Access ACCESS>
__global__ __launch_bounds__(THREADS) void matmul_few_rows(const float* a, const float* b, float* c, int m, int n,
                                                           int k, int cols) {
    constexpr int GROUPS = THREADS / ACROSS, SUMS = ROWS * ACROSS;
    constexpr int PLACES = ACCESS == SHIFTED ? 4 : 1;  // at which rows of b begin in a vector
    constexpr int JOINED = ROWS <= 2 ? 32 / ACROSS : 1;  // groups of a warp, whose few sums its lanes add first
    // Blocks of single elements of which all exist are loaded without comparisons. With four batches, it takes up to 27% longer on an H200.
    constexpr bool WHOLE_BLOCKS = ACCESS == ELEMENTS && ROWS <= 4 && BATCH <= 2;
    static_assert(THREADS % 32 == 0 && 32 % ACROSS == 0, "a group is a part of a warp");
    extern __shared__ __align__(16) float sums[];  // [GROUPS / JOINED][ROWS][4 * ACROSS]
    const int parts = cluster_nctarank(), part = cluster_ctarank();
    const int group = threadIdx.x / ACROSS, lane = threadIdx.x % ACROSS;
    const int col = blockIdx.x / parts * cols, row = blockIdx.y * ROWS, beyond = min(n, col + cols);
    const int blocks = (k + 3) / 4;
    const int begin = static_cast<int>(static_cast<long long>(blocks) * part / parts);
    const int end = static_cast<int>(static_cast<long long>(blocks) * (part + 1) / parts);
    // Columns and rows beyond the last are computed from others, and not stored.
    const int first = ACCESS == VECTORS ? min(col + lane * 4, beyond - 4) : ACCESS == SHIFTED ? col + lane * 4 : col + lane;
    // The last vector of a strip of shifted sums belongs to the next strip.
    const int last = ACCESS == SHIFTED ? (first > beyond + 2 ? -4 : n - 1 - first) : beyond - 1 - first;
    const size_t elements = static_cast<size_t>(k) * n;
    float sum[ROWS][PLACES][4] = {};
    follow_previous_grid();

    for (int at = begin + group; at < end; at += BATCH * GROUPS) {
        float w[BATCH][4][4];
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int block = at + u * GROUPS;
            if (block >= end) break;
            const float* of_block = b + first + static_cast<size_t>(block) * 4 * n;
            const int rows_left = k - block * 4;
            if (WHOLE_BLOCKS && last >= 3 * ACROSS && rows_left >= 4) {
#pragma unroll
                for (int s = 0; s < 4; ++s) load4<false, false>(w[u][s], of_block + static_cast<size_t>(s) * n, ACROSS, 4);
                continue;
            }
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                if constexpr (ACCESS == ELEMENTS) {
                    load4<false, false>(w[u][s], of_block + static_cast<size_t>(s) * n, ACROSS, s < rows_left && last >= 0 ? last / ACROSS + 1 : 0);
                } else if constexpr (ACCESS == VECTORS) {
                    if (WIDE || s < rows_left) load4<true, true>(w[u][s], of_block + static_cast<size_t>(s) * n, 1, 4);
                    else load4<false, false>(w[u][s], b, 1, 0);
                } else {
                    // A vector of a row ends at most six elements after the row.
                    const float* vector = of_block + (static_cast<size_t>(s) * n & ~size_t{3});
                    if (last >= -3 && rows_left >= 11) {
                        load4<true, true>(w[u][s], vector, 1, 4);
                    } else {
                        const long long rest = static_cast<long long>(elements) - (vector - b);  // may be negative
                        load4<false, false>(w[u][s], vector, 1, last < -3 || s >= rows_left ? 0 : rest < 4 ? static_cast<int>(rest) : 4);
                    }
                }
            }
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int block = at + u * GROUPS;
            if (block >= end) break;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float left[4];
                const float* of_row = a + static_cast<size_t>(min(row + r, m - 1)) * k + block * 4;
                if (WHOLE_BLOCKS && k - block * 4 >= 4) load4<WIDE, false>(left, of_row, 1, 4);
                else load4<WIDE, false>(left, of_row, 1, k - block * 4);
#pragma unroll
                for (int s = 0; s < 4; ++s)
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        float& to = sum[r][s % PLACES][q];
                        to = fmaf(left[s], w[u][s][q], to);
                    }
            }
        }
    }

    if constexpr (ACCESS == SHIFTED) {
        const unsigned lane_of_warp = threadIdx.x % 32;
        __syncwarp();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float next[3];
#pragma unroll
                for (int q = 0; q < 3; ++q) next[q] = shfl_sync_idx(all_lanes, sum[r][s][q], (lane_of_warp + 1) % 32);
                shift(sum[r][s], next, s * n & 3);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int s = 1; s < 4; ++s)
#pragma unroll
                for (int q = 0; q < 4; ++q) sum[r][0][q] += sum[r][s][q];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if constexpr (JOINED > 1) {
#pragma unroll
            for (int q = 0; q < 4; ++q)
#pragma unroll
                for (int apart = ACROSS; apart < 32; apart *= 2) sum[r][0][q] += shfl_sync_bfly(all_lanes, sum[r][0][q], apart);
            if (threadIdx.x % 32 >= ACROSS) continue;
        }
        float* to = sums + (group / JOINED * ROWS + r) * 4 * ACROSS;
        if constexpr (ACCESS != ELEMENTS) {
            reinterpret_cast<float4*>(to)[lane] = {sum[r][0][0], sum[r][0][1], sum[r][0][2], sum[r][0][3]};
        } else {
#pragma unroll
            for (int q = 0; q < 4; ++q) to[q * ACROSS + lane] = sum[r][0][q];
        }
    }
    barrier_sync();
    float4* vectors = reinterpret_cast<float4*>(sums);
    auto store = [&](int v, float4 total) {
        const int i = row + v / ACROSS, j = col + v % ACROSS * 4;
        if (i >= m) return;
        float* out = c + static_cast<size_t>(i) * n + j;
        if constexpr (ACCESS == VECTORS) {
            if (j < beyond) st_global(reinterpret_cast<float4*>(out), total);
        } else {
            if (j < beyond) out[0] = total.x;
            if (j + 1 < beyond) out[1] = total.y;
            if (j + 2 < beyond) out[2] = total.z;
            if (j + 3 < beyond) out[3] = total.w;
        }
    };
    for (int v = threadIdx.x; v < SUMS; v += THREADS) {
        float4 total = vectors[v];
#pragma unroll
        for (int g = 1; g < GROUPS / JOINED; ++g) {
            const float4 more = vectors[g * SUMS + v];
            total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
        }
        if (parts == 1) store(v, total);
        else vectors[v] = total;
    }
    if (parts == 1) return;
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    for (int v = threadIdx.x * parts + part; v < SUMS; v += THREADS * parts) {
        const unsigned address = cvta_to_shared(vectors + v);
        float4 total = {};
#pragma unroll 8
        for (int cta = 0; cta < parts; ++cta) {
            const uint4 more = ld_shared_cluster_v4(mapa_shared_cluster(address, cta));
            total = {total.x + __uint_as_float(more.x), total.y + __uint_as_float(more.y),
                     total.z + __uint_as_float(more.z), total.w + __uint_as_float(more.w)};
        }
        store(v, total);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA reads this one's shared memory any more
}
