// Gradients of layer normalization (CENTERED) and RMS normalization. With n = (x - mean) * rstd, mean being 0 for RMS,
// and w = dy * gamma:
//
//     dx = (w - n * mean_of_row(w * n) - mean_of_row(w)) * rstd        the last mean for layer normalization alone
//     dgamma = sum over rows of dy * n        dbeta = sum over rows of dy
//
// mean and rstd are those that the forward kernels keep for training. For y = activation(n * gamma + beta), dy is first
// multiplied by the derivative of the activation; functions with a template argument A other than NONE do so, and only
// these read beta.
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/rows/normalize.cuh"

namespace ptxkit {

template <bool CENTERED>
__device__ __forceinline__ float normalized(float x, float mean, float rstd) {
    return CENTERED ? (x - mean) * rstd : x * rstd;
}

// w is rounded before it is used, so that all variants see the same products.
template <class D, class T>
__device__ __forceinline__ float weighted(D dy, T gamma) {
    return __fmul_rn(to_f32(dy), to_f32(gamma));
}

// The gradient of the activation's argument from that of its result: dy times the derivative, rounded before it is
// used.
template <Activation A>
__device__ __forceinline__ float before_activation(float dy, float n, float gamma, float beta) {
    if constexpr (A == NONE) return dy;
    else return __fmul_rn(dy, activation_derivative<A>(fmaf(n, gamma, beta)));
}

// The subtrahend is rounded as one fma in all variants.
__device__ __forceinline__ float gradient(float w, float n, float mean_wn, float mean_w, float rstd) {
    return (w - fmaf(n, mean_wn, mean_w)) * rstd;
}

// The mean of a row, or 0 for RMS normalization.
template <bool CENTERED>
__device__ __forceinline__ float mean_at(const float* means, unsigned row) {
    return CENTERED ? means[row] : 0.0f;
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums over rows

// Sums of 32 columns per CTA in f64. add(row, column, first, second) is called for each row, by each warp in ascending
// order, and write(column, first, second) once per column. The grid is cdiv(cols, 32).
template <int THREADS, class Add, class Write>
__device__ __forceinline__ void column_sums(unsigned rows, unsigned cols, Add add, Write write) {
    constexpr unsigned warps = THREADS / 32;
    __shared__ double sums[2][warps][32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    double first = 0, second = 0;
    if (c < cols) {
#pragma unroll 4
        for (size_t r = warp; r < rows; r += warps) add(r, c, first, second);
    }
    sums[0][warp][lane] = first;
    sums[1][warp][lane] = second;
    barrier_sync();
    if (warp > 0 || c >= cols) return;
    for (unsigned i = 1; i < warps; i++) first += sums[0][i][lane], second += sums[1][i][lane];
    write(c, first, second);
}

// dgamma and dbeta, in one pass over x and dy. gamma and beta are read if there is an activation.
template <bool CENTERED, class T, int THREADS, Activation A = NONE>
__device__ __forceinline__ void column_gradients(const T* x, const T* dy, const float* means, const float* rstds,
                                                 T* dgamma, T* dbeta, int rows, int cols, const T* gamma = nullptr,
                                                 const T* beta = nullptr) {
    auto add = [&](size_t r, unsigned c, double& first, double& second) {
        float dy_ = to_f32(dy[r * cols + c]);
        const float n = normalized<CENTERED>(to_f32(x[r * cols + c]), mean_at<CENTERED>(means, r), rstds[r]);
        if constexpr (A != NONE) dy_ = before_activation<A>(dy_, n, to_f32(gamma[c]), to_f32(beta[c]));
        first += __fmul_rn(dy_, n);
        second += dy_;
    };
    column_sums<THREADS>(rows, cols, add, [&](unsigned c, double first, double second) {
        dgamma[c] = Convert<T>::from_f32(static_cast<float>(first));
        if (CENTERED) dbeta[c] = Convert<T>::from_f32(static_cast<float>(second));
    });
}

// As the function above, from partial sums of shape (count, cols).
template <bool CENTERED, class T, int THREADS>
__device__ __forceinline__ void finished_gradients(const float* gammas, const float* betas, T* dgamma, T* dbeta,
                                                   int count, int cols) {
    follow_previous_grid();
    auto add = [&](size_t r, unsigned c, double& first, double& second) {
        first += gammas[r * cols + c];
        if (CENTERED) second += betas[r * cols + c];
    };
    column_sums<THREADS>(count, cols, add, [&](unsigned c, double first, double second) {
        dgamma[c] = Convert<T>::from_f32(static_cast<float>(first));
        if (CENTERED) dbeta[c] = Convert<T>::from_f32(static_cast<float>(second));
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// dx by single columns, one CTA per row

// The means over a row of w * n and of w. n(c) and w(c) return the same column to the same thread in each call.
template <bool CENTERED, int THREADS, class N, class W>
__device__ __forceinline__ Pair row_means(int cols, N n, W w) {
    const double sum_wn = column_sum<THREADS>(cols, [&](unsigned c) { return __fmul_rn(w(c), n(c)); });
    const double sum_w = CENTERED ? column_sum<THREADS>(cols, [&](unsigned c) { return w(c); }) : 0.0;
    return {static_cast<float>(sum_wn / cols), static_cast<float>(sum_w / cols)};
}

// ---------------------------------------------------------------------------------------------------------------------
// dx of rows in chunks, and by single columns

// dx of a row of any length, which a cluster computes: one pass for the two means, and a second one in descending
// order.
template <bool CENTERED, class T, int THREADS, int VECTORS, int CTAS, Activation A = NONE>
__device__ __forceinline__ void backward_chunked_row(const T* x, const T* dy, const T* gamma, const float* means,
                                                     const float* rstds, T* dx, int rows, int cols,
                                                     const T* beta = nullptr) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, dy, gamma, dx, beta));
    row_arrive<S>();
    row_wait<S>();
    const float mean = mean_at<CENTERED>(means, layout.row), rstd = rstds[layout.row];
    auto load = [&](const RowLayout<S>& chunk, unsigned begin, Row<S>& n, Row<S>& w) {
        n = chunk.template load<CACHE_KEEP>(x), w = chunk.template load<CACHE_KEEP>(dy);
        if constexpr (A == NONE) {
            chunk.apply(w, [](float u, float weight) { return u * weight; }, gamma + begin);
            n.each([&](float& v, int) { v = normalized<CENTERED>(v, mean, rstd); });
        } else {
            const Row<S> weight = chunk.load_shared(gamma + begin), shift = chunk.load_shared(beta + begin);
            n.each([&](float& v, int) { v = normalized<CENTERED>(v, mean, rstd); });
            w.each([&](float& u, int k) { u = before_activation<A>(u, n[k], weight[k], shift[k]) * weight[k]; });
        }
    };
    double sum_wn = 0, sum_w = 0;
    forward_chunks<S>(cols, [&](unsigned begin) {
        Row<S> n, w;
        load(layout.chunk(begin), begin, n, w);
        sum_wn += n.sum([&](float v, int k) { return v * w[k]; });
        if (CENTERED) sum_w += w.sum([](float u, int) { return u; });
    });
    const float mean_wn = static_cast<float>(row_sum(sum_wn, slots, 0) / cols);
    const float mean_w = CENTERED ? static_cast<float>(row_sum(sum_w, slots, 1) / cols) : 0.0f;
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> n, w;
        load(chunk, begin, n, w);
        w.each([&](float& u, int k) { u = gradient(u, n[k], mean_wn, mean_w, rstd); });
        chunk.template store<CACHE_STREAM>(dx, w);
    });
}

// dx of the CTA's row. With KEEP, n and w stay in dynamic shared memory, 8 bytes per column; without, they are computed
// again.
template <bool CENTERED, class T, int THREADS, bool KEEP, Activation A = NONE>
__device__ __forceinline__ void backward_row(const T* x, const T* dy, const T* gamma, const float* means,
                                             const float* rstds, T* dx, int cols, const T* beta = nullptr) {
    extern __shared__ float2 kept_columns[];
    const size_t first = static_cast<size_t>(blockIdx.x) * cols;
    const float mean = mean_at<CENTERED>(means, blockIdx.x), rstd = rstds[blockIdx.x];
    auto n = [&](unsigned c) {
        return KEEP ? kept_columns[c].x : normalized<CENTERED>(to_f32(x[first + c]), mean, rstd);
    };
    auto computed_w = [&](unsigned c, float n_) {
        if constexpr (A == NONE) {
            return weighted(dy[first + c], gamma[c]);
        } else {
            const float dz = before_activation<A>(to_f32(dy[first + c]), n_, to_f32(gamma[c]), to_f32(beta[c]));
            return weighted(dz, gamma[c]);
        }
    };
    auto w = [&](unsigned c) { return KEEP ? kept_columns[c].y : computed_w(c, n(c)); };
    if constexpr (KEEP) {
        each_column<THREADS>(cols, [&](unsigned c) {
            const float n_ = normalized<CENTERED>(to_f32(x[first + c]), mean, rstd);
            kept_columns[c] = make_float2(n_, computed_w(c, n_));
        });
    }
    const Pair means_of_row = row_means<CENTERED, THREADS>(cols, n, w);
    each_column<THREADS>(cols, [&](unsigned c) {
        dx[first + c] = Convert<T>::from_f32(gradient(w(c), n(c), means_of_row.x, means_of_row.y, rstd));
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// The unfused chain: one operation per launch, with f32 intermediates

template <bool CENTERED, class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void normalize_elements(const T* x, const float* means, const float* rstds, float* n,
                                                   int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        n[i] = normalized<CENTERED>(to_f32(x[i]), mean_at<CENTERED>(means, row), rstds[row]);
    });
}

// The gradients of the activation's arguments.
template <Activation A, class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void before_activation_elements(const T* dy, const float* n, const T* gamma, const T* beta,
                                                           float* dz, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        dz[i] = before_activation<A>(to_f32(dy[i]), n[i], to_f32(gamma[c]), to_f32(beta[c]));
    });
}

template <class D, class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void weigh_elements(const D* dy, const T* gamma, float* w, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        w[i] = weighted(dy[i], gamma[c]);
    });
}

template <class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void multiply_elements(const T* a, const float* b, float* product, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        product[i] = to_f32(a[i]) * b[i];
    });
}

template <int THREADS>
__device__ __forceinline__ void mean_of_row(const float* v, float* means, int cols) {
    v += static_cast<size_t>(blockIdx.x) * cols;
    const double sum = column_sum<THREADS>(cols, [&](unsigned c) { return v[c]; });
    if (threadIdx.x == 0) means[blockIdx.x] = static_cast<float>(sum / cols);
}

template <class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void gradient_elements(const float* w, const float* n, const float* means_wn,
                                                  const float* means_w, const float* rstds, T* dx, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        const float mean_w = means_w ? means_w[row] : 0.0f;
        dx[i] = Convert<T>::from_f32(gradient(w[i], n[i], means_wn[row], mean_w, rstds[row]));
    });
}

template <class In, class T, int THREADS>
__device__ __forceinline__ void sum_columns(const In* v, T* sums, int rows, int cols) {
    auto add = [&](size_t r, unsigned c, double& first, double&) { first += to_f32(v[r * cols + c]); };
    column_sums<THREADS>(rows, cols, add, [&](unsigned c, double first, double) {
        sums[c] = Convert<T>::from_f32(static_cast<float>(first));
    });
}

}  // namespace ptxkit
