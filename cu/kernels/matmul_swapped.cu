// Step 9 of matmul_wgmma.cu, for products whose time is that of reading b, because a has few rows: c^T = b a^T.
//
// The rows of b, of which there are many, are the rows of wgmma, in tiles of 64 and more, and those of a its columns, in
// tiles of 8 to 128. k is divided among CTAs of a cluster where c has too few tiles for all SMs (cluster_sums.cuh), and
// CTAs that need the same rows of a load a part of them each and multicast it, because L2 would otherwise deliver a as
// often as there are tiles. The ring has as many stages as shared memory holds for the CTAs that are resident on an SM:
// device memory is read at full speed only while tens of kilobytes for each SM are in flight.
#include "ptxkit/gemm/swapped_product.cuh"

using namespace ptxkit;

template <class Tile, class T, class Of, int EPILOGUE>
__global__ void __launch_bounds__(128 * Tile::CONSUMERS + 32) matmul_swapped(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, int m, int n,
    int k, float alpha, float beta, unsigned pitch, unsigned stages, unsigned sharing) {
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta, pitch};
    swapped_product<Tile, T, Of, false>(a_map, b_map, output, m, n, k, stages, sharing);
}
