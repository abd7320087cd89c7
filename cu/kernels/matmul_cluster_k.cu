// Step 14 of matmul_wgmma.cu: k is divided among the CTAs of a cluster, which add their sums through distributed shared memory
// (cluster_k.cuh). For a c with fewer tiles than the GPU has SMs, without the second launch of step 10 and with the larger tiles
// of a than those of step 9.
#include "ptxkit/gemm/cluster_k.cuh"
#include "ptxkit/gemm/element_output.cuh"

using namespace ptxkit;

template <class Tile, class T, class Of, int EPILOGUE, int PAIRS>
__global__ void __launch_bounds__(Tile::THREADS + 32) matmul_cluster_k(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, unsigned m,
    unsigned n, float alpha, float beta, unsigned pitch, unsigned down, unsigned steps, unsigned loaded, unsigned stages) {
    auto output = epilogue_of<EPILOGUE, PAIRS>(c, bias, m, n, alpha, beta, pitch);
    cluster_k_product<Tile, T, Of>(a_map, b_map, output, down, 0, steps, loaded, stages);
}
