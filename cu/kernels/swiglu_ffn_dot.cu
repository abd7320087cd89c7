// Step 5 of swiglu_ffn.cu, for one token: dot products with rows of the weights (dot_rows.cuh). The second product loads weights before
// the first one is complete.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/gemm/dot_rows.cuh"
#include "ptxkit/gemm/element_output.cuh"

using namespace ptxkit;

// h = silu(x gate^T) * (x up^T).
template <class Tile, class T>
__global__ void __launch_bounds__(DOT_THREADS, Tile::RESIDENT) gated_dot(const T* x, const T* gate, const T* up, T* h, unsigned tokens,
                                                                         unsigned ffn, unsigned hidden, unsigned across) {
    const ElementOutput<PLAIN, T> output{h, nullptr, tokens, ffn, ffn, 1.0f, 0.0f};
    auto store = [&](const float (&sums)[2], unsigned row, unsigned col) { output.store(silu(sums[0]) * sums[1], row, col, 0.0f); };
    dot_products<Tile, DotFollows::BEFORE_NEXT>(x, {gate, up}, DotSizes{tokens, ffn, hidden, hidden, hidden, across}, store);
}

// c = a b^T.
template <class Tile, class T>
__global__ void __launch_bounds__(DOT_THREADS, Tile::RESIDENT) early_dot(const T* a, const T* b, T* c, unsigned m, unsigned n,
                                                                         unsigned k, unsigned across) {
    const ElementOutput<PLAIN, T> output{c, nullptr, m, n, n, 1.0f, 0.0f};
    auto store = [&](const float (&sum)[1], unsigned row, unsigned col) { output.store(sum[0], row, col, 0.0f); };
    dot_products<Tile, DotFollows::WITH_WEIGHTS>(a, {b}, DotSizes{m, n, k, k, k, across}, store);
}
