// The gradients of a norm, of rows that registers hold, in one reading: CTAs that stay, or clusters of them, make dx row by row and add
// dgamma and dbeta up on the way. Here they copy their next rows themselves; backward_fetched.cuh has warps for that.
#pragma once
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/rows/backward.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

namespace ptxkit {

// The next row of both matrices on its way to shared memory while one is computed, by cp.async: each thread copies what it will read
// itself, so there is no barrier. Dynamic shared memory: 4 * THREADS * VECTORS * 16 bytes.
template <class T, class S>
struct CopiedAhead {
    uint4* slots;

    __device__ __forceinline__ CopiedAhead() {
        extern __shared__ uint4 ahead_slots[];
        slots = ahead_slots + threadIdx.x;
    }

    static __device__ __forceinline__ bool copies(const Place<S>& place) { return PTXKIT_SM >= 80 && place.vectors; }

    // Begins to copy a row of both matrices to a stage.
    __device__ __forceinline__ void begin(const Place<S>& place, unsigned stage, const T* first, const T* second) const {
        if (!copies(place)) return;
        copy(place, stage, 0, first);
        copy(place, stage, 1, second);
        cp_async_commit_group();
    }

    // Until all but what began last is there.
    __device__ __forceinline__ void wait(const Place<S>& place, unsigned, unsigned) const {
        if (copies(place)) cp_async_wait_group<1>();
    }

    __device__ __forceinline__ Row<S> row(const Place<S>& place, unsigned stage, int array, const T* matrix) const {
        if (!copies(place)) return place.template load<CACHE_STREAM>(matrix);
        Row<S> row;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            Vector<T, S::WIDTH> vector;
            vector.fill([](int) { return 0.0f; });
            if (i * S::WIDTH < place.held) vector.set(*slot(stage, array, i));
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
        }
        return row;
    }

private:
    __device__ __forceinline__ void copy(const Place<S>& place, unsigned stage, int array, const T* matrix) const {
        const T* from = matrix + place.first + place.thread * S::WIDTH;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < place.held) {
                cp_async_cg_shared_global(cvta_to_shared(slot(stage, array, i)), from + i * S::threads * S::WIDTH);
            }
        }
    }

    __device__ __forceinline__ uint4* slot(unsigned stage, int array, int i) const {
        return slots + ((stage * 2 + array) * S::VECTORS + i) * S::THREADS;
    }
};

// Tile parameters of the gradients' kernels. Descriptions give them by name (BackwardTile in ptxkit/kernels/rows/backward.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int STAGES_, int MAX_IN_FLIGHT_, bool SMEM_GAMMA_, int CTAS_PER_SM_>
struct BackwardTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int STAGES = STAGES_;                // rows in flight while one is computed
    static constexpr int MAX_IN_FLIGHT = MAX_IN_FLIGHT_;  // rows requested and not complete, at most; 0: STAGES
    static constexpr bool SMEM_GAMMA = SMEM_GAMMA_;       // gamma in shared memory instead of registers
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
};

template <class T, class S, int STAGES>
struct RowsAheadOf {
    using type = Ahead<T, S, 2, STAGES, CACHE_INPUT>;
};
template <class T, class S>
struct RowsAheadOf<T, S, 0> {
    using type = CopiedAhead<T, S>;
};
template <class T, class S, int STAGES>
using RowsAhead = typename RowsAheadOf<T, S, STAGES>::type;

// What the warps of a row tell each other for the sums of w * n and of w, which for RMS is not needed.
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
__device__ __forceinline__ Pair gradient_sums(Pair part, Records& records, unsigned turn, Pair) {
    return row_sum(part, records, turn);
}
template <class Records>
__device__ __forceinline__ Pair gradient_sums(Pair part, Records& records, unsigned turn, float) {
    return {row_sum(part.x, records, turn), 0.0f};
}

// What a thread makes of the rows that it sees: dx, row by row; and its share of dgamma and dbeta, which adds up in registers, in f32.
template <bool CENTERED, class S>
struct GradientsOfRows {
    Row<S> dgamma = {}, dbeta = {};

    // dx of a row. columns(i, x, dy, weight) gives the thread's i-th vector of x, dy and gamma; behind() is called when all threads of
    // the row have theirs, behind the barrier if they are several warps.
    template <class Columns, class Records, class Behind>
    __device__ __forceinline__ Row<S> add(const Columns& columns, Statistics statistics, float inverse_cols, Records& records,
                                          unsigned turn, const Behind& behind) {
        Row<S> n, w;
        Pair part[2] = {};
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            float weight[S::WIDTH];
            columns(i, n.v[i], w.v[i], weight);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                float &v = n.v[i][j], &u = w.v[i][j];
                v = normalized<CENTERED>(v, statistics.mean, statistics.rstd);
                if (CENTERED) dbeta.v[i][j] += u;
                dgamma.v[i][j] = fmaf(u, v, dgamma.v[i][j]);
                u *= weight[j];
                part[(i * S::WIDTH + j) % 2] += {u * v, CENTERED ? u : 0.0f};
            }
        }
        part[0] += part[1];
        const Pair sums = gradient_sums(part[0], records, turn, GradientRecord<CENTERED>());
        behind();
        const float mean_wn = sums.x * inverse_cols, mean_w = sums.y * inverse_cols;
        w.each([&](float& u, int k) { u = gradient(u, n[k], mean_wn, mean_w, statistics.rstd); });
        return w;
    }

    // Adds what the groups of a CTA have up, for the first, through shared memory that holds two rows of f32. barrier() is of all
    // their threads.
    template <class Barrier>
    __device__ __forceinline__ void meet(float4* where, const Barrier& barrier) {
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

    // To row `row` of `gammas` and `betas`; `place` is in any row.
    __device__ __forceinline__ void store(Place<S> place, unsigned row, unsigned cols, float* gammas, float* betas) const {
        place.first = static_cast<size_t>(row) * cols;
        place.template store<CACHE_KEEP>(gammas, dgamma);
        if constexpr (CENTERED) place.template store<CACHE_KEEP>(betas, dbeta);
    }

private:
    // f(i, quad) for each four of the sums, numbered.
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

// What GradientsOfRows::add asks for, from rows in registers.
template <class S>
__device__ __forceinline__ auto columns_of(const Row<S>& x, const Row<S>& dy, const Row<S>& gamma) {
    return [&](int i, float (&v)[S::WIDTH], float (&u)[S::WIDTH], float (&weight)[S::WIDTH]) {
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++) v[j] = x.v[i][j], u[j] = dy.v[i][j], weight[j] = gamma.v[i][j];
    };
}

// dx of rows that registers hold, row after row: CTAs, or clusters of them, stay and take every so many-th row, or THREADS /
// LANES of them at a time. STAGES rows are on their way while one is computed, by the TMA unit; with 0 one, by cp.async. Shares of
// dgamma and dbeta go to a row of `gammas` and `betas` at the end: as many as rows are taken at a time, so that sums do not depend
// on which CTA is faster.
template <bool CENTERED, class T, class Tile>
__device__ __forceinline__ void backward_rows(const T* x, const T* dy, const T* gamma, const float* means, const float* rstds,
                                              T* dx, float* gammas, float* betas, int rows, int cols) {
    constexpr int STAGES = Tile::STAGES;
    using S = RowShape<Tile::THREADS, Tile::LANES, Tile::VECTORS, Tile::CTAS, vector_width<T>>;
    __shared__ RowRecords<GradientRecord<CENTERED>, S, 2> records;
    constexpr bool bulk = STAGES > 0;
    const RowsAhead<T, S, STAGES> ahead;
    Place<S> place(rows, cols, aligned16(x, dy, gamma, dx));
    const Turns<S> turns(rows, cols);
    const unsigned group = place.row;
    const float inverse_cols = 1.0f / cols;
    row_arrive<S>();
    if constexpr (bulk) {
#pragma unroll
        for (unsigned i = 0; i < STAGES; i++) ahead.begin(turns, place, i, i, x, dy);
    } else {
        ahead.begin(place, 0, x, dy);
    }
    const Place<S> all = place.any(cols);
    GradientsOfRows<CENTERED, S> gradients;
    const Row<S> weight = all.load_shared(gamma);
    auto statistics_of = [&](const Place<S>& place) {
        return place.cols ? Statistics{mean_at<CENTERED>(means, place.row), rstds[place.row]} : Statistics{};
    };
    Statistics statistics = statistics_of(place);
    row_wait<S>();
    Ring<bulk ? STAGES : 2> at;
#pragma unroll 1
    for (unsigned turn = 0; turn < turns.count; turn++) {
        const Statistics of_row = statistics;
        const Place<S> next = turns.later(place, 1);
        if constexpr (!bulk) ahead.begin(next, at.stage ^ 1, x, dy);
        statistics = statistics_of(next);
        ahead.wait(place, at.stage, at.parity);
        const Row<S> of_x = ahead.row(place, at.stage, 0, x), of_dy = ahead.row(place, at.stage, 1, dy);
        const Row<S> row = gradients.add(columns_of(of_x, of_dy, weight), of_row, inverse_cols, records, turn & 1, [&] {
            if constexpr (bulk) ahead.begin(turns, place, STAGES, at.stage, x, dy);
        });
        at.advance();
        place.template store<bulk ? CACHE_INPUT : CACHE_STREAM>(dx, row);
        place = next;
    }
    gradients.store(all, group, cols, gammas, betas);
}

}  // namespace ptxkit
