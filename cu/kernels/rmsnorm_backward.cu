// Gradients of RMS normalization y = x * rstd * gamma: dx and dgamma from x, dy, gamma and the factors that the forward
// kernel stored; x and dy in f32, f16 or bf16, rows contiguous. cu/ptxkit/rows/backward.cuh has the formulas.
//
// Variants:
// - unfused, `rmsnorm_backward_normalize` to `rmsnorm_backward_sum`: seven launches, one per operation, as in a
//   framework.
// - `rmsnorm_backward_fused` and `rmsnorm_backward_columns`: dx in one pass over x and dy and dgamma in another, with
//   bit-identical results.
// - `rmsnorm_backward_vectorized`: one pass over x and dy. Persistent CTAs prefetch the next row while they compute
//   this one, and accumulate dgamma in registers; `rmsnorm_backward_finish` adds the partial sums up. With STAGES, rows
//   are prefetched through TMA.
// - `rmsnorm_backward_blocks`: the same for rows that begin between two vectors, which move as blocks of vectors.
// - `rmsnorm_backward_warp_specialized`: the same with producer warps that issue the copies.
// - `rmsnorm_backward_one_launch`: some CTAs compute dx, others the sums over rows, each from x and dy, which stay in L2.
// - `rmsnorm_backward_streamed`: dx of rows that no cluster's registers hold.
#include "ptxkit/rows/backward.cuh"
#include "ptxkit/rows/backward_blocks.cuh"
#include "ptxkit/rows/backward_one_launch.cuh"
#include "ptxkit/rows/backward_warp_specialized.cuh"
#include "ptxkit/rows/backward_rows.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// unfused

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_normalize(const T* x, const float* rstds, float* n,
                                                                      int cols) {
    normalize_elements<false, T, THREADS, ELEMENTS>(x, nullptr, rstds, n, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_weigh(const T* dy, const T* gamma, float* w, int cols) {
    weigh_elements<T, T, THREADS, ELEMENTS>(dy, gamma, w, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_multiply(const T* a, const float* b, float* product,
                                                                     int cols) {
    multiply_elements<T, THREADS, ELEMENTS>(a, b, product, cols);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_mean(const float* v, float* means, int cols) {
    mean_of_row<THREADS>(v, means, cols);
}

// means_w may be null.
template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_combine(const float* w, const float* n,
                                                                    const float* means_wn, const float* means_w,
                                                                    const float* rstds, T* dx, int cols) {
    gradient_elements<T, THREADS, ELEMENTS>(w, n, means_wn, means_w, rstds, dx, cols);
}

template <class In, class T, int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_sum(const In* v, T* sums, int rows, int cols) {
    sum_columns<In, T, THREADS>(v, sums, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------
// fused

template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_fused(const T* x, const T* dy, const T* gamma,
                                                                  const float* rstds, T* dx, int cols) {
    backward_row<false, T, THREADS, KEEP>(x, dy, gamma, nullptr, rstds, dx, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_columns(const T* x, const T* dy, const float* rstds,
                                                                    T* dgamma, int rows, int cols) {
    column_gradients<false, T, THREADS>(x, dy, nullptr, rstds, dgamma, nullptr, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) rmsnorm_backward_vectorized(
    const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, float* gammas, int rows, int cols) {
    backward_rows<false, T, Tile>(x, dy, gamma, nullptr, rstds, dx, gammas, nullptr, rows, cols);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) rmsnorm_backward_blocks(
    const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, float* gammas, int rows, int cols) {
    backward_row_blocks<false, T, Tile>(x, dy, gamma, nullptr, rstds, dx, gammas, nullptr, rows, cols);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS + 32 * producer_warps<Tile::THREADS, Tile::THREADS / Tile::LANES>,
                                  Tile::CTAS_PER_SM)
rmsnorm_backward_warp_specialized(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, float* gammas,
                                  int rows, int cols) {
    backward_rows_warp_specialized<false, T, Tile>(x, dy, gamma, nullptr, rstds, dx, gammas, nullptr, rows, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_finish(const float* gammas, T* dgamma, int count,
                                                                   int cols) {
    finished_gradients<false, T, THREADS>(gammas, nullptr, dgamma, nullptr, count, cols);
}

template <class T, int THREADS, int VECTORS, int CTAS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_streamed(const T* x, const T* dy, const T* gamma,
                                                                     const float* rstds, T* dx, int rows, int cols) {
    backward_chunked_row<false, T, THREADS, VECTORS, CTAS>(x, dy, gamma, nullptr, rstds, dx, rows, cols);
}

template <class T, class Tile, int SPLIT, int WIDE>
__global__ void __launch_bounds__(Tile::THREADS, one_launch_ctas<T, Tile>)
rmsnorm_backward_one_launch(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx,
                            T* dgamma, int rows, int cols, int column_ctas, int blocks, int groups, int dx_first) {
    backward_in_one_launch<false, T, Tile, SPLIT, WIDE>(x, dy, gamma, nullptr, rstds, dx, dgamma, nullptr, rows, cols, column_ctas,
                                                  blocks, groups, dx_first);
}
