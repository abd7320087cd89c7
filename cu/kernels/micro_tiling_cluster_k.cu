// f32 matrix product on the CUDA cores, step 10 of micro_tiling_matmul.cu: the CTAs of a cluster compute one tile of c
// together, each for an equal part of k. For results with fewer tiles than the GPU has SMs, for which the shares of step
// 9 would be added one after another through device memory.
//
// A producer warp fills the ring of step 9. The sums of the parts have a place of their own in shared memory; where that leaves
// room for fewer CTAs they take the place of the ring, and a CTA waits after its last step until no CTA of the cluster reads its
// ring. A thread has vectors of four neighbouring sums, and vector v of thread t has the same elements of the tile in each CTA.
// Each CTA owns the vectors whose number modulo the parts is its rank; the others send theirs to its memory (st.async), and it
// adds them in the order of the parts: every launch gives the same bits.
#include "ptxkit/gemm/micro_tiling_operands.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;
using namespace ptxkit::micro_tiling;

// apart: bytes from the ring to the place of the sums; 0 if they take the place of the ring.
template <class Tile, class Source>
__device__ __forceinline__ void cluster_k(const Source& source, float* c, int m, int n, int k, int apart) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = InterleavedLanesOf<Tile>;
    using Operands = BankedOperands<L, BM, BN, BK, TM, TN>;
    constexpr int STAGE = Operands::STAGE, VECTORS = TM * TN / 4;
    static_assert(STAGES >= 2, "one is filled while another is read");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long barriers[2 * STAGES + 1];
    __shared__ __align__(16) float zeros[4];
    const unsigned base = cvta_to_shared(bytes), filled = cvta_to_shared(barriers), free = filled + STAGES * 8;
    const unsigned received = free + STAGES * 8;
    const int steps = (k + BK - 1) / BK, warp = threadIdx.x / 32;
    const int parts = cluster_nctarank(), part = cluster_ctarank();
    const int begin = steps * part / parts, end = steps * (part + 1) / parts;
    const int most = (VECTORS - 1) / parts + 1, own = part < VECTORS ? (VECTORS - 1 - part) / parts + 1 : 0;
    const TileOrigin origin = tile_origin<BM, BN, GROUP>(blockIdx.x / parts, m, n);
    if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        mbarrier_init(received, 1);
        init_ring<STAGES>(filled, Source::ARRIVALS, free, L::WARPS);
        fence_proxy_async();
        if (parts > 1) mbarrier_arrive_expect_tx(received, own * parts * L::THREADS * 16);
    }
    griddepcontrol_wait();
    barrier_sync();
    if (parts > 1 && apart > 0) barrier_cluster_arrive_release();  // sums may be sent to this CTA

    using R = Registers<L::THREADS, Tile::CTAS, Source::REGISTERS>;
    if (warp >= L::WARPS) {
        R::give();
        const int thread = threadIdx.x - L::THREADS;
        if (thread < Source::THREADS) {
            const typename Source::template Of<Tile> operands(source, origin, thread, m, n, k);
            Ring<STAGES> ring;
            for (int i = begin; i < end; ++i, ring.advance()) {
                mbarrier_wait(free + ring.stage * 8, ring.parity ^ 1);
                operands.copy(base + ring.stage * STAGE, i, filled + ring.stage * 8);
            }
            griddepcontrol_launch_dependents();  // see micro_tiling_operands.cuh
        }
        __syncwarp();
        if (parts > 1) {
            if (apart == 0) barrier_cluster_arrive_release();
            barrier_cluster_wait_acquire();
        }
        return;
    }
    R::take();
    const L lanes;
    Operands operands(base, lanes);
    Ring<STAGES> ring;
    float sum[TM][TN];
    Operands::clear(sum, cvta_to_shared(zeros));
    const int last = end == steps ? last_depth<BK>(k) : BK;
    mbarrier_wait(filled, 0);  // there are at least as many steps as parts
    operands.read(0);
#pragma unroll 1
    for (int left = end - begin; left > 0; --left, ring.advance()) {
        operands.multiply(sum, ring.stage * STAGE, left > 1 ? BK : last, [&] {
            Ring<STAGES> next = ring;
            next.advance();
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(free + ring.stage * 8);
            if (left > 1) mbarrier_wait(filled + next.stage * 8, next.parity);
            return left > 1 ? next.stage * STAGE : ring.stage * STAGE;
        });
    }
    if (parts == 1) {
        constexpr bool ROOM = BM * BN * 4 <= STAGES * STAGE;
        if (!ROOM || Source::WHOLE) {
            store(c, sum, lanes, origin, m, n, Source::WHOLE);
        } else {
            barrier_sync<1>(L::THREADS);  // no warp reads the ring any more
            store_by_rows<Tile>(c, sum, lanes, origin, m, n, bytes);
        }
        return;
    }
    if (apart == 0) barrier_cluster_arrive_release();  // this CTA does not read its ring any more
    barrier_cluster_wait_acquire();

    // Byte offset of this thread's vector number `slot` of those that its owner has, from part `sender`.
    auto offset = [&](int sender, int slot) { return apart + ((sender * most + slot) * L::THREADS + threadIdx.x) * 16; };
    int owner = 0, slot = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const int r = v / (TN / 4), q = v % (TN / 4) * 4;
        st_async_shared_cluster(mapa_shared_cluster(base + offset(part, slot), owner),
                                float4{sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3]},
                                mapa_shared_cluster(received, owner));
        if (++owner == parts) owner = 0, ++slot;
    }
    mbarrier_wait(received, 0);
#pragma unroll 1
    for (int s = 0; s < own; ++s) {
        const int v = s * parts + part, r = v / (TN / 4), q = v % (TN / 4) * 4;
        float4 total = *reinterpret_cast<const float4*>(bytes + offset(0, s));
#pragma unroll 1
        for (int sender = 1; sender < parts; ++sender) {
            const float4 more = *reinterpret_cast<const float4*>(bytes + offset(sender, s));
            total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
        }
        store_vector(c, total, origin.row + lanes.row + L::down(r), origin.col + lanes.col + L::across(q), m, n, Source::WHOLE);
    }
}

template <class Tile, bool WHOLE = true>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_cluster_k(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k, int apart) {
    cluster_k<Tile>(BoxedOperands<WHOLE>{a, b}, c, m, n, k, apart);
}

// The same for rows of any length; a_wide, b_wide: elements of a copy.
template <class Tile>
__global__ __launch_bounds__(ALL_THREADS<Tile>, Tile::CTAS) void matmul_cluster_k_unaligned(
    const float* a, const float* b, int a_wide, int b_wide, float* c, int m, int n, int k, int apart) {
    cluster_k<Tile>(CopiedOperandsOf<Tile>{a, b, a_wide, b_wide}, c, m, n, k, apart);
}
