// Matrix product on Blackwell's tensor cores: c = gelu(alpha a b^T + beta c + bias), where a is m x k, b is n x k and c
// is m x n, all row-major with rows of a multiple of 16 bytes (BLAS calls this TN). a and b are bf16, f16, tf32 or
// e4m3; sums are f32, in tensor memory.
//
// Each of the eight steps adds one idea to the step before.
//
// 1. `matmul_single_issuer` with one stage: one thread loads a tile of a and b by TMA, then multiplies it. Loads and
//     products do not overlap. The four warps read the sums from tensor memory and store them.
// 2. The same with two stages: the next tile is loaded while one is multiplied.
// 3. The same with a ring of six stages, which also hides the latency of device memory.
// 4. `matmul_tcgen05_specialized`: a warp loads, a warp multiplies and four warps store.
// 5. Persistent CTAs with two accumulators in tensor memory: one tile is stored while the next is multiplied.
// 6. Pairs of CTAs (cta_group::2) multiply 256 x 256 tiles. Each CTA loads half of a and half of b, so that shared
//     memory holds twice as many stages for the same number of products.
// 7. Cluster launch control: the grid has one pair for each tile, and a pair that has finished takes over a tile whose
//     pair has not started. Slow SMs then compute fewer tiles.
// 8. The results are stored through shared memory by TMA: whole rows of 128 bytes, without address arithmetic.
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/row_output.cuh"
#include "ptxkit/gemm/tensor_memory.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/cluster_launch_control.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/tcgen05.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

constexpr int ROW_BYTES = 128;  // of a row of a tile of a or b: the widest swizzle
constexpr int BM = 128;         // rows of c that a CTA computes: the lanes of tensor memory

// Issues the products of one stage, asynchronously: d += a b^T for tiles of 128-byte rows. One thread calls it.
template <class T, int CTAS>
__device__ __forceinline__ void multiply_stage(unsigned d, unsigned a, unsigned b, unsigned instruction,
                                               bool accumulate) {
#pragma unroll
    for (int at = 0; at < ROW_BYTES; at += 32) {
        tcgen05_mma<T, CTAS>(d, tcgen05_descriptor_128B(a + at), tcgen05_descriptor_128B(b + at), instruction,
                             at > 0 || accumulate);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 1 to 3: one thread issues loads and products

// The shared memory of a CTA as byte offsets: a ring of STAGES tiles of a and b, mbarriers, and the address that
// tcgen05.alloc writes.
template <int BN, int STAGES>
struct SingleIssuerLayout {
    static constexpr int a_bytes = BM * ROW_BYTES, b_bytes = BN * ROW_BYTES, stage_bytes = a_bytes + b_bytes;
    static constexpr int full = STAGES * stage_bytes;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int complete = empty + 8 * STAGES;
    static constexpr int address = complete + 8;
    static constexpr int bytes = address + 8;
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages or a smaller tile");
};

template <class T, class Out, int BN, int STAGES, int EPILOGUE>
__global__ void __launch_bounds__(128) matmul_single_issuer(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Out* c, const Out* bias, int m,
    int n, int k, float alpha, float beta) {
    using L = SingleIssuerLayout<BN, STAGES>;
    constexpr int BK = ROW_BYTES / sizeof(T), COLUMNS = tcgen05_columns(BN);
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;

    const unsigned accumulator = begin_tensor_memory<1, COLUMNS>(shared + L::address, warp, 0, 32, [&]() {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        mbarrier_init(base + L::complete, 1);
        init_ring<STAGES>(full(0), 1, empty(0), 1);
    });
    follow_previous_grid();

    if (warp == 0 && elect_sync(all_lanes)) {
        const int steps = (k - 1) / BK + 1;
        auto load = [&](int step) {
            const unsigned stage = step % STAGES, a = base + stage * L::stage_bytes;
            mbarrier_arrive_expect_tx(full(stage), L::stage_bytes);
            cp_async_bulk_tensor_2d_shared_global(a, a_map, step * BK, row, full(stage));
            cp_async_bulk_tensor_2d_shared_global(a + L::a_bytes, b_map, step * BK, col, full(stage));
        };
        for (int step = 0; step < STAGES && step < steps; step++) load(step);
        // After the products of a step have been issued, the stage of the previous step is loaded again; with a single
        // stage, its own.
        constexpr int behind = STAGES > 1 ? 1 : 0;
        Ring<STAGES> at, refilled;
        for (int step = 0; step < steps; step++) {
            const unsigned a = base + at.stage * L::stage_bytes;
            mbarrier_wait(full(at.stage), at.parity);
            multiply_stage<T, 1>(accumulator, a, a + L::a_bytes, tcgen05_instruction<T>(BM, BN), step > 0);
            tcgen05_commit(empty(at.stage));
            at.advance();
            const int next = step - behind + STAGES;
            if (step >= behind && next < steps) {
                mbarrier_wait(empty(refilled.stage), refilled.parity);
                load(next);
                refilled.advance();
            }
        }
        tcgen05_commit(base + L::complete);
    }
    __syncwarp();
    mbarrier_wait(base + L::complete, 0);
    tcgen05_fence_after_thread_sync();
    const RowOutput<EPILOGUE, Out> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    store_tensor_memory<BN>(accumulator + (warp * 32 << 16), output, row + threadIdx.x, col);
    end_tensor_memory<1, COLUMNS>(accumulator, warp, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 4 to 8: specialized warps

enum Schedule { ONE_TILE = 0, PERSISTENT = 1, LAUNCH_CONTROL = 2 };
enum Store { FROM_REGISTERS = 0, BY_TMA = 1 };

// Tile parameters of matmul_tcgen05_specialized. The description gives them by name (Tcgen05Tile in
// ptxkit/kernels/gemm/matmul_tcgen05.py).
template <int BN_, int CTAS_, int STAGES_, int ACCUMULATORS_, int SCHEDULE_, int GROUP_, int STORE_, int BOXES_>
struct Tcgen05Tile {
    static constexpr int BN = BN_;                      // columns of c in a tile; it has 128 CTAS rows
    static constexpr int CTAS = CTAS_;                  // that multiply a tile together: 1 or 2
    static constexpr int STAGES = STAGES_;              // of the ring of tiles of a and b
    static constexpr int ACCUMULATORS = ACCUMULATORS_;  // tiles of sums in tensor memory
    static constexpr int SCHEDULE = SCHEDULE_;          // how a CTA finds its next tile
    static constexpr int GROUP = GROUP_;                // of grouped_tile
    static constexpr int STORE = STORE_;                // FROM_REGISTERS or BY_TMA
    static constexpr int BOXES = BOXES_;                // boxes of c that a warp may have in flight
};

enum Warp { STORING = 0, LOADING = 4, MULTIPLYING = 5, SCHEDULING = 6 };  // the first warp of each role

// The shared memory of a CTA as byte offsets: the ring of tiles, boxes of c for each storing warp, mbarriers, answers
// of cluster launch control, and the address that tcgen05.alloc writes.
template <class Tile>
struct SpecializedLayout {
    static constexpr int answers = 2;
    static constexpr int a_bytes = BM * ROW_BYTES, b_bytes = Tile::BN / Tile::CTAS * ROW_BYTES;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int box_bytes = 32 * ROW_BYTES;  // the part of c that one warp stores at a time
    static constexpr int c = Tile::STAGES * stage_bytes;
    static constexpr int answer = c + (Tile::STORE == BY_TMA ? 4 * Tile::BOXES * box_bytes : 0);
    static constexpr int full = answer + 16 * answers;
    static constexpr int empty = full + 8 * Tile::STAGES;
    static constexpr int sums_full = empty + 8 * Tile::STAGES;
    static constexpr int sums_empty = sums_full + 8 * Tile::ACCUMULATORS;
    static constexpr int answer_full = sums_empty + 8 * Tile::ACCUMULATORS;
    static constexpr int answer_empty = answer_full + 8 * answers;
    static constexpr int address = answer_empty + 8 * answers;
    static constexpr int bytes = address + 8;
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages, a smaller tile or fewer boxes");
};

// Stores BN columns of sums through shared memory: each warp writes swizzled boxes of 32 rows x 128 bytes, and one lane
// issues their TMA stores. A warp uses only its own boxes, so that warps do not synchronize; up to BOXES of its stores
// are in flight. `release` is called when the sums have been read. (row, col) is the warp's first element.
template <int BN, int BOXES, int EPILOGUE, class Out, class Release>
__device__ __forceinline__ void store_by_tma(unsigned accumulator, const RowOutput<EPILOGUE, Out>& output,
                                             const TensorMap& c_map, unsigned boxes, unsigned& box, unsigned row,
                                             unsigned col, Release release) {
    constexpr int box_cols = ROW_BYTES / sizeof(Out), size = RowVector<Out>::size;
    const unsigned lane = laneid();
#pragma unroll 1
    for (unsigned at = 0; at < BN; at += box_cols) {
        const unsigned to = boxes + box * 32 * ROW_BYTES;
        float sums[box_cols / 32][32];
#pragma unroll
        for (int j = 0; j < box_cols / 32; j++) tcgen05_ld_32x32b_x32(sums[j], accumulator + at + 32 * j);
#pragma unroll
        for (int j = 0; j < box_cols / 32; j++) tcgen05_wait_ld(sums[j]);
        if (at + box_cols >= BN) release();
        if (lane == 0) cp_async_bulk_wait_group_read<BOXES - 1>();  // the previous contents of this box have been read
        __syncwarp();
#pragma unroll
        for (int j = 0; j < box_cols / 32; j++) {
#pragma unroll
            for (int i = 0; i < 32; i += size) {
                const unsigned column = 32 * j + i;
                output.finish(sums[j] + i, row + lane, col + at + column)
                    .store_shared(to + swizzled<128>(lane * ROW_BYTES + column * sizeof(Out)));
            }
        }
        fence_proxy_async_shared_cta();
        __syncwarp();
        if (lane == 0) {
            cp_async_bulk_tensor_2d_global_shared(c_map, col + at, row, to);
            cp_async_bulk_commit_group();
        }
        box = (box + 1) % BOXES;
    }
}

// The CTAS CTAs of a cluster compute a tile of 128 CTAS x BN together. Of a pair, the CTA of rank 0 issues the
// products; its mbarriers `full`, `sums_empty` and `answer_empty` synchronize both.
template <class T, class Out, class Tile, int EPILOGUE>
__global__ void __launch_bounds__(Tile::SCHEDULE == LAUNCH_CONTROL ? 224 : 192, 1) matmul_tcgen05_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, Out* c, const Out* bias, int m, int n, int k, float alpha, float beta) {
    constexpr int BN = Tile::BN, CTAS = Tile::CTAS, STAGES = Tile::STAGES, ACCUMULATORS = Tile::ACCUMULATORS;
    constexpr int SCHEDULE = Tile::SCHEDULE, BK = ROW_BYTES / sizeof(T);
    constexpr int COLUMNS = tcgen05_columns(ACCUMULATORS * BN);
    static_assert(CTAS == 1 || CTAS == 2, "tcgen05 has groups of one and of two CTAs");
    static_assert(BN % 64 == 0 && BN <= 256, "a product has at most 256 columns, and boxes of c have up to 64");
    static_assert(COLUMNS <= TargetLimits::TENSOR_MEMORY_COLUMNS, "more columns than tensor memory has");
    using L = SpecializedLayout<Tile>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    auto sums_full = [&](unsigned i) { return base + L::sums_full + 8 * i; };
    auto sums_empty = [&](unsigned i) { return base + L::sums_empty + 8 * i; };
    auto answer_full = [&](unsigned i) { return base + L::answer_full + 8 * i; };
    auto answer_empty = [&](unsigned i) { return base + L::answer_empty + 8 * i; };
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CTAS > 1 ? cluster_ctarank() : 0;

    const auto initialize = [&]() {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        if (Tile::STORE == BY_TMA) prefetch_tensormap(c_map);
        for (int i = 0; i < ACCUMULATORS; i++) {
            mbarrier_init(sums_full(i), 1);
            mbarrier_init(sums_empty(i), 4 * CTAS);  // one lane of each storing warp
        }
        for (int i = 0; i < L::answers; i++) {
            mbarrier_init(answer_full(i), 1);
            // four storing warps and the loading warp of each CTA, the multiplying warp of rank 0 and the scheduling
            // warp of rank 1
            mbarrier_init(answer_empty(i), 6 * CTAS);
        }
        init_ring<STAGES>(full(0), 1, empty(0), 1);
    };
    const unsigned accumulators =
        begin_tensor_memory<CTAS, COLUMNS>(shared + L::address, warp, MULTIPLYING, 0, initialize);
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / (BM * CTAS) + 1, tile_cols = (n - 1) / BN + 1;
    const unsigned tiles = tile_rows * tile_cols, steps = (k - 1) / BK + 1;
    unsigned tile = blockIdx.x / CTAS;
    Ring<L::answers> answer;

    // Arrives at an mbarrier of the CTA of rank 0.
    auto arrive_at_first = [&](unsigned barrier) {
        if constexpr (CTAS > 1) mbarrier_arrive_shared_cluster(mapa_shared_cluster(barrier, 0));
        else mbarrier_arrive(barrier);
    };
    // Reads the next answer of cluster launch control. The fence orders the read before the next answer is written.
    auto read_answer = [&]() {
        unsigned first_cta;
        mbarrier_wait(answer_full(answer.stage), answer.parity);
        const bool more = clusterlaunchcontrol_query_cancel(base + L::answer + 16 * answer.stage, first_cta);
        fence_proxy_async_shared_cta();
        tile = first_cta / CTAS;
        return more;
    };
    // Moves on to the next tile; false if there is none. One thread of a role calls it, or all lanes of a warp.
    auto next_tile = [&](bool one_thread) {
        if constexpr (SCHEDULE == ONE_TILE) {
            return false;
        } else if constexpr (SCHEDULE == PERSISTENT) {
            tile += gridDim.x / CTAS;
            return tile < tiles;
        } else {
            const bool more = read_answer();
            if (!one_thread) __syncwarp();
            if (one_thread || laneid() == 0) arrive_at_first(answer_empty(answer.stage));
            answer.advance();
            return more;
        }
    };

    if (warp == LOADING) {
        if (elect_sync(all_lanes)) {
            Ring<STAGES> at;
            do {
                const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
                const int row = (t.row * CTAS + rank) * BM, col = t.col * BN + rank * (BN / CTAS);
                for (unsigned step = 0; step < steps; step++) {
                    const unsigned a = base + at.stage * L::stage_bytes, b = a + L::a_bytes;
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    if (rank == 0) mbarrier_arrive_expect_tx(full(at.stage), CTAS * L::stage_bytes);
                    if constexpr (CTAS > 1) {
                        cp_async_bulk_tensor_2d_shared_global_cta_group_2(a, a_map, step * BK, row, full(at.stage));
                        cp_async_bulk_tensor_2d_shared_global_cta_group_2(b, b_map, step * BK, col, full(at.stage));
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(a, a_map, step * BK, row, full(at.stage));
                        cp_async_bulk_tensor_2d_shared_global(b, b_map, step * BK, col, full(at.stage));
                    }
                    at.advance();
                }
            } while (next_tile(true));
            // Rank 0 arrives at the mbarriers `empty` of this CTA, which must not exit before.
            if constexpr (CTAS > 1) {
                for (int i = 0; i < STAGES; i++) {
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    at.advance();
                }
            }
        }
    } else if (warp == MULTIPLYING) {
        if (rank == 0 && elect_sync(all_lanes)) {
            constexpr unsigned instruction = tcgen05_instruction<T>(BM * CTAS, BN);
            auto commit = [](unsigned barrier) {
                if constexpr (CTAS > 1) tcgen05_commit_cta_group_2_multicast(barrier, 3);
                else tcgen05_commit(barrier);
            };
            Ring<STAGES> at;
            Ring<ACCUMULATORS> sums;
            do {
                mbarrier_wait(sums_empty(sums.stage), sums.parity ^ 1);
                tcgen05_fence_after_thread_sync();
                for (unsigned step = 0; step < steps; step++) {
                    const unsigned a = base + at.stage * L::stage_bytes;
                    mbarrier_wait(full(at.stage), at.parity);
                    multiply_stage<T, CTAS>(accumulators + sums.stage * BN, a, a + L::a_bytes, instruction, step > 0);
                    commit(empty(at.stage));
                    at.advance();
                }
                commit(sums_full(sums.stage));
                sums.advance();
            } while (next_tile(true));
        }
    } else if (SCHEDULE == LAUNCH_CONTROL && warp == SCHEDULING) {
        if (elect_sync(all_lanes)) {
            bool more;
            do {
                if (rank == 0) mbarrier_wait(answer_empty(answer.stage), answer.parity ^ 1);
                mbarrier_arrive_expect_tx(answer_full(answer.stage), 16);
                const unsigned to = base + L::answer + 16 * answer.stage;
                if constexpr (CTAS > 1) {
                    if (rank == 0) clusterlaunchcontrol_try_cancel_multicast(to, answer_full(answer.stage));
                } else {
                    clusterlaunchcontrol_try_cancel(to, answer_full(answer.stage));
                }
                more = read_answer();
                if (rank > 0) arrive_at_first(answer_empty(answer.stage));
                answer.advance();
            } while (more);
        }
    } else {
        const RowOutput<EPILOGUE, Out> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
        const unsigned boxes = base + L::c + warp * Tile::BOXES * L::box_bytes;
        unsigned box = 0;
        Ring<ACCUMULATORS> sums;
        do {
            const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
            const unsigned row = (t.row * CTAS + rank) * BM + warp * 32, col = t.col * BN;
            const unsigned accumulator = accumulators + sums.stage * BN + (warp * 32 << 16);
            mbarrier_wait(sums_full(sums.stage), sums.parity);
            tcgen05_fence_after_thread_sync();
            auto release = [&]() {
                tcgen05_fence_before_thread_sync();
                __syncwarp();
                if (laneid() == 0) arrive_at_first(sums_empty(sums.stage));
            };
            if constexpr (Tile::STORE == BY_TMA) {
                store_by_tma<BN, Tile::BOXES>(accumulator, output, c_map, boxes, box, row, col, release);
            } else {
                store_tensor_memory<BN>(accumulator, output, row + laneid(), col);
                release();
            }
            sums.advance();
        } while (next_tile(false));
        // shared memory is released when the CTA exits
        if (Tile::STORE == BY_TMA && laneid() == 0) cp_async_bulk_wait_group_read<0>();
    }
    end_tensor_memory<CTAS, COLUMNS>(accumulators, warp, MULTIPLYING);
}
