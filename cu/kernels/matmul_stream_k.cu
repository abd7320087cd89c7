// Step 13 of matmul_wgmma.cu: tiles as wide as n divided by the number of SMs, and equal shares of the steps of k where whole
// tiles would leave SMs idle (stream_k.cuh). For few rows of a, where the time is that of reading b with all SMs, for products
// whose tiles would fill a small part of the last wave, and for any n.
//
// 1. `matmul_stream_k`: whole tiles, and partial sums of the tiles that several clusters share.
// 2. `matmul_sum_shares` adds the partial sums, or `matmul_clear_arrived` comes before, and the CTAs of a tile add them.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/stream_k.cuh"

using namespace ptxkit;

template <class Tile, class T, class Of, int EPILOGUE, int PAIRS>
__global__ void __launch_bounds__(Tile::THREADS + 32) matmul_stream_k(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, unsigned m,
    unsigned n, float alpha, float beta, unsigned pitch, float* partials, unsigned down, unsigned groups, unsigned steps,
    unsigned whole, unsigned shares, unsigned sharing, unsigned b_sharing, unsigned rows, unsigned parts, unsigned polls,
    unsigned transposed, unsigned stages) {
    auto output = epilogue_of<EPILOGUE, PAIRS>(c, bias, m, n, alpha, beta, pitch);
    const Shares of{down, groups, steps, whole, shares, sharing, b_sharing, rows, parts, polls, transposed};
    stream_k_product<Tile, T, Of>(a_map, b_map, output, partials, of, stages);
}

template <class Tile, class T, int EPILOGUE, int PAIRS>
__global__ void __launch_bounds__(SHARE_THREADS) matmul_sum_shares(
    const float* partials, T* c, const T* bias, unsigned m, unsigned n, float alpha, float beta, unsigned pitch, unsigned down,
    unsigned groups, unsigned steps, unsigned whole, unsigned shares, unsigned sharing, unsigned b_sharing, unsigned rows,
    unsigned parts, unsigned polls, unsigned transposed, unsigned adders) {
    auto output = epilogue_of<EPILOGUE, PAIRS>(c, bias, m, n, alpha, beta, pitch);
    const Shares of{down, groups, steps, whole, shares, sharing, b_sharing, rows, parts, polls, transposed};
    sum_of_shares<Tile>(partials, output, of, adders);
}

template <class Tile>
__global__ void __launch_bounds__(SHARE_THREADS) matmul_clear_arrived(float* partials, unsigned ctas, unsigned tiles) {
    clear_arrived<Tile>(partials, ctas, tiles);
}
