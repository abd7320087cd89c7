// Step 6 of matmul_sparse.cu, and the first launch of step 5 of sparse_swiglu_ffn.cu: for up to some hundred rows of a, tiles with any
// multiple of 8 of them, whose k the CTAs of a cluster may divide (sparse_cluster_k.cuh).
#include "ptxkit/gemm/sparse_cluster_k.cuh"

using namespace ptxkit;

// c = a b^T with the sparse b (n, k). EARLY: the weights are loaded before the previous grid is complete.
template <class Tile, class T, class Out, bool EARLY>
__global__ void __launch_bounds__(Tile::THREADS + 32) matmul_sparse_cluster_k(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap values, const __grid_constant__ TensorMap metadata, Out* c,
    unsigned m, unsigned n, unsigned a_sharing, unsigned b_sharing, unsigned parts, unsigned across, unsigned steps, unsigned stages) {
    const VectorOutput<0, Out> output{{c, nullptr, m, n, 1.0f, 0.0f}};
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, 0};
    sparse_cluster_product<Tile, T, EARLY>(a_map, values, metadata, values, metadata, output, grid, steps, stages);
}

// h = silu(x gate^T) * (x up^T) with the sparse gate and up (ffn, hidden).
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::THREADS + 32) sparse_gated_cluster_k(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap gate_values, const __grid_constant__ TensorMap gate_metadata,
    const __grid_constant__ TensorMap up_values, const __grid_constant__ TensorMap up_metadata, T* h, unsigned tokens, unsigned ffn,
    unsigned a_sharing, unsigned b_sharing, unsigned parts, unsigned across, unsigned steps, unsigned stages) {
    const VectorOutput<0, T> output{{h, nullptr, tokens, ffn, 1.0f, 0.0f}};
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, 0};
    sparse_cluster_product<Tile, T, false>(x_map, gate_values, gate_metadata, up_values, up_metadata, output, grid, steps, stages);
}
