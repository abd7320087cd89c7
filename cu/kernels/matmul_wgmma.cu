// bf16 or f16 matrix product on Hopper's tensor cores: c = gelu(alpha a b^T + beta c + bias), where a is m x k, b is
// n x k and c is m x n, all with rows of a multiple of 16 bytes, `pitch` elements apart in c. c is row-major. a and b are row-major, which BLAS
// calls TN, or one of them or both are column-major (Operands in wgmma_product.cuh). Sums are f32.
//
// Each of the steps adds one idea to the step before; docs/gemm.md has the measurements. Step 9, for few rows of a, is
// in matmul_swapped.cu, step 10, for a long k with a small c, in matmul_split_k.cu, step 11, for rows of any number of
// bytes, in matmul_unaligned.cu, step 13, with tiles as wide as the GPU needs, in matmul_stream_k.cu, step 14, whose
// clusters divide k, in matmul_cluster_k.cu, step 15, whose clusters load both operands for each other, in
// matmul_multicast.cu, steps 16 to 18, for few rows of any length, in matmul_direct.cu, matmul_shifted.cu and
// matmul_row_classes.cu, step 19, for small products with a short k, in matmul_short_k.cu, and step 20, for one row of a,
// in matmul_dot.cu. Step 12, for rows of any number of bytes, is step 8 after a copy of such operands (align_rows.cu);
// where TMA cannot store the rows of c, vectors are shifted into place (shifted_rows.cuh).
//
// 1. `matmul_tma`, 64 x 64 tiles: TMA loads a tile of a and b, then the warpgroup multiplies it. Loads and products do
//     not overlap.
// 2. The same with 128 x 128 tiles: four times the products for twice the bytes, which L2 can deliver.
// 3. `matmul_specialized`: a producer warpgroup issues copies, a consumer warpgroup multiplies, and mbarriers pass the
//     stages of a ring of tiles between them, so that copies and products overlap.
// 4. Two consumers, 128 x 256 tiles: the registers of one warpgroup hold at most 128 x 128 sums; two share a tile of b.
// 5. Persistent CTAs: the producer prefetches the next tile while the consumers store the sums of this one. CTAs that
//     run at the same time share tiles in L2 (grouped_tile), and every other tile is traversed backwards along k.
// 6. Clusters: two CTAs that need the same tile of b load half of it each and multicast it, which halves the L2 reads
//     of b.
// 7. setmaxnreg: the producer gives registers to the consumers, which need them for addresses beside their 128 sums.
// 8. The sums are stored through shared memory (stmatrix) by TMA: whole rows of 128 bytes, without address arithmetic,
//     while the next tile is multiplied.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Steps 1 and 2: one warpgroup, one tile in shared memory

template <int BM, int BN, class T, class Of, int EPILOGUE>
__global__ void __launch_bounds__(128) matmul_tma(const __grid_constant__ TensorMap a_map,
                                                  const __grid_constant__ TensorMap b_map, T* c, const T* bias, int m,
                                                  int n, int k, float alpha, float beta, unsigned pitch) {
    static_assert(BM % 64 == 0 && BM * BN <= 128 * 128, "64 rows a wgmma, and 128 sums a thread");
    __shared__ alignas(1024) unsigned char a_tile[BM * WGMMA_ROW_BYTES], b_tile[BN * WGMMA_ROW_BYTES];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned a = cvta_to_shared(a_tile), b = cvta_to_shared(b_tile), barrier = cvta_to_shared(&arrived);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    follow_previous_grid();

    float sums[BM / 64][BN / 2];
    for (int step = 0; step * WGMMA_BK < k; step++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(barrier, sizeof a_tile + sizeof b_tile);
            load_rows<Of::A_MAJOR, BM, 1>(a, a_map, step * WGMMA_BK, row, barrier);
            load_rows<Of::B_MAJOR, BN, 1>(b, b_map, step * WGMMA_BK, col, barrier);
        }
        mbarrier_wait(barrier, step % 2);
        multiply_tile<T, Of>(sums, a, b, step > 0);
        wait_for_sums(sums);
        barrier_sync();  // all four warps have read the tile
    }
    Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta, pitch};
    store_from_registers<BN / 2>(sums, output, row, col);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 3 to 8: a producer warpgroup and CONSUMERS consumer warpgroups

template <class Tile, class T, class Of, int EPILOGUE>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, T* c, const T* bias, int m, int n, int k, float alpha, float beta,
    unsigned pitch) {
    if constexpr (Tile::STORE == SHIFTED) {
        const ElementOutput<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), pitch, alpha, beta};
        wgmma_product<Tile, T, Of>(a_map, b_map, c_map, output, m, n, k);
    } else {
        const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta, pitch};
        wgmma_product<Tile, T, Of>(a_map, b_map, c_map, output, m, n, k);
    }
}
