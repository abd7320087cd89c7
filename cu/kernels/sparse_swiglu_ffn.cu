// The products of a gated feed-forward layer with 2:4 sparse weights: h = silu(x gate^T) * (x up^T) in one launch, for
// y = h down^T, which is a launch of matmul_sparse.cu. x is tokens x hidden, gate and up are ffn x hidden, down is
// hidden x ffn; weights in the form of cu/ptxkit/gemm/sparse.cuh, in bf16 or f16. Sums and the activation are in f32.
//
// A tile of weights has as many rows of gate as of up, for the same columns of h. The thread with a sum of gate thus has
// the one of up as well, and h is the only result that is stored.
//
// 1. `sparse_gated_mma`, for sm_80: mma.sp, with a ring of stages that cp.async fills.
// 2. `sparse_gated_specialized`, for sm_90a: a producer warpgroup fills a ring through TMA, and consumer warpgroups
//     multiply by wgmma.mma_async.sp: the first 64 of a consumer's rows of weights are of gate, the others of up.
#include "ptxkit/gemm/sparse_product.cuh"

using namespace ptxkit;

template <class T, class S>
__global__ void __launch_bounds__(S::threads) sparse_gated_mma(const T* x, const T* gate_values,
                                                               const unsigned* gate_metadata, const T* up_values,
                                                               const unsigned* up_metadata, T* h, int tokens, int ffn,
                                                               int hidden) {
    sparse_mma_product<T, S, true>(x, gate_values, gate_metadata, up_values, up_metadata, h, tokens, ffn, hidden);
}

template <class T, class Tile>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) sparse_gated_specialized(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap gate_values_map,
    const __grid_constant__ TensorMap gate_metadata_map, const __grid_constant__ TensorMap up_values_map,
    const __grid_constant__ TensorMap up_metadata_map, const __grid_constant__ TensorMap h_map, T* h, int tokens,
    int ffn, int hidden) {
    sparse_wgmma_product<T, T, Tile, true>(x_map, gate_values_map, gate_metadata_map, up_values_map, up_metadata_map,
                                           h_map, h, tokens, ffn, hidden);
}
