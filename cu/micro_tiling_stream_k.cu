// f32 matrix product on the CUDA cores, the ninth step of micro_tiling_matmul.cu: the ring of the eighth, and as much work for every SM.
//
// Tiles seldom divide by SMs: 512 tiles take 132 of them four turns, and in the last one 16 SMs have nothing to do. Here as many CTAs
// as SMs stay and take whole tiles in turn, and the steps of k of the tiles that remain are dealt out in equal shares, end to end: a share
// begins and ends anywhere in a tile. Who has a tile's first steps adds the sums of the others, in the order of k, and stores.
// Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
//
// The ring does not know of tiles: copies for the next one are on their way while sums are stored.
#include "ptxkit/mbarrier.cuh"
#include "ptxkit/micro_tiling.cuh"
#include "ptxkit/synchronization.cuh"

using namespace ptxkit;

// What a CTA does of a tile: `count` steps of k, from `begin` on.
struct Part {
    int tile, begin, count;
};

// The parts of a CTA, laid end to end. Each takes `whole` tiles, gridDim.x apart; of the steps of the tiles behind those, `shares` of
// the CTAs get as many each, or one more. The last CTA has the first share: who waits for a share waits for a CTA that started earlier.
struct Schedule {
    int whole, steps, shares;  // steps of k of a tile
    int least, more;           // steps of a share; the first `more` shares have one more
    int begin, total;          // of the CTA's share among the steps that are shared; steps of the CTA

    __device__ __forceinline__ Schedule(int tiles, int steps, int whole, int shares)
        : whole(whole), steps(steps), shares(shares) {
        const int shared = (tiles - whole * static_cast<int>(gridDim.x)) * steps;
        const int share = gridDim.x - 1 - blockIdx.x;
        least = shared / shares, more = shared % shares;
        begin = least * share + min(share, more);
        total = whole * steps + (share < shares ? length(share) : 0);
    }
    __device__ __forceinline__ int length(int share) const { return least + (share < more); }

    // The part at one of the CTA's steps at which one begins.
    __device__ __forceinline__ Part at(int step) const {
        const int beyond = step - whole * steps;
        if (beyond < 0) return {static_cast<int>(blockIdx.x + step / steps * gridDim.x), 0, steps};
        const int first = (begin + beyond) % steps;
        return {static_cast<int>(whole * gridDim.x) + (begin + beyond) / steps, first, min(steps - first, total - step)};
    }
};

extern "C" __global__ void matmul_stream_k_clear(unsigned* flags, int count) {
    griddepcontrol_launch_dependents();
    for (int i = threadIdx.x; i < count; i += blockDim.x) flags[i] = 0;
}

// partials: BM * BN sums for each CTA; flags: 0 for each of its warps, until they are there.
template <int BM, int BN, int BK, int TM, int TN, int WM, int WN, int STAGES, int GROUP, int CTAS>
__global__ __launch_bounds__(InterleavedLanes<BM, BN, TM, TN, WM, WN>::THREADS, CTAS) void matmul_stream_k(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, float4* partials, unsigned* flags, int m, int n,
    int k, int whole, int shares) {
    using L = InterleavedLanes<BM, BN, TM, TN, WM, WN>;
    using Operands = RingOperands<L, BM, BN, BK, TM, TN>;
    constexpr int STAGE = Operands::STAGE;
    static_assert(STAGES >= 2, "one is filled while another is read");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long barriers[2 * STAGES];
    __shared__ struct {
        Place place;
        int step, left, next;  // of k; of the part; of the CTA where the next part begins
    } ahead;                   // what thread 0 copies next, kept where it costs the others no registers
    const L lanes;
    const unsigned base = cvta_to_shared(bytes), filled = cvta_to_shared(barriers), free = filled + STAGES * 8;
    const int steps = (k + BK - 1) / BK;
    const Schedule schedule((m + BM - 1) / BM * ((n + BN - 1) / BN), steps, whole, shares);
    if (schedule.total == 0) return;

    auto look_ahead = [&](int step) {
        const Part part = schedule.at(step);
        ahead.place = place_of<BM, BN, GROUP>(part.tile, m, n);
        ahead.step = part.begin, ahead.left = part.count, ahead.next = step + part.count;
    };
    auto copy = [&](int stage) {
        const unsigned to = base + stage * STAGE, barrier = filled + stage * 8;
        mbarrier_arrive_expect_tx(barrier, STAGE);
        cp_async_bulk_tensor_2d_shared_global(to, a, ahead.step * BK, ahead.place.row, barrier);
        cp_async_bulk_tensor_2d_shared_global(to + Operands::STAGE_A, b, ahead.place.col, ahead.step * BK, barrier);
        ++ahead.step;
        if (--ahead.left == 0 && ahead.next < schedule.total) look_ahead(ahead.next);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(filled + s * 8, 1);
            mbarrier_init(free + s * 8, L::WARPS);
        }
        fence_mbarrier_init_release_cluster();
        fence_proxy_async();
        look_ahead(0);
        for (int s = 0; s < STAGES - 1 && ahead.left > 0; ++s) copy(s);
    }
    barrier_sync();

    Operands operands(bytes, lanes);
    const int warp = threadIdx.x / 32;
    int ring = 0, parity = 0;
    mbarrier_wait(filled, 0);
    operands.read(0);
    for (int step = 0; step < schedule.total;) {
        const Part part = schedule.at(step);
        step += part.count;
        float sum[TM][TN] = {};
        for (int left = part.count; left > 0; --left) {
            const int next = ring + 1 == STAGES ? 0 : ring + 1, next_parity = next == 0 ? parity ^ 1 : parity;
            operands.multiply(
                sum, ring * STAGE,
                [&] {
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) mbarrier_arrive(free + ring * 8);
                    if (left > 1 || step < schedule.total) mbarrier_wait(filled + next * 8, next_parity);
                    return static_cast<unsigned>(next * STAGE);
                },
                [&] {
                    if (threadIdx.x == 0 && ahead.left > 0) {
                        // the stage before this one; the other warps have had half a step's time to leave it
                        const int last = ring == 0 ? STAGES - 1 : ring - 1;
                        mbarrier_wait(free + last * 8, ring == 0 ? parity ^ 1 : parity);
                        copy(last);
                    }
                });
            ring = next, parity = next_parity;
        }

        auto sums_of = [&](unsigned cta) { return partials + static_cast<size_t>(cta) * (TM * TN / 4 * L::THREADS) + threadIdx.x; };
        if (part.count < steps) griddepcontrol_wait();  // flags have been cleared
        if (part.begin > 0) {
            float4* to = sums_of(blockIdx.x);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int q = 0; q < TN; q += 4)
                    to[(r * TN + q) / 4 * L::THREADS] = {sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3]};
            __syncwarp();
            if (threadIdx.x % 32 == 0) st_release_gpu_global(flags + blockIdx.x * L::WARPS + warp, 1);
            continue;
        }
        unsigned cta = blockIdx.x;
        for (int done = part.count; done < steps;) {
            --cta;
            done += min(steps - done, schedule.length(gridDim.x - 1 - cta));
            while (ld_acquire_gpu_global(flags + cta * L::WARPS + warp) == 0) {
            }
            const float4* from = sums_of(cta);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int q = 0; q < TN; q += 4) {
                    const float4 v = from[(r * TN + q) / 4 * L::THREADS];
                    sum[r][q] += v.x, sum[r][q + 1] += v.y, sum[r][q + 2] += v.z, sum[r][q + 3] += v.w;
                }
        }
        store(c, sum, lanes, place_of<BM, BN, GROUP>(part.tile, m, n), m, n, true);
    }
}
