// f32 matrix product on the CUDA cores, step 9 of micro_tiling_matmul.cu: the ring of step 8 with equal work for every
// SM.
//
// The number of tiles is seldom a multiple of the number of SMs: 512 tiles take the 132 SMs of an H200 four waves, and
// 16 SMs are idle in the last one. Here CTAs are persistent, as many as SMs hold. They compute whole tiles first; the
// steps of k of the remaining tiles are divided into equal shares, which may begin and end within a tile. The CTA with
// the last steps of a tile stores its sums, and the others then add theirs in a fixed order. Osama et al., "Stream-K:
// Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
//
// A producer warp fills the ring and continues with the next tile while the other warps store sums. Its warpgroup gives
// registers to theirs (setmaxnreg, sm_90a).
#include "ptxkit/gemm/micro_tiling.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/wgmma.cuh"

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

// Registers of a consumer thread: those of the SM that remain when each thread of the producer warpgroup keeps 24.
template <int THREADS, int CTAS>
struct Registers {
    static constexpr int PRODUCER = 24, AT_LAUNCH = TargetLimits::REGISTERS_PER_SM / CTAS / (THREADS + 128) / 8 * 8;
    static constexpr int LEFT = (AT_LAUNCH * (THREADS + 128) - PRODUCER * 128) / THREADS / 8 * 8,
                         CONSUMER = LEFT < 240 ? LEFT : 240;
    static_assert(THREADS % 128 == 0, "whole warpgroups multiply");
    static_assert(AT_LAUNCH >= PRODUCER && AT_LAUNCH <= CONSUMER,
                  "setmaxnreg takes from the producer and gives to the others");
};

extern "C" __global__ void matmul_stream_k_clear(unsigned* flags, int count) {
    follow_previous_grid();
    for (int i = threadIdx.x; i < count; i += blockDim.x) flags[i] = 0;
}

// flags: one per consumer warp, 0 until the sums of the first part of its share are in c.
template <class Tile>
__global__ __launch_bounds__(InterleavedLanesOf<Tile>::THREADS + 128, Tile::CTAS) void matmul_stream_k(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, unsigned* flags, int m, int n,
    int k, int whole, int shares) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = InterleavedLanesOf<Tile>;
    using Operands = BankedOperands<L, BM, BN, BK, TM, TN>;
    using R = Registers<L::THREADS, Tile::CTAS>;
    constexpr int STAGE = Operands::STAGE;
    static_assert(STAGES >= 2, "one is filled while another is read");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long barriers[2 * STAGES];
    __shared__ __align__(16) float zeros[4];
    const unsigned filled = cvta_to_shared(barriers), free = filled + STAGES * 8;
    const int steps = (k + BK - 1) / BK, warp = threadIdx.x / 32;
    const Schedule schedule((m + BM - 1) / BM * ((n + BN - 1) / BN), steps, whole, shares);
    if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        init_ring<STAGES>(filled, 1, free, L::WARPS);
        fence_proxy_async();
    }
    follow_previous_grid();
    barrier_sync();

    if (warp >= L::WARPS) {
        setmaxnreg_dec<R::PRODUCER>();
        if (threadIdx.x != L::THREADS) return;
        Ring<STAGES> ring;
        for (int step = 0; step < schedule.total;) {
            const Part part = schedule.at(step);
            const TileOrigin origin = tile_origin<BM, BN, GROUP>(part.tile, m, n);
            step += part.count;
            for (int i = part.begin; i < part.begin + part.count; ++i, ring.advance()) {
                const unsigned stage = cvta_to_shared(bytes) + ring.stage * STAGE, barrier = filled + ring.stage * 8;
                mbarrier_wait(free + ring.stage * 8, ring.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, STAGE);
                cp_async_bulk_tensor_2d_shared_global(stage, a, i * BK, origin.row, barrier);
                cp_async_bulk_tensor_2d_shared_global(stage + Operands::STAGE_A, b, origin.col, i * BK, barrier);
            }
        }
    } else {
        setmaxnreg_inc<R::CONSUMER>();
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
#pragma unroll 1
            for (int left = part.count; left > 0; --left, ring.advance()) {
                operands.multiply(sum, ring.stage * STAGE, [&] {
                    Ring<STAGES> next = ring;
                    next.advance();
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) mbarrier_arrive(free + ring.stage * 8);
                    if (left > 1 || step < schedule.total) mbarrier_wait(filled + next.stage * 8, next.parity);
                    return next.stage * STAGE;
                });
            }
            const TileOrigin origin = tile_origin<BM, BN, GROUP>(part.tile, m, n);
            if (part.begin + part.count == steps) {
                store(c, sum, lanes, origin, m, n, true);
            } else {
                // The share after this one has the next steps of the tile and adds or stores first, so that the sums
                // are added in one order.
                while (ld_acquire_gpu_global(flags + (blockIdx.x - 1) * L::WARPS + warp) == 0) {
                }
                add(c, sum, lanes, origin, m, n);
            }
            if (part.begin > 0) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) st_release_gpu_global(flags + blockIdx.x * L::WARPS + warp, 1);
            }
        }
    }
}
