// Step 16 of matmul_wgmma.cu: few rows of a, and rows of b of any length that begin anywhere (direct_rows.cuh).
#include "ptxkit/gemm/direct_rows.cuh"

using namespace ptxkit;

template <class Tile, class T, int EPILOGUE>
__global__ void __launch_bounds__(DIRECT_WARPS * 32) matmul_direct(const T* a, const T* b, T* c, const T* bias, unsigned m,
                                                                   unsigned n, unsigned k, float alpha, float beta,
                                                                   unsigned pitch, unsigned a_pitch, unsigned b_pitch,
                                                                   unsigned period, unsigned align, unsigned across) {
    const ElementOutput<EPILOGUE, T> output{c, bias, m, n, pitch, alpha, beta};
    direct_product<Tile>(a, b, output, DirectSizes{m, n, k, a_pitch, b_pitch, period, align, across});
}
