// Persistent CTAs, or clusters of them, that prefetch rows: the TMA unit copies the next rows to shared memory while
// one row is computed. Loads, arithmetic and stores then overlap even with few threads per SM, and arrays that all rows
// share (weights) are read once per CTA instead of once per row.
//
// Rows are prefetched only on sm_90 and later, and only where they move in vectors; other rows are loaded when they are
// computed.
#pragma once
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// Tile parameters of a pipelined kernel. Descriptions give them by name (PipelinedTile in
// ptxkit/kernels/rows/row_pipeline.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int CACHE_, int STAGES_, int SMEM_VECTORS_,
          int CTAS_PER_SM_>
struct PipelinedTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int CACHE = CACHE_;    // a Cache of elementwise.cuh
    static constexpr int STAGES = STAGES_;  // rows in flight while one is computed
    // vectors of each weight array that a thread keeps in shared memory
    static constexpr int SMEM_VECTORS = SMEM_VECTORS_;
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    template <class T>
    using Shape = RowShape<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
};

// Calls f(i) for each vector i of a thread that holds columns and without(i) for the others. Threads without padding,
// as in most rows, execute no bounds checks.
template <class S, class F, class Without>
__device__ __forceinline__ void each_vector(const RowLayout<S>& layout, F f, Without without) {
    if (layout.valid == S::elements) {
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) f(i);
    } else {
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < layout.valid) f(i);
            else without(i);
        }
    }
}

// Number of rows that the grid computes at a time.
template <class S>
__device__ __forceinline__ unsigned rows_per_iteration() {
    return gridDim.x / S::CTAS * S::groups;
}

// The iterations of a persistent CTA or cluster over its rows layout.row, layout.row + taken, ..., where the grid
// computes `taken` rows at a time.
template <class S>
struct RowIterations {
    unsigned rows, cols, taken, count;

    __device__ __forceinline__ RowIterations(unsigned rows, unsigned cols)
        : rows(rows), cols(cols), taken(rows_per_iteration<S>()), count((rows - 1) / taken + 1) {}

    // The layout of the row that is `iterations` later, or an empty one past the last row.
    __device__ __forceinline__ RowLayout<S> later(const RowLayout<S>& layout, unsigned iterations) const {
        RowLayout<S> next = layout;
        const unsigned row = layout.row + iterations * taken;
        next.take(row, row < rows ? cols : 0, cols);
        return next;
    }
};

// A bulk copy to shared memory with the L2 policy of CACHE.
template <int CACHE>
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier,
                                          unsigned long long policy) {
    if constexpr (CACHE == CACHE_KEEP || CACHE == CACHE_STREAM) cp_async_bulk_shared_global(to, from, bytes, barrier);
    else cp_async_bulk_shared_global_L2_cache_hint(to, from, bytes, barrier, policy);
}

// Calls f(i, column, bytes) for each contiguous segment of a row that this CTA holds: the whole row for a CTA alone; in
// a cluster, segment i has one vector of each of LANES threads.
template <class T, class S, class F>
__device__ __forceinline__ void each_segment(unsigned cols, F f) {
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

// Total size of these segments in bytes.
template <class T, class S>
__device__ __forceinline__ unsigned segment_bytes(unsigned cols) {
    unsigned bytes = 0;
    each_segment<T, S>(cols, [&](unsigned, unsigned, unsigned size) { bytes += size; });
    return bytes;
}

// Copies the segments of a row to shared memory, where each has a slot of LANES * 16 bytes.
template <int CACHE, class S, class T>
__device__ __forceinline__ void copy_segments(unsigned to, const T* row, unsigned cols, unsigned barrier,
                                              unsigned long long policy) {
    each_segment<T, S>(cols, [&](unsigned i, unsigned column, unsigned size) {
        bulk_copy<CACHE>(to + i * (16 * S::LANES), row + column, size, barrier, policy);
    });
}

// A ring of STAGES stages in shared memory, each with one row of ARRAYS matrices, which the TMA unit fills. TMA is used
// instead of cp.async because an SM's loads and cp.async share a queue with its shared-memory accesses and shuffles; a
// row that waits in that queue delays those. One copy fills the columns of a CTA or, where a warp has several rows, the
// neighbouring rows of the warp.
//
// Dynamic shared memory: STAGES * ARRAYS * THREADS * VECTORS * 16 bytes.
template <class T, class S, int ARRAYS, int STAGES, int CACHE>
struct RowPipeline {
    static constexpr int unit = S::LANES < 32 ? 32 : S::LANES;  // threads whose columns one copy fills
    static constexpr int words = S::VECTORS * unit;             // 16-byte words of an array in a stage
    uint4* slots;                                               // stages of this unit
    unsigned barriers;                                          // its mbarriers, one per stage: the copy is complete

    // Executes one barrier.
    __device__ __forceinline__ RowPipeline() {
        // bulk copies to a less aligned address take up to a fifth longer
        extern __shared__ __align__(128) uint4 ahead_slots[];
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

    // Dynamic shared memory after the stages, for other uses.
    static __device__ __forceinline__ uint4* after_stages() {
        extern __shared__ __align__(128) uint4 ahead_slots[];
        return ahead_slots + STAGES * ARRAYS * S::VECTORS * S::THREADS;
    }

    static __device__ __forceinline__ bool copies(const RowLayout<S>& layout) {
        return PTXKIT_SM >= 90 && layout.vectors;
    }

    // Starts to copy the row that is `later` iterations later, of each matrix, to a stage. A barrier of the unit's
    // threads must lie between their reads of the stage and this call.
    template <class... Matrix>
    __device__ __forceinline__ void begin(const RowIterations<S>& iterations, const RowLayout<S>& layout,
                                          unsigned later, unsigned stage, const Matrix*... matrix) const {
        static_assert(sizeof...(Matrix) == ARRAYS, "a matrix for each array");
        if (!copies(layout)) return;
        const unsigned row = layout.row + later * iterations.taken, rows = iterations.rows, cols = iterations.cols;
        if constexpr (S::warps == 1) bar_warp_sync(all_lanes);
        if (!leads() || row >= rows) return;
        const size_t first = static_cast<size_t>(row) * cols;
        const unsigned barrier = barriers + 8 * stage;
        unsigned to = cvta_to_shared(slots + stage * (ARRAYS * words));
        const unsigned long long policy = load_policy<CACHE>();
        if constexpr (S::CTAS == 1) {
            const unsigned bytes = ::min(unit / S::LANES, rows - row) * cols * static_cast<unsigned>(sizeof(T));
            mbarrier_arrive_expect_tx(barrier, ARRAYS * bytes);
            ((bulk_copy<CACHE>(to, matrix + first, bytes, barrier, policy), to += 16 * words), ...);
        } else {
            mbarrier_arrive_expect_tx(barrier, ARRAYS * segment_bytes<T, S>(cols));
            ((copy_segments<CACHE, S>(to, matrix + first, cols, barrier, policy), to += 16 * words), ...);
        }
    }

    __device__ __forceinline__ void wait(const RowLayout<S>& layout, unsigned stage, unsigned parity) const {
        if (copies(layout) && layout.cols) mbarrier_wait(barriers + 8 * stage, parity);
    }

    // The row of matrix number `array`.
    __device__ __forceinline__ Row<S> row(const RowLayout<S>& layout, unsigned stage, int array, const T* matrix,
                                          float fill = 0.0f) const {
        if (!copies(layout)) return layout.template load<CACHE>(matrix, fill);
        const uint4* from = slots + (stage * ARRAYS + array) * words + threadIdx.x % S::LANES;
        if constexpr (S::LANES < 32) from += threadIdx.x % 32 / S::LANES * (layout.cols / S::WIDTH);
        Row<S> row;
        auto load_vector = [&](int i) {
            Vector<T, S::WIDTH> vector;
            vector.set(from[i * S::LANES]);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
        };
        each_vector(layout, load_vector, [&](int i) {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = fill;
        });
        return row;
    }

private:
    static __device__ __forceinline__ bool leads() { return threadIdx.x % unit == 0; }
};

// Callable that refills a stage after its row has been read.
template <class T, class S, int STAGES, int CACHE>
struct FetchNext {
    const RowPipeline<T, S, 1, STAGES, CACHE>& pipeline;
    const RowIterations<S>& iterations;
    const RowLayout<S>& layout;
    unsigned stage;
    const T* matrix;

    __device__ __forceinline__ void operator()() const { pipeline.begin(iterations, layout, STAGES, stage, matrix); }
};

// Calls f(layout, row, buffer, fetch_next) for each row of `matrix` that the thread's group computes, with `fill` for
// padding; `buffer` alternates between 0 and 1. f must call fetch_next() once, after the first barrier of the row's
// threads: it starts the copy that overwrites this row's stage. started() is called once, when the first copies are in
// flight.
template <class T, class S, int STAGES, int CACHE, class Started, class F>
__device__ __forceinline__ void pipelined_rows(const RowPipeline<T, S, 1, STAGES, CACHE>& pipeline, RowLayout<S> layout,
                                               unsigned rows, unsigned cols, const T* matrix, float fill,
                                               Started started, F f) {
    const RowIterations<S> iterations(rows, cols);
#pragma unroll
    for (unsigned i = 0; i < STAGES; i++) pipeline.begin(iterations, layout, i, i, matrix);
    started();
    Ring<STAGES> at;
#pragma unroll 1
    for (unsigned iteration = 0; iteration < iterations.count; iteration++) {
        pipeline.wait(layout, at.stage, at.parity);
        Row<S> row = pipeline.row(layout, at.stage, 0, matrix, fill);
        f(layout, row, iteration & 1, FetchNext<T, S, STAGES, CACHE>{pipeline, iterations, layout, at.stage, matrix});
        layout = iterations.later(layout, 1);
        at.advance();
    }
}

// COUNT arrays that all rows share, such as weights. Of each thread's VECTORS vectors, SMEM_VECTORS stay in shared
// memory; the others are read through the caches. Clusters with long rows would otherwise be limited by L2 bandwidth
// for the weights.
//
// Dynamic shared memory: COUNT * SMEM_VECTORS * LANES * 16 bytes.
template <class T, class S, int COUNT, int SMEM_VECTORS>
struct Weights {
    static_assert(SMEM_VECTORS <= S::VECTORS, "shared memory holds at most all vectors of a thread");
    uint4* slots;

    // `where` is the same for all threads.
    __device__ __forceinline__ Weights(uint4* where) : slots(where + threadIdx.x % S::LANES) {}

    // Loads the arrays to shared memory and executes one barrier. `all` is the layout of a valid row, which all have in common.
    template <class... Vectors>
    __device__ __forceinline__ void begin(const RowLayout<S>& all, const Vectors*... vectors) const {
        static_assert(sizeof...(Vectors) == COUNT, "COUNT vectors");
        if constexpr (SMEM_VECTORS > 0) {
            if (all.vectors && threadIdx.x < S::LANES) {
                uint4* to = slots;
                (keep(all, to, vectors), ...);
            }
            barrier_sync();
        }
    }

    // Replaces each column v by f(v, w...), where w are the columns of the arrays.
    template <class F, class... Vectors>
    __device__ __forceinline__ void apply(const RowLayout<S>& layout, Row<S>& row, F f,
                                          const Vectors*... vectors) const {
        apply_each(layout, row, f, [](int) {}, vectors...);
    }

    // The same, and stores each vector as soon as it is computed, which frees its registers.
    template <int CACHE, class F, class... Vectors>
    __device__ __forceinline__ void store(const RowLayout<S>& layout, T* matrix, Row<S>& row, F f,
                                          const Vectors*... vectors) const {
        apply_each(layout, row, f, [&](int i) { layout.template store_vector<CACHE>(matrix, row, i); }, vectors...);
        if (SMEM_VECTORS == 0 || !layout.vectors) layout.template store<CACHE>(matrix, row);
    }

private:
    // Calls made(i) when vector i is computed, in rows that move in vectors, if SMEM_VECTORS > 0.
    template <class F, class Made, class... Vectors>
    __device__ __forceinline__ void apply_each(const RowLayout<S>& layout, Row<S>& row, F f, Made made,
                                               const Vectors*... vectors) const {
        if constexpr (SMEM_VECTORS > 0) {
            if (layout.vectors) {
#pragma unroll
                for (int i = 0; i < S::VECTORS; i++) {
                    // limits how many loads ptxas hoists, so that registers do not spill
                    if (S::elements >= 64 && i > 0) bar_warp_sync(all_lanes);
                    int number = 0;
                    if (i * S::WIDTH < layout.valid) combine(row.v[i], f, vector_of(layout, i, number++, vectors)...);
                    else combine(row.v[i], f, nothing(vectors)...);
                    made(i);
                }
                return;
            }
        }
        layout.apply(row, f, vectors...);
    }

    __device__ __forceinline__ void keep(const RowLayout<S>& all, uint4*& to, const T* from) const {
#pragma unroll
        for (int i = 0; i < SMEM_VECTORS; i++) {
            if (i * S::WIDTH < all.valid) {
                to[i * S::LANES] =
                    ld_global(reinterpret_cast<const uint4*>(from + (i * S::threads + all.thread) * S::WIDTH));
            }
        }
        to += SMEM_VECTORS * S::LANES;
    }

    __device__ __forceinline__ Vector<T, S::WIDTH> vector_of(const RowLayout<S>& layout, int i, int number,
                                                             const T* from) const {
        Vector<T, S::WIDTH> vector;
        if (i < SMEM_VECTORS) vector.set(slots[(number * SMEM_VECTORS + i) * S::LANES]);
        else vector.template load<CACHE_KEEP>(from + (i * S::threads + layout.thread) * S::WIDTH);
        return vector;
    }

    // Stands for a vector past the end of the row.
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
