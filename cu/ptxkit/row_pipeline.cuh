// Rows by CTAs, or clusters of them, that stay: the next rows are on their way to shared memory while one is computed, so that
// loads, arithmetic and stores overlap however few threads an SM holds; and what all rows share is fetched once.
//
// Each thread copies what it will read itself: rows need no barrier. Only those whose rows move in vectors, on sm_80 and later, are
// copied ahead; others are loaded when their turn comes.
#pragma once
#include "row.cuh"

namespace ptxkit {

// f(i) for those of a thread's vectors that there are, or without(i): where they are all there, as in most rows, none is asked for.
template <class S, class F, class Without>
__device__ __forceinline__ void each_vector(const Place<S>& place, F f, Without without) {
    if (place.held == S::elements) {
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) f(i);
    } else {
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < place.held) f(i);
            else without(i);
        }
    }
}

// Rows of ARRAYS matrices, of the STAGES turns to come. Dynamic shared memory: STAGES * ARRAYS * THREADS * VECTORS * 16 bytes.
template <class T, class S, int ARRAYS, int STAGES, int CACHE>
struct Ahead {
    static constexpr int words = ARRAYS * S::VECTORS * S::THREADS;  // 16 bytes each, of a stage
    uint4* slots;  // of this thread

    __device__ __forceinline__ Ahead() {
        extern __shared__ uint4 ahead_slots[];
        slots = ahead_slots + threadIdx.x;
    }

    // Behind the stages: shared memory for something else.
    static __device__ __forceinline__ uint4* behind() {
        extern __shared__ uint4 ahead_slots[];
        return ahead_slots + STAGES * words;
    }

    static __device__ __forceinline__ bool copies(const Place<S>& place) { return PTXKIT_SM >= 80 && place.vectors; }

    // Begins to copy a row of each matrix to a stage.
    template <class... Matrix>
    __device__ __forceinline__ void begin(const Place<S>& place, unsigned stage, const Matrix*... matrix) const {
        static_assert(sizeof...(Matrix) == ARRAYS, "a matrix for each array");
        if (!copies(place)) return;
        const unsigned long long policy = load_policy<CACHE>();
        uint4* to = slots + stage * words;
        (copy(place, to, matrix, policy), ...);
        cp_async_commit_group();
    }

    // Until all but the STAGES - 1 that began last are there.
    __device__ __forceinline__ void wait(const Place<S>& place) const {
        if (copies(place)) cp_async_wait_group<STAGES - 1>();
    }

    // The row of the matrix that is number `array`.
    __device__ __forceinline__ Row<S> row(const Place<S>& place, unsigned stage, int array, const T* matrix,
                                          float fill = 0.0f) const {
        if (!copies(place)) return place.template load<CACHE>(matrix, fill);
        const uint4* from = slots + stage * words + array * (S::VECTORS * S::THREADS);
        Row<S> row;
        auto there = [&](int i) {
            Vector<T, S::WIDTH> vector;
            vector.set(from[i * S::THREADS]);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
        };
        each_vector(place, there, [&](int i) {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = fill;
        });
        return row;
    }

private:
    static __device__ __forceinline__ void copy(const Place<S>& place, uint4*& to, const T* matrix, unsigned long long policy) {
        const T* from = matrix + place.first + place.thread * S::WIDTH;
        const unsigned slot = cvta_to_shared(to);
        auto there = [&](int i) {
            const unsigned at = slot + i * (S::THREADS * 16);
            if constexpr (CACHE == CACHE_KEEP || CACHE == CACHE_STREAM) {
                cp_async_cg_shared_global(at, from + i * S::threads * S::WIDTH);
            } else {
                cp_async_cg_shared_global_L2_cache_hint(at, from + i * S::threads * S::WIDTH, policy);
            }
        };
        each_vector(place, there, [](int) {});
        to += S::VECTORS * S::THREADS;
    }
};

// Rows place.row, place.row + taken, ... of `rows`, where `taken` are computed at a time.
template <class S>
struct Turns {
    unsigned rows, cols, taken, count;

    __device__ __forceinline__ Turns(unsigned rows, unsigned cols)
        : rows(rows), cols(cols), taken(gridDim.x / S::CTAS * S::groups), count((rows - 1) / taken + 1) {}

    // The place `turns` later; past the last row an empty one.
    __device__ __forceinline__ Place<S> later(const Place<S>& place, unsigned turns) const {
        Place<S> next = place;
        const unsigned row = place.row + turns * taken;
        next.take(row, row < rows ? cols : 0, cols);
        return next;
    }
};

// f(place, row, turn) for each row of `matrix` that the thread's group takes, with `fill` for padding; turn alternates between 0 and
// 1. started() is called once, with the first rows on their way.
template <class S, int STAGES, int CACHE, class T, class Started, class F>
__device__ __forceinline__ void rows_ahead(Place<S> place, unsigned rows, unsigned cols, const T* matrix, float fill,
                                           Started started, F f) {
    const Ahead<T, S, 1, STAGES, CACHE> ahead;
    const Turns<S> turns(rows, cols);
#pragma unroll
    for (unsigned i = 0; i < STAGES; i++) ahead.begin(turns.later(place, i), i, matrix);
    started();
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned turn = 0; turn < turns.count; turn++) {
        ahead.wait(place);
        Row<S> row = ahead.row(place, stage, 0, matrix, fill);
        ahead.begin(turns.later(place, STAGES), stage, matrix);
        f(place, row, turn & 1);
        place = turns.later(place, 1);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

// COUNT vectors that all rows share, KEPT of each thread's VECTORS vectors of them in shared memory, the others in cache: a cluster
// that takes long rows reads so much of them that L2 would limit it. Dynamic shared memory: COUNT * KEPT * LANES * 16 bytes.
template <class T, class S, int COUNT, int KEPT>
struct Weights {
    static_assert(KEPT <= S::VECTORS, "no more than there are");
    uint4* slots;

    // `where` is the same in all threads.
    __device__ __forceinline__ Weights(uint4* where) : slots(where + threadIdx.x % S::LANES) {}

    // One barrier; `all` is the place in a row that there is.
    template <class... Vectors>
    __device__ __forceinline__ void begin(const Place<S>& all, const Vectors*... vectors) const {
        static_assert(sizeof...(Vectors) == COUNT, "COUNT vectors");
        if constexpr (KEPT > 0) {
            if (all.vectors && threadIdx.x < S::LANES) {
                uint4* to = slots;
                (keep(all, to, vectors), ...);
            }
            barrier_sync();
        }
    }

    // Makes each column f(column, those of the vectors).
    template <class F, class... Vectors>
    __device__ __forceinline__ void apply(const Place<S>& place, Row<S>& row, F f, const Vectors*... vectors) const {
        if constexpr (KEPT > 0) {
            if (place.vectors) {
                auto there = [&](int i) {
                    int number = 0;
                    combine(row.v[i], f, vector_of(place, i, number++, vectors)...);
                };
                auto without = [&](int i) {
#pragma unroll
                    for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = f(row.v[i][j], zero_of(vectors)...);
                };
                each_vector(place, there, without);
                return;
            }
        }
        place.apply(row, f, vectors...);
    }

private:
    __device__ __forceinline__ void keep(const Place<S>& all, uint4*& to, const T* from) const {
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            if (i * S::WIDTH < all.held) {
                to[i * S::LANES] = ld_global(reinterpret_cast<const uint4*>(from + (i * S::threads + all.thread) * S::WIDTH));
            }
        }
        to += KEPT * S::LANES;
    }

    __device__ __forceinline__ Vector<T, S::WIDTH> vector_of(const Place<S>& place, int i, int number, const T* from) const {
        Vector<T, S::WIDTH> vector;
        if (i < KEPT) vector.set(slots[(number * KEPT + i) * S::LANES]);
        else vector.template load<CACHE_KEEP>(from + (i * S::threads + place.thread) * S::WIDTH);
        return vector;
    }

    static __device__ __forceinline__ float zero_of(const T*) { return 0.0f; }

    template <class F, class... V>
    static __device__ __forceinline__ void combine(float (&v)[S::WIDTH], F f, const V&... vectors) {
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++) v[j] = f(v[j], vectors[j]...);
    }
};

}  // namespace ptxkit
