// Gradients of layer normalization y = (x - mean) * rstd * gamma + beta: dx, dgamma and dbeta from x, dy, gamma and the
// statistics that the forward kernel stored; x and dy in f32, f16 or bf16, rows contiguous. cu/ptxkit/rows/backward.cuh
// has the formulas. The kernels `layernorm_activation_backward_...` compute the gradients of activation(y), for which
// they also read beta.
//
// Variants:
// - unfused, `layernorm_backward_normalize` to `layernorm_backward_sum`: nine launches, one per operation, as in a
//   framework.
// - `layernorm_backward_fused` and `layernorm_backward_columns`: dx in one pass over x and dy and dgamma and dbeta in
//   another, with bit-identical results.
// - `layernorm_backward_vectorized`: one pass over x and dy. Persistent CTAs prefetch the next row while they compute
//   this one, and accumulate dgamma and dbeta in registers; `layernorm_backward_finish` adds the partial sums up. With
//   STAGES, rows are prefetched through TMA.
// - `layernorm_backward_blocks`: the same for rows that begin between two vectors, which move as blocks of vectors.
// - `layernorm_backward_warp_specialized`: the same with producer warps that issue the copies.
// - `layernorm_backward_one_launch`: some CTAs compute dx, others the sums over rows, each from x and dy, which stay in L2.
// - `layernorm_backward_streamed`: dx of rows that no cluster's registers hold.
#include "ptxkit/rows/backward.cuh"
#include "ptxkit/rows/backward_blocks.cuh"
#include "ptxkit/rows/backward_one_launch.cuh"
#include "ptxkit/rows/backward_warp_specialized.cuh"
#include "ptxkit/rows/backward_rows.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// unfused

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_normalize(const T* x, const float* means,
                                                                        const float* rstds, float* n, int cols) {
    normalize_elements<true, T, THREADS, ELEMENTS>(x, means, rstds, n, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_weigh(const T* dy, const T* gamma, float* w, int cols) {
    weigh_elements<T, T, THREADS, ELEMENTS>(dy, gamma, w, cols);
}

template <class T, Activation A, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_activation_backward_derive(const T* dy, const float* n,
                                                                                const T* gamma, const T* beta,
                                                                                float* dz, int cols) {
    before_activation_elements<A, T, THREADS, ELEMENTS>(dy, n, gamma, beta, dz, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_activation_backward_weigh(const float* dz, const T* gamma,
                                                                               float* w, int cols) {
    weigh_elements<float, T, THREADS, ELEMENTS>(dz, gamma, w, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_multiply(const T* a, const float* b, float* product,
                                                                       int cols) {
    multiply_elements<T, THREADS, ELEMENTS>(a, b, product, cols);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_mean(const float* v, float* means, int cols) {
    mean_of_row<THREADS>(v, means, cols);
}

// means_w may be null.
template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_combine(const float* w, const float* n,
                                                                      const float* means_wn, const float* means_w,
                                                                      const float* rstds, T* dx, int cols) {
    gradient_elements<T, THREADS, ELEMENTS>(w, n, means_wn, means_w, rstds, dx, cols);
}

template <class In, class T, int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_sum(const In* v, T* sums, int rows, int cols) {
    sum_columns<In, T, THREADS>(v, sums, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------
// fused

template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) layernorm_backward_fused(const T* x, const T* dy, const T* gamma,
                                                                    const float* means, const float* rstds, T* dx,
                                                                    int cols) {
    backward_row<true, T, THREADS, KEEP>(x, dy, gamma, means, rstds, dx, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_columns(const T* x, const T* dy, const float* means,
                                                                      const float* rstds, T* dgamma, T* dbeta, int rows,
                                                                      int cols) {
    column_gradients<true, T, THREADS>(x, dy, means, rstds, dgamma, dbeta, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_backward_vectorized(
    const T* x, const T* dy, const T* gamma, const float* means, const float* rstds, T* dx, float* gammas, float* betas,
    int rows, int cols) {
    backward_rows<true, T, Tile>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_backward_blocks(
    const T* x, const T* dy, const T* gamma, const float* means, const float* rstds, T* dx, float* gammas, float* betas,
    int rows, int cols) {
    backward_row_blocks<true, T, Tile>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS + 32 * producer_warps<Tile::THREADS, Tile::THREADS / Tile::LANES>,
                                  Tile::CTAS_PER_SM)
layernorm_backward_warp_specialized(const T* x, const T* dy, const T* gamma, const float* means, const float* rstds,
                                    T* dx, float* gammas, float* betas, int rows, int cols) {
    backward_rows_warp_specialized<true, T, Tile>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_finish(const float* gammas, const float* betas, T* dgamma,
                                                                     T* dbeta, int count, int cols) {
    finished_gradients<true, T, THREADS>(gammas, betas, dgamma, dbeta, count, cols);
}

template <class T, int THREADS, int VECTORS, int CTAS>
__global__ void __launch_bounds__(THREADS) layernorm_backward_streamed(const T* x, const T* dy, const T* gamma,
                                                                       const float* means, const float* rstds, T* dx,
                                                                       int rows, int cols) {
    backward_chunked_row<true, T, THREADS, VECTORS, CTAS>(x, dy, gamma, means, rstds, dx, rows, cols);
}

template <class T, class Tile, int SPLIT, int WIDE>
__global__ void __launch_bounds__(Tile::THREADS, one_launch_ctas<T, Tile>)
layernorm_backward_one_launch(const T* x, const T* dy, const T* gamma, const float* means, const float* rstds, T* dx,
                              T* dgamma, T* dbeta, int rows, int cols, int column_ctas, int blocks, int groups, int dx_first) {
    backward_in_one_launch<true, T, Tile, SPLIT, WIDE>(x, dy, gamma, means, rstds, dx, dgamma, dbeta, rows, cols, column_ctas,
                                                  blocks, groups, dx_first);
}

// ---------------------------------------------------------------------------------------------------------------------
// The same with an activation

template <class T, Activation A, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) layernorm_activation_backward_fused(const T* x, const T* dy, const T* gamma,
                                                                               const T* beta, const float* means,
                                                                               const float* rstds, T* dx, int cols) {
    backward_row<true, T, THREADS, KEEP, A>(x, dy, gamma, means, rstds, dx, cols, beta);
}

template <class T, Activation A, int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_activation_backward_columns(
    const T* x, const T* dy, const T* gamma, const T* beta, const float* means, const float* rstds, T* dgamma, T* dbeta,
    int rows, int cols) {
    column_gradients<true, T, THREADS, A>(x, dy, means, rstds, dgamma, dbeta, rows, cols, gamma, beta);
}

template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_activation_backward_vectorized(
    const T* x, const T* dy, const T* gamma, const T* beta, const float* means, const float* rstds, T* dx,
    float* gammas, float* betas, int rows, int cols) {
    backward_rows<true, T, Tile, A>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols, beta);
}

template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_activation_backward_blocks(
    const T* x, const T* dy, const T* gamma, const T* beta, const float* means, const float* rstds, T* dx,
    float* gammas, float* betas, int rows, int cols) {
    backward_row_blocks<true, T, Tile, A>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols, beta);
}

template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS + 32 * producer_warps<Tile::THREADS, Tile::THREADS / Tile::LANES>,
                                  Tile::CTAS_PER_SM)
layernorm_activation_backward_warp_specialized(const T* x, const T* dy, const T* gamma, const T* beta,
                                               const float* means, const float* rstds, T* dx, float* gammas,
                                               float* betas, int rows, int cols) {
    backward_rows_warp_specialized<true, T, Tile, A>(x, dy, gamma, means, rstds, dx, gammas, betas, rows, cols, beta);
}

template <class T, Activation A, int THREADS, int VECTORS, int CTAS>
__global__ void __launch_bounds__(THREADS) layernorm_activation_backward_streamed(
    const T* x, const T* dy, const T* gamma, const T* beta, const float* means, const float* rstds, T* dx, int rows,
    int cols) {
    backward_chunked_row<true, T, THREADS, VECTORS, CTAS, A>(x, dy, gamma, means, rstds, dx, rows, cols, beta);
}

template <class T, Activation A, class Tile, int SPLIT, int WIDE>
__global__ void __launch_bounds__(Tile::THREADS, one_launch_ctas<T, Tile>)
layernorm_activation_backward_one_launch(const T* x, const T* dy, const T* gamma, const T* beta, const float* means,
                                         const float* rstds, T* dx, T* dgamma, T* dbeta, int rows, int cols,
                                         int column_ctas, int blocks, int groups, int dx_first) {
    backward_in_one_launch<true, T, Tile, SPLIT, WIDE, A>(x, dy, gamma, means, rstds, dx, dgamma, dbeta, rows, cols,
                                                    column_ctas, blocks, groups, dx_first, beta);
}
