// Gradients of layer normalization (CENTERED) and RMS normalization. With n = (x - mean) * rstd, mean being 0 for RMS, and
// w = dy * gamma:
//
//     dx = (w - n * mean_of_row(w * n) - mean_of_row(w)) * rstd        the last mean for layer normalization alone
//     dgamma = sum over rows of dy * n        dbeta = sum over rows of dy
//
// mean and rstd are those that the forward kernels keep for training.
#pragma once
#include "async_copy.cuh"
#include "claims.cuh"
#include "normalize.cuh"
#include "wgmma.cuh"

namespace ptxkit {

template <bool CENTERED>
__device__ __forceinline__ float normalized(float x, float mean, float rstd) {
    return CENTERED ? (x - mean) * rstd : x * rstd;
}

// w, rounded on its own.
template <class T>
__device__ __forceinline__ float weighted(T dy, T gamma) {
    return __fmul_rn(to_f32(dy), to_f32(gamma));
}

// What dx subtracts is rounded as one fma, here and wherever dx is made.
__device__ __forceinline__ float gradient(float w, float n, float mean_wn, float mean_w, float rstd) {
    return (w - fmaf(n, mean_wn, mean_w)) * rstd;
}

// A row's mean, or 0 without the array.
template <bool CENTERED>
__device__ __forceinline__ float mean_at(const float* means, unsigned row) {
    return CENTERED ? means[row] : 0.0f;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Sums over rows

// Sums of 32 columns a CTA, in f64: add(row, column, first, second) is called for every row, those of a warp in order, and
// write(column, first, second) once a column. The grid is cdiv(cols, 32).
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

// dgamma and dbeta, in one reading of x and dy.
template <bool CENTERED, class T, int THREADS>
__device__ __forceinline__ void column_gradients(const T* x, const T* dy, const float* means, const float* rstds, T* dgamma,
                                                 T* dbeta, int rows, int cols) {
    auto add = [&](size_t r, unsigned c, double& first, double& second) {
        const float dy_ = to_f32(dy[r * cols + c]);
        first += __fmul_rn(dy_, normalized<CENTERED>(to_f32(x[r * cols + c]), mean_at<CENTERED>(means, r), rstds[r]));
        second += dy_;
    };
    column_sums<THREADS>(rows, cols, add, [&](unsigned c, double first, double second) {
        dgamma[c] = Convert<T>::from_f32(static_cast<float>(first));
        if (CENTERED) dbeta[c] = Convert<T>::from_f32(static_cast<float>(second));
    });
}

// The same from partial sums, (count, cols) each.
template <bool CENTERED, class T, int THREADS>
__device__ __forceinline__ void finished_gradients(const float* gammas, const float* betas, T* dgamma, T* dbeta, int count,
                                                   int cols) {
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

// ---------------------------------------------------------------------------------------------------------------------------
// dx by columns, one CTA a row

// The means over a row of w * n and of w. n(c) and w(c) give a column to the same thread each time.
template <bool CENTERED, int THREADS, class N, class W>
__device__ __forceinline__ Pair row_means(int cols, N n, W w) {
    const double sum_wn = column_sum<THREADS>(cols, [&](unsigned c) { return __fmul_rn(w(c), n(c)); });
    const double sum_w = CENTERED ? column_sum<THREADS>(cols, [&](unsigned c) { return w(c); }) : 0.0;
    return {static_cast<float>(sum_wn / cols), static_cast<float>(sum_w / cols)};
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rows in registers

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
template <bool CENTERED, class T, int THREADS, int LANES, int VECTORS, int CTAS, int STAGES>
__device__ __forceinline__ void backward_rows(const T* x, const T* dy, const T* gamma, const float* means, const float* rstds,
                                              T* dx, float* gammas, float* betas, int rows, int cols) {
    using S = RowShape<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
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

// Warps that fetch rows for the GROUPS groups of THREADS threads. Registers go to the quarters of an SM, so that one takes as many of
// them as four; and four give theirs, as a warpgroup, to 512 threads, which would run short.
template <int THREADS, int GROUPS>
constexpr int fetching_warps = GROUPS < 4 && THREADS < 512 ? GROUPS : 4;

// Rows of two matrices on their way to shared memory, for each group of threads that takes rows, and beside them gamma if KEPT. Lanes
// of further warps fetch them, with their statistics, as soon as there is room: the warps that compute a row wait for one another in
// each, and whoever had to fetch besides would be last.
// Dynamic shared memory: 2 * STAGES * THREADS * VECTORS * 16 bytes, and LANES * VECTORS * 16 for gamma.
template <bool CENTERED, class T, class S, int STAGES, int UNDER_WAY, bool KEPT>
struct Fetched {
    static constexpr int warps = fetching_warps<S::THREADS, S::groups>;
    // 640 threads have 96 registers each
    static constexpr bool gives = S::THREADS == 512 && (PTXKIT_SM90A || PTXKIT_SM100F);
    static constexpr int words = S::VECTORS * S::LANES;          // 16 bytes each, of a row
    struct Shared {
        unsigned long long full[S::groups][STAGES], empty[S::groups][STAGES];
        Statistics statistics[S::groups][STAGES];
    };
    Shared& shared;
    uint4* slots;

    // One barrier of all threads.
    __device__ __forceinline__ explicit Fetched(Shared& shared) : shared(shared) {
        extern __shared__ __align__(128) uint4 fetched_slots[];  // bulk copies to less aligned shared memory are up to a fifth slower
        slots = fetched_slots;
        if (threadIdx.x == 0) {
            init_ring<S::groups * STAGES>(cvta_to_shared(shared.full), 1, cvta_to_shared(shared.empty), 1);
        }
        barrier_sync();
    }

    // All threads that compute rows.
    static __device__ __forceinline__ void barrier() {
        constexpr int free = S::warps == 1 ? 0 : S::groups;  // groups of several warps have a barrier each, from 0
        static_assert(free < 16, "16 barriers");
        barrier_sync<free>(S::THREADS);
    }

    // What the threads that compute rows do first: what no copy fills is 0, and with KEPT gamma is there.
    __device__ __forceinline__ void begin(const Place<S>& all, const T* gamma) const {
        const unsigned thread = threadIdx.x % S::LANES, group = threadIdx.x / S::LANES;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < all.held) continue;
#pragma unroll 1
            for (int r = 0; r < 2 * STAGES; r++) slots[(r * S::groups + group) * words + i * S::LANES + thread] = uint4{};
        }
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                if (group != i % S::groups) continue;
                uint4 quad = {};
                if (i * S::WIDTH < all.held) quad = ld_global(reinterpret_cast<const uint4*>(gamma) + i * S::threads + all.thread);
                slots[2 * STAGES * S::groups * words + i * S::LANES + thread] = quad;
            }
            barrier();
        }
    }

    // Fetches a group's rows: what one thread does. With more asked for than memory takes to stay busy, what is written waits. So no
    // more than UNDER_WAY rows are, if it is not 0; and a row when its statistics are there, which takes its time where memory is
    // busy: on an H200, 16384x4096 in f32, 187 us for layer normalization's gradients, against 202 with all asked for at once.
    __device__ __forceinline__ void fetch(unsigned group, const T* x, const T* dy, const float* means, const float* rstds,
                                          unsigned rows, unsigned cols) const {
        const unsigned long long policy = load_policy<CACHE_INPUT>();
        const unsigned bytes = bytes_of(cols);
        Ring<STAGES> at, behind;  // UNDER_WAY rows
        unsigned turn = 0;
        for (unsigned row = blockIdx.x / S::CTAS * S::groups + group; row < rows; row += rows_taken<S>(), turn++) {
            if (turn >= STAGES) mbarrier_wait(cvta_to_shared(&shared.empty[group][at.stage]), at.parity ^ 1);
            if (UNDER_WAY > 0 && turn >= UNDER_WAY) {
                mbarrier_wait(cvta_to_shared(&shared.full[group][behind.stage]), behind.parity);
                behind.advance();
            }
            shared.statistics[group][at.stage] = {mean_at<CENTERED>(means, row), rstds[row]};
            const unsigned there = cvta_to_shared(&shared.full[group][at.stage]);
            const size_t first = static_cast<size_t>(row) * cols;
            mbarrier_arrive_expect_tx(there, 2 * bytes);
            copy(cvta_to_shared(row_of(group, at.stage, 0)), x + first, cols, there, policy);
            copy(cvta_to_shared(row_of(group, at.stage, 1)), dy + first, cols, there, policy);
            at.advance();
        }
    }

    __device__ __forceinline__ Statistics wait(unsigned group, const Ring<STAGES>& at) const {
        mbarrier_wait(cvta_to_shared(&shared.full[group][at.stage]), at.parity);
        return shared.statistics[group][at.stage];
    }

    // What GradientsOfRows::add asks for; `gamma` is asked unless KEPT.
    __device__ __forceinline__ auto columns(unsigned group, unsigned stage, const Row<S>& gamma) const {
        const unsigned thread = threadIdx.x % S::LANES;
        const uint4 *x = row_of(group, stage, 0) + thread, *dy = row_of(group, stage, 1) + thread;
        const uint4* kept = slots + 2 * STAGES * S::groups * words + thread;
        return [=, &gamma](int i, float (&v)[S::WIDTH], float (&u)[S::WIDTH], float (&weight)[S::WIDTH]) {
            Vector<T, S::WIDTH> vector[3];
            vector[0].set(x[i * S::LANES]), vector[1].set(dy[i * S::LANES]);
            if constexpr (KEPT) vector[2].set(kept[i * S::LANES]);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                v[j] = vector[0][j], u[j] = vector[1][j];
                if constexpr (KEPT) weight[j] = vector[2][j];
                else weight[j] = gamma.v[i][j];
            }
        };
    }

    // All threads of the group have read the stage: there is room.
    __device__ __forceinline__ void release(unsigned group, unsigned stage) const {
        if constexpr (S::warps == 1) bar_warp_sync(all_lanes);
        if (threadIdx.x % S::LANES == 0) mbarrier_arrive(cvta_to_shared(&shared.empty[group][stage]));
    }

private:
    // f(i, column, bytes) for each of the places in a row where columns of this CTA lie together.
    template <class F>
    static __device__ __forceinline__ void each_chunk(unsigned cols, F f) {
        if constexpr (S::CTAS == 1) {
            f(0, 0, cols * static_cast<unsigned>(sizeof(T)));
        } else {
            constexpr unsigned chunk = S::LANES * S::WIDTH;
#pragma unroll
            for (unsigned i = 0; i < S::VECTORS; i++) {
                const unsigned column = (i * S::CTAS + cluster_ctarank()) * chunk;
                if (column < cols) f(i, column, ::min(chunk, cols - column) * static_cast<unsigned>(sizeof(T)));
            }
        }
    }

    // Of a row, those of this CTA.
    static __device__ __forceinline__ unsigned bytes_of(unsigned cols) {
        unsigned bytes = 0;
        each_chunk(cols, [&](unsigned, unsigned, unsigned size) { bytes += size; });
        return bytes;
    }

    static __device__ __forceinline__ void copy(unsigned to, const T* from, unsigned cols, unsigned there, unsigned long long policy) {
        each_chunk(cols, [&](unsigned i, unsigned column, unsigned size) {
            cp_async_bulk_shared_global_L2_cache_hint(to + i * (16 * S::LANES), from + column, size, there, policy);
        });
    }

    // The group's row of x (0) or dy (1) in a stage.
    __device__ __forceinline__ uint4* row_of(unsigned group, unsigned stage, unsigned array) const {
        return slots + ((2 * stage + array) * S::groups + group) * words;
    }
};

// f(turn) for each row of the caller's group: `place` is there, and turn alternates between 0 and 1.
template <class S, class F>
__device__ __forceinline__ void each_row(Place<S>& place, unsigned rows, unsigned cols, const F& f) {
    unsigned turn = 0;
#pragma unroll 1
    for (unsigned row = place.row; row < rows; row += rows_taken<S>(), turn ^= 1) {
        place.take(row, cols, cols);
        f(turn);
    }
}

// What the warps that compute a row tell each other, where others of their CTA do something else: in a CTA across a barrier, in a
// cluster by st.async, as barrier.cluster would be for all. All threads of the cluster construct it, and have then started.
template <class Record, class S, bool CLUSTER = (S::CTAS > 1)>
struct RecordsBesideOthers {
    using Shared = RowRecords<Record, S, 2>;
    Shared& records;

    __device__ __forceinline__ explicit RecordsBesideOthers(Shared& shared) : records(shared) {}
};
template <class Record, class S>
struct RecordsBesideOthers<Record, S, true> {
    using Shared = typename SentRecords<Record, S>::Shared;
    SentRecords<Record, S> records;

    __device__ __forceinline__ explicit RecordsBesideOthers(Shared& shared) : records(shared) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
};

// What backward_rows does, by groups of LANES threads that take a row each, or clusters of CTAs, and warps that fetch rows. Shares of
// dgamma and dbeta meet in the CTA, in fixed order, and go to its row of `gammas` and `betas`, or its cluster's.
template <bool CENTERED, class T, int THREADS, int LANES, int VECTORS, int CTAS, int STAGES, int UNDER_WAY, bool KEPT>
__device__ __forceinline__ void backward_rows_fetched(const T* x, const T* dy, const T* gamma, const float* means,
                                                      const float* rstds, T* dx, float* gammas, float* betas, int rows, int cols) {
    using S = RowBesideOthers<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
    using Rows = Fetched<CENTERED, T, S, STAGES, UNDER_WAY, KEPT>;
    using Records = RecordsBesideOthers<GradientRecord<CENTERED>, S>;
    __shared__ typename Records::Shared shared_records;
    __shared__ typename Rows::Shared shared;
    const Rows fetched(shared);
    Records among(shared_records);
    Place<S> place(rows, cols, aligned16(x, dy, gamma, dx));
    follow_previous_grid();
    const bool copies = place.vectors;  // else rows are loaded when their turn comes
    if (threadIdx.x >= THREADS) {
        if constexpr (Rows::gives) setmaxnreg_dec<32>();
        const unsigned group = (threadIdx.x - THREADS) / 32 + threadIdx.x % 32 * Rows::warps;
        if (copies && group < S::groups) fetched.fetch(group, x, dy, means, rstds, rows, cols);
        return;
    }
    if constexpr (Rows::gives) setmaxnreg_inc<112>();
    const unsigned group = threadIdx.x / LANES;
    const float inverse_cols = 1.0f / cols;
    const Place<S> all = place.any(cols);
    GradientsOfRows<CENTERED, S> gradients;
    if (copies) {
        place.vectors = true;
        fetched.begin(all, gamma);
        Row<S> weight;
        if constexpr (!KEPT) weight = all.load_shared(gamma);
        Ring<STAGES> at;
        each_row(place, rows, cols, [&](unsigned turn) {
            const Statistics statistics = fetched.wait(group, at);
            const Row<S> row = gradients.add(fetched.columns(group, at.stage, weight), statistics, inverse_cols, among.records,
                                             turn, [&] { fetched.release(group, at.stage); });
            at.advance();
            place.template store<CACHE_INPUT>(dx, row);
        });
    } else {
        const Row<S> weight = all.load_shared(gamma);
        each_row(place, rows, cols, [&](unsigned turn) {
            const Statistics statistics = {mean_at<CENTERED>(means, place.row), rstds[place.row]};
            const Row<S> of_x = place.template load<CACHE_STREAM>(x), of_dy = place.template load<CACHE_STREAM>(dy);
            const Row<S> row = gradients.add(columns_of(of_x, of_dy, weight), statistics, inverse_cols, among.records, turn, [] {});
            place.template store<CACHE_INPUT>(dx, row);
        });
    }
    gradients.meet(reinterpret_cast<float4*>(fetched.slots), [] { Rows::barrier(); });
    if (group == 0) gradients.store(all, blockIdx.x / CTAS, cols, gammas, betas);
}

// dx of a row of any length, by a cluster: its columns are read for the two sums and once more, backwards.
template <bool CENTERED, class T, int THREADS, int VECTORS, int CTAS>
__device__ __forceinline__ void backward_parts_of_row(const T* x, const T* dy, const T* gamma, const float* means,
                                                      const float* rstds, T* dx, int rows, int cols) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const Place<S> place(rows, cols, aligned16(x, dy, gamma, dx));
    row_arrive<S>();
    row_wait<S>();
    const float mean = mean_at<CENTERED>(means, place.row), rstd = rstds[place.row];
    auto load = [&](const Place<S>& part, unsigned begin, Row<S>& n, Row<S>& w) {
        n = part.template load<CACHE_KEEP>(x), w = part.template load<CACHE_KEEP>(dy);
        part.apply(w, [](float u, float weight) { return u * weight; }, gamma + begin);
        n.each([&](float& v, int) { v = normalized<CENTERED>(v, mean, rstd); });
    };
    double sum_wn = 0, sum_w = 0;
    forward_parts<S>(cols, [&](unsigned begin) {
        Row<S> n, w;
        load(place.part(begin), begin, n, w);
        sum_wn += n.sum([&](float v, int k) { return v * w[k]; });
        if (CENTERED) sum_w += w.sum([](float u, int) { return u; });
    });
    const float mean_wn = static_cast<float>(row_sum(sum_wn, slots, 0) / cols);
    const float mean_w = CENTERED ? static_cast<float>(row_sum(sum_w, slots, 1) / cols) : 0.0f;
    backward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> n, w;
        load(part, begin, n, w);
        w.each([&](float& u, int k) { u = gradient(u, n[k], mean_wn, mean_w, rstd); });
        part.template store<CACHE_STREAM>(dx, w);
    });
}

// dx of the CTA's row. With KEEP, n and w wait in dynamic shared memory, 8 bytes a column; without, they are made again.
template <bool CENTERED, class T, int THREADS, bool KEEP>
__device__ __forceinline__ void backward_row(const T* x, const T* dy, const T* gamma, const float* means, const float* rstds,
                                             T* dx, int cols) {
    extern __shared__ float2 kept_columns[];
    const size_t first = static_cast<size_t>(blockIdx.x) * cols;
    const float mean = mean_at<CENTERED>(means, blockIdx.x), rstd = rstds[blockIdx.x];
    auto n = [&](unsigned c) { return KEEP ? kept_columns[c].x : normalized<CENTERED>(to_f32(x[first + c]), mean, rstd); };
    auto w = [&](unsigned c) { return KEEP ? kept_columns[c].y : weighted(dy[first + c], gamma[c]); };
    if constexpr (KEEP) {
        each_column<THREADS>(cols, [&](unsigned c) {
            const float v = to_f32(x[first + c]);
            kept_columns[c] = make_float2(normalized<CENTERED>(v, mean, rstd), weighted(dy[first + c], gamma[c]));
        });
    }
    const Pair means_of_row = row_means<CENTERED, THREADS>(cols, n, w);
    each_column<THREADS>(cols, [&](unsigned c) {
        dx[first + c] = Convert<T>::from_f32(gradient(w(c), n(c), means_of_row.x, means_of_row.y, rstd));
    });
}

// ---------------------------------------------------------------------------------------------------------------------------
// The chain of launches: one operation each, all in between in f32

template <bool CENTERED, class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void normalize_elements(const T* x, const float* means, const float* rstds, float* n, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        n[i] = normalized<CENTERED>(to_f32(x[i]), mean_at<CENTERED>(means, row), rstds[row]);
    });
}

template <class T, int THREADS, int ELEMENTS>
__device__ __forceinline__ void weigh_elements(const T* dy, const T* gamma, float* w, int cols) {
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
__device__ __forceinline__ void gradient_elements(const float* w, const float* n, const float* means_wn, const float* means_w,
                                                  const float* rstds, T* dx, int cols) {
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
