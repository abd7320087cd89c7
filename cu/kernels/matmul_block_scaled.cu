// Matrix product of block-scaled operands on Blackwell's tensor cores: c = a b^T, where a is m x k and b is n x k in
// bf16, row-major. Both are quantized first, to MXFP8 or NVFP4 (block_scale.cuh), k a multiple of 32. c is m x n in
// bf16 with n a multiple of 8; sums are f32.
//
// 1. unfused: the quantized matrices are converted back to bf16 in device memory, exactly, and multiplied by
//     matmul_tcgen05. It shows what the scale factors inside the product save: two launches, the bytes of both matrices
//     in bf16, and half or three quarters of the tensor cores' time.
// 2. `matmul_block_scaled_single_issuer`: one thread loads tiles and scale factors, copies the factors to tensor memory
//     and multiplies.
// 3. `matmul_block_scaled_specialized`: a warp loads, a warp multiplies, four warps store; persistent, with two
//     accumulators.
#include "ptxkit/gemm/block_scale.cuh"
#include "ptxkit/gemm/row_output.cuh"
#include "ptxkit/gemm/tensor_memory.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Quantization

// One thread for each block of a row, including those that fill up the last scale factors; q is rows x k elements,
// packed.
template <class Format>
__global__ void __launch_bounds__(128) quantize_blocks(const bf16* x, unsigned* q, unsigned char* scales, int rows,
                                                       int k) {
    constexpr int block = Format::block, words = block * Format::bits / 32;
    const unsigned blocks = k / block, padded = (blocks + SCALE_COLUMNS - 1) / SCALE_COLUMNS * SCALE_COLUMNS;
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (at >= padded) return;
    unsigned scale = 0;
    if (row < rows && at < blocks) {
        const bf16* from = x + static_cast<size_t>(row) * k + at * block;
        float values[block / 8][8], largest = 0.0f;
#pragma unroll
        for (int i = 0; i < block / 8; i++) {
            RowVector<bf16>::load(from + 8 * i).unpack(values[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(values[i][j]));
        }
        scale = Format::scale_of(largest);
        const float unit = Format::value_of_scale(scale);
        unsigned packed[words];
#pragma unroll
        for (int i = 0; i < block / 8; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] = unit == 0.0f ? 0.0f : __fdiv_rn(values[i][j], unit);
            Format::quantize(values[i], packed + i * Format::bits / 4);
        }
        unsigned* to = q + (static_cast<size_t>(row) * blocks + at) * words;
#pragma unroll
        for (int i = 0; i < words; i++) to[i] = packed[i];
    }
    scales[scale_offset(row, at, blocks)] = scale;
}

// Element times scale factor, exact in bf16. One thread for each block.
template <class Format>
__global__ void __launch_bounds__(128) dequantize_blocks(const unsigned* q, const unsigned char* scales, bf16* x,
                                                         int rows, int k) {
    constexpr int block = Format::block, words = block * Format::bits / 32;
    const unsigned blocks = k / block, at = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (at >= blocks) return;
    const unsigned* from = q + (static_cast<size_t>(row) * blocks + at) * words;
    const float unit = Format::value_of_scale(scales[scale_offset(row, at, blocks)]);
#pragma unroll
    for (int i = 0; i < block / 8; i++) {
        unsigned packed[Format::bits / 4];
#pragma unroll
        for (int j = 0; j < Format::bits / 4; j++) packed[j] = from[i * Format::bits / 4 + j];
        float values[8];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned pair = Format::pair(packed, j);
            values[2 * j] = unit * Convert<f16>::low(pair);
            values[2 * j + 1] = unit * Convert<f16>::high(pair);
        }
        RowVector<bf16>::pack(values).store(x + static_cast<size_t>(row) * k + at * block + 8 * i);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Products

constexpr int ROW_BYTES = 128;  // of a row of a tile of a or b: the widest swizzle
constexpr int BM = 128;         // rows of c that a CTA computes: the lanes of tensor memory

// A stage: a tile of a, a tile of b, and the scale factors of both, each of which are consecutive in device memory for
// 128 rows.
template <class Format, int BN>
struct Stage {
    static constexpr int k = ROW_BYTES * 8 / Format::bits;                       // elements along K
    static constexpr int groups = k / Format::block / SCALE_COLUMNS;             // SCALE_BYTES for each 128 rows
    static constexpr int a = 0, b = BM * ROW_BYTES;
    static constexpr int scales_a = b + BN * ROW_BYTES, scales_b = scales_a + groups * SCALE_BYTES;
    static constexpr int used = scales_b + BN / SCALE_ROWS * groups * SCALE_BYTES;
    static constexpr int bytes = (used + 1023) / 1024 * 1024;
    // Columns of tensor memory that the scale factors occupy.
    static constexpr int columns_a = groups * 4, columns = columns_a + BN / SCALE_ROWS * groups * 4;
    static_assert(k % (Format::block * SCALE_COLUMNS) == 0, "a stage has whole groups of scale factors");
    static_assert(BN % SCALE_ROWS == 0, "scale factors are stored for 128 rows");
};

// What loads and multiplies a stage. One thread calls it.
template <class Format, int BN>
struct Operands {
    using S = Stage<Format, BN>;
    const TensorMap &a_map, &b_map;
    const unsigned char *a_scales, *b_scales;
    unsigned m, n, k;

    // Groups of scale factors of a row of the whole matrix, and of stage number `step`.
    __device__ __forceinline__ unsigned groups_across() const { return (k / Format::block - 1) / SCALE_COLUMNS + 1; }
    __device__ __forceinline__ unsigned groups_of(unsigned step) const {
        return min(groups_across() - step * S::groups, static_cast<unsigned>(S::groups));
    }

    // Scale factors outside the matrices are not loaded, so that fewer bytes arrive at the edges.
    __device__ __forceinline__ void load(unsigned to, unsigned barrier, unsigned row, unsigned col,
                                         unsigned step) const {
        const unsigned across = groups_across(), groups = groups_of(step);
        const unsigned row_tiles = (n - 1) / SCALE_ROWS + 1;
        const unsigned tiles_b = min(row_tiles - col / SCALE_ROWS, static_cast<unsigned>(BN / SCALE_ROWS));
        mbarrier_arrive_expect_tx(barrier, (BM + BN) * ROW_BYTES + (1 + tiles_b) * groups * SCALE_BYTES);
        cp_async_bulk_tensor_2d_shared_global(to + S::a, a_map, step * ROW_BYTES, row, barrier);
        cp_async_bulk_tensor_2d_shared_global(to + S::b, b_map, step * ROW_BYTES, col, barrier);
        auto scales = [&](unsigned at, const unsigned char* from, unsigned tile) {
            const size_t group = static_cast<size_t>(tile) * across + step * S::groups;
            cp_async_bulk_shared_global(to + at, from + group * SCALE_BYTES, groups * SCALE_BYTES, barrier);
        };
        scales(S::scales_a, a_scales, row / SCALE_ROWS);
        for (unsigned i = 0; i < tiles_b; i++) {
            scales(S::scales_b + i * S::groups * SCALE_BYTES, b_scales, col / SCALE_ROWS + i);
        }
    }

    // Copies the scale factors to `scales` in tensor memory and issues the products, asynchronously. Factors of a are
    // in four columns for each group; those of b for each group in four columns for each 128 rows. Groups beyond k are
    // left out, because zero times whatever factor is in shared memory may be NaN.
    __device__ __forceinline__ void multiply(unsigned d, unsigned stage, unsigned scales, unsigned step) const {
        constexpr unsigned instruction = tcgen05_instruction_block_scaled(Format::type, Format::power_of_two, BM, BN);
        constexpr int row_tiles = BN / SCALE_ROWS;
        const unsigned scales_a = scales, scales_b = scales + S::columns_a, groups = groups_of(step);
#pragma unroll
        for (int g = 0; g < S::groups; g++) {
            if (g >= groups) break;
            tcgen05_cp_32x128b_warpx4(scales_a + 4 * g,
                                      tcgen05_descriptor_rows_of_16_bytes(stage + S::scales_a + g * SCALE_BYTES));
#pragma unroll
            for (int i = 0; i < row_tiles; i++) {
                const unsigned from = stage + S::scales_b + (i * S::groups + g) * SCALE_BYTES;
                tcgen05_cp_32x128b_warpx4(scales_b + 4 * (g * row_tiles + i),
                                          tcgen05_descriptor_rows_of_16_bytes(from));
            }
        }
#pragma unroll
        for (int i = 0; i < ROW_BYTES / 32; i++) {
            // An instruction that needs four factors for each row takes whole columns; one that needs a single factor
            // takes a byte of them.
            const int group = i * Format::scales / SCALE_COLUMNS, byte = i * Format::scales % SCALE_COLUMNS;
            if (group >= groups) break;
            Format::multiply(d, tcgen05_descriptor_128B(stage + S::a + 32 * i),
                             tcgen05_descriptor_128B(stage + S::b + 32 * i),
                             tcgen05_scale_factor_byte(instruction, byte), scales_a + 4 * group,
                             scales_b + 4 * row_tiles * group, i > 0 || step > 0);
        }
    }
};

// The shared memory of a CTA as byte offsets, and its tensor memory as columns: the accumulators, then the scale
// factors of each stage.
template <class Format, int BN, int STAGES, int ACCUMULATORS>
struct Layout {
    using S = Stage<Format, BN>;
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
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const unsigned char* a_scales,
    const unsigned char* b_scales, bf16* c, int m, int n, int k) {
    using L = Layout<Format, BN, STAGES, 1>;
    using S = Stage<Format, BN>;
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
        const Operands<Format, BN> operands{a_map, b_map, a_scales, b_scales, unsigned(m), unsigned(n), unsigned(k)};
        const int steps = (k - 1) / S::k + 1;
        auto load = [&](int step) {
            const unsigned stage = step % STAGES;
            operands.load(base + stage * S::bytes, full(stage), row, col, step);
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

template <class Format, int BN, int STAGES, int GROUP>
__global__ void __launch_bounds__(192, 1) matmul_block_scaled_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const unsigned char* a_scales,
    const unsigned char* b_scales, bf16* c, int m, int n, int k) {
    constexpr int ACCUMULATORS = 2;
    using L = Layout<Format, BN, STAGES, ACCUMULATORS>;
    using S = Stage<Format, BN>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    auto sums_full = [&](unsigned i) { return base + L::sums_full + 8 * i; };
    auto sums_empty = [&](unsigned i) { return base + L::sums_empty + 8 * i; };
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);

    const unsigned tensor_memory = begin_tensor_memory<1, L::columns>(shared + L::address, warp, 5, 0, [&]() {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        for (int i = 0; i < ACCUMULATORS; i++) {
            mbarrier_init(sums_full(i), 1);
            mbarrier_init(sums_empty(i), 4);
        }
        init_ring<STAGES>(full(0), 1, empty(0), 1);
    });
    follow_previous_grid();

    const Operands<Format, BN> operands{a_map, b_map, a_scales, b_scales, unsigned(m), unsigned(n), unsigned(k)};
    const unsigned tile_rows = (m - 1) / BM + 1, tile_cols = (n - 1) / BN + 1, tiles = tile_rows * tile_cols;
    const unsigned steps = (k - 1) / S::k + 1;
    if (warp == 4) {
        if (elect_sync(all_lanes)) {
            Ring<STAGES> at;
            for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
                for (unsigned step = 0; step < steps; step++) {
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    operands.load(base + at.stage * S::bytes, full(at.stage), t.row * BM, t.col * BN, step);
                    at.advance();
                }
            }
        }
    } else if (warp == 5) {
        if (elect_sync(all_lanes)) {
            Ring<STAGES> at;
            Ring<ACCUMULATORS> sums;
            for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                mbarrier_wait(sums_empty(sums.stage), sums.parity ^ 1);
                tcgen05_fence_after_thread_sync();
                for (unsigned step = 0; step < steps; step++) {
                    mbarrier_wait(full(at.stage), at.parity);
                    operands.multiply(tensor_memory + sums.stage * BN, base + at.stage * S::bytes,
                                      tensor_memory + L::scales + at.stage * S::columns, step);
                    tcgen05_commit(empty(at.stage));
                    at.advance();
                }
                tcgen05_commit(sums_full(sums.stage));
                sums.advance();
            }
        }
    } else {
        const RowOutput<PLAIN, bf16> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
        Ring<ACCUMULATORS> sums;
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
            mbarrier_wait(sums_full(sums.stage), sums.parity);
            tcgen05_fence_after_thread_sync();
            store_tensor_memory<BN>(tensor_memory + sums.stage * BN + (warp * 32 << 16), output,
                                    t.row * BM + threadIdx.x, t.col * BN);
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            if (laneid() == 0) mbarrier_arrive(sums_empty(sums.stage));
            sums.advance();
        }
    }
    end_tensor_memory<1, L::columns>(tensor_memory, warp, 5);
}
