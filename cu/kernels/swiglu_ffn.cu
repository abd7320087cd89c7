// The products of a gated feed-forward layer: h = silu(x gate^T) * (x up^T) in one launch, and y = h down^T. x is
// tokens x hidden, gate and up are ffn x hidden, down is hidden x ffn, in bf16 or f16; sums and the activation in f32.
//
// A tile of weights has as many rows of gate as of up, for the same columns of h. The thread with a sum of gate thus has
// the one of up as well, and h is the only result that is stored. `product` is the second launch, and the launches of the
// unfused chain: the product of matmul_wgmma.cu for both types.
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

template <class T, class Tile>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1)
gated_product(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap gate_map,
              const __grid_constant__ TensorMap up_map, const __grid_constant__ TensorMap h_map, T* h, int tokens,
              int ffn, int hidden) {
    const Output<PLAIN, T> output{h, nullptr, unsigned(tokens), unsigned(ffn), 1.0f, 0.0f};
    wgmma_products<Tile, T, true>(x_map, gate_map, up_map, h_map, output, tokens, ffn, hidden);
}

template <class T, class Tile>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1)
product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, T* c, int m, int n, int k) {
    const Output<PLAIN, T> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
    wgmma_product<Tile, T>(a_map, b_map, c_map, output, m, n, k);
}
