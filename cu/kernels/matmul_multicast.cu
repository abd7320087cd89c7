// Step 15 of matmul_wgmma.cu: for up to some hundred rows of a, tiles with any multiple of 8 of them, and clusters whose CTAs load
// both operands for each other (multicast_product.cuh).
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/multicast_product.cuh"

using namespace ptxkit;

// STORES: 1 for rows of c that begin at a multiple of a pair of elements, 2 of 8 elements, 0 for others.
template <class Tile, class T, class Of, int EPILOGUE, int STORES>
__global__ void __launch_bounds__(Tile::ALL_THREADS) matmul_multicast(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, unsigned m,
    unsigned n, float alpha, float beta, unsigned pitch, unsigned a_sharing, unsigned b_sharing,
    unsigned parts, unsigned across, unsigned of_product, unsigned steps, unsigned stages) {
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, of_product};
    if constexpr (STORES == 2) {
        VectorOutput<EPILOGUE, T> output{{c, bias, m, n, alpha, beta, pitch}};
        multicast_product<Tile, T, Of>(a_map, b_map, output, grid, steps, stages);
    } else {
        auto output = epilogue_of<EPILOGUE, STORES>(c, bias, m, n, alpha, beta, pitch);
        multicast_product<Tile, T, Of>(a_map, b_map, output, grid, steps, stages);
    }
}
