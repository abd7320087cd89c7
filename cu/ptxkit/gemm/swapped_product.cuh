// The product of matmul_swapped.cu with any epilogue, as the body of a kernel: c^T = b a^T, for few rows of a.
#pragma once
#include "ptxkit/gemm/cluster_sums.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

namespace ptxkit {

// Rows of b in a tile: 64 ROWS for each of CONSUMERS warpgroups. Rows of a: TOKENS.
template <int CONSUMERS_, int ROWS_, int TOKENS_>
struct SwappedTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, TOKENS = TOKENS_, WEIGHTS = 64 * ROWS * CONSUMERS;
    static_assert(CONSUMERS <= 4 && TOKENS <= 256, "boxes of a tensor map have at most 256 rows");
};

enum : unsigned { MAX_STAGES = 32 };

// The product as the body of a kernel with 128 CONSUMERS + 32 threads. A cluster has `sharing` tiles of c with the same rows
// of a, of which each CTA loads a part for all, and several CTAs for each tile, which multiply a part of k. `stages` of the
// ring, at most MAX_STAGES. Dynamic shared memory: the ring, and after it the received sums where k is divided; else the
// larger of both.
//
// EARLY: the rows of b that the ring holds are loaded before the previous grid has completed. That grid must have waited for
// all grids before it when this one starts (follow_previous_grid_later), and must not write b.
template <class Tile, class T, class Of, bool EARLY, class Out>
__device__ __forceinline__ void swapped_product(const TensorMap& a_map, const TensorMap& b_map, const Out& output, int m,
                                                int n, int k, unsigned stages, unsigned sharing) {
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
    const unsigned early = EARLY ? min(end - begin, stages) : 0;  // steps whose rows of b are loaded before the wait
    auto load_weights = [&](unsigned step, unsigned stage) {
        mbarrier_arrive_expect_tx(full + 8 * stage, stage_bytes);
        load_rows<Of::B_MAJOR, WEIGHTS, 1>(base + stage * stage_bytes, b_map, step * WGMMA_BK, weight, full + 8 * stage);
    };
    if constexpr (EARLY) {
        if (warp == 4 * CONSUMERS && elect_sync(all_lanes)) {
            for (unsigned i = 0; i < early; i++) load_weights(begin + i, i);
        }
        follow_previous_grid_later();
    } else {
        follow_previous_grid();
    }

    RingOf ring(stages);
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned short all = ((1 << sharing) - 1) << part * sharing;
            const int own_rows = TOKENS / sharing;
            for (unsigned step = begin; step < end; step++) {
                const unsigned a = base + ring.stage * stage_bytes + b_bytes + share * own_rows * WGMMA_ROW_BYTES;
                if (!EARLY || step - begin >= early) {
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    load_weights(step, ring.stage);
                }
                load_shared_rows<Of::A_MAJOR>(a, a_map, own_rows, step * WGMMA_BK, token + share * own_rows,
                                              full + 8 * ring.stage, all, sharing > 1);
                ring.advance();
            }
        }
        __syncwarp();
        if (sharing == 1 && ctas > 1) barrier_cluster_wait_acquire();
    } else {
        const unsigned consumer = warp / 4;
        float sums[ROWS][TOKENS / 2];
        unsigned previous = 0;
        for (unsigned step = begin; step < end; step++) {
            const unsigned b = base + ring.stage * stage_bytes;
            mbarrier_wait(full + 8 * ring.stage, ring.parity);
            multiply_tile<T, Swapped>(sums, b + consumer * ROWS * WGMMA_BLOCK_BYTES, b + b_bytes, step > begin);
            wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
            // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
            if (step > begin && step - 1 + stages < end && lane < sharing) {
                const unsigned released = empty + 8 * previous;
                if (sharing == 1) mbarrier_arrive(released);
                else mbarrier_arrive_shared_cluster(mapa_shared_cluster(released, part * sharing + lane));
            }
            previous = ring.stage;
            ring.advance();
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
    sums_of_parts.store(output, token, weight);
}

}  // namespace ptxkit
