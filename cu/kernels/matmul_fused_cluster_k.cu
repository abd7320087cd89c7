// The product of matmul_fused.cu with k divided among the CTAs of a cluster, which add their sums through distributed shared memory
// (cluster_k.cuh): for results with fewer tiles than the GPU has SMs.
#include "ptxkit/gemm/cluster_k.cuh"
#include "ptxkit/gemm/fused_output.cuh"

using namespace ptxkit;

template <class Tile, class T, class Out, class Of, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(Tile::THREADS + 32) matmul_fused_cluster_k(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Out* c, const float* scale,
    const float* row_scales, const float* column_scales, const Out* bias, const Out* residual, float* largest, int m, int n,
    unsigned pitch, size_t matrix, unsigned down, unsigned of_product, unsigned steps, unsigned loaded, unsigned stages) {
    FusedOutput<PARTS, ACTIVATION, typename WgmmaOf<T>::Sum, Out> output{
        c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
    cluster_k_product<Tile, T, Of>(a_map, b_map, output, down, of_product, steps, loaded, stages);
    output.publish();
}
