// Products by wgmma with what follows them in one launch: for each of `batch` products, with sums = a b^T,
//
//     x = sums scale row_scales[row] column_scales[col] + bias[col]
//     c = activation(x) + residual[row, col], largest = max |c|
//
// each part only if its bit is set. Elements of a and b are bf16, f16, tf32 (f32 in memory), e4m3 or s8. Sums are f32, or
// exact s32 of s8. With SILU_MUL, the columns of the sums alternate: gate, up, gate, up; c = silu(gate) up has half as many.
//
// - `matmul_fused`: persistent CTAs with a producer warp and CONSUMERS consumer warpgroups, as in steps 5 and 7 of
//     matmul_wgmma.cu. A stage has rows of 128 bytes whatever the type is, and each instruction of wgmma reads 32 bytes of
//     a row. The tensor maps have three dimensions, the first of which is the product, so that a tile that ends a matrix
//     is filled with zeros and not with the next matrix. Consumers have their sums in the order of memory
//     (staged_rows.cuh), so that scales, bias and residual are read, and c is stored, by neighbouring lanes.
// - `epilogue_part`: one part of the epilogue on sums in device memory, for the unfused variant.
#include "ptxkit/gemm/fused_output.cuh"
#include "ptxkit/gemm/staged_rows.cuh"
#include "ptxkit/gemm/wgmma_types.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// The product

// Tile parameters, as in WgmmaTile.
template <int BM_, int BN_, int CONSUMERS_, int STAGES_, int GROUP_, int REGISTERS_>
struct FusedTile {
    static constexpr int BM = BM_, BN = BN_, CONSUMERS = CONSUMERS_, STAGES = STAGES_, GROUP = GROUP_,
                         REGISTERS = REGISTERS_;
};

// Loads SIZE rows of a matrix of a batch, as load_rows.
template <int MAJOR, int SIZE>
__device__ __forceinline__ void load_rows_of(unsigned to, const TensorMap& map, int k, int row, int product,
                                             unsigned barrier) {
    if constexpr (MAJOR == K_MAJOR) {
        cp_async_bulk_tensor_3d_shared_global(to, map, k, row, product, barrier);
    } else {
#pragma unroll
        for (int i = 0; i < SIZE / 64; i++) {
            cp_async_bulk_tensor_3d_shared_global(to + i * WGMMA_BLOCK_BYTES, map, row + 64 * i, k, product, barrier);
        }
    }
}

template <class Tile, class T, class Out, class Of, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_fused(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Out* c, const float* scale,
    const float* row_scales, const float* column_scales, const Out* bias, const Out* residual, float* largest, int m,
    int n, int k, unsigned batch, unsigned pitch, size_t matrix) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES;
    constexpr int ROWS = BM / CONSUMERS / 64, REGISTERS = Tile::REGISTERS;
    constexpr int BK = WGMMA_ROW_BYTES / sizeof(T);  // elements of k in a stage
    static_assert(BM == 64 * ROWS * CONSUMERS, "a consumer takes a multiple of 64 rows");
    static_assert(ROWS * BN <= 256, "a thread holds at most 128 sums");
    static_assert(sizeof(T) == 2 || (Of::A_MAJOR == K_MAJOR && Of::B_MAJOR == K_MAJOR),
                  "wgmma transposes operands of 16 bits only");
    constexpr int a_bytes = BM * WGMMA_ROW_BYTES, stage_bytes = a_bytes + BN * WGMMA_ROW_BYTES;
    using Sum = typename SumOf<T>::type;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();

    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        init_ring<STAGES>(full, 1, empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / BM + 1, tile_cols = (n - 1) / BN + 1, of_product = tile_rows * tile_cols;
    const unsigned tiles = of_product * batch, steps = (k - 1) / BK + 1;
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                const unsigned product = tile / of_product;
                const TileIndex t = grouped_tile<Tile::GROUP>(tile - product * of_product, tile_rows, tile_cols);
                for (unsigned step = 0; step < steps; step++) {
                    const unsigned to = base + at.stage * stage_bytes, barrier = full + 8 * at.stage;
                    mbarrier_wait(empty + 8 * at.stage, at.parity ^ 1);
                    mbarrier_arrive_expect_tx(barrier, stage_bytes);
                    load_rows_of<Of::A_MAJOR, BM>(to, a_map, step * BK, t.row * BM, product, barrier);
                    load_rows_of<Of::B_MAJOR, BN>(to + a_bytes, b_map, step * BK, t.col * BN, product, barrier);
                    at.advance();
                }
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned consumer = warp / 4 - 1;
        FusedOutput<PARTS, ACTIVATION, Sum, Out> output{
            c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
        Sum* box = reinterpret_cast<Sum*>(shared + STAGES * stage_bytes + (warp - 4) * STAGED_BYTES);
        Sum sums[ROWS][BN / 2];
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            output.product = tile / of_product;
            const TileIndex t = grouped_tile<Tile::GROUP>(tile - output.product * of_product, tile_rows, tile_cols);
            unsigned previous = 0;
            for (unsigned step = 0; step < steps; step++) {
                const unsigned stage = base + at.stage * stage_bytes;
                const unsigned a = stage + consumer * ROWS * WGMMA_BLOCK_BYTES, b = stage + a_bytes;
                mbarrier_wait(full + 8 * at.stage, at.parity);
                multiply_stage<T, Of>(sums, a, b, step > 0);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > 0 && lane == 0) mbarrier_arrive(empty + 8 * previous);
                previous = at.stage;
                at.advance();
            }
            wait_for_all(sums);
            if (lane == 0) mbarrier_arrive(empty + 8 * previous);
            use_staged_rows<BN>(sums, box, t.row * BM + consumer * 64 * ROWS, t.col * BN, output);
        }
        output.finish();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The unfused epilogue: each launch reads sums or values in device memory and applies one part

// From batch x m x n values of type In to those of type Out, of which SILU_MUL makes half as many columns.
template <class In, class Out, class Given, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(256) epilogue_part(const In* from, Out* to, const float* scale, const float* row_scales,
                                                     const float* column_scales, const Given* bias,
                                                     const Given* residual, float* largest, unsigned m, unsigned n,
                                                     unsigned batch, unsigned pitch, size_t matrix) {
    const unsigned width = ACTIVATION == SILU_MUL ? n / 2 : n;
    const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x, rows = static_cast<size_t>(batch) * m;
    follow_previous_grid();
    float x = 0.0f;
    if (i < rows * width) {
        const size_t row = i / width, product = row / m;
        const unsigned col = i % width;
        const size_t at = product * matrix + (row - product * m) * pitch + col;
        if constexpr (ACTIVATION == SILU_MUL) {
            x = silu(as_f32(from[row * n + 2 * col])) * as_f32(from[row * n + 2 * col + 1]);
        } else {
            x = activate<static_cast<Activation>(ACTIVATION)>(as_f32(from[i]));
        }
        if constexpr (PARTS & SCALE) x *= *scale;
        if constexpr (PARTS & ROW_SCALES) x *= row_scales[row];
        if constexpr (PARTS & COLUMN_SCALES) x *= column_scales[product * n + col];
        if constexpr (PARTS & BIAS) x += as_f32(bias[col]);
        if constexpr (PARTS & RESIDUAL) x += as_f32(residual[i]);
        to[at] = converted<Out>(x);
    }
    if constexpr (PARTS & LARGEST) {
        const unsigned found = redux_sync_max(all_lanes, __float_as_uint(fabsf(x)));
        if (laneid() == 0) atomicMax(reinterpret_cast<unsigned*>(largest), found);
    }
}
