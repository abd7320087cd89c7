// Matrix product of block-scaled operands on Blackwell's tensor cores: c = a b^T, where a is m x k and b is n x k in
// bf16, row-major. Both are quantized first (quantize_blocks.cu), to MXFP8, MXFP4 or NVFP4, k a multiple of 32. c is
// m x n in bf16 with n a multiple of 8; sums are f32.
//
// 1. unfused: the quantized matrices are converted back to bf16 in device memory, exactly, and multiplied by
//     matmul_tcgen05. It shows what the scale factors inside the product save: two launches, the bytes of both matrices
//     in bf16, and half or three quarters of the tensor cores' time.
// 2. `matmul_block_scaled_single_issuer`: one thread loads tiles and scale factors, copies the factors to tensor memory
//     and multiplies.
// 3. `matmul_block_scaled_specialized`: a warp loads, a warp multiplies, four warps store; persistent, with two
//     accumulators.
// 4. The same with pairs of CTAs (cta_group::2), which multiply 256 x 256 tiles. Each CTA loads half of a and of b, and
//     the scale factors of its half of a. Both need all factors of b: each loads half of them, by TMA multicast into
//     both CTAs. One accumulator has 256 columns of tensor memory, and scale factors need up to 240 of the others.
//
// matmul_mma_block_scaled.cu multiplies the same quantized matrices by mma.sync, for sm_120a.
#include "ptxkit/gemm/block_scale.cuh"
#include "ptxkit/gemm/row_output.cuh"
#include "ptxkit/gemm/tensor_memory.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Products

constexpr int ROW_BYTES = 128;  // of a row of a tile of a or b: the widest swizzle
constexpr int BM = 128;         // rows of c that a CTA computes: the lanes of tensor memory

// A stage of a CTA: a tile of a, its part of a tile of b, and scale factors, of which SCALE_BYTES for each 128 rows are
// consecutive in device memory. A CTA of a pair has half of the rows of b, and the scale factors of all.
template <class Format, int BN, int CTAS>
struct Stage {
    static constexpr int k = ROW_BYTES * 8 / Format::bits;            // elements along K
    static constexpr int groups = k / Format::block / SCALE_COLUMNS;  // SCALE_BYTES for each 128 rows
    static constexpr int row_tiles = BN / SCALE_ROWS;                 // of the scale factors of b
    static constexpr int a_bytes = BM * ROW_BYTES, b_bytes = BN / CTAS * ROW_BYTES;
    static constexpr int scale_bytes = groups * SCALE_BYTES;  // for 128 rows
    static constexpr int a = 0, b = a_bytes;
    static constexpr int scales_a = b + b_bytes, scales_b = scales_a + scale_bytes;
    static constexpr int used = scales_b + row_tiles * scale_bytes;
    static constexpr int bytes = (used + 1023) / 1024 * 1024;
    // Columns of tensor memory that the scale factors occupy.
    static constexpr int columns_a = groups * 4, columns = columns_a + row_tiles * groups * 4;
    static_assert(k % (Format::block * SCALE_COLUMNS) == 0, "a stage has whole groups of scale factors");
    static_assert(BN % SCALE_ROWS == 0, "scale factors are stored for 128 rows");
    static_assert(BN <= 256, "a product has at most 256 columns");
};

// What loads and multiplies a stage. One thread calls it.
template <class Format, int BN, int CTAS>
struct Operands {
    using S = Stage<Format, BN, CTAS>;
    const TensorMap &a_map, &b_map, &a_scales, &b_scales;
    unsigned k;

    // Groups of scale factors of a row of the whole matrix, and of stage number `step`.
    __device__ __forceinline__ unsigned groups_across() const { return (k / Format::block - 1) / SCALE_COLUMNS + 1; }
    __device__ __forceinline__ unsigned groups_of(unsigned step) const {
        return min(groups_across() - step * S::groups, static_cast<unsigned>(S::groups));
    }

    // Loads the part of the CTA of rank `rank` of the stage whose tile begins at (row, col) of c. All bytes for both
    // CTAs of a pair are counted by the mbarrier of rank 0. Beyond k the scale factors are those of the next rows, or
    // zero at the end; they are not used.
    __device__ __forceinline__ void load(unsigned to, unsigned barrier, unsigned row, unsigned col, unsigned step,
                                         unsigned rank) const {
        if (rank == 0) mbarrier_arrive_expect_tx(barrier, CTAS * S::used);
        auto load = [&](int at, const TensorMap& map, int x, int y) {
            if constexpr (CTAS == 1) cp_async_bulk_tensor_2d_shared_global(to + at, map, x, y, barrier);
            else cp_async_bulk_tensor_2d_shared_global_cta_group_2(to + at, map, x, y, barrier);
        };
        auto group = [&](unsigned row_tile) { return row_tile * groups_across() + step * S::groups; };
        load(S::a, a_map, step * ROW_BYTES, row + rank * BM);
        load(S::b, b_map, step * ROW_BYTES, col + rank * (BN / CTAS));
        load(S::scales_a, a_scales, 0, group(row / SCALE_ROWS + rank));
#pragma unroll
        for (int i = 0; i < S::row_tiles; i++) {
            const int at = S::scales_b + i * S::scale_bytes, y = group(col / SCALE_ROWS + i);
            if constexpr (CTAS == 1) {
                load(at, b_scales, 0, y);
            } else if (i % CTAS == rank) {
                cp_async_bulk_tensor_2d_shared_global_cta_group_2_multicast(to + at, b_scales, 0, y, barrier, 3);
            }
        }
    }

    // Copies the scale factors to `scales` in tensor memory and issues the products, asynchronously. Factors of a are
    // in four columns for each group; those of b for each group in four columns for each 128 rows. Groups beyond k are
    // left out, because zero times whatever factor is in shared memory may be NaN.
    __device__ __forceinline__ void multiply(unsigned d, unsigned stage, unsigned scales, unsigned step) const {
        constexpr unsigned instruction =
            tcgen05_instruction_block_scaled(Format::type, Format::power_of_two, CTAS * BM, BN);
        const unsigned scales_a = scales, scales_b = scales + S::columns_a, groups = groups_of(step);
#pragma unroll
        for (int g = 0; g < S::groups; g++) {
            if (g >= groups) break;
            tcgen05_cp_32x128b_warpx4<CTAS>(scales_a + 4 * g,
                                            tcgen05_descriptor_rows_of_16_bytes(stage + S::scales_a + g * SCALE_BYTES));
#pragma unroll
            for (int i = 0; i < S::row_tiles; i++) {
                const unsigned from = stage + S::scales_b + i * S::scale_bytes + g * SCALE_BYTES;
                tcgen05_cp_32x128b_warpx4<CTAS>(scales_b + 4 * (g * S::row_tiles + i),
                                                tcgen05_descriptor_rows_of_16_bytes(from));
            }
        }
#pragma unroll
        for (int i = 0; i < ROW_BYTES / 32; i++) {
            // An instruction that needs four factors for each row takes whole columns; others take one or two bytes.
            const int group = i * Format::scales / SCALE_COLUMNS, byte = i * Format::scales % SCALE_COLUMNS;
            if (group >= groups) break;
            Format::template multiply<CTAS>(d, tcgen05_descriptor_128B(stage + S::a + 32 * i),
                                            tcgen05_descriptor_128B(stage + S::b + 32 * i),
                                            tcgen05_scale_factor_byte(instruction, byte), scales_a + 4 * group,
                                            scales_b + 4 * S::row_tiles * group, i > 0 || step > 0);
        }
    }
};

// The shared memory of a CTA as byte offsets, and its tensor memory as columns: the accumulators, then the scale
// factors of each stage.
template <class S, int BN, int STAGES, int ACCUMULATORS>
struct Layout {
    static constexpr int full = STAGES * S::bytes;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int sums_full = empty + 8 * STAGES;
    static constexpr int sums_empty = sums_full + 8 * ACCUMULATORS;
    static constexpr int address = sums_empty + 8 * ACCUMULATORS;
    static constexpr int bytes = address + 8;
    static constexpr int scales = ACCUMULATORS * BN;
    static constexpr int columns = tcgen05_columns(scales + STAGES * S::columns);
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages or a smaller tile");
    static_assert(columns <= TargetLimits::TENSOR_MEMORY_COLUMNS, "more columns than tensor memory has");
};

template <class Format, int BN, int STAGES>
__global__ void __launch_bounds__(128) matmul_block_scaled_single_issuer(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap a_scales, const __grid_constant__ TensorMap b_scales, bf16* c, int m, int n,
    int k) {
    using S = Stage<Format, BN, 1>;
    using L = Layout<S, BN, STAGES, 1>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), complete = base + L::sums_full;
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;

    const unsigned tensor_memory = begin_tensor_memory<1, L::columns>(shared + L::address, warp, 0, 32, [&]() {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        mbarrier_init(complete, 1);
        init_ring<STAGES>(full(0), 1, empty(0), 1);
    });
    follow_previous_grid();

    if (warp == 0 && elect_sync(all_lanes)) {
        const Operands<Format, BN, 1> operands{a_map, b_map, a_scales, b_scales, unsigned(k)};
        const int steps = (k - 1) / S::k + 1;
        auto load = [&](int step) {
            const unsigned stage = step % STAGES;
            operands.load(base + stage * S::bytes, full(stage), row, col, step, 0);
        };
        for (int step = 0; step < STAGES && step < steps; step++) load(step);
        Ring<STAGES> at;
        for (int step = 0; step < steps; step++) {
            mbarrier_wait(full(at.stage), at.parity);
            operands.multiply(tensor_memory, base + at.stage * S::bytes,
                              tensor_memory + L::scales + at.stage * S::columns, step);
            tcgen05_commit(empty(at.stage));
            if (step + STAGES < steps) {
                mbarrier_wait(empty(at.stage), at.parity);
                load(step + STAGES);
            }
            at.advance();
        }
        tcgen05_commit(complete);
    }
    __syncwarp();
    mbarrier_wait(complete, 0);
    tcgen05_fence_after_thread_sync();
    const RowOutput<PLAIN, bf16> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
    store_tensor_memory<BN>(tensor_memory + (warp * 32 << 16), output, row + threadIdx.x, col);
    end_tensor_memory<1, L::columns>(tensor_memory, warp, 0);
}

// Tile parameters of matmul_block_scaled_specialized. The description gives them by name (BlockScaledTile in
// ptxkit/kernels/gemm/matmul_block_scaled.py).
template <int BN_, int CTAS_, int STAGES_, int ACCUMULATORS_, int GROUP_>
struct BlockScaledTile {
    static constexpr int BN = BN_;                      // columns of c in a tile; it has 128 CTAS rows
    static constexpr int CTAS = CTAS_;                  // that multiply a tile together: 1 or 2
    static constexpr int STAGES = STAGES_;              // of the ring of tiles of a and b
    static constexpr int ACCUMULATORS = ACCUMULATORS_;  // tiles of sums in tensor memory
    static constexpr int GROUP = GROUP_;                // of grouped_tile
};

// Of a pair, the CTA of rank 0 issues the products; its mbarriers `full` and `sums_empty` synchronize both.
template <class Format, class Tile>
__global__ void __launch_bounds__(192, 1) matmul_block_scaled_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap a_scales, const __grid_constant__ TensorMap b_scales, bf16* c, int m, int n,
    int k) {
    constexpr int BN = Tile::BN, CTAS = Tile::CTAS, STAGES = Tile::STAGES, ACCUMULATORS = Tile::ACCUMULATORS;
    static_assert(CTAS == 1 || CTAS == 2, "tcgen05 has groups of one and of two CTAs");
    using S = Stage<Format, BN, CTAS>;
    using L = Layout<S, BN, STAGES, ACCUMULATORS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    auto sums_full = [&](unsigned i) { return base + L::sums_full + 8 * i; };
    auto sums_empty = [&](unsigned i) { return base + L::sums_empty + 8 * i; };
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CTAS > 1 ? cluster_ctarank() : 0;

    const unsigned tensor_memory = begin_tensor_memory<CTAS, L::columns>(shared + L::address, warp, 5, 0, [&]() {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        prefetch_tensormap(a_scales);
        prefetch_tensormap(b_scales);
        for (int i = 0; i < ACCUMULATORS; i++) {
            mbarrier_init(sums_full(i), 1);
            mbarrier_init(sums_empty(i), 4 * CTAS);  // one lane of each storing warp
        }
        init_ring<STAGES>(full(0), 1, empty(0), 1);
    });
    follow_previous_grid();

    const Operands<Format, BN, CTAS> operands{a_map, b_map, a_scales, b_scales, unsigned(k)};
    const unsigned tile_rows = (m - 1) / (BM * CTAS) + 1, tile_cols = (n - 1) / BN + 1;
    const unsigned tiles = tile_rows * tile_cols, first = blockIdx.x / CTAS, stride = gridDim.x / CTAS;
    const unsigned steps = (k - 1) / S::k + 1;
    if (warp == 4) {
        if (elect_sync(all_lanes)) {
            Ring<STAGES> at;
            for (unsigned tile = first; tile < tiles; tile += stride) {
                const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
                for (unsigned step = 0; step < steps; step++) {
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    operands.load(base + at.stage * S::bytes, full(at.stage), t.row * BM * CTAS, t.col * BN, step,
                                  rank);
                    at.advance();
                }
            }
            // Rank 0 arrives at the mbarriers `empty` of this CTA, which must not exit before.
            if constexpr (CTAS > 1) {
                for (int i = 0; i < STAGES; i++) {
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    at.advance();
                }
            }
        }
    } else if (warp == 5) {
        if (rank == 0 && elect_sync(all_lanes)) {
            auto commit = [](unsigned barrier) {
                if constexpr (CTAS > 1) tcgen05_commit_cta_group_2_multicast(barrier, 3);
                else tcgen05_commit(barrier);
            };
            Ring<STAGES> at;
            Ring<ACCUMULATORS> sums;
            for (unsigned tile = first; tile < tiles; tile += stride) {
                mbarrier_wait(sums_empty(sums.stage), sums.parity ^ 1);
                tcgen05_fence_after_thread_sync();
                for (unsigned step = 0; step < steps; step++) {
                    mbarrier_wait(full(at.stage), at.parity);
                    operands.multiply(tensor_memory + sums.stage * BN, base + at.stage * S::bytes,
                                      tensor_memory + L::scales + at.stage * S::columns, step);
                    commit(empty(at.stage));
                    at.advance();
                }
                commit(sums_full(sums.stage));
                sums.advance();
            }
        }
    } else {
        const RowOutput<PLAIN, bf16> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
        Ring<ACCUMULATORS> sums;
        for (unsigned tile = first; tile < tiles; tile += stride) {
            const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
            mbarrier_wait(sums_full(sums.stage), sums.parity);
            tcgen05_fence_after_thread_sync();
            store_tensor_memory<BN>(tensor_memory + sums.stage * BN + (warp * 32 << 16), output,
                                    (t.row * CTAS + rank) * BM + threadIdx.x, t.col * BN);
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            if (laneid() == 0) {
                if constexpr (CTAS > 1) mbarrier_arrive_shared_cluster(mapa_shared_cluster(sums_empty(sums.stage), 0));
                else mbarrier_arrive(sums_empty(sums.stage));
            }
            sums.advance();
        }
    }
    end_tensor_memory<CTAS, L::columns>(tensor_memory, warp, 5);
}
