// f32 matrix product on the CUDA cores, step 9 of micro_tiling_matmul.cu: the ring of step 8 with equal work for every
// SM.
//
// Step 11 differs in how the parts of a tile are added. In a chain a tile of many parts waits for as many CTAs, one after
// another. There each part stores its sums to an array of its own, and each of the CTAs of a tile adds some of the sums of all
// parts, in the order of k, after its last step. In step 14 another launch adds them, so that no CTA waits for another one.
//
// The number of tiles is seldom a multiple of the number of SMs: 512 tiles take the 132 SMs of an H200 four waves, and
// 16 SMs are idle in the last one. Here CTAs are persistent, as many as SMs hold. They compute whole tiles first; the
// steps of k of the remaining tiles are divided into equal shares, which may begin and end within a tile. The CTA with
// the last steps of a tile stores its sums, and the others then add theirs in a fixed order. Osama et al., "Stream-K:
// Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
//
// A producer warp fills the ring and continues with the next tile while the other warps store sums. Its warpgroup gives
// registers to theirs (setmaxnreg, sm_90a).
#include "ptxkit/gemm/micro_tiling_operands.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;
using namespace ptxkit::micro_tiling;

// The work of a CTA on one tile: `count` steps of k, from `begin` on.
struct Part {
    int tile, begin, count;
};

// The sequence of a CTA's parts: `whole` tiles, gridDim.x apart, then its share of the steps of the remaining tiles.
// `shares` of the CTAs have a share, of equal size or one step more. The last CTA has the first share, so that a CTA
// that adds waits for one that started earlier.
struct Schedule {
    int whole, steps;  // whole tiles; steps of k of a tile
    int begin, total;  // first step of the CTA's share; all steps of the CTA

    __device__ __forceinline__ Schedule(int tiles, int steps, int whole, int shares) : whole(whole), steps(steps) {
        const int shared = (tiles - whole * static_cast<int>(gridDim.x)) * steps, least = shared / shares,
                  more = shared % shares;
        const int share = gridDim.x - 1 - blockIdx.x;
        begin = least * share + min(share, more);
        total = whole * steps + (share < shares ? least + (share < more) : 0);
    }

    // The part that begins at step `step` of the CTA, which must be the first step of a part: 0, or the first step of
    // the previous part plus its number of steps.
    __device__ __forceinline__ Part at(int step) const {
        const int beyond = step - whole * steps;
        if (beyond < 0) return {static_cast<int>(blockIdx.x + step / steps * gridDim.x), 0, steps};
        const int first = (begin + beyond) % steps;
        return {static_cast<int>(whole * gridDim.x) + (begin + beyond) / steps, first,
                min(steps - first, total - step)};
    }
};

// The sums of parts of tiles in an array of vectors: of each CTA there is room for two tiles, one that its share begins within
// and one that it begins and does not end. A thread has VECTORS vectors of a tile, and the same ones in each CTA.
template <class L, int TM, int TN>
struct Partials {
    static constexpr int VECTORS = TM * TN / 4;
    float* sums;
    unsigned* flags;  // one for each room and consumer warp, 0 until the sums of the warp are stored; null if nothing waits
    int ctas, steps, least, more;  // CTAs of the grid; steps of a tile; of a share; shares that have one step more

    __device__ __forceinline__ Partials(float* sums, unsigned* flags, int ctas, int tiles, int steps, int whole, int shares)
        : sums(sums), flags(flags), ctas(ctas), steps(steps) {
        const int shared = (tiles - whole * ctas) * steps;
        least = shared / shares;
        more = shared % shares;
    }

    // The share that has a step, and its first step.
    __device__ __forceinline__ int share_of(int step) const {
        const int longer = more * (least + 1);
        return step < longer ? step / (least + 1) : more + (step - longer) / least;
    }
    __device__ __forceinline__ int begin(int share) const { return least * share + min(share, more); }

    // Number of the room for the part of a share that begins at the first step of a tile or not.
    __device__ __forceinline__ int room(int share, bool first) const { return 2 * (ctas - 1 - share) + first; }
    __device__ __forceinline__ float4* vector(int room, int v) const {
        return reinterpret_cast<float4*>(sums) + (static_cast<size_t>(room) * VECTORS + v) * L::THREADS + threadIdx.x;
    }
    __device__ __forceinline__ unsigned* flag(int room) const { return flags + room * L::WARPS + threadIdx.x / 32; }

    __device__ __forceinline__ void store_part(const float (&sum)[TM][TN], int room) const {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const int r = v / (TN / 4), q = v % (TN / 4) * 4;
            *vector(room, v) = {sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3]};
        }
        if (flags == nullptr) return;
        __syncwarp();
        if (threadIdx.x % 32 == 0) st_release_gpu_global(flag(room), 1);
    }

    // Adds the vectors of shared tile `tile` that this CTA, with share `share`, has to add: store(r, q, thread, vector), with the
    // thread that has vector r, q of the tile.
    template <class Store>
    __device__ __forceinline__ void add_parts(int tile, int share, const Store& store) const {
        const int first = share_of(tile * steps), parts = share_of(tile * steps + steps - 1) - first + 1;
        if (parts > VECTORS) {
            add_many_parts(first, parts, share - first, store);
            return;
        }
        for (int i = threadIdx.x % 32; i < parts; i += 32) {
            while (ld_acquire_gpu_global(flag(room(first + i, i == 0))) == 0) {
            }
        }
        __syncwarp();
#pragma unroll 1
        for (int v = share - first; v < VECTORS; v += parts) {
            float4 total = *vector(room(first, true), v);
#pragma unroll 8
            for (int i = 1; i < parts; ++i) {
                const float4 more = *vector(room(first + i, false), v);
                total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
            }
            store(v / (TN / 4), v % (TN / 4) * 4, threadIdx.x, total);
        }
    }

    // More parts than vectors of a thread: the CTA with number `own` of those of the tile adds a range of all vectors of all
    // threads, each by up to 16 lanes, which take every 16th part and then add their sums pairwise.
    template <class Store>
    __device__ __forceinline__ void add_many_parts(int first, int parts, int own, const Store& store) const {
        constexpr long long ALL = VECTORS * L::THREADS;
        const int begin = static_cast<int>(ALL * own / parts), end = static_cast<int>(ALL * (own + 1) / parts);
        const int of_first = begin / 32, warps = end > begin ? (end - 1) / 32 - of_first + 1 : 0;
        for (int i = threadIdx.x; i < parts * warps; i += L::THREADS) {
            const int part = i % parts, warp = (of_first + i / parts) % L::WARPS;
            while (ld_acquire_gpu_global(flags + room(first + part, part == 0) * L::WARPS + warp) == 0) {
            }
        }
        barrier_sync<1>(L::THREADS);
        int lanes = 16;
        while (lanes > 1 && lanes * (end - begin) > L::THREADS) lanes /= 2;
        const int lane = threadIdx.x % lanes;
#pragma unroll 1
        for (int at = begin; at < end; at += L::THREADS / lanes) {
            const int slot = at + threadIdx.x / lanes;
            float4 total = {};
#pragma unroll 8
            for (int i = lane; i < parts; i += lanes) {
                if (slot >= end) break;
                const float4 more = reinterpret_cast<const float4*>(sums)[room(first + i, i == 0) * ALL + slot];
                total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
            }
            for (int apart = lanes / 2; apart > 0; apart /= 2)
                total = {total.x + shfl_sync_bfly(all_lanes, total.x, apart), total.y + shfl_sync_bfly(all_lanes, total.y, apart),
                         total.z + shfl_sync_bfly(all_lanes, total.z, apart), total.w + shfl_sync_bfly(all_lanes, total.w, apart)};
            const int v = slot / L::THREADS;
            if (slot < end && lane == 0) store(v / (TN / 4), v % (TN / 4) * 4, slot % L::THREADS, total);
        }
    }
};

extern "C" __global__ void matmul_stream_k_clear(unsigned* flags, int count) {
    follow_previous_grid();
    for (int i = threadIdx.x; i < count; i += blockDim.x) flags[i] = 0;
}

// flags: in a chain one per consumer warp, 0 until the sums of the first part of its share are in c. partials: null for a
// chain.
template <class Tile, bool CHAIN, class Source>
__device__ __forceinline__ void stream_k(const Source& source, float* c, unsigned* flags, float* partials, int m, int n, int k,
                                         int whole, int shares) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = InterleavedLanesOf<Tile>;
    using Operands = BankedOperands<L, BM, BN, BK, TM, TN>;
    using R = Registers<L::THREADS, Tile::CTAS, Source::REGISTERS>;
    constexpr int STAGE = Operands::STAGE;
    static_assert(STAGES >= 2, "one is filled while another is read");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long barriers[2 * STAGES];
    __shared__ __align__(16) float zeros[4];
    const unsigned filled = cvta_to_shared(barriers), free = filled + STAGES * 8;
    const int steps = (k + BK - 1) / BK, warp = threadIdx.x / 32;
    const int tiles = (m + BM - 1) / BM * ((n + BN - 1) / BN);
    const Schedule schedule(tiles, steps, whole, shares);
    using P = Partials<L, TM, TN>;
    if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        init_ring<STAGES>(filled, Source::ARRIVALS, free, L::WARPS);
        fence_proxy_async();
    }
    griddepcontrol_wait();
    barrier_sync();

    if (warp >= L::WARPS) {
        R::give();
        const int thread = threadIdx.x - L::THREADS;
        if (thread >= Source::THREADS) return;
        Ring<STAGES> ring;
        for (int step = 0; step < schedule.total;) {
            const Part part = schedule.at(step);
            const typename Source::template Of<Tile> operands(source, tile_origin<BM, BN, GROUP>(part.tile, m, n), thread, m, n, k);
            step += part.count;
            for (int i = part.begin; i < part.begin + part.count; ++i, ring.advance()) {
                mbarrier_wait(free + ring.stage * 8, ring.parity ^ 1);
                operands.copy(cvta_to_shared(bytes) + ring.stage * STAGE, i, filled + ring.stage * 8);
            }
        }
        griddepcontrol_launch_dependents();  // see micro_tiling_operands.cuh
    } else {
        R::take();
        const L lanes;
        Operands operands(cvta_to_shared(bytes), lanes);
        Ring<STAGES> ring;
        if (schedule.total > 0) mbarrier_wait(filled, 0);
        operands.read(0);
#pragma unroll 1
        for (int step = 0; step < schedule.total;) {
            const Part part = schedule.at(step);
            step += part.count;
            float sum[TM][TN];
            Operands::clear(sum, cvta_to_shared(zeros));
            const int last = part.begin + part.count == steps ? last_depth<BK>(k) : BK;
#pragma unroll 1
            for (int left = part.count; left > 0; --left, ring.advance()) {
                operands.multiply(sum, ring.stage * STAGE, left > 1 ? BK : last, [&] {
                    Ring<STAGES> next = ring;
                    next.advance();
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) mbarrier_arrive(free + ring.stage * 8);
                    if (left > 1 || step < schedule.total) mbarrier_wait(filled + next.stage * 8, next.parity);
                    return next.stage * STAGE;
                });
            }
            const TileOrigin origin = tile_origin<BM, BN, GROUP>(part.tile, m, n);
            if (!CHAIN && part.count < steps) {
                const P parts(partials, flags, gridDim.x, tiles, steps, whole, shares);
                parts.store_part(sum, parts.room(gridDim.x - 1 - blockIdx.x, part.begin == 0));
                continue;
            }
            if (part.begin + part.count == steps) {
                if constexpr (Source::WHOLE) store(c, sum, lanes, origin, m, n, true);
                else store_row_by_row<Tile>(c, sum, lanes, origin, m, n, bytes + STAGES * STAGE);
            } else {
                // The share after this one has the next steps of the tile and adds or stores first, so that the sums
                // are added in one order.
                while (ld_acquire_gpu_global(flags + (blockIdx.x - 1) * L::WARPS + warp) == 0) {
                }
                add(c, sum, lanes, origin, m, n, Source::WHOLE);
            }
            if (part.begin > 0) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) st_release_gpu_global(flags + blockIdx.x * L::WARPS + warp, 1);
            }
        }
        if (CHAIN || flags == nullptr || schedule.total == whole * steps) return;
        const P parts(partials, flags, gridDim.x, tiles, steps, whole, shares);
        const int share = gridDim.x - 1 - blockIdx.x, begin = parts.begin(share);
        const int end = begin + schedule.total - whole * steps;
        // The tile that the share begins within, then the one that it does not end, if that is another one.
#pragma unroll 1
        for (int tile = begin / steps; tile * steps < end; ++tile) {
            if (tile * steps >= begin && (tile + 1) * steps <= end) continue;
            const TileOrigin origin = tile_origin<BM, BN, GROUP>(whole * gridDim.x + tile, m, n);
            parts.add_parts(tile, share, [&](int r, int q, int thread, float4 v) {
                const L of(thread);
                store_vector(c, v, origin.row + of.row + L::down(r), origin.col + of.col + L::across(q), m, n, Source::WHOLE);
            });
        }
    }
}

template <class Tile, bool WHOLE = true>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_stream_k(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, unsigned* flags, int m, int n,
    int k, int whole, int shares) {
    stream_k<Tile, true>(BoxedOperands<WHOLE>{a, b}, c, flags, nullptr, m, n, k, whole, shares);
}

// The same for rows of any length; a_wide, b_wide: elements of a copy.
template <class Tile>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_stream_k_unaligned(
    const float* a, const float* b, int a_wide, int b_wide, float* c, unsigned* flags, int m, int n,
    int k, int whole, int shares) {
    stream_k<Tile, true>(CopiedOperandsOf<Tile>{a, b, a_wide, b_wide}, c, flags, nullptr, m, n, k, whole, shares);
}

// Steps 11 and 14. partials: 2 BM BN elements for each CTA. flags: null in step 14, where matmul_add_partials adds them.
template <class Tile, bool WHOLE = true>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_partial_sums(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, unsigned* flags, float* partials,
    int m, int n, int k, int whole, int shares) {
    stream_k<Tile, false>(BoxedOperands<WHOLE>{a, b}, c, flags, partials, m, n, k, whole, shares);
}

template <class Tile>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_partial_sums_unaligned(
    const float* a, const float* b, int a_wide, int b_wide, float* c, unsigned* flags, float* partials,
    int m, int n, int k, int whole, int shares) {
    stream_k<Tile, false>(CopiedOperandsOf<Tile>{a, b, a_wide, b_wide}, c, flags, partials, m, n, k, whole, shares);
}

// Step 14: adds the parts of the tiles that matmul_partial_sums has divided. gridDim.y: tiles. `split` warps add 32 vectors of a
// tile, each every split-th part; 8 / split such groups are a CTA, and gridDim.x of these a tile. ctas: of matmul_partial_sums.
template <class Tile>
__global__ __launch_bounds__(256) void matmul_add_partials(const float* partials, float* c, int m, int n, int k, int whole,
                                                           int shares, int ctas, int split) {
    constexpr int BM = Tile::BM, BN = Tile::BN, TN = Tile::TN, WARPS = 8, BATCH = 8;
    using L = InterleavedLanesOf<Tile>;
    using P = Partials<L, Tile::TM, TN>;
    __shared__ float4 sums[WARPS][32];
    const int tiles = (m + BM - 1) / BM * ((n + BN - 1) / BN), steps = (k + Tile::BK - 1) / Tile::BK;
    const P of(const_cast<float*>(partials), nullptr, ctas, tiles, steps, whole, shares);
    const int tile = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = warp % split;
    const int group = blockIdx.x * (WARPS / split) + warp / split, slot = group * 32 + lane;
    const int first = of.share_of(tile * steps), parts = of.share_of(tile * steps + steps - 1) - first + 1;
    follow_previous_grid();
    if (parts == 1) return;  // a CTA has stored the whole tile
    float4 total = {};
#pragma unroll 1
    for (int begin = member; begin < parts; begin += BATCH * split) {
        float4 more[BATCH];  // all are loaded before the first of them is added
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int i = begin + u * split;
            more[u] = {};
            if (i < parts)
                more[u] = reinterpret_cast<const float4*>(partials)[of.room(first + i, i == 0) * (P::VECTORS * L::THREADS) + slot];
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u)
            total = {total.x + more[u].x, total.y + more[u].y, total.z + more[u].z, total.w + more[u].w};
    }
    sums[warp][lane] = total;
    if (split > 1) barrier_sync();
    if (member > 0) return;
#pragma unroll 1
    for (int i = 1; i < split; ++i) {
        const float4 more = sums[warp + i][lane];
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
    }
    const TileOrigin origin = tile_origin<BM, BN, Tile::GROUP>(whole * ctas + tile, m, n);
    const int v = group * 32 / L::THREADS, down = L::down(v / (TN / 4)), across = L::across(v % (TN / 4) * 4);
    const int thread = slot % L::THREADS;
    if (n % 4 == 0) {
        const L lanes(thread);
        store_vector(c, total, origin.row + lanes.row + down, origin.col + lanes.col + across, m, n, true);
        return;
    }
    // Rows of c begin anywhere: neighbouring lanes store neighbouring elements.
    sums[warp][lane] = total;
    __syncwarp();
#pragma unroll
    for (int e = lane; e < 128; e += 32) {
        const L lanes(thread - lane + e / 4);
        const int i = origin.row + lanes.row + down, j = origin.col + lanes.col + across + e % 4;
        if (i < m && j < n) c[static_cast<size_t>(i) * n + j] = reinterpret_cast<const float*>(sums[warp])[e];
    }
}
