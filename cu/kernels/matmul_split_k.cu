// Step 10 of matmul_wgmma.cu, for a long k and a c with fewer tiles than the GPU has SMs: k is divided into parts.
//
// 1. `matmul_parts`: the product of step 8, in which a CTA computes a tile of c for a part of k. The sums are stored as
//     f32, one array for each part.
// 2. `matmul_sum_parts` adds the arrays in an order that depends on their number alone, so that every launch gives the same bits,
//     and applies the epilogue.
#include "ptxkit/gemm/stream_k.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

// The epilogue of a part: stores f32 sums. Rows are those of wgmma_products with several parts.
struct PartialSums {
    float* partials;  // parts x m x n
    unsigned m, n, padded_rows;

    struct OfRow {};
    __device__ __forceinline__ OfRow of_row(unsigned) const { return {}; }

    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col, OfRow = {}) const {
        const unsigned part = row / padded_rows, r = row - part * padded_rows;
        if (r >= m || col >= n) return;
        *reinterpret_cast<float2*>(partials + (static_cast<size_t>(part) * m + r) * n + col) = {x, y};
    }
};

template <class Tile, class T, class Of>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_parts(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, float* partials, int m, int n, int k, unsigned parts) {
    static_assert(Tile::STORE == FROM_REGISTERS, "a tensor map does not describe rows of several parts");
    constexpr unsigned rows = Tile::BM * Tile::CLUSTER_M;
    const PartialSums output{partials, unsigned(m), unsigned(n), (unsigned(m) + rows - 1) / rows * rows};
    wgmma_product<Tile, T, Of>(a_map, b_map, c_map, output, m, n, k, NoHooks(), parts);
}

constexpr int SUM_THREADS = 128;

// Adds four neighbouring columns of all parts, for which `adders` lanes of a warp have consecutive parts. n is a multiple of 8.
template <class T, int EPILOGUE>
__global__ void __launch_bounds__(SUM_THREADS) matmul_sum_parts(const float* partials, T* c, const T* bias, int m, int n,
                                                                float alpha, float beta, unsigned pitch, unsigned parts,
                                                                unsigned adders) {
    const unsigned vectors = n / 4, of_warp = 32 / adders, lane = laneid(), adder = lane / of_warp;
    const size_t warp = static_cast<size_t>(blockIdx.x) * (SUM_THREADS / 32) + threadIdx.x / 32;
    const size_t i = warp * of_warp + lane % of_warp, all = static_cast<size_t>(m) * vectors;
    follow_previous_grid();
    const float4* from = reinterpret_cast<const float4*>(partials) + i;
    const unsigned end = i < all ? parts * (adder + 1) / adders : 0;
    const float4 sum = sum_of_parts<float4>([&](unsigned part) { return from[part * all]; }, parts * adder / adders, end, adders);
    if (i >= all || adder > 0) return;
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta, pitch};
    const unsigned row = i / vectors, col = i % vectors * 4;
    output.store(sum.x, sum.y, row, col);
    output.store(sum.z, sum.w, row, col + 2);
}
