// Step 9 of matmul_wgmma.cu, for products whose time is that of reading b, because a has few rows: c^T = b a^T.
//
// The rows of b, of which there are many, are the rows of wgmma, in tiles of 64 and more, and those of a its columns, in
// tiles of 8 to 128. k is divided among CTAs of a cluster where c has too few tiles for all SMs (cluster_sums.cuh), and
// CTAs that need the same rows of a load a part of them each and multicast it, because L2 would otherwise deliver a as
// often as there are tiles. The ring has as many stages as shared memory holds for the CTAs that are resident on an SM:
// device memory is read at full speed only while tens of kilobytes for each SM are in flight.
#include "ptxkit/gemm/cluster_sums.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

// Rows of b in a tile: 64 ROWS for each of CONSUMERS warpgroups. Rows of a: TOKENS.
template <int CONSUMERS_, int ROWS_, int TOKENS_>
struct SwappedTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, TOKENS = TOKENS_, WEIGHTS = 64 * ROWS * CONSUMERS;
    static_assert(CONSUMERS <= 4 && TOKENS <= 256, "boxes of a tensor map have at most 256 rows");
};

enum : unsigned { MAX_STAGES = 32 };

// A cluster has `sharing` tiles of c with the same rows of a, of which each CTA loads a part for all, and several CTAs for
// each tile, which multiply a part of k. `stages` of the ring, at most MAX_STAGES.
template <class Tile, class T, class Of, int EPILOGUE>
__global__ void __launch_bounds__(128 * Tile::CONSUMERS + 32) matmul_swapped(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, int m, int n,
    int k, float alpha, float beta, unsigned pitch, unsigned stages, unsigned sharing) {
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, TOKENS = Tile::TOKENS, WEIGHTS = Tile::WEIGHTS;
    constexpr unsigned b_bytes = WEIGHTS * WGMMA_ROW_BYTES, stage_bytes = b_bytes + TOKENS * WGMMA_ROW_BYTES;
    using Swapped = Operands<Of::B_MAJOR, Of::A_MAJOR>;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned long long barriers[2 * MAX_STAGES + 1];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned ctas = cluster_nctarank(), rank = cluster_ctarank();
    const unsigned parts = ctas / sharing, part = rank / sharing, share = rank % sharing;
    const unsigned across = (m - 1) / TOKENS + 1;  // clusters that read the same rows of b follow each other
    const unsigned cluster = blockIdx.x / ctas;
    const int token = cluster % across * TOKENS, weight = (cluster / across * sharing + share) * WEIGHTS;
    const unsigned steps = (k - 1) / WGMMA_BK + 1, begin = steps * part / parts, end = steps * (part + 1) / parts;
    // Sums from other CTAs may arrive while the ring is in use, and follow it. Those of this CTA alone take its place.
    const ClusterSums<WEIGHTS, TOKENS> sums_of_parts(
        reinterpret_cast<float*>(shared + (parts > 1 ? stages * stage_bytes : 0)), empty + 8 * MAX_STAGES, parts, part,
        share, sharing, m - token);

    if (threadIdx.x == 0) {
        prefetch_tensormap(b_map);
        prefetch_tensormap(a_map);
        for (unsigned s = 0; s < stages; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 4 * CONSUMERS * sharing);
        }
        sums_of_parts.init();
    }
    __syncwarp();
    if (ctas > 1) barrier_cluster_arrive_relaxed();
    if (sharing > 1) barrier_cluster_wait_acquire();
    else barrier_sync();
    follow_previous_grid();

    unsigned stage = 0, parity = 0;
    auto advance = [&] {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    };
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned short all = ((1 << sharing) - 1) << part * sharing;
            const int own_rows = TOKENS / sharing;
            for (unsigned step = begin; step < end; step++) {
                const unsigned b = base + stage * stage_bytes, a = b + b_bytes + share * own_rows * WGMMA_ROW_BYTES;
                mbarrier_wait(empty + 8 * stage, parity ^ 1);
                mbarrier_arrive_expect_tx(full + 8 * stage, stage_bytes);
                load_rows<Of::B_MAJOR, WEIGHTS, 1>(b, b_map, step * WGMMA_BK, weight, full + 8 * stage);
                load_shared_rows<Of::A_MAJOR>(a, a_map, own_rows, step * WGMMA_BK, token + share * own_rows,
                                              full + 8 * stage, all, sharing > 1);
                advance();
            }
        }
        __syncwarp();
        if (sharing == 1 && ctas > 1) barrier_cluster_wait_acquire();
    } else {
        const unsigned consumer = warp / 4;
        float sums[ROWS][TOKENS / 2];
        unsigned previous = 0;
        for (unsigned step = begin; step < end; step++) {
            const unsigned b = base + stage * stage_bytes;
            mbarrier_wait(full + 8 * stage, parity);
            multiply_tile<T, Swapped>(sums, b + consumer * ROWS * WGMMA_BLOCK_BYTES, b + b_bytes, step > begin);
            wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
            // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
            if (step > begin && step - 1 + stages < end && lane < sharing) {
                const unsigned released = empty + 8 * previous;
                if (sharing == 1) mbarrier_arrive(released);
                else mbarrier_arrive_shared_cluster(mapa_shared_cluster(released, part * sharing + lane));
            }
            previous = stage;
            advance();
        }
        wait_for_sums(sums);
        if (sharing == 1 && ctas > 1) barrier_cluster_wait_acquire();
        if (parts == 1) barrier_sync(1, 128 * CONSUMERS);  // all consumers have read the ring
        const unsigned row = warp * 16 + consumer * (ROWS - 1) * 64 + lane / 4, col = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < TOKENS / 2; j += 4) {
                sums_of_parts.send(row + 64 * i, col + 2 * j, sums[i][j], sums[i][j + 1]);
                sums_of_parts.send(row + 64 * i + 8, col + 2 * j, sums[i][j + 2], sums[i][j + 3]);
            }
        }
    }
    sums_of_parts.store(Output<EPILOGUE, T>{c, bias, unsigned(m), unsigned(n), alpha, beta, pitch}, token, weight);
}
