// out = gelu(layer_norm(x w^T + bias)), where x is m x k, w is n x k and out is m x n, all row-major with rows of a
// multiple of 16 bytes, in bf16 or f16, sums in f32. layer_norm has gamma and beta of n elements; gelu is the tanh
// formula.
//
// Variants; docs/ffn.md has the measurements:
//
// - unfused: seven launches, one for each operation.
// - row_kernels: a product with bias in its epilogue, by mma.sync (`linear_mma`) or by wgmma (`linear_wgmma`), and a
//     row kernel for the rest.
// - cluster, `linear_normalized`: one launch. The CTAs of a cluster compute all columns of the same rows, keep the
//     sums in registers, and exchange the statistics of their parts of each row through distributed shared memory, so
//     that nothing but the result is stored.
#include "ptxkit/gemm/linear_output.cuh"
#include "ptxkit/gemm/mma_product.cuh"
#include "ptxkit/gemm/row_statistics.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

template <class T>
using BiasOutput = LinearOutput<T, true, NONE, false>;

template <class T, class S>
__global__ void __launch_bounds__(S::threads) linear_mma(const T* x, const T* w, const T* bias, T* out, int m, int n,
                                                         int k) {
    const BiasOutput<T> output{out, bias, nullptr, unsigned(m), unsigned(n)};
    mma_product<T, S, true, true>(x, w, output, m, n, k);
}

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) linear_wgmma(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap out_map, const T* bias, T* out, int m, int n, int k) {
    const BiasOutput<T> output{out, bias, nullptr, unsigned(m), unsigned(n)};
    wgmma_product<Tile, T>(x_map, w_map, out_map, output, m, n, k);
}

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) linear_normalized(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap out_map, const T* bias, const T* gamma, const T* beta, T* out, float eps, int m,
    int n, int k) {
    const LinearOutput<T, false, GELU, false> output{out, nullptr, nullptr, unsigned(m), unsigned(n)};
    const NormalizedRows<T, Tile> rows{bias, gamma, beta, unsigned(n), eps};
    wgmma_product<Tile, T>(x_map, w_map, out_map, output, m, n, k, rows);
}
