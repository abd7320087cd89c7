// Matrix product with 2:4 sparse weights: c = a b^T, where a is m x k, b is n x k and c is m x n, all row-major. Of
// every four neighbouring elements of a row of b, two are stored, as cu/ptxkit/gemm/sparse.cuh describes;
// sparse_compress.cu writes this form. In bf16 and f16 with results of the same type, in e4m3 with results in bf16;
// sums are f32.
//
// The tensor cores take the sparse operand first: a warp computes c^T = b a^T, and has columns of c in the rows of its
// sums. They are transposed when they are stored.
//
// Each of the five steps adds one idea to the step before:
//
// 1. `matmul_sparse_mma`, for sm_80: mma.sp. cp.async fills a ring of stages with 64 elements of k: swizzled tiles of a
//     and of the stored elements of b, and the metadata.
// 2. `matmul_sparse_tma`, for sm_90a: TMA loads a stage, then a warpgroup multiplies it by wgmma.mma_async.sp from
//     shared memory, with the metadata in registers. Loads and products do not overlap.
// 3. `matmul_sparse_specialized`: a producer warpgroup fills a ring of stages, consumer warpgroups multiply. One stage
//     is multiplied while the next one is awaited and its metadata is loaded, to other registers.
// 4. Persistent CTAs in an order that shares tiles in L2 (grouped_tile); the consumers get the producer's registers
//     (setmaxnreg), and store through shared memory (stmatrix.trans) by TMA, during the products of the next tile.
// 5. Clusters: CTAs that need the same tile of a, or of b, load parts of it and multicast them.
#include "ptxkit/gemm/sparse_product.cuh"

using namespace ptxkit;

template <class T, class S>
__global__ void __launch_bounds__(S::threads) matmul_sparse_mma(const T* a, const T* values, const unsigned* metadata,
                                                                T* c, int m, int n, int k) {
    sparse_mma_product<T, S, false>(a, values, metadata, nullptr, nullptr, c, m, n, k);
}

template <class T, class Out, int BM, int BN>
__global__ void __launch_bounds__(128) matmul_sparse_tma(const __grid_constant__ TensorMap a_map,
                                                         const __grid_constant__ TensorMap values_map,
                                                         const __grid_constant__ TensorMap metadata_map, Out* c, int m,
                                                         int n, int k) {
    constexpr int ROWS = BN / SPARSE_ROWS, metadata_bytes = ROWS * Sparse<T>::block * 4;
    static_assert(BN % SPARSE_ROWS == 0 && BM * BN <= 128 * 128, "64 columns per wgmma, and 128 sums per thread");
    __shared__ alignas(1024) unsigned char a_tile[BM * SPARSE_A_ROW], b_tile[BN * SPARSE_B_ROW];
    __shared__ alignas(128) unsigned char words[metadata_bytes];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned a = cvta_to_shared(a_tile), b = cvta_to_shared(b_tile), barrier = cvta_to_shared(&arrived);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    follow_previous_grid();

    float sums[ROWS][BM / 2];
    Metadata<T, ROWS> metadata;
    for (int step = 0; step * Sparse<T>::k < k; step++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(barrier, sizeof a_tile + sizeof b_tile + sizeof words);
            cp_async_bulk_tensor_2d_shared_global(a, a_map, step * Sparse<T>::k, row, barrier);
            cp_async_bulk_tensor_2d_shared_global(b, values_map, step * (Sparse<T>::k / 2), col, barrier);
            cp_async_bulk_tensor_2d_shared_global(cvta_to_shared(words), metadata_map, step * Sparse<T>::block,
                                                  col / SPARSE_ROWS, barrier);
        }
        mbarrier_wait(barrier, step % 2);
        metadata.load(words);
        multiply_stage(sums, b, a, metadata, step > 0);
        wait_for_sums(sums);
        barrier_sync();  // all four warps have read the stage
    }
    store_from_registers<ROWS>(sums, c, row, col, m, n);
}

template <class T, class Out, class Tile>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_sparse_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap values_map,
    const __grid_constant__ TensorMap metadata_map, const __grid_constant__ TensorMap c_map, Out* c, int m, int n,
    int k) {
    sparse_wgmma_product<T, Out, Tile, false>(a_map, values_map, metadata_map, values_map, metadata_map, c_map, c, m, n,
                                              k);
}
