// The gradients of a norm in one pass over x and dy, for rows that fit in registers: persistent CTAs, or clusters of
// them, compute dx row by row and accumulate dgamma and dbeta in registers. Here the threads that compute also start
// the copies of the next rows; in backward_warp_specialized.cuh producer warps do it.
#pragma once
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/rows/backward.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

namespace ptxkit {

// Prefetches the next row of both matrices to shared memory by cp.async. Each thread copies what it will read itself,
// so no barrier is needed.
//
// Dynamic shared memory: 4 * THREADS * VECTORS * 16 bytes.
template <class T, class S>
struct CpAsyncPipeline {
    uint4* slots;

    __device__ __forceinline__ CpAsyncPipeline() {
        extern __shared__ uint4 ahead_slots[];
        slots = ahead_slots + threadIdx.x;
    }

    static __device__ __forceinline__ bool copies(const RowLayout<S>& layout) {
        return PTXKIT_SM >= 80 && layout.vectors;
    }

    // Starts to copy a row of both matrices to a stage.
    __device__ __forceinline__ void begin(const RowLayout<S>& layout, unsigned stage, const T* first,
                                          const T* second) const {
        if (!copies(layout)) return;
        copy(layout, stage, 0, first);
        copy(layout, stage, 1, second);
        cp_async_commit_group();
    }

    // Waits for all copies but the most recent.
    __device__ __forceinline__ void wait(const RowLayout<S>& layout, unsigned, unsigned) const {
        if (copies(layout)) cp_async_wait_group<1>();
    }

    __device__ __forceinline__ Row<S> row(const RowLayout<S>& layout, unsigned stage, int array,
                                          const T* matrix) const {
        if (!copies(layout)) return layout.template load<CACHE_STREAM>(matrix);
        Row<S> row;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            Vector<T, S::WIDTH> vector;
            vector.fill([](int) { return 0.0f; });
            if (i * S::WIDTH < layout.valid) vector.set(*slot(stage, array, i));
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
        }
        return row;
    }

private:
    __device__ __forceinline__ void copy(const RowLayout<S>& layout, unsigned stage, int array, const T* matrix) const {
        const T* from = matrix + layout.first + layout.thread * S::WIDTH;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < layout.valid) {
                cp_async_cg_shared_global(cvta_to_shared(slot(stage, array, i)), from + i * S::threads * S::WIDTH);
            }
        }
    }

    __device__ __forceinline__ uint4* slot(unsigned stage, int array, int i) const {
        return slots + ((stage * 2 + array) * S::VECTORS + i) * S::THREADS;
    }
};

// Tile parameters of the gradients' kernels. Descriptions give them by name (BackwardTile in
// ptxkit/kernels/rows/backward.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int STAGES_, int MAX_IN_FLIGHT_, bool SMEM_GAMMA_,
          int CTAS_PER_SM_>
struct BackwardTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int STAGES = STAGES_;                // rows in flight while one is computed
    static constexpr int MAX_IN_FLIGHT = MAX_IN_FLIGHT_;  // rows requested and not complete, at most; 0: STAGES
    static constexpr bool SMEM_GAMMA = SMEM_GAMMA_;       // gamma in shared memory instead of registers
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
};

template <class T, class S, int STAGES>
struct BackwardPipelineOf {
    using type = RowPipeline<T, S, 2, STAGES, CACHE_INPUT>;
};
template <class T, class S>
struct BackwardPipelineOf<T, S, 0> {
    using type = CpAsyncPipeline<T, S>;
};
template <class T, class S, int STAGES>
using BackwardPipeline = typename BackwardPipelineOf<T, S, STAGES>::type;

// The record that the warps of a row exchange: the sums of w * n and, for layer normalization, of w.
template <bool CENTERED>
struct GradientRecordOf {
    using type = float;
};
template <>
struct GradientRecordOf<true> {
    using type = Pair;
};
template <bool CENTERED>
using GradientRecord = typename GradientRecordOf<CENTERED>::type;

// The sums over the row.
template <class Records>
__device__ __forceinline__ Pair gradient_sums(Pair part, Records& records, unsigned iteration, Pair) {
    return row_sum(part, records, iteration);
}
template <class Records>
__device__ __forceinline__ Pair gradient_sums(Pair part, Records& records, unsigned iteration, float) {
    return {row_sum(part.x, records, iteration), 0.0f};
}

// gamma of a thread's columns and, if there is an activation, beta.
template <class S, Activation A>
struct ScaleShift {
    Row<S> gamma, beta;
};
template <class S>
struct ScaleShift<S, NONE> {
    Row<S> gamma;
};

template <Activation A, class T, class S>
__device__ __forceinline__ ScaleShift<S, A> load_weights(const RowLayout<S>& layout, const T* gamma, const T* beta) {
    if constexpr (A == NONE) return {layout.load_shared(gamma)};
    else return {layout.load_shared(gamma), layout.load_shared(beta)};
}

// The results of a thread: dx, row by row, and its partial sums of dgamma and dbeta in f32 registers.
template <bool CENTERED, class S, Activation A>
struct GradientsOfRows {
    Row<S> dgamma = {}, dbeta = {};

    // dx of a row. columns(i, x, dy, weight, shift) returns the thread's i-th vector of x, dy, gamma and, if there is an
    // activation, beta. release() is called when all threads of the row have read theirs: after the barrier, where a
    // row has several warps.
    template <class Columns, class Records, class Release>
    __device__ __forceinline__ Row<S> add(const Columns& columns, Statistics statistics, float inverse_cols,
                                          Records& records, unsigned iteration, const Release& release) {
        Row<S> n, w;
        Pair part[2] = {};
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            float weight[S::WIDTH], shift[S::WIDTH];
            columns(i, n.v[i], w.v[i], weight, shift);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                float &v = n.v[i][j], &u = w.v[i][j];
                v = normalized<CENTERED>(v, statistics.mean, statistics.rstd);
                if constexpr (A != NONE) u = before_activation<A>(u, v, weight[j], shift[j]);
                if (CENTERED) dbeta.v[i][j] += u;
                dgamma.v[i][j] = fmaf(u, v, dgamma.v[i][j]);
                u *= weight[j];
                part[(i * S::WIDTH + j) % 2] += {u * v, CENTERED ? u : 0.0f};
            }
        }
        part[0] += part[1];
        const Pair sums = gradient_sums(part[0], records, iteration, GradientRecord<CENTERED>());
        release();
        const float mean_wn = sums.x * inverse_cols, mean_w = sums.y * inverse_cols;
        w.each([&](float& u, int k) { u = gradient(u, n[k], mean_wn, mean_w, statistics.rstd); });
        return w;
    }

    // Adds the partial sums of all groups of a CTA in a fixed order, through shared memory that holds two rows of f32.
    // The result is in the first group. barrier() synchronizes all these threads.
    template <class Barrier>
    __device__ __forceinline__ void reduce_groups(float4* where, const Barrier& barrier) {
        where += threadIdx.x % S::LANES;
        const unsigned group = threadIdx.x / S::LANES;
#pragma unroll 1
        for (unsigned giver = S::groups - 1; giver > 0; giver--) {
            barrier();
            if (group == giver) each_quad([&](int i, float4& quad) { where[i * S::LANES] = quad; });
            barrier();
            if (group == giver - 1) {
                each_quad([&](int i, float4& quad) {
                    const float4 more = where[i * S::LANES];
                    quad.x += more.x, quad.y += more.y, quad.z += more.z, quad.w += more.w;
                });
            }
        }
    }

    // Stores the partial sums to row `row` of `gammas` and `betas`. `layout` is that of any row.
    __device__ __forceinline__ void store(RowLayout<S> layout, unsigned row, unsigned cols, float* gammas,
                                          float* betas) const {
        layout.first = static_cast<size_t>(row) * cols;
        layout.template store<CACHE_KEEP>(gammas, dgamma);
        if constexpr (CENTERED) layout.template store<CACHE_KEEP>(betas, dbeta);
    }

private:
    // Calls f(i, quad) for each four partial sums.
    template <class F>
    __device__ __forceinline__ void each_quad(const F& f) {
        constexpr int quads = S::elements / 4;
#pragma unroll
        for (int i = 0; i < (CENTERED ? 2 : 1) * quads; i++) {
            float* v = &(i < quads ? dgamma : dbeta).v[i % quads * 4 / S::WIDTH][i * 4 % S::WIDTH];
            float4 quad = make_float4(v[0], v[1], v[2], v[3]);
            f(i, quad);
            v[0] = quad.x, v[1] = quad.y, v[2] = quad.z, v[3] = quad.w;
        }
    }
};

// The argument `columns` of GradientsOfRows::add for rows in registers.
template <class S, Activation A>
__device__ __forceinline__ auto columns_of(const Row<S>& x, const Row<S>& dy, const ScaleShift<S, A>& weights) {
    return [&](int i, float (&v)[S::WIDTH], float (&u)[S::WIDTH], float (&weight)[S::WIDTH],
               float (&shift)[S::WIDTH]) {
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++) {
            v[j] = x.v[i][j], u[j] = dy.v[i][j], weight[j] = weights.gamma.v[i][j];
            if constexpr (A != NONE) shift[j] = weights.beta.v[i][j];
        }
    };
}

// dx of rows in registers, row after row, by persistent CTAs or clusters. STAGES rows are prefetched through TMA; with
// STAGES = 0, one row by cp.async. At the end each group of threads stores its partial sums of dgamma and dbeta to a
// row of `gammas` and `betas` of its own, so that the results do not depend on the order in which CTAs run.
template <bool CENTERED, class T, class Tile, Activation A = NONE>
__device__ __forceinline__ void backward_rows(const T* x, const T* dy, const T* gamma, const float* means,
                                              const float* rstds, T* dx, float* gammas, float* betas, int rows,
                                              int cols, const T* beta = nullptr) {
    constexpr int STAGES = Tile::STAGES;
    using S = RowShape<Tile::THREADS, Tile::LANES, Tile::VECTORS, Tile::CTAS, vector_width<T>>;
    __shared__ RowRecords<GradientRecord<CENTERED>, S, 2> records;
    constexpr bool bulk = STAGES > 0;
    const BackwardPipeline<T, S, STAGES> pipeline;
    RowLayout<S> layout(rows, cols, aligned16(x, dy, gamma, dx, beta));
    const RowIterations<S> iterations(rows, cols);
    const unsigned group = layout.row;
    const float inverse_cols = 1.0f / cols;
    row_arrive<S>();
    if constexpr (bulk) {
#pragma unroll
        for (unsigned i = 0; i < STAGES; i++) pipeline.begin(iterations, layout, i, i, x, dy);
    } else {
        pipeline.begin(layout, 0, x, dy);
    }
    const RowLayout<S> all = layout.any(cols);
    GradientsOfRows<CENTERED, S, A> gradients;
    const ScaleShift<S, A> weights = load_weights<A>(all, gamma, beta);
    auto statistics_of = [&](const RowLayout<S>& layout) {
        return layout.cols ? Statistics{mean_at<CENTERED>(means, layout.row), rstds[layout.row]} : Statistics{};
    };
    Statistics statistics = statistics_of(layout);
    row_wait<S>();
    Ring<bulk ? STAGES : 2> at;
#pragma unroll 1
    for (unsigned iteration = 0; iteration < iterations.count; iteration++) {
        const Statistics of_row = statistics;
        const RowLayout<S> next = iterations.later(layout, 1);
        if constexpr (!bulk) pipeline.begin(next, at.stage ^ 1, x, dy);
        statistics = statistics_of(next);
        pipeline.wait(layout, at.stage, at.parity);
        const Row<S> of_x = pipeline.row(layout, at.stage, 0, x), of_dy = pipeline.row(layout, at.stage, 1, dy);
        const Row<S> row =
            gradients.add(columns_of(of_x, of_dy, weights), of_row, inverse_cols, records, iteration & 1, [&] {
                if constexpr (bulk) pipeline.begin(iterations, layout, STAGES, at.stage, x, dy);
            });
        at.advance();
        layout.template store<bulk ? CACHE_INPUT : CACHE_STREAM>(dx, row);
        layout = next;
    }
    gradients.store(all, group, cols, gammas, betas);
}

}  // namespace ptxkit
