// Products by wgmma with what follows them in one launch: for each of `batch` products, with sums = a b^T,
//
//     x = sums scale row_scales[row] column_scales[col] + bias[col]
//     c = activation(x) + residual[row, col], largest = max |c|
//
// each part only if its bit is set. Elements of a and b are bf16, f16, tf32 (f32 in memory), e4m3 or s8. Sums are f32, or
// exact s32 of s8. With SILU_MUL, the columns of the sums alternate: gate, up, gate, up; c = silu(gate) up has half as many.
//
// - `matmul_fused`: the product of step 8 of matmul_wgmma.cu, with clusters that share operands by multicast. c is stored by
//     TMA, or, where its rows in memory are no multiples of 16 bytes, row by row (staged_rows.cuh).
// - `matmul_fused_stream_k` and `matmul_fused_sum_shares`: that of step 13, for few rows of a and for products whose tiles would
//     fill a small part of the last wave. `matmul_fused_clear_arrived` comes before where the CTAs of a tile add its parts.
// - `epilogue_part`: one part of the epilogue on sums in device memory, for the unfused variant.
#include "ptxkit/gemm/fused_output.cuh"
#include "ptxkit/gemm/stream_k.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// The product. The arrays are those of FusedOutput; tensor maps have three dimensions (Operands).

// Adds the largest magnitude of each consumer warp to that of all.
struct PublishLargest : NoHooks {
    template <class Out>
    __device__ __forceinline__ void finished(Out& output) const {
        output.publish();
    }
};

template <class Tile, class T, class Out, class Of, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_fused(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, Out* c, const float* scale, const float* row_scales,
    const float* column_scales, const Out* bias, const Out* residual, float* largest, int m, int n, int k, unsigned batch,
    unsigned pitch, size_t matrix) {
    FusedOutput<PARTS, ACTIVATION, typename WgmmaOf<T>::Sum, Out> output{
        c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
    wgmma_product<Tile, T, Of>(a_map, b_map, c_map, output, m, n, k, PublishLargest(), batch);
}

template <class Tile, class T, class Out, class Of, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(Tile::THREADS + 32) matmul_fused_stream_k(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Out* c, const float* scale,
    const float* row_scales, const float* column_scales, const Out* bias, const Out* residual, float* largest, int m, int n,
    unsigned pitch, size_t matrix, typename WgmmaOf<T>::Sum* partials, unsigned down, unsigned groups, unsigned steps,
    unsigned whole, unsigned shares, unsigned sharing, unsigned b_sharing, unsigned rows, unsigned parts, unsigned polls,
    unsigned transposed, unsigned of_product, unsigned stages) {
    FusedOutput<PARTS, ACTIVATION, typename WgmmaOf<T>::Sum, Out> output{
        c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
    const Shares of{down, groups, steps, whole, shares, sharing, b_sharing, rows, parts, polls, transposed, of_product};
    stream_k_product<Tile, T, Of>(a_map, b_map, output, partials, of, stages);
    output.publish();
}

template <class Tile, class Sum, class Out, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(SHARE_THREADS) matmul_fused_sum_shares(
    const Sum* partials, Out* c, const float* scale, const float* row_scales, const float* column_scales, const Out* bias,
    const Out* residual, float* largest, int m, int n, unsigned pitch, size_t matrix, unsigned down, unsigned groups,
    unsigned steps, unsigned whole, unsigned shares, unsigned sharing, unsigned b_sharing, unsigned rows, unsigned parts,
    unsigned polls, unsigned transposed, unsigned of_product, unsigned adders) {
    FusedOutput<PARTS, ACTIVATION, Sum, Out> output{
        c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
    const Shares of{down, groups, steps, whole, shares, sharing, b_sharing, rows, parts, polls, transposed, of_product};
    sum_of_shares<Tile, true>(partials, output, of, adders);
    output.publish();
}

template <class Tile, class Sum>
__global__ void __launch_bounds__(SHARE_THREADS) matmul_fused_clear_arrived(Sum* partials, unsigned ctas, unsigned tiles) {
    clear_arrived<Tile>(partials, ctas, tiles);
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
