// bf16 matrix product on Hopper's tensor cores: c = gelu(alpha a b^T + beta c + bias), where a is m x k, b is n x k and
// c is m x n, all row-major with rows of a multiple of 16 bytes (BLAS calls this TN). Sums are f32.
//
// Each of the eight steps adds one idea to the step before; docs/gemm.md has the measurements.
//
// 1. `matmul_tma`, 64 x 64 tiles: TMA loads a tile of a and b, then the warpgroup multiplies it. Loads and products do
//     not overlap.
// 2. The same with 128 x 128 tiles: four times the products for twice the bytes, which L2 can deliver.
// 3. `matmul_specialized`: a producer warpgroup issues copies, a consumer warpgroup multiplies, and mbarriers pass the
//     stages of a ring of tiles between them, so that copies and products overlap.
// 4. Two consumers, 128 x 256 tiles: the registers of one warpgroup hold at most 128 x 128 sums; two share a tile of b.
// 5. Persistent CTAs: the producer prefetches the next tile while the consumers store the sums of this one. CTAs that
//     run at the same time share tiles in L2 (grouped_tile), and every other tile is traversed backwards along k.
// 6. Clusters: two CTAs that need the same tile of b load half of it each and multicast it, which halves the L2 reads
//     of b.
// 7. setmaxnreg: the producer gives registers to the consumers, which need them for addresses beside their 128 sums.
// 8. The sums are stored through shared memory (stmatrix) by TMA: whole rows of 128 bytes, without address arithmetic,
//     while the next tile is multiplied.
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/ptx/wgmma.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

constexpr int BK = 64;             // elements of k in a tile: 128 bytes, the widest swizzle
constexpr int ROW_BYTES = 2 * BK;  // of a row of a tile of a or b

// Multiplies one stage: a consumer's 64 ROWS x BN sums, from tiles in shared memory that are BK wide. Asynchronous, one
// wgmma group.
template <int ROWS, int BN>
__device__ __forceinline__ void multiply_tile(float (&sums)[ROWS][BN / 2], unsigned a, unsigned b, bool accumulate) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            unsigned long long rows = matrix_descriptor_128B(a + i * 64 * ROW_BYTES + k * 32);
            wgmma_bf16(sums[i], rows, matrix_descriptor_128B(b + k * 32), k > 0 || accumulate);
        }
    }
    wgmma_commit_group();
}

template <int ROWS, int BN>
__device__ __forceinline__ void wait_for_sums(float (&sums)[ROWS][BN]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) warpgroup_fence_operand(sums[i]);
}

// Stores the sums directly from registers: 4 bytes per thread, 16 contiguous bytes per 4 threads. (row, col) is the
// warpgroup's first element.
template <int ROWS, int COLS, int EPILOGUE>
__device__ __forceinline__ void store_from_registers(const float (&sums)[ROWS][COLS], const Output<EPILOGUE>& output,
                                                     unsigned row, unsigned col) {
    row += threadIdx.x % 128 / 32 * 16 + laneid() / 4;
    col += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
            output.store(sums[i][j], sums[i][j + 1], row + 64 * i, col + 2 * j);
            output.store(sums[i][j + 2], sums[i][j + 3], row + 64 * i + 8, col + 2 * j);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 1 and 2: one warpgroup, one tile in shared memory

template <int BM, int BN, int EPILOGUE>
__global__ void __launch_bounds__(128) matmul_tma(const __grid_constant__ TensorMap a_map,
                                                  const __grid_constant__ TensorMap b_map, bf16* c, const bf16* bias,
                                                  int m, int n, int k, float alpha, float beta) {
    static_assert(BM % 64 == 0 && BM * BN <= 128 * 128, "64 rows a wgmma, and 128 sums a thread");
    __shared__ alignas(1024) unsigned char a_tile[BM * ROW_BYTES], b_tile[BN * ROW_BYTES];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned a = cvta_to_shared(a_tile), b = cvta_to_shared(b_tile), barrier = cvta_to_shared(&arrived);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    follow_previous_grid();

    float sums[BM / 64][BN / 2];
    for (int step = 0; step * BK < k; step++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(barrier, sizeof a_tile + sizeof b_tile);
            cp_async_bulk_tensor_2d_shared_global(a, a_map, step * BK, row, barrier);
            cp_async_bulk_tensor_2d_shared_global(b, b_map, step * BK, col, barrier);
        }
        mbarrier_wait(barrier, step % 2);
        multiply_tile<BM / 64, BN>(sums, a, b, step > 0);
        wait_for_sums(sums);
        barrier_sync();  // all four warps have read the tile
    }
    Output<EPILOGUE> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    store_from_registers(sums, output, row, col);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 3 to 8: a producer warpgroup and CONSUMERS consumer warpgroups

enum Store { FROM_REGISTERS = 0, BY_TMA = 1 };

// The shared memory of a CTA as byte offsets: a ring of tiles, boxes of c for each consumer warp, mbarriers.
template <int BM, int BN, int CONSUMERS, int STAGES, int BOXES>
struct Layout {
    static constexpr int a_bytes = BM * ROW_BYTES, b_bytes = BN * ROW_BYTES, stage_bytes = a_bytes + b_bytes;
    // The part of c that one warp stores at a time.
    static constexpr int box_rows = 16, box_cols = 64, box_bytes = box_rows * box_cols * 2;
    static constexpr int c = STAGES * stage_bytes;
    static constexpr int full = c + 4 * CONSUMERS * BOXES * box_bytes;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int bytes = empty + 8 * STAGES;
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages, a smaller tile or fewer boxes");
};

// Stores the sums through shared memory: each warp writes swizzled boxes of 16 rows x 64 columns, and one lane issues
// their TMA stores. A warp uses only its own boxes, so that warps do not synchronize; up to BOXES of its stores are in
// flight.
template <int BOXES, int ROWS, int COLS, int EPILOGUE>
__device__ __forceinline__ void store_by_tma(const float (&sums)[ROWS][COLS], const Output<EPILOGUE>& output,
                                             const TensorMap& c_map, unsigned boxes, unsigned row, unsigned col) {
    constexpr int boxes_across = COLS / 32, all = ROWS * boxes_across, used = BOXES < all ? BOXES : all,
                  box_bytes = 2048;
    static_assert(all % used == 0,
                  "a tile begins with the first box, which must be the one that has been on its way longest");
    const unsigned lane = laneid();
    row += threadIdx.x % 128 / 32 * 16;
    // stmatrix: lanes 0-7 and 8-15 hold the addresses of rows 0-7 and 8-15 of 8 columns, lanes 16-31 those of the next
    // 8 columns.
    const unsigned offset = (lane % 16) * 128, column = lane / 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < boxes_across; j++) {
            const unsigned box = boxes + (i * boxes_across + j) % used * box_bytes;
            // the previous contents of this box have been read
            if (lane == 0) cp_async_bulk_wait_group_read<used - 1>();
            __syncwarp();
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float* d = &sums[i][32 * j + 8 * q];
                const unsigned r = row + 64 * i + lane / 4, at = col + 64 * j + 16 * q + lane % 4 * 2;
                const unsigned pairs[4] = {output.finish(d[0], d[1], r, at), output.finish(d[2], d[3], r + 8, at),
                                           output.finish(d[4], d[5], r, at + 8),
                                           output.finish(d[6], d[7], r + 8, at + 8)};
                stmatrix_x4(box + swizzled<128>(offset + (2 * q + column) * 16), pairs);
            }
            fence_proxy_async_shared_cta();
            __syncwarp();
            if (lane == 0) {
                cp_async_bulk_tensor_2d_global_shared(c_map, col + 64 * j, row + 64 * i, box);
                cp_async_bulk_commit_group();
            }
        }
    }
}

// Tile parameters of matmul_specialized. The description gives them by name (WgmmaTile in
// ptxkit/kernels/gemm/matmul_wgmma.py).
template <int BM_, int BN_, int CONSUMERS_, int STAGES_, int CLUSTER_M_, int CLUSTER_N_, int GROUP_, int REGISTERS_,
          int STORE_, int BOXES_>
struct WgmmaTile {
    static constexpr int BM = BM_, BN = BN_;      // rows and columns of c in a tile
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply
    static constexpr int STAGES = STAGES_;        // of the ring of tiles of a and b
    // tiles of c that a cluster computes at a time
    static constexpr int CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_;
    static constexpr int GROUP = GROUP_;          // of grouped_tile, in units of clusters
    static constexpr int REGISTERS = REGISTERS_;  // of a consumer thread after setmaxnreg; 0: no setmaxnreg
    static constexpr int STORE = STORE_;          // FROM_REGISTERS or BY_TMA
    static constexpr int BOXES = BOXES_;          // boxes of c that a warp may have in flight
};

// The CTAs of a cluster compute CLUSTER_M x CLUSTER_N neighbouring tiles. CTAs in a column of these share a tile of b,
// CTAs in a row share a tile of a: each loads a part of it and multicasts that part to the others.
template <class Tile, int EPILOGUE>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, bf16* c, const bf16* bias, int m, int n, int k, float alpha, float beta) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    constexpr int CLUSTER_M = Tile::CLUSTER_M, CLUSTER_N = Tile::CLUSTER_N, REGISTERS = Tile::REGISTERS;
    constexpr int STORE = Tile::STORE, BOXES = Tile::BOXES;
    constexpr int CLUSTER = CLUSTER_M * CLUSTER_N, ROWS = BM / CONSUMERS / 64;  // ROWS: wgmmas that a consumer stacks
    static_assert(BM == 64 * ROWS * CONSUMERS, "a consumer takes a multiple of 64 rows");
    static_assert(ROWS * BN <= (REGISTERS >= 240 ? 384 : 256),
                  "a thread holds at most 128 sums, or 192 with 240 registers");
    static_assert(BM % (8 * CLUSTER_N) == 0 && BN % (8 * CLUSTER_M) == 0,
                  "parts that are multicast are whole swizzle patterns");
    static_assert(BN % 64 == 0 && BN / CLUSTER_M <= 256,
                  "boxes of c are 64 wide, and those of a tensor map at most 256");
    static_assert(CLUSTER_N <= 2, "the mask of CTAs in a row has two bits");
    using L = Layout<BM, BN, CONSUMERS, STAGES, STORE == BY_TMA ? BOXES : 0>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CLUSTER > 1 ? cluster_ctarank() : 0, rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        if (STORE == BY_TMA) prefetch_tensormap(c_map);
        // one lane of each warp that reads what this CTA loads
        const unsigned readers = (CLUSTER_M + CLUSTER_N - 1) * CONSUMERS * 4;
        init_ring<STAGES>(full(0), 1, empty(0), readers);
    }
    if constexpr (CLUSTER > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / (BM * CLUSTER_M) + 1, tile_cols = (n - 1) / (BN * CLUSTER_N) + 1;
    const unsigned tiles = tile_rows * tile_cols, steps = (k - 1) / BK + 1;
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            // Direction along k, which alternates: a tile begins with the columns that the previous one left in L2.
            bool backwards = false;
            for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
                const int row = (t.row * CLUSTER_M + rank_m) * BM, col = (t.col * CLUSTER_N + rank_n) * BN;
                for (unsigned i = 0; i < steps; i++) {
                    const unsigned step = backwards ? steps - 1 - i : i;
                    constexpr int a_part = BM / CLUSTER_N, b_part = BN / CLUSTER_M;  // rows that this CTA loads
                    const unsigned a = base + at.stage * L::stage_bytes + rank_n * a_part * ROW_BYTES;
                    const unsigned b = base + at.stage * L::stage_bytes + L::a_bytes + rank_m * b_part * ROW_BYTES;
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    mbarrier_arrive_expect_tx(full(at.stage), L::stage_bytes);
                    if constexpr (CLUSTER_N > 1) {
                        const unsigned short same_row = (CLUSTER_N == 2 ? 1 | 1 << CLUSTER_M : 1) << rank_m;
                        cp_async_bulk_tensor_2d_shared_global_multicast(a, a_map, step * BK, row + rank_n * a_part,
                                                                        full(at.stage), same_row);
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(a, a_map, step * BK, row, full(at.stage));
                    }
                    if constexpr (CLUSTER_M > 1) {
                        const unsigned short same_col = ((1 << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
                        cp_async_bulk_tensor_2d_shared_global_multicast(b, b_map, step * BK, col + rank_m * b_part,
                                                                        full(at.stage), same_col);
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(b, b_map, step * BK, col, full(at.stage));
                    }
                    at.advance();
                }
                backwards = !backwards;
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned consumer = warp / 4 - 1, lane = laneid();
        const Output<EPILOGUE> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
        const unsigned boxes = base + L::c + (warp - 4) * BOXES * L::box_bytes;
        float sums[ROWS][BN / 2];
        // Signals every CTA that loads into this CTA's stage that the stage is free.
        auto release = [&](unsigned stage) {
            if constexpr (CLUSTER == 1) {
                if (lane == 0) mbarrier_arrive(empty(stage));
            } else if (lane < CLUSTER && (lane % CLUSTER_M == rank_m || lane / CLUSTER_M == rank_n)) {
                mbarrier_arrive_shared_cluster(mapa_shared_cluster(empty(stage), lane));
            }
        };
        for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
            const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
            const unsigned row = (t.row * CLUSTER_M + rank_m) * BM + consumer * 64 * ROWS,
                           col = (t.col * CLUSTER_N + rank_n) * BN;
            unsigned previous = 0;
            for (unsigned step = 0; step < steps; step++) {
                const unsigned stage = base + at.stage * L::stage_bytes;
                mbarrier_wait(full(at.stage), at.parity);
                multiply_tile<ROWS, BN>(sums, stage + consumer * 64 * ROWS * ROW_BYTES, stage + L::a_bytes, step > 0);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > 0) release(previous);
                previous = at.stage;
                at.advance();
            }
            wait_for_sums(sums);
            release(previous);
            if constexpr (STORE == BY_TMA) {
                store_by_tma<BOXES>(sums, output, c_map, boxes, row, col);
            } else {
                store_from_registers(sums, output, row, col);
            }
        }
        // shared memory is released when the CTA exits
        if (STORE == BY_TMA && lane == 0) cp_async_bulk_wait_group_read<0>();
    }
    if constexpr (CLUSTER > 1) {  // other CTAs may still multicast to this one or arrive at its mbarriers
        __syncwarp();
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
}
