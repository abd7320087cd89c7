// Gradients of RMS normalization y = x * rstd * gamma: dx and dgamma from x, dy, gamma and the factors that the forward kernel
// kept; x and dy in f32, f16 or bf16, rows contiguous.
// cu/ptxkit/rows/backward.cuh has the formulas.
//
// The story: `rmsnorm_backward_normalize` ... `rmsnorm_backward_sum` are what a framework launches that has these as
// operations, seven of them; `rmsnorm_backward_fused` makes dx in one reading of x and dy, and `rmsnorm_backward_columns`
// dgamma in another, bit for bit the same; `rmsnorm_backward_vectorized` reads x and dy once for everything: CTAs stay,
// copy the next row while they compute this one, and keep what they saw of dgamma in registers, which
// `rmsnorm_backward_finish` adds up. With STAGES the TMA unit copies that many rows ahead; in `rmsnorm_backward_fetched` warps of
// their own tell it so. `rmsnorm_backward_streamed` makes dx of rows that fit in no cluster's registers.
#include "ptxkit/rows/backward.cuh"
#include "ptxkit/rows/backward_fetched.cuh"
#include "ptxkit/rows/backward_rows.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------------
// The chain

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_backward_normalize(const T* x, const float* rstds, float* n, int cols) {
    normalize_elements<false, T, THREADS, ELEMENTS>(x, nullptr, rstds, n, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_weigh(const T* dy, const T* gamma, float* w, int cols) {
    weigh_elements<T, THREADS, ELEMENTS>(dy, gamma, w, cols);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_multiply(const T* a, const float* b, float* product, int cols) {
    multiply_elements<T, THREADS, ELEMENTS>(a, b, product, cols);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_mean(const float* v, float* means, int cols) {
    mean_of_row<THREADS>(v, means, cols);
}

// means_w may be null.
template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_combine(const float* w, const float* n, const float* means_wn,
                                                                   const float* means_w, const float* rstds, T* dx, int cols) {
    gradient_elements<T, THREADS, ELEMENTS>(w, n, means_wn, means_w, rstds, dx, cols);
}

template <class In, class T, int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_backward_sum(const In* v, T* sums, int rows, int cols) {
    sum_columns<In, T, THREADS>(v, sums, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------------
// fused

template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS)
rmsnorm_backward_fused(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, int cols) {
    backward_row<false, T, THREADS, KEEP>(x, dy, gamma, nullptr, rstds, dx, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_backward_columns(const T* x, const T* dy, const float* rstds, T* dgamma, int rows, int cols) {
    column_gradients<false, T, THREADS>(x, dy, nullptr, rstds, dgamma, nullptr, rows, cols);
}

// ---------------------------------------------------------------------------------------------------------------------------
// vectorized

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM)
rmsnorm_backward_vectorized(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, float* gammas,
                            int rows, int cols) {
    backward_rows<false, T, Tile>(x, dy, gamma, nullptr, rstds, dx, gammas, nullptr, rows, cols);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS + 32 * producer_warps<Tile::THREADS, Tile::THREADS / Tile::LANES>, Tile::CTAS_PER_SM)
rmsnorm_backward_fetched(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx,
                         float* gammas, int rows, int cols) {
    backward_rows_fetched<false, T, Tile>(x, dy, gamma, nullptr, rstds, dx,
                                                                                          gammas, nullptr, rows, cols);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_backward_finish(const float* gammas, T* dgamma, int count, int cols) {
    finished_gradients<false, T, THREADS>(gammas, nullptr, dgamma, nullptr, count, cols);
}

template <class T, int THREADS, int VECTORS, int CTAS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_backward_streamed(const T* x, const T* dy, const T* gamma, const float* rstds, T* dx, int rows, int cols) {
    backward_parts_of_row<false, T, THREADS, VECTORS, CTAS>(x, dy, gamma, nullptr, rstds, dx, rows, cols);
}
