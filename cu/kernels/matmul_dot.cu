// Step 20 of matmul_wgmma.cu: one or two rows of a, as dot products with rows of b (dot_rows.cuh).
#include "ptxkit/gemm/dot_rows.cuh"
#include "ptxkit/gemm/element_output.cuh"

using namespace ptxkit;

// gridDim.y: tiles of rows of a.
template <class Tile, class T, int EPILOGUE>
__global__ void __launch_bounds__(DOT_THREADS, Tile::RESIDENT) matmul_dot(const T* a, const T* b, T* c, const T* bias, unsigned m,
                                                                          unsigned n, unsigned k, float alpha, float beta,
                                                                          unsigned pitch, unsigned a_pitch, unsigned b_pitch,
                                                                          unsigned across) {
    const ElementOutput<EPILOGUE, T> output{c, bias, m, n, pitch, alpha, beta};
    auto store = [&](const float (&sum)[1], unsigned row, unsigned col) { output.store(sum[0], row, col, output.bias_of(col)); };
    dot_products<Tile>(a, {b}, DotSizes{m, n, k, a_pitch, b_pitch, across}, store);
}
