// Rows of a matrix held in registers: the mapping of a row's columns to threads (RowLayout), loads and stores of any
// width and alignment, and the exchange of partial results between the warps of a row (RowRecords). A kernel that
// reduces rows then reads as its algorithm:
//
//     RowLayout<Shape> layout(rows, cols, aligned16(x, y));
//     Row<Shape> row = layout.template load<CACHE>(x);
//     float factor = 1 / row_sum(row.sum([](float v, int) { return v; }), slots);
//     row.each([&](float& v, int) { v *= factor; });
//     layout.template store<CACHE>(y, row);
//
// Invariant: threads past the last row do not return early. They continue with an empty row (cols == 0), because other
// threads of their warp or CTA wait for them in shuffles and barriers.
#pragma once
#include "ptxkit/elementwise/elementwise.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/rows/reduce.cuh"
#include "ptxkit/target.cuh"

namespace ptxkit {

// How many threads and registers hold a row: LANES threads in each of CTAS CTAs, with VECTORS vectors of WIDTH columns
// per thread. Short rows share a CTA, THREADS / LANES of them; a long row is held by a cluster.
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int WIDTH_>
struct RowShape {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_, WIDTH = WIDTH_;
    static constexpr int groups = THREADS / LANES;                             // rows of a CTA
    static constexpr int threads = LANES * CTAS;                               // threads of a row
    static constexpr int elements = VECTORS * WIDTH;                           // columns of a thread
    static constexpr int capacity = threads * elements;                        // columns of a row, at most
    static constexpr int lanes = LANES < 32 ? LANES : 32;                      // lanes of a warp that hold the same row
    static constexpr int cta_warps = LANES / lanes, warps = cta_warps * CTAS;  // warps of a row
    static constexpr bool whole_cta = true;                                    // all threads of the CTA hold rows
    static_assert((LANES & (LANES - 1)) == 0 && (CTAS & (CTAS - 1)) == 0, "LANES and CTAS are powers of two");
    static_assert(THREADS % LANES == 0 && (groups <= 16 || LANES <= 32),
                  "a group of several warps needs one of 16 barriers");
    static_assert(CTAS == 1 || groups == 1, "a cluster takes one row at a time");
};

// Rows held by the first THREADS threads of a CTA whose other warps do something else, such as loading rows.
template <int THREADS, int LANES, int VECTORS, int CTAS, int WIDTH>
struct ConsumerRowShape : RowShape<THREADS, LANES, VECTORS, CTAS, WIDTH> {
    static constexpr bool whole_cta = false;
};

// Tile parameters of a vectorized kernel, which holds rows in registers. Descriptions give them by name (VectorizedTile
// in ptxkit/kernels/rows/rows.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int CACHE_, bool PREFETCH_WEIGHTS_, bool NO_EARLY_LAUNCH_,
          bool FULL_TILE_>
struct VectorizedTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int CACHE = CACHE_;                         // a Cache of elementwise.cuh
    static constexpr bool PREFETCH_WEIGHTS = PREFETCH_WEIGHTS_;  // load the weights before the row's sums are known
    static constexpr bool NO_EARLY_LAUNCH = NO_EARLY_LAUNCH_;    // of the next grid: see follow_previous_grid
    static constexpr bool FULL_TILE = FULL_TILE_;                // each register of the CTA or cluster holds a column
    template <class T>
    using Shape = RowShape<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
};

// The minimum of resident CTAs for __launch_bounds__, from ROWS registers for each column that a thread holds and
// BESIDE more. Without it the compiler takes more registers, and fewer loads are in flight.
template <class T, class Tile, int ROWS, int BESIDE = 32>
constexpr int row_ctas =
    TargetLimits::REGISTERS_PER_SM / (Tile::THREADS * (ROWS * Tile::VECTORS * vector_width<T> + BESIDE));

// ---------------------------------------------------------------------------------------------------------------------
// Exchange of partial results between the warps of a row

// Shared memory for one record per warp of a row, at the same address in every CTA of a cluster. A kernel that
// exchanges records more than once alternates between buffers 0 to BUFFERS - 1: a buffer may be reused after one
// exchange through another buffer, because the barrier of that exchange orders all reads of this one.
template <class Record, class S, int BUFFERS = 1>
struct RowRecords {
    using Shape = S;
    // one level: every warp sends to every CTA; compare ClusterRecords in tile_scheduler.cuh
    static constexpr bool two_level = false;
    static constexpr int words = sizeof(Record) / 4;
    Record slots[BUFFERS][S::lanes < 32 ? 1 : S::groups][S::warps];

    // Publishes the caller's record and returns the records of all warps of its row, in column order. Executes one
    // barrier.
    __device__ __forceinline__ const Record* gather(Record mine, unsigned buffer = 0) {
        const unsigned group = threadIdx.x / S::LANES, warp = threadIdx.x / 32 % S::cta_warps;
        Record* all = slots[buffer][S::groups == 1 ? 0 : group];
        if constexpr (S::CTAS > 1) {
            if (laneid() < S::CTAS) {
                Record* own = &all[cluster_ctarank() * S::cta_warps + warp];
                unsigned slot = mapa_shared_cluster(cvta_to_shared(own), laneid());
                float word[words];
                memcpy(word, &mine, sizeof(Record));
#pragma unroll
                for (int i = 0; i < words; i++) st_shared_cluster(slot + 4 * i, word[i]);
            }
            barrier_cluster_arrive_release();
            barrier_cluster_wait_acquire();
        } else {
            if (laneid() == 0) all[warp] = mine;
            if constexpr (S::groups == 1 && S::whole_cta) barrier_sync();
            else barrier_sync_below<S::groups>(group, S::LANES);
        }
        return all;
    }
};

// A CTA may write to the shared memory of another CTA only after that CTA has started. row_arrive is called early and
// row_wait before the first exchange, so that the wait is short.
template <class S, bool NO_EARLY_LAUNCH = false>
__device__ __forceinline__ void row_arrive() {
    follow_previous_grid<NO_EARLY_LAUNCH>();
    if constexpr (S::CTAS > 1) barrier_cluster_arrive_relaxed();
}

template <class S>
__device__ __forceinline__ void row_wait() {
    if constexpr (S::CTAS > 1) barrier_cluster_wait_acquire();
}

// Sum, or maximum, of f(i) for i below COUNT, a power of two. Whole warps call it, and every lane gets the same bits.

template <int COUNT, class F>
__device__ __forceinline__ auto sum_below(F f) {
    if constexpr (COUNT <= 32) return warp_sum<COUNT>(f(laneid() & (COUNT - 1)));
    auto total = f(laneid());
#pragma unroll
    for (unsigned i = 32; i < COUNT; i += 32) total += f(laneid() + i);
    return warp_sum<32>(total);
}

template <int COUNT, class F>
__device__ __forceinline__ float max_below(F f) {
    if constexpr (COUNT <= 32) return warp_max<COUNT>(f(laneid() & (COUNT - 1)));
    float largest = f(laneid());
#pragma unroll
    for (unsigned i = 32; i < COUNT; i += 32) largest = fmaxf(largest, f(laneid() + i));
    return warp_max<32>(largest);
}

// Sum, or maximum, over all threads of a row.

template <class T, class S, int BUFFERS>
__device__ __forceinline__ T row_sum(T value, RowRecords<T, S, BUFFERS>& slots, unsigned buffer = 0) {
    value = warp_sum<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const T* all = slots.gather(value, buffer);
    return sum_below<S::warps>([&](unsigned i) { return all[i]; });
}

template <class S, int BUFFERS>
__device__ __forceinline__ float row_max(float value, RowRecords<float, S, BUFFERS>& slots, unsigned buffer = 0) {
    value = warp_max<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const float* all = slots.gather(value, buffer);
    return max_below<S::warps>([&](unsigned i) { return all[i]; });
}

// Whether `value` is true for any row of the warp. Rows with fewer than 32 lanes share shuffles, so all rows of a warp
// must take the same branch.
template <class S>
__device__ __forceinline__ bool any_row(bool value) {
    return S::LANES < 32 ? vote_sync_any(all_lanes, value) : value;
}

// ---------------------------------------------------------------------------------------------------------------------
// Registers

// The columns of a row that one thread holds, in f32.
template <class S>
struct Row {
    float v[S::VECTORS][S::WIDTH];

    // Calls f(value, k) for each value of the thread, k = 0, 1, ...
    template <class F>
    __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (int k = 0; k < S::elements; k++) f(v[k / S::WIDTH][k % S::WIDTH], k);
    }
    template <class F>
    __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (int k = 0; k < S::elements; k++) f(v[k / S::WIDTH][k % S::WIDTH], k);
    }

    __device__ __forceinline__ float operator[](int k) const { return v[k / S::WIDTH][k % S::WIDTH]; }

    // Sum of f(value, k) as T. Four independent accumulators keep four additions in flight and shorten the chains in
    // which rounding errors of equal values add up.
    template <class T = float, class F>
    __device__ __forceinline__ T sum(F f) const {
        T part[4] = {};
#pragma unroll
        for (int k = 0; k < S::elements; k++) {
            const T term = f(v[k / S::WIDTH][k % S::WIDTH], k);
            part[k % 4] = k < 4 ? term : part[k % 4] + term;
        }
        return (part[0] + part[1]) + (part[2] + part[3]);
    }

    // Maximum of f(value, k). NaN is ignored.
    template <class F>
    __device__ __forceinline__ float max(F f) const {
        float part[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
#pragma unroll
        for (int k = 0; k < S::elements; k++) part[k % 4] = fmaxf(part[k % 4], f(v[k / S::WIDTH][k % S::WIDTH], k));
        return fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
};

// An array that all rows share (weights), of which a thread has started to load its first COUNT vectors.
template <class S, int COUNT, class T>
struct PrefetchedVector {
    static constexpr int count = COUNT < S::VECTORS ? COUNT : S::VECTORS;
    const T* from;
    Vector<T, S::WIDTH> vectors[count];
};

// The mapping of a row's columns to the registers of its threads.
//
// With `vectors`, register k is element k % WIDTH of the thread's (k / WIDTH)-th vector, and the row moves in vector
// accesses. A row with an unaligned start, or whose number of columns is not a multiple of WIDTH, is accessed by single
// columns: register k is then column k * threads + thread, so that the accesses of a warp still coalesce. In both cases
// the registers below `valid` hold columns and the others are padding.
template <class S>
struct RowLayout {
    unsigned row, cols;  // cols is 0 past the last row
    unsigned thread;     // index among the threads of the row
    size_t first;        // index of the row's first element in the matrix
    bool vectors;
    int valid;

    __device__ __forceinline__ RowLayout(unsigned rows, unsigned columns, bool aligned) {
        row = blockIdx.x / S::CTAS * S::groups + threadIdx.x / S::LANES;
        thread = (S::CTAS > 1 ? cluster_ctarank() * S::LANES : 0) + threadIdx.x % S::LANES;
        vectors = aligned && columns % S::WIDTH == 0;
        take(row, row < rows ? columns : 0, columns);
    }

    // Moves to another row.
    __device__ __forceinline__ void take(unsigned new_row, unsigned new_cols, unsigned stride) {
        row = new_row;
        cols = new_cols;
        first = static_cast<size_t>(row) * stride;
        valid = valid_of(cols);
    }

    // The layout of a row of `columns` columns, also for a thread that is past the last row.
    __device__ __forceinline__ RowLayout any(unsigned columns) const {
        RowLayout layout = *this;
        layout.take(0, columns, columns);
        return layout;
    }

    // Tells the compiler what the launch guarantees with FULL_TILE: every register of every thread holds a column.
    __device__ __forceinline__ void assume_full_tile() { cols = S::capacity, valid = S::elements; }

    // The layout of the chunk of a longer row that begins at column `begin` and has at most S::capacity columns.
    __device__ __forceinline__ RowLayout chunk(unsigned begin) const {
        RowLayout layout = *this;
        layout.cols = begin < cols ? cols - begin : 0;
        layout.first += begin;
        layout.valid = valid_of(layout.cols);
        return layout;
    }

    // The column of register k. It is past the end of the row for padding.
    __device__ __forceinline__ unsigned column(int k) const {
        return vectors ? (k / S::WIDTH * S::threads + thread) * S::WIDTH + k % S::WIDTH : k * S::threads + thread;
    }

    // Number of columns that warp `warp` of the row holds (with several rows per warp, the lanes of this row), and that
    // CTA `cta` holds.
    __device__ __forceinline__ float warp_columns(unsigned warp) const { return columns_of<S::lanes>(warp); }
    __device__ __forceinline__ float cta_columns(unsigned cta) const { return columns_of<S::LANES>(cta); }

    // Loads a row of a matrix, with `fill` for padding.
    template <int CACHE, class T>
    __device__ __forceinline__ Row<S> load(const T* matrix, float fill = 0.0f) const {
        return load_row<CACHE>(matrix + first, fill);
    }

    // Sets padding to `value`. Threads without padding execute one comparison.
    __device__ __forceinline__ void pad(Row<S>& row, float value) const {
        if (valid < S::elements) row.each([&](float& v, int k) { v = k < valid ? v : value; });
    }

    // Loads a row of two matrices and combines them by f, with `fill` for padding of both.
    template <int CACHE, class T, class F>
    __device__ __forceinline__ Row<S> load_with(const T* matrix, const T* other, F f, float fill) const {
        // vectors in flight at a time; more would not fit in registers beside the result
        constexpr int batch = S::VECTORS < 4 ? S::VECTORS : 4;
        const T *one = matrix + first, *two = other + first;
        Row<S> row;
        if (vectors) {
#pragma unroll
            for (int b = 0; b < S::VECTORS; b += batch) {
                Vector<T, S::WIDTH> left[batch], right[batch];
#pragma unroll
                for (int i = 0; i < batch; i++) {
                    left[i].fill([&](int) { return fill; });
                    right[i].fill([&](int) { return fill; });
                    const int offset = (b + i) * S::threads * S::WIDTH;
                    if ((b + i) * S::WIDTH < valid) {
                        left[i].template load<CACHE>(one + thread * S::WIDTH + offset);
                        right[i].template load<CACHE>(two + thread * S::WIDTH + offset);
                    }
                }
#pragma unroll
                for (int k = 0; k < batch * S::WIDTH; k++) {
                    const int i = k / S::WIDTH, j = k % S::WIDTH;
                    row.v[b + i][j] = f(left[i][j], right[i][j]);
                }
            }
        } else {
            row.each([&](float& v, int k) {
                v = k < valid ? f(to_f32((one + thread)[k * S::threads]), to_f32((two + thread)[k * S::threads]))
                              : f(fill, fill);
            });
        }
        return row;
    }

    // Loads the columns of an array that all rows share, such as weights or bias. L1 keeps it.
    template <class T>
    __device__ __forceinline__ Row<S> load_shared(const T* vector, unsigned begin = 0) const {
        return load_row<CACHE_KEEP>(vector + begin, 0.0f);
    }

    template <int CACHE, class T>
    __device__ __forceinline__ void store(T* matrix, const Row<S>& row) const {
        T* to = matrix + first + thread * (vectors ? S::WIDTH : 1);
        if (vectors) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                Vector<T, S::WIDTH> vector;
                vector.fill([&](int j) { return row.v[i][j]; });
                if (i * S::WIDTH < valid) vector.template store<CACHE>(to + i * S::threads * S::WIDTH);
            }
        } else {
#pragma unroll
            for (int k = 0; k < S::elements; k++) {
                if (k < valid) to[k * S::threads] = Convert<T>::from_f32(row[k]);
            }
        }
    }

    // Stores vector i of the thread, in rows that move in vectors.
    template <int CACHE, class T>
    __device__ __forceinline__ void store_vector(T* matrix, const Row<S>& row, int i) const {
        Vector<T, S::WIDTH> vector;
        vector.fill([&](int j) { return row.v[i][j]; });
        if (i * S::WIDTH < valid) vector.template store<CACHE>(matrix + first + (i * S::threads + thread) * S::WIDTH);
    }

    // Starts to load the first COUNT vectors of an array that all rows share.
    template <int COUNT, class T>
    __device__ __forceinline__ PrefetchedVector<S, COUNT, T> prefetch_shared(const T* from) const {
        PrefetchedVector<S, COUNT, T> prefetched;
        prefetched.from = from;
        if (whole()) {
#pragma unroll
            for (int i = 0; i < prefetched.count; i++) {
                prefetched.vectors[i].template load<CACHE_KEEP>(from + (i * S::threads + thread) * S::WIDTH);
            }
        }
        return prefetched;
    }

    // Replaces each column v by f(v, w...), where w are the columns of arrays that all rows share. These are loaded
    // vector by vector, from L1: whole rows of them would take registers, and fewer CTAs would be resident.
    template <class F, class... T>
    __device__ __forceinline__ void apply(Row<S>& row, F f, const T*... shared) const {
        if (vectors) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, load_piece<true>(shared, i)...);
        } else {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, load_piece<false>(shared, i)...);
        }
    }

    // The same with prefetched arrays. Threads without padding, as in most rows, execute no bounds checks.
    template <class F, int COUNT, class... T>
    __device__ __forceinline__ void apply(Row<S>& row, F f, const PrefetchedVector<S, COUNT, T>&... shared) const {
        if (!whole()) return apply(row, f, shared.from...);
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, piece_of(shared, i)...);
    }

private:
    // Number of columns held by the COUNT consecutive threads of the row that begin with thread COUNT * which.
    template <int COUNT>
    __device__ __forceinline__ float columns_of(unsigned which) const {
        const unsigned units = vectors ? cols / S::WIDTH : cols, whole = units / S::threads;
        const int rest = static_cast<int>(units % S::threads - which * COUNT);
        const unsigned mine = whole * COUNT + ::max(0, ::min(rest, COUNT));
        return static_cast<float>(vectors ? mine * S::WIDTH : mine);
    }

    // Number of registers of this thread that hold columns, of a row of `columns` columns.
    __device__ __forceinline__ int valid_of(unsigned columns) const {
        const unsigned width = vectors ? S::WIDTH : 1, units = columns / width;
        const unsigned mine = units > thread ? (units - thread - 1) / S::threads + 1 : 0;
        return ::min(mine * width, static_cast<unsigned>(S::elements));
    }

    // Whether the row moves in vectors and this thread has no padding.
    __device__ __forceinline__ bool whole() const { return vectors && valid == S::elements; }

    // Limits how many loads of shared arrays ptxas hoists: with few registers left it would otherwise spill. No load
    // moves across the warp barrier.
    static __device__ __forceinline__ void pause(int i) {
        if (S::elements >= 64 && i > 0 && i % (S::VECTORS / 4) == 0) bar_warp_sync(all_lanes);
    }

    // Vector i of an array that all rows share, as f32.
    struct Piece {
        float v[S::WIDTH];

        template <class T>
        __device__ __forceinline__ void set(const Vector<T, S::WIDTH>& vector) {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) v[j] = vector[j];
        }
    };

    // Vector i of a prefetched array that all rows share, for a thread without padding.
    template <int COUNT, class T>
    __device__ __forceinline__ Piece piece_of(const PrefetchedVector<S, COUNT, T>& shared, int i) const {
        Vector<T, S::WIDTH> vector = shared.vectors[i < shared.count ? i : 0];
        if (i >= shared.count) vector.template load<CACHE_KEEP>(shared.from + (i * S::threads + thread) * S::WIDTH);
        Piece piece;
        piece.set(vector);
        return piece;
    }

    template <bool WHOLE, class T>
    __device__ __forceinline__ Piece load_piece(const T* from, int i) const {
        Piece piece;
        if constexpr (WHOLE) {
            Vector<T, S::WIDTH> vector;
            vector.fill([](int) { return 0.0f; });
            if (i * S::WIDTH < valid)
                vector.template load<CACHE_KEEP>(from + thread * S::WIDTH + i * S::threads * S::WIDTH);
            piece.set(vector);
        } else {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                const int k = i * S::WIDTH + j;
                piece.v[j] = k < valid ? to_f32((from + thread)[k * S::threads]) : 0.0f;
            }
        }
        return piece;
    }

    template <class F, class... Pieces>
    static __device__ __forceinline__ void combine(float (&v)[S::WIDTH], F f, const Pieces&... pieces) {
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++) v[j] = f(v[j], pieces.v[j]...);
    }

    template <int CACHE, class T>
    __device__ __forceinline__ Row<S> load_row(const T* from, float fill) const {
        Row<S> values;
        if (vectors) {
            Vector<T, S::WIDTH> vector[S::VECTORS];
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                vector[i].fill([&](int) { return fill; });
                if (i * S::WIDTH < valid)
                    vector[i].template load<CACHE>(from + thread * S::WIDTH + i * S::threads * S::WIDTH);
            }
            values.each([&](float& v, int k) { v = vector[k / S::WIDTH][k % S::WIDTH]; });
        } else {
            values.each([&](float& v, int k) { v = k < valid ? to_f32((from + thread)[k * S::threads]) : fill; });
        }
        return values;
    }
};

// Calls run(layout). With FULL_TILE, rows that move in vectors get a copy of the code without bounds checks.
template <bool FULL_TILE, class S, class F>
__device__ __forceinline__ void with_layout(RowLayout<S> layout, F run) {
    if constexpr (FULL_TILE) {
        layout.assume_full_tile();
        if (layout.vectors) {
            layout.vectors = true;  // a constant from here on
            return run(layout);
        }
        layout.vectors = false;
    }
    run(layout);
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows in chunks, for rows that no cluster's registers hold; and rows by single columns, one CTA per row

// Calls f(begin) for each chunk of S::capacity columns, in ascending order and, in backward_chunks, in descending
// order: the second pass then begins with the columns that L2 read last.

template <class S, class F>
__device__ __forceinline__ void forward_chunks(unsigned cols, F f) {
    for (size_t begin = 0; begin < cols; begin += S::capacity) f(static_cast<unsigned>(begin));
}

template <class S, class F>
__device__ __forceinline__ void backward_chunks(unsigned cols, F f) {
    for (unsigned part = (cols - 1) / S::capacity + 1; part > 0; part--) f((part - 1) * S::capacity);
}

// A row that is read several times in chunks. With STAGED, a thread's columns stay in dynamic shared memory, in slots
// that no other thread reads: device memory is read once, and no barrier is needed. Rows that move in vectors get there
// by cp.async, all chunks at once and without passing through registers. Without STAGED, columns are loaded again from
// global memory.
//
// Dynamic shared memory: cdiv(cols, S::capacity) * S::LANES * S::elements * sizeof(T) bytes.
template <class T, class S, bool STAGED>
struct Staged {
    static constexpr int words = S::WIDTH * static_cast<int>(sizeof(T)) / 16;  // 128-bit words of a vector
    uint4* slots;

    __device__ __forceinline__ Staged() {
        extern __shared__ uint4 staged_slots[];
        slots = staged_slots + threadIdx.x;
    }

    // Whether cp.async copies the columns.
    static __device__ __forceinline__ bool copies(const RowLayout<S>& layout) {
        return STAGED && PTXKIT_SM >= 80 && layout.vectors;
    }

    // Starts to copy a row, with one cp.async group per chunk.
    __device__ __forceinline__ void begin(const RowLayout<S>& layout, const T* matrix) const {
        if (!copies(layout)) return;
        for (size_t begin = 0; begin < layout.cols; begin += S::capacity) {
            const RowLayout<S> chunk = layout.chunk(begin);
            const T* from = matrix + chunk.first + chunk.thread * S::WIDTH;
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                if (i * S::WIDTH < chunk.valid) {
                    cp_async_cg_shared_global(cvta_to_shared(slot(begin, i)), from + i * S::threads * S::WIDTH);
                }
            }
            cp_async_commit_group();
        }
    }

    // The chunk that begins at column `begin`, on the first pass, in which chunks are read in ascending order.
    template <int CACHE>
    __device__ __forceinline__ Row<S> first(const RowLayout<S>& chunk, unsigned begin, const T* matrix,
                                            float fill = 0.0f) const {
        if (copies(chunk)) {
            wait<6>((chunk.cols - 1) / S::capacity);
            return kept(chunk, begin, fill);
        }
        const Row<S> row = chunk.template load<CACHE>(matrix, fill);
        keep(begin, row);
        return row;
    }

    // The same chunk on a later pass.
    template <int CACHE>
    __device__ __forceinline__ Row<S> again(const RowLayout<S>& chunk, unsigned begin, const T* matrix,
                                            float fill = 0.0f) const {
        if constexpr (STAGED) return kept(chunk, begin, fill);
        else return chunk.template load<CACHE>(matrix, fill);
    }

    // Stores computed columns for later passes. T must represent them exactly.
    __device__ __forceinline__ void keep(unsigned begin, const Row<S>& row) const {
        if constexpr (STAGED) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                Vector<T, S::WIDTH> vector;
                vector.fill([&](int j) { return row.v[i][j]; });
#pragma unroll
                for (int w = 0; w < words; w++)
                    slot(begin, i)[w * S::LANES] = reinterpret_cast<const uint4*>(vector.word)[w];
            }
        }
    }

    __device__ __forceinline__ Row<S> kept(const RowLayout<S>& chunk, unsigned begin, float fill) const {
        Row<S> row;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            Vector<T, S::WIDTH> vector;
            vector.fill([&](int) { return fill; });
            if (!copies(chunk) || i * S::WIDTH < chunk.valid) {
#pragma unroll
                for (int w = 0; w < words; w++) {
                    const uint4 word = slot(begin, i)[w * S::LANES];
                    vector.word[4 * w] = word.x, vector.word[4 * w + 1] = word.y;
                    vector.word[4 * w + 2] = word.z, vector.word[4 * w + 3] = word.w;
                }
            }
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
        }
        return row;
    }

private:
    __device__ __forceinline__ uint4* slot(size_t begin, int i) const {
        return slots + (begin / S::capacity * S::VECTORS + i) * (words * S::LANES);
    }

    // Waits until at most `pending` of the latest cp.async groups are incomplete. The instruction takes a constant, so
    // larger values wait for more.
    template <int PENDING>
    __device__ __forceinline__ void wait(unsigned pending) const {
        if constexpr (PENDING > 0) {
            if (pending < PENDING) return wait<PENDING - 1>(pending);
        }
        cp_async_wait_group<PENDING>();
    }
};

// Calls f(c) for the columns c of this thread, the same columns in each call.
template <int THREADS, class F>
__device__ __forceinline__ void each_column(unsigned cols, F f) {
#pragma unroll 4
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) f(c);
}

// Maximum, or f64 sum, of f(c) over the columns of the CTA's row. Each call has a lambda of its own type, and therefore
// shared memory of its own.

template <int THREADS, class F>
__device__ __forceinline__ float column_max(unsigned cols, F f) {
    __shared__ CtaSlots<float, THREADS / 32> slots;
    float largest = -infinity();
    each_column<THREADS>(cols, [&](unsigned c) { largest = fmaxf(largest, f(c)); });
    return cta_max<THREADS>(largest, slots);
}

template <int THREADS, class F>
__device__ __forceinline__ double column_sum(unsigned cols, F f) {
    __shared__ CtaSlots<double, THREADS / 32> slots;
    double sum = 0;
    each_column<THREADS>(cols, [&](unsigned c) { sum += f(c); });
    return cta_sum<THREADS>(sum, slots);
}

// Calls f(row, c) with THREADS * ELEMENTS columns per CTA. A row takes cdiv(cols, THREADS * ELEMENTS) consecutive CTAs.
template <int THREADS, int ELEMENTS, class F>
__device__ __forceinline__ void each_element(unsigned cols, F f) {
    const unsigned ctas_per_row = (cols - 1) / (THREADS * ELEMENTS) + 1;
    const unsigned row = blockIdx.x / ctas_per_row;
    const unsigned first = blockIdx.x % ctas_per_row * (THREADS * ELEMENTS) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ELEMENTS; k++) {
        unsigned c = first + k * THREADS;
        if (c < cols) f(row, c);
    }
}

}  // namespace ptxkit
