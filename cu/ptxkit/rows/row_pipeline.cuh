// Rows by CTAs, or clusters of them, that stay: the next rows are on their way to shared memory while one is computed, so that
// loads, arithmetic and stores overlap however few threads an SM holds; and what all rows share is fetched once.
//
// Only rows that move in vectors, on sm_90 and later, are copied ahead; others are loaded when their turn comes.
#pragma once
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// Tile parameters of a pipelined kernel. Descriptions give them by name (PipelinedTile in ptxkit/kernels/rows/row_pipeline.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int CACHE_, int STAGES_, int SMEM_VECTORS_, int CTAS_PER_SM_>
struct PipelinedTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int CACHE = CACHE_;                // a Cache of elementwise.cuh
    static constexpr int STAGES = STAGES_;              // rows in flight while one is computed
    static constexpr int SMEM_VECTORS = SMEM_VECTORS_;  // vectors of each weight array that a thread keeps in shared memory
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    template <class T>
    using Shape = RowShape<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
};

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

// Rows that the grid takes at a time.
template <class S>
__device__ __forceinline__ unsigned rows_taken() {
    return gridDim.x / S::CTAS * S::groups;
}

// Rows place.row, place.row + taken, ... of `rows`, where `taken` are computed at a time.
template <class S>
struct Turns {
    unsigned rows, cols, taken, count;

    __device__ __forceinline__ Turns(unsigned rows, unsigned cols)
        : rows(rows), cols(cols), taken(rows_taken<S>()), count((rows - 1) / taken + 1) {}

    // The place `turns` later; past the last row an empty one.
    __device__ __forceinline__ Place<S> later(const Place<S>& place, unsigned turns) const {
        Place<S> next = place;
        const unsigned row = place.row + turns * taken;
        next.take(row, row < rows ? cols : 0, cols);
        return next;
    }
};

// A bulk copy to shared memory with the policy of CACHE.
template <int CACHE>
__device__ __forceinline__ void copy_ahead(unsigned to, const void* from, unsigned bytes, unsigned barrier,
                                           unsigned long long policy) {
    if constexpr (CACHE == CACHE_KEEP || CACHE == CACHE_STREAM) cp_async_bulk_shared_global(to, from, bytes, barrier);
    else cp_async_bulk_shared_global_L2_cache_hint(to, from, bytes, barrier, policy);
}

// f(i, column, bytes) for each of the places in a row where columns of this CTA lie together: in a cluster a vector of each of LANES
// threads, of a CTA alone all.
template <class T, class S, class F>
__device__ __forceinline__ void each_chunk(unsigned cols, F f) {
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

// Bytes of these places.
template <class T, class S>
__device__ __forceinline__ unsigned chunk_bytes(unsigned cols) {
    unsigned bytes = 0;
    each_chunk<T, S>(cols, [&](unsigned, unsigned, unsigned size) { bytes += size; });
    return bytes;
}

// Copies them from a row to shared memory, where each takes LANES * 16 bytes.
template <int CACHE, class S, class T>
__device__ __forceinline__ void copy_chunks(unsigned to, const T* row, unsigned cols, unsigned barrier, unsigned long long policy) {
    each_chunk<T, S>(cols, [&](unsigned i, unsigned column, unsigned size) {
        copy_ahead<CACHE>(to + i * (16 * S::LANES), row + column, size, barrier, policy);
    });
}

// Rows of ARRAYS matrices, of the STAGES turns to come. The TMA unit copies them: an SM's loads and cp.async share a queue with its
// shared memory and its shuffles, and a row that waits there holds those up. What threads copy together is a row's part in a CTA, or
// a warp's neighbouring rows. Dynamic shared memory: STAGES * ARRAYS * THREADS * VECTORS * 16 bytes.
template <class T, class S, int ARRAYS, int STAGES, int CACHE>
struct Ahead {
    static constexpr int unit = S::LANES < 32 ? 32 : S::LANES;  // threads that copy together
    static constexpr int words = S::VECTORS * unit;             // 16 bytes each, of an array in a stage
    uint4* slots;                                               // of the unit
    unsigned barriers;                                          // and its mbarriers, one a stage: a copy is there

    // One barrier.
    __device__ __forceinline__ Ahead() {
        extern __shared__ __align__(128) uint4 ahead_slots[];  // bulk copies to less aligned shared memory are up to a fifth slower
        __shared__ unsigned long long there[S::THREADS / unit][STAGES];
        slots = ahead_slots + threadIdx.x / unit * (STAGES * ARRAYS * words);
        barriers = cvta_to_shared(there[threadIdx.x / unit]);
        if constexpr (PTXKIT_SM >= 90) {
            if (leads()) {
#pragma unroll
                for (unsigned i = 0; i < STAGES; i++) mbarrier_init(barriers + 8 * i, 1);
                fence_mbarrier_init_release_cluster();
            }
            barrier_sync();
        }
    }

    // Behind the stages: shared memory for something else.
    static __device__ __forceinline__ uint4* behind() {
        extern __shared__ __align__(128) uint4 ahead_slots[];
        return ahead_slots + STAGES * ARRAYS * S::VECTORS * S::THREADS;
    }

    static __device__ __forceinline__ bool copies(const Place<S>& place) { return PTXKIT_SM >= 90 && place.vectors; }

    // Begins to copy a row of each matrix to a stage, `later` turns later. All threads of the unit have read what was there: a barrier
    // of theirs lies between.
    template <class... Matrix>
    __device__ __forceinline__ void begin(const Turns<S>& turns, const Place<S>& place, unsigned later, unsigned stage,
                                          const Matrix*... matrix) const {
        static_assert(sizeof...(Matrix) == ARRAYS, "a matrix for each array");
        if (!copies(place)) return;
        const unsigned row = place.row + later * turns.taken, rows = turns.rows, cols = turns.cols;
        if constexpr (S::warps == 1) bar_warp_sync(all_lanes);
        if (!leads() || row >= rows) return;
        const size_t first = static_cast<size_t>(row) * cols;
        const unsigned barrier = barriers + 8 * stage;
        unsigned to = cvta_to_shared(slots + stage * (ARRAYS * words));
        const unsigned long long policy = load_policy<CACHE>();
        if constexpr (S::CTAS == 1) {
            const unsigned bytes = ::min(unit / S::LANES, rows - row) * cols * static_cast<unsigned>(sizeof(T));
            mbarrier_arrive_expect_tx(barrier, ARRAYS * bytes);
            ((copy_ahead<CACHE>(to, matrix + first, bytes, barrier, policy), to += 16 * words), ...);
        } else {
            mbarrier_arrive_expect_tx(barrier, ARRAYS * chunk_bytes<T, S>(cols));
            ((copy_chunks<CACHE, S>(to, matrix + first, cols, barrier, policy), to += 16 * words), ...);
        }
    }

    __device__ __forceinline__ void wait(const Place<S>& place, unsigned stage, unsigned parity) const {
        if (copies(place) && place.cols) mbarrier_wait(barriers + 8 * stage, parity);
    }

    // The row of the matrix that is number `array`.
    __device__ __forceinline__ Row<S> row(const Place<S>& place, unsigned stage, int array, const T* matrix,
                                          float fill = 0.0f) const {
        if (!copies(place)) return place.template load<CACHE>(matrix, fill);
        const uint4* from = slots + (stage * ARRAYS + array) * words + threadIdx.x % S::LANES;
        if constexpr (S::LANES < 32) from += threadIdx.x % 32 / S::LANES * (place.cols / S::WIDTH);
        Row<S> row;
        auto there = [&](int i) {
            Vector<T, S::WIDTH> vector;
            vector.set(from[i * S::LANES]);
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
    static __device__ __forceinline__ bool leads() { return threadIdx.x % unit == 0; }
};

// Fetches the row that takes a stage after the row that is there.
template <class T, class S, int STAGES, int CACHE>
struct More {
    const Ahead<T, S, 1, STAGES, CACHE>& ahead;
    const Turns<S>& turns;
    const Place<S>& place;
    unsigned stage;
    const T* matrix;

    __device__ __forceinline__ void operator()() const { ahead.begin(turns, place, STAGES, stage, matrix); }
};

// f(place, row, turn, more) for each row of `matrix` that the thread's group takes, with `fill` for padding; turn alternates between
// 0 and 1. f calls more() once, behind the first barrier of the row's threads: it fetches the row that takes this one's place in
// shared memory. started() is called once, with the first rows on their way.
template <class T, class S, int STAGES, int CACHE, class Started, class F>
__device__ __forceinline__ void rows_ahead(const Ahead<T, S, 1, STAGES, CACHE>& ahead, Place<S> place, unsigned rows, unsigned cols,
                                           const T* matrix, float fill, Started started, F f) {
    const Turns<S> turns(rows, cols);
#pragma unroll
    for (unsigned i = 0; i < STAGES; i++) ahead.begin(turns, place, i, i, matrix);
    started();
    Ring<STAGES> at;
#pragma unroll 1
    for (unsigned turn = 0; turn < turns.count; turn++) {
        ahead.wait(place, at.stage, at.parity);
        Row<S> row = ahead.row(place, at.stage, 0, matrix, fill);
        f(place, row, turn & 1, More<T, S, STAGES, CACHE>{ahead, turns, place, at.stage, matrix});
        place = turns.later(place, 1);
        at.advance();
    }
}

// COUNT vectors that all rows share, SMEM_VECTORS of each thread's VECTORS vectors of them in shared memory, the others in cache: a cluster
// that takes long rows reads so much of them that L2 would limit it. Dynamic shared memory: COUNT * SMEM_VECTORS * LANES * 16 bytes.
template <class T, class S, int COUNT, int SMEM_VECTORS>
struct Weights {
    static_assert(SMEM_VECTORS <= S::VECTORS, "no more than there are");
    uint4* slots;

    // `where` is the same in all threads.
    __device__ __forceinline__ Weights(uint4* where) : slots(where + threadIdx.x % S::LANES) {}

    // One barrier; `all` is the place in a row that there is.
    template <class... Vectors>
    __device__ __forceinline__ void begin(const Place<S>& all, const Vectors*... vectors) const {
        static_assert(sizeof...(Vectors) == COUNT, "COUNT vectors");
        if constexpr (SMEM_VECTORS > 0) {
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
        apply_each(place, row, f, [](int) {}, vectors...);
    }

    // The same, and stores each vector when it is made: its registers are free then.
    template <int CACHE, class F, class... Vectors>
    __device__ __forceinline__ void store(const Place<S>& place, T* matrix, Row<S>& row, F f, const Vectors*... vectors) const {
        apply_each(place, row, f, [&](int i) { place.template store_vector<CACHE>(matrix, row, i); }, vectors...);
        if (SMEM_VECTORS == 0 || !place.vectors) place.template store<CACHE>(matrix, row);
    }

private:
    // made(i) is called when vector i is made, where rows move in vectors and there are any here.
    template <class F, class Made, class... Vectors>
    __device__ __forceinline__ void apply_each(const Place<S>& place, Row<S>& row, F f, Made made, const Vectors*... vectors) const {
        if constexpr (SMEM_VECTORS > 0) {
            if (place.vectors) {
#pragma unroll
                for (int i = 0; i < S::VECTORS; i++) {
                    if (S::elements >= 64 && i > 0) bar_warp_sync(all_lanes);  // or ptxas loads more ahead than registers hold
                    int number = 0;
                    if (i * S::WIDTH < place.held) combine(row.v[i], f, vector_of(place, i, number++, vectors)...);
                    else combine(row.v[i], f, nothing(vectors)...);
                    made(i);
                }
                return;
            }
        }
        place.apply(row, f, vectors...);
    }

    __device__ __forceinline__ void keep(const Place<S>& all, uint4*& to, const T* from) const {
#pragma unroll
        for (int i = 0; i < SMEM_VECTORS; i++) {
            if (i * S::WIDTH < all.held) {
                to[i * S::LANES] = ld_global(reinterpret_cast<const uint4*>(from + (i * S::threads + all.thread) * S::WIDTH));
            }
        }
        to += SMEM_VECTORS * S::LANES;
    }

    __device__ __forceinline__ Vector<T, S::WIDTH> vector_of(const Place<S>& place, int i, int number, const T* from) const {
        Vector<T, S::WIDTH> vector;
        if (i < SMEM_VECTORS) vector.set(slots[(number * SMEM_VECTORS + i) * S::LANES]);
        else vector.template load<CACHE_KEEP>(from + (i * S::threads + place.thread) * S::WIDTH);
        return vector;
    }

    // In place of a vector past the end.
    static __device__ __forceinline__ Vector<T, S::WIDTH> nothing(const T*) {
        Vector<T, S::WIDTH> vector;
        vector.fill([](int) { return 0.0f; });
        return vector;
    }

    template <class F, class... V>
    static __device__ __forceinline__ void combine(float (&v)[S::WIDTH], F f, const V&... vectors) {
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++) v[j] = f(v[j], vectors[j]...);
    }
};

}  // namespace ptxkit
