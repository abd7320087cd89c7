// f32 matrix product on the CUDA cores, the ninth step of micro_tiling_matmul.cu: the ring of the eighth, and as much work for every SM.
//
// Tiles seldom divide by SMs: 512 tiles take 132 of them four turns, and in the last one 16 SMs have nothing to do. Here as many CTAs
// as SMs stay and take whole tiles in turn, and the steps of k of the tiles that remain are dealt out in equal shares, end to end: a
// share begins and ends anywhere in a tile. Who has a tile's last steps stores its sums; the others add theirs, one after the other.
// Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
//
// A producer warp fills the ring. It does not stop between tiles: the next one is on its way while the others store sums. Its warpgroup
// gives its registers to theirs (setmaxnreg, sm_90a).
#include "ptxkit/gemm/micro_tiling.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/wgmma.cuh"

using namespace ptxkit;
using namespace ptxkit::micro_tiling;

// What a CTA does of a tile: `count` steps of k, from `begin` on.
struct Part {
    int tile, begin, count;
};

// The parts of a CTA, laid end to end. Each takes `whole` tiles, gridDim.x apart; of the steps of the tiles behind those, `shares` of
// the CTAs get as many each, or one more. The last CTA has the first share, so that who adds waits for a CTA that started earlier.
struct Schedule {
    int whole, steps;  // tiles; steps of k of a tile
    int begin, total;  // of the CTA's share among the steps that are shared; steps of the CTA

    __device__ __forceinline__ Schedule(int tiles, int steps, int whole, int shares) : whole(whole), steps(steps) {
        const int shared = (tiles - whole * static_cast<int>(gridDim.x)) * steps, least = shared / shares, more = shared % shares;
        const int share = gridDim.x - 1 - blockIdx.x;
        begin = least * share + min(share, more);
        total = whole * steps + (share < shares ? least + (share < more) : 0);
    }

    // The part at one of the CTA's steps at which one begins.
    __device__ __forceinline__ Part at(int step) const {
        const int beyond = step - whole * steps;
        if (beyond < 0) return {static_cast<int>(blockIdx.x + step / steps * gridDim.x), 0, steps};
        const int first = (begin + beyond) % steps;
        return {static_cast<int>(whole * gridDim.x) + (begin + beyond) / steps, first, min(steps - first, total - step)};
    }
};

// Registers of a thread that multiplies: what is left of an SM's when the producer's warpgroup keeps 24 each.
template <int THREADS, int CTAS>
struct Registers {
    static constexpr int PRODUCER = 24, AT_LAUNCH = 65536 / CTAS / (THREADS + 128) / 8 * 8;
    static constexpr int LEFT = (AT_LAUNCH * (THREADS + 128) - PRODUCER * 128) / THREADS / 8 * 8, CONSUMER = LEFT < 240 ? LEFT : 240;
    static_assert(THREADS % 128 == 0, "whole warpgroups multiply");
    static_assert(AT_LAUNCH >= PRODUCER && AT_LAUNCH <= CONSUMER, "setmaxnreg takes from the producer and gives to the others");
};

extern "C" __global__ void matmul_stream_k_clear(unsigned* flags, int count) {
    follow_previous_grid();
    for (int i = threadIdx.x; i < count; i += blockDim.x) flags[i] = 0;
}

// flags: one for each warp that multiplies, 0 until the sums of its share's first part are in c.
template <class Tile>
__global__ __launch_bounds__(InterleavedLanesOf<Tile>::THREADS + 128, Tile::CTAS) void matmul_stream_k(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, unsigned* flags, int m, int n, int k,
    int whole, int shares) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN, WM = Tile::WM, WN = Tile::WN;
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
            const Place place = place_of<BM, BN, GROUP>(part.tile, m, n);
            step += part.count;
            for (int i = part.begin; i < part.begin + part.count; ++i, ring.advance()) {
                const unsigned stage = cvta_to_shared(bytes) + ring.stage * STAGE, barrier = filled + ring.stage * 8;
                mbarrier_wait(free + ring.stage * 8, ring.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, STAGE);
                cp_async_bulk_tensor_2d_shared_global(stage, a, i * BK, place.row, barrier);
                cp_async_bulk_tensor_2d_shared_global(stage + Operands::STAGE_A, b, place.col, i * BK, barrier);
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
            const Place place = place_of<BM, BN, GROUP>(part.tile, m, n);
            if (part.begin + part.count == steps) {
                store(c, sum, lanes, place, m, n, true);
            } else {  // the share behind this one has the next steps of the tile, and adds or stores first: sums have one order
                while (ld_acquire_gpu_global(flags + (blockIdx.x - 1) * L::WARPS + warp) == 0) {
                }
                add(c, sum, lanes, place, m, n);
            }
            if (part.begin > 0) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) st_release_gpu_global(flags + blockIdx.x * L::WARPS + warp, 1);
            }
        }
    }
}
