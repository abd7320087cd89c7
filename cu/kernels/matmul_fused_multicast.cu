// The product of matmul_fused.cu for up to some hundred rows of a: tiles with any multiple of 8 of them, and clusters whose CTAs
// load both operands for each other (multicast_product.cuh).
#include "ptxkit/gemm/fused_output.cuh"
#include "ptxkit/gemm/multicast_product.cuh"

using namespace ptxkit;

template <class Tile, class T, class Out, class Of, int PARTS, int ACTIVATION>
__global__ void __launch_bounds__(Tile::ALL_THREADS) matmul_fused_multicast(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Out* c, const float* scale,
    const float* row_scales, const float* column_scales, const Out* bias, const Out* residual, float* largest, int m, int n,
    unsigned pitch, size_t matrix, unsigned a_sharing, unsigned b_sharing,
    unsigned parts, unsigned across, unsigned of_product, unsigned steps, unsigned stages) {
    FusedOutput<PARTS, ACTIVATION, typename WgmmaOf<T>::Sum, Out> output{
        c, scale, row_scales, column_scales, bias, residual, largest, unsigned(m), unsigned(n), pitch, matrix};
    multicast_product<Tile, T, Of>(a_map, b_map, output, {a_sharing, b_sharing, parts, across, of_product}, steps, stages);
    output.publish();
}
