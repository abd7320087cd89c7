// f32 matrix product with few columns, step 13 of micro_tiling_matmul.cu: c = a b with up to 16 columns takes as long as
// reading a, which has all the bytes.
//
// A warp multiplies ROWS rows of a. Its lanes take neighbouring elements of k, or neighbouring vectors of four, so that they
// read contiguous memory of each row, and BATCH of them of each row are in flight. The rows of b that belong to them are
// contiguous as well, and are read from L1. At the end the lanes exchange sums so that each lane has some of them, and the
// CTAs of a cluster, which divide k, add theirs in the order of their ranks through distributed shared memory.
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

__device__ __forceinline__ float number(const float* from) {
    return __uint_as_float(ld_global(reinterpret_cast<const unsigned*>(from)));
}

// Adds the COUNT sums of each lane over the lanes of a warp. Lane l then has those with numbers from first(l) on, of which
// there are `KEPT`; where COUNT is less than 32, several lanes have the same one.
template <int COUNT>
struct LaneSums {
    static_assert((COUNT & (COUNT - 1)) == 0, "halves are halved");
    static constexpr int KEPT = COUNT > 32 ? COUNT / 32 : 1;

    template <int HALF, int LANES>
    static __device__ __forceinline__ void halve(float (&sum)[COUNT]) {
        const bool upper = laneid() & LANES;
        if constexpr (HALF >= 1) {
#pragma unroll
            for (int i = 0; i < HALF; ++i) {
                const float kept = upper ? sum[HALF + i] : sum[i], sent = upper ? sum[i] : sum[HALF + i];
                sum[i] = kept + shfl_sync_bfly(all_lanes, sent, LANES);
            }
        } else {
            sum[0] += shfl_sync_bfly(all_lanes, sum[0], LANES);
        }
        if constexpr (LANES > 1) halve<HALF / 2, LANES / 2>(sum);
    }
    static __device__ __forceinline__ void add(float (&sum)[COUNT]) { halve<COUNT / 2, 16>(sum); }

    // The first lane bit selects the upper half of the sums, and so on.
    static __device__ __forceinline__ int first() {
        return COUNT >= 32 ? laneid() * KEPT : laneid() / (32 / COUNT);
    }
};

// How elements are read. ELEMENTS: one by one. B_VECTORS: rows of b by vectors, of which COLUMNS and n have whole ones.
// VECTORS: rows of a by vectors, of which k has whole ones, and so the elements of b that belong to one, where n is COLUMNS.
enum Access { ELEMENTS, B_VECTORS, VECTORS };

__device__ __forceinline__ void vector(float* to, const float* from) {
    const uint4 v = ld_global(reinterpret_cast<const uint4*>(from));
    to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y), to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
}

// The rows k to k + DEEP - 1 of b, columns `col` on.
template <int COLUMNS, int DEEP, Access ACCESS>
__device__ __forceinline__ void read_right(float (&right)[DEEP * COLUMNS], const float* b, int k, int n, int col) {
    const float* from = b + static_cast<size_t>(k) * n + col;
    if constexpr (ACCESS == ELEMENTS) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) right[q] = col + q < n ? number(from + q) : 0;
    } else {
#pragma unroll
        for (int q = 0; q < DEEP * COLUMNS; q += 4) {
            if (ACCESS == VECTORS || col + q < n) vector(right + q, from + q);
            else right[q] = right[q + 1] = right[q + 2] = right[q + 3] = 0;
        }
    }
}

// gridDim.x: groups of THREADS / 32 x ROWS rows times the CTAs of a cluster. gridDim.y: groups of COLUMNS columns.
template <int ROWS, int COLUMNS, int BATCH, int THREADS, Access ACCESS>
__global__ __launch_bounds__(THREADS) void matmul_few_columns(const float* a, const float* b, float* c, int m, int n,
                                                              int k) {
    constexpr int WARPS = THREADS / 32, COUNT = ROWS * COLUMNS, DEEP = ACCESS == VECTORS ? 4 : 1;
    using Sums = LaneSums<COUNT>;
    __shared__ float sums[WARPS * COUNT];
    const int parts = cluster_nctarank(), part = cluster_ctarank(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = (blockIdx.x / parts * WARPS + warp) * ROWS, col = blockIdx.y * COLUMNS;
    const int steps = (k + 31) / 32;
    const int begin = static_cast<int>(static_cast<long long>(steps) * part / parts) * 32;
    const int end = min(k, static_cast<int>(static_cast<long long>(steps) * (part + 1) / parts) * 32);
    float sum[COUNT] = {};
    follow_previous_grid();

    for (int at = begin + lane * DEEP; at < end; at += BATCH * 32 * DEEP) {
        float left[BATCH][ROWS][DEEP];
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int j = at + u * 32 * DEEP;
            if (j >= end) break;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                // rows beyond the last are computed from the last one, and not stored
                const float* from = a + static_cast<size_t>(min(row + r, m - 1)) * k + j;
                if constexpr (ACCESS == VECTORS) vector(left[u][r], from);
                else left[u][r][0] = number(from);
            }
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int j = at + u * 32 * DEEP;
            if (j >= end) break;
            float right[DEEP * COLUMNS];
            read_right<COLUMNS, DEEP, ACCESS>(right, b, j, n, col);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int s = 0; s < DEEP; ++s)
#pragma unroll
                    for (int q = 0; q < COLUMNS; ++q)
                        sum[r * COLUMNS + q] = fmaf(left[u][r][s], right[s * COLUMNS + q], sum[r * COLUMNS + q]);
        }
    }

    __syncwarp();
    Sums::add(sum);
    auto store = [&](int of_warp, int v, float total) {
        const int i = (blockIdx.x / parts * WARPS + of_warp) * ROWS + v / COLUMNS, j = col + v % COLUMNS;
        if (i < m && j < n) c[static_cast<size_t>(i) * n + j] = total;
    };
    if (COUNT >= 32 || lane % (32 / (COUNT < 32 ? COUNT : 32)) == 0) {
#pragma unroll
        for (int v = 0; v < Sums::KEPT; ++v) {
            if (parts == 1) store(warp, Sums::first() + v, sum[v]);
            else sums[warp * COUNT + Sums::first() + v] = sum[v];
        }
    }
    if (parts == 1) return;
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    for (int v = threadIdx.x * parts + part; v < WARPS * COUNT; v += THREADS * parts) {
        const unsigned address = cvta_to_shared(sums + v);
        float total = 0;
#pragma unroll 8
        for (int cta = 0; cta < parts; ++cta)
            total += ld_shared_cluster_f32(mapa_shared_cluster(address, cta));
        store(v / COUNT, v % COUNT, total);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA reads this one's shared memory any more
}
