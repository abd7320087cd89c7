// Step 4 of swiglu_ffn.cu, for up to some hundred tokens, where the time is that of reading the weights: tiles with any multiple of 8
// tokens, whose k the CTAs of a cluster may divide (multicast_product.cuh). The second product loads weights before the first one is
// complete, by the same kernel or by that of step 9 of matmul_wgmma.cu (swapped_product.cuh).
#include "ptxkit/gemm/multicast_product.cuh"
#include "ptxkit/gemm/swapped_product.cuh"

using namespace ptxkit;

// h = silu(x gate^T) * (x up^T).
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::ALL_THREADS) gated_multicast(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap gate_map, const __grid_constant__ TensorMap up_map, T* h,
    unsigned tokens, unsigned ffn, unsigned a_sharing, unsigned b_sharing, unsigned parts, unsigned across, unsigned of_product,
    unsigned steps, unsigned stages) {
    VectorOutput<PLAIN, T> output{{h, nullptr, tokens, ffn, 1.0f, 0.0f}};
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, of_product};
    multicast_products<Tile, T, Operands<K_MAJOR, K_MAJOR>, 2, Follow::LATER>(x_map, gate_map, up_map, output, grid, steps, stages);
}

// c = a b^T.
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::ALL_THREADS) early_multicast(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, unsigned m, unsigned n, unsigned a_sharing,
    unsigned b_sharing, unsigned parts, unsigned across, unsigned of_product, unsigned steps, unsigned stages) {
    VectorOutput<PLAIN, T> output{{c, nullptr, m, n, 1.0f, 0.0f}};
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, of_product};
    multicast_products<Tile, T, Operands<K_MAJOR, K_MAJOR>, 1, Follow::WEIGHTS_FIRST>(a_map, b_map, b_map, output, grid, steps, stages);
}

template <class Tile, class T>
__global__ void __launch_bounds__(128 * Tile::CONSUMERS + 32) early_swapped(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, int m, int n, int k, unsigned stages,
    unsigned sharing) {
    const Output<PLAIN, T> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
    swapped_product<Tile, T, Operands<K_MAJOR, K_MAJOR>, true>(a_map, b_map, output, m, n, k, stages, sharing);
}
