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
//
// With LANES 0, all threads of a CTA hold one row, and the launch determines their number: a multiple of 32, at most
// THREADS. One program then serves rows of many lengths without idle warps. The constants are maxima in that case; the
// functions return the numbers of the launch.
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int WIDTH_>
struct RowShape {
    static constexpr bool any_threads = LANES_ == 0;
    static constexpr int THREADS = THREADS_, LANES = any_threads ? THREADS_ : LANES_;
    static constexpr int VECTORS = VECTORS_, CTAS = CTAS_, WIDTH = WIDTH_;
    static constexpr int groups = THREADS / LANES;                             // rows of a CTA
    static constexpr int threads = LANES * CTAS;                               // threads of a row
    static constexpr int elements = VECTORS * WIDTH;                           // columns of a thread
    static constexpr int capacity = threads * elements;                        // columns of a row, at most
    static constexpr int lanes = LANES < 32 ? LANES : 32;                      // lanes of a warp that hold the same row
    static constexpr int cta_warps = LANES / lanes, warps = cta_warps * CTAS;  // warps of a row
    static constexpr bool whole_cta = true;                                    // all threads of the CTA hold rows
    static constexpr bool shifts = false;                                      // see ShiftedRowShape
    static_assert((LANES & (LANES - 1)) == 0 && (CTAS & (CTAS - 1)) == 0, "LANES and CTAS are powers of two");
    static_assert(THREADS % LANES == 0 && (groups <= 16 || LANES <= 32),
                  "a group of several warps needs one of 16 barriers");
    static_assert(CTAS == 1 || groups == 1, "a cluster takes one row at a time");

    static __device__ __forceinline__ unsigned launched_lanes() { return any_threads ? blockDim.x : LANES; }
    static __device__ __forceinline__ unsigned launched_threads() { return launched_lanes() * CTAS; }
    static __device__ __forceinline__ unsigned launched_cta_warps() {
        return any_threads ? launched_lanes() / lanes : cta_warps;
    }
    static __device__ __forceinline__ unsigned launched_warps() { return launched_cta_warps() * CTAS; }
};

// Rows that move in vectors although they begin between two vectors, because their number of columns is not a multiple
// of WIDTH: see RowLayout.
template <int THREADS, int LANES, int VECTORS, int CTAS, int WIDTH>
struct ShiftedRowShape : RowShape<THREADS, LANES, VECTORS, CTAS, WIDTH> {
    static constexpr bool shifts = true;
};

// Rows held by the first THREADS threads of a CTA whose other warps do something else, such as loading rows.
template <int THREADS, int LANES, int VECTORS, int CTAS, int WIDTH>
struct ConsumerRowShape : RowShape<THREADS, LANES, VECTORS, CTAS, WIDTH> {
    static constexpr bool whole_cta = false;
};

// One of two types.
template <bool FIRST, class A, class B>
struct Chosen {
    using type = A;
};
template <class A, class B>
struct Chosen<false, A, B> {
    using type = B;
};

// Tile parameters of a vectorized kernel, which holds rows in registers. Descriptions give them by name (VectorizedTile
// in ptxkit/kernels/rows/rows.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int CACHE_, bool PREFETCH_WEIGHTS_, bool NO_EARLY_LAUNCH_,
          bool FULL_TILE_, bool SHIFTED_, int WIDTH_, bool PREFETCH_L2_>
struct VectorizedTile {
    static constexpr int THREADS = THREADS_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int LANES = LANES_ ? LANES_ : THREADS_;
    static constexpr int ADDRESSES = (LANES_ ? 0 : 12) + (SHIFTED_ ? 8 : 0);  // registers for them, beside those of aligned rows
    static constexpr int CACHE = CACHE_;                         // a Cache of elementwise.cuh
    static constexpr bool PREFETCH_WEIGHTS = PREFETCH_WEIGHTS_;  // load the weights before the row's sums are known
    static constexpr bool NO_EARLY_LAUNCH = NO_EARLY_LAUNCH_;    // of the next grid: see follow_previous_grid
    static constexpr bool FULL_TILE = FULL_TILE_;                // each register of the CTA or cluster holds a column
    static constexpr bool SHIFTED = SHIFTED_;                    // rows begin between two vectors: ShiftedRowShape
    static constexpr int WIDTH = WIDTH_;                         // columns of an access
    static constexpr bool PREFETCH_L2 = PREFETCH_L2_;            // request rows and weights before the previous grid has ended
    template <class T>
    using Shape = typename Chosen<SHIFTED, ShiftedRowShape<THREADS, LANES_, VECTORS, CTAS, WIDTH>,
                                  RowShape<THREADS, LANES_, VECTORS, CTAS, WIDTH>>::type;
};

// The minimum of resident CTAs for __launch_bounds__, from ROWS registers for each column that a thread holds and
// BESIDE more, and a few for addresses. Without it the compiler takes more registers, and fewer
// loads are in flight.
template <class T, class Tile, int ROWS, int BESIDE>
struct RowCtas {
    static constexpr int registers = ROWS * Tile::VECTORS * Tile::WIDTH + BESIDE + Tile::ADDRESSES;
    static constexpr int ctas = TargetLimits::REGISTERS_PER_SM / (Tile::THREADS * registers);
    static constexpr int value = ctas < 16 ? ctas : 16;  // every target has that many slots for CTAs
};
template <class T, class Tile, int ROWS, int BESIDE = 36>
constexpr int row_ctas = RowCtas<T, Tile, ROWS, BESIDE>::value;

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
        const unsigned group = threadIdx.x / S::LANES;
        const unsigned warp = S::any_threads ? threadIdx.x / 32 : threadIdx.x / 32 % S::cta_warps;
        Record* all = slots[buffer][S::groups == 1 ? 0 : group];
        if constexpr (S::CTAS > 1) {
            if (laneid() < S::CTAS) {
                Record* own = &all[cluster_ctarank() * S::launched_cta_warps() + warp];
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
            else barrier_sync_below<(S::groups < 16 ? S::groups : 16)>(group, S::LANES);  // more groups are within warps
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

// The same with follow_previous_grid_later.
template <class S>
__device__ __forceinline__ void row_arrive_later() {
    follow_previous_grid_later();
    if constexpr (S::CTAS > 1) barrier_cluster_arrive_relaxed();
}

template <class S>
__device__ __forceinline__ void row_wait() {
    if constexpr (S::CTAS > 1) barrier_cluster_wait_acquire();
}

// Sum, or maximum, of f(i) for i below `count`, at most COUNT, a power of two. Whole warps call it, and every lane gets
// the same bits.

template <int COUNT, class F>
__device__ __forceinline__ auto sum_below(F f, unsigned count = COUNT) {
    using Sum = decltype(f(0u));
    auto term = [&](unsigned i) { return count == COUNT || i < count ? f(i) : Sum{}; };
    if constexpr (COUNT <= 32) return warp_sum<COUNT>(term(laneid() & (COUNT - 1)));
    auto total = term(laneid());
#pragma unroll
    for (unsigned i = 32; i < COUNT; i += 32) total += term(laneid() + i);
    return warp_sum<32>(total);
}

template <int COUNT, class F>
__device__ __forceinline__ float max_below(F f, unsigned count = COUNT) {
    auto term = [&](unsigned i) { return count == COUNT || i < count ? f(i) : -infinity(); };
    if constexpr (COUNT <= 32) return warp_max<COUNT>(term(laneid() & (COUNT - 1)));
    float largest = term(laneid());
#pragma unroll
    for (unsigned i = 32; i < COUNT; i += 32) largest = fmaxf(largest, term(laneid() + i));
    return warp_max<32>(largest);
}

// Sum, or maximum, over all threads of a row.

template <class T, class S, int BUFFERS>
__device__ __forceinline__ T row_sum(T value, RowRecords<T, S, BUFFERS>& slots, unsigned buffer = 0) {
    value = warp_sum<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const T* all = slots.gather(value, buffer);
    return sum_below<S::warps>([&](unsigned i) { return all[i]; }, S::launched_warps());
}

template <class S, int BUFFERS>
__device__ __forceinline__ float row_max(float value, RowRecords<float, S, BUFFERS>& slots, unsigned buffer = 0) {
    value = warp_max<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const float* all = slots.gather(value, buffer);
    return max_below<S::warps>([&](unsigned i) { return all[i]; }, S::launched_warps());
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

// The columns of a row that one thread holds, in the format of memory: those of 16 bits take half as many registers, and are
// converted when they are read.
template <class T, class S>
struct PackedRow {
    Vector<T, S::WIDTH> vectors[S::VECTORS];

    __device__ __forceinline__ float operator[](int k) const { return vectors[k / S::WIDTH][k % S::WIDTH]; }
};

// Elements `skip` to `skip + N - 1` of `low` and `high`, one after the other; 0 < skip < N and 16 bytes in a vector.
template <class T, int N>
__device__ __forceinline__ Vector<T, N> elements_of(const Vector<T, N>& low, const Vector<T, N>& high, unsigned skip) {
    static_assert(N * sizeof(T) == 16, "16 bytes");
    unsigned word[8];
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = low.word[i], word[4 + i] = high.word[i];
    const unsigned bytes = skip * sizeof(T);
#pragma unroll
    for (int i = 0; i < 6; i++) word[i] = bytes & 8 ? word[i + 2] : word[i];
#pragma unroll
    for (int i = 0; i < 5; i++) word[i] = bytes & 4 ? word[i + 1] : word[i];
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        result.word[i] = sizeof(T) == 2 ? prmt_b32(word[i], word[i + 1], bytes & 2 ? 0x5432 : 0x3210) : word[i];
    }
    return result;
}

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
// accesses. Otherwise, in arrays that are not aligned to 16 bytes, it is accessed by single columns: register k is then
// column k * threads + thread, so that the accesses of a warp still coalesce. In both cases the registers from `begin`
// to `valid` hold columns and the others are padding.
//
// Vectors are aligned to 16 bytes, and rows need not be: S::shifts. The first vector of a row then has `head` elements
// of the row before, and the last one has elements of the row after. They are loaded and ignored, and the columns in
// these two vectors are stored one by one. A row of an array that all rows share, such as weights, does not begin
// between two vectors. Each of its vectors that a thread needs is therefore made of two adjacent ones. Without
// S::shifts, rows move in vectors only if their number of columns is a multiple of WIDTH.
template <class S>
struct RowLayout {
    unsigned row, cols;  // cols is 0 past the last row
    unsigned thread;     // index among the threads of the row
    size_t first;        // index of the row's first element in the matrix
    bool vectors;
    bool full = false;      // every register of every thread holds a column
    bool ends_array;        // the array may end within the last vector of this row
    unsigned head = 0;      // elements of the first vector before the first column
    int begin = 0, valid;

    __device__ __forceinline__ RowLayout(unsigned rows, unsigned columns, bool aligned) {
        row = blockIdx.x / S::CTAS * S::groups + (S::any_threads ? 0 : threadIdx.x / S::LANES);
        thread = (S::CTAS > 1 ? cluster_ctarank() * S::launched_lanes() : 0) +
                 (S::any_threads ? threadIdx.x : threadIdx.x % S::LANES);
        vectors = aligned && (S::shifts || columns % S::WIDTH == 0);
        ends_array = row + 1 == rows || columns < S::WIDTH;
        take(row, row < rows ? columns : 0, columns);
    }

    // Moves to another row.
    __device__ __forceinline__ void take(unsigned new_row, unsigned new_cols, unsigned stride) {
        row = new_row;
        cols = new_cols;
        first = static_cast<size_t>(row) * stride;
        if constexpr (S::shifts) {
            head = vectors && cols ? static_cast<unsigned>(first) % S::WIDTH : 0;
            begin = thread == 0 ? head : 0;
        }
        valid = valid_of(cols);
    }

    // The layout of a row of `columns` columns, also for a thread that is past the last row.
    __device__ __forceinline__ RowLayout any(unsigned columns) const {
        RowLayout layout = *this;
        layout.take(0, columns, columns);
        return layout;
    }

    // Tells the compiler what the launch guarantees with FULL_TILE: every register of every thread holds a column.
    __device__ __forceinline__ void assume_full_tile() {
        if constexpr (!S::any_threads) cols = S::capacity;
        full = true, valid = S::elements;
    }

    // The layout of the chunk of a longer row that begins at column `start` and has at most S::capacity columns.
    __device__ __forceinline__ RowLayout chunk(unsigned start) const {
        static_assert(!S::shifts, "chunks begin with a vector");
        RowLayout layout = *this;
        layout.cols = start < cols ? cols - start : 0;
        layout.first += start;
        layout.valid = valid_of(layout.cols);
        return layout;
    }

    // Number of registers of this thread that hold columns.
    __device__ __forceinline__ int held() const { return valid - begin; }

    // Whether register k holds a column.
    __device__ __forceinline__ bool is_column(int k) const { return k >= begin && k < valid; }

    // The index of register k in the matrix. It is outside of the row for padding.
    __device__ __forceinline__ size_t index(int k) const {
        return vectors ? first - head + (k / S::WIDTH * S::launched_threads() + thread) * S::WIDTH + k % S::WIDTH
                       : first + k * S::launched_threads() + thread;
    }

    // Number of columns that warp `warp` of the row holds (with several rows per warp, the lanes of this row), and that
    // CTA `cta` holds.
    __device__ __forceinline__ float warp_columns(unsigned warp) const { return columns_of<S::lanes>(warp); }
    __device__ __forceinline__ float cta_columns(unsigned cta) const { return columns_of<S::LANES>(cta); }

    // Requests that L2 load the rows of matrices, before the previous grid has ended: its writes go to L2 as well, so that a
    // request has no effect on what a later load returns.
    template <class... T>
    __device__ __forceinline__ void request(const T*... matrices) const {
        (request_columns(matrices + first), ...);
    }

    // The same for arrays that all rows share, which the threads of the first row request: one request for each line is
    // enough, and requests by every row would take longer than they save.
    template <class... T>
    __device__ __forceinline__ void request_shared(const T*... arrays) const {
        if (row == 0) (request_columns(arrays), ...);
    }

    // Loads a row of a matrix, with `fill` for padding.
    template <int CACHE, class T>
    __device__ __forceinline__ Row<S> load(const T* matrix, float fill = 0.0f) const {
        return load_row<CACHE>(matrix + first, fill);
    }

    // Loads a row of a matrix in the format of memory, with 0 for padding.
    template <int CACHE, class T>
    __device__ __forceinline__ PackedRow<T, S> load_packed(const T* matrix) const {
        static_assert(!S::shifts, "all vectors are whole");
        const T* from = matrix + first;
        PackedRow<T, S> packed;
        if (vectors) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                packed.vectors[i].fill([](int) { return 0.0f; });
                if (i * S::WIDTH < valid) packed.vectors[i].template load<CACHE>(from + vector_at(i));
            }
        } else {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                const Piece piece = single_piece(from, i);
                packed.vectors[i].fill([&](int j) { return piece.v[j]; });
            }
        }
        return packed;
    }

    // Sets padding to `value`. Threads without padding execute one comparison.
    __device__ __forceinline__ void pad(Row<S>& row, float value) const {
        if (held() < S::elements) row.each([&](float& v, int k) { v = is_column(k) ? v : value; });
    }

    // Loads a row of two matrices and combines them by f, with `fill` for padding of both.
    template <int CACHE, class T, class F>
    __device__ __forceinline__ Row<S> load_with(const T* matrix, const T* other, F f, float fill) const {
        // vectors in flight at a time; more would not fit in registers beside the result
        constexpr int batch = S::VECTORS < 4 ? S::VECTORS : 4;
        const T *one = matrix + first - head, *two = other + first - head;
        Row<S> row;
        if (vectors) {
            const int readable = readable_registers();
#pragma unroll
            for (int b = 0; b < S::VECTORS; b += batch) {
                Vector<T, S::WIDTH> left[batch], right[batch];
#pragma unroll
                for (int i = 0; i < batch && b + i < S::VECTORS; i++) {
                    left[i].fill([&](int) { return fill; });
                    right[i].fill([&](int) { return fill; });
                    if ((b + i) * S::WIDTH < readable) {
                        left[i].template load<CACHE>(one + vector_at(b + i));
                        right[i].template load<CACHE>(two + vector_at(b + i));
                    }
                }
#pragma unroll
                for (int k = 0; k < batch * S::WIDTH; k++) {
                    const int i = k / S::WIDTH, j = k % S::WIDTH;
                    if (b + i < S::VECTORS) row.v[b + i][j] = f(left[i][j], right[i][j]);
                }
            }
            complete(row, readable, f(fill, fill), [&](size_t i) { return f(to_f32(one[i]), to_f32(two[i])); });
        } else {
            row.each([&](float& v, int k) {
                const unsigned c = k * S::launched_threads() + thread;
                v = k < valid ? f(to_f32(one[c]), to_f32(two[c])) : f(fill, fill);
            });
        }
        return row;
    }

    // Loads the columns of an array that all rows share, such as weights or bias. L1 keeps it.
    template <class T>
    __device__ __forceinline__ Row<S> load_shared(const T* vector, unsigned start = 0) const {
        if constexpr (S::shifts) {
            Row<S> values;
            if (vectors) {
#pragma unroll
                for (int i = 0; i < S::VECTORS; i++) {
                    const Piece piece = shared_piece(vector, i);
#pragma unroll
                    for (int j = 0; j < S::WIDTH; j++) values.v[i][j] = piece.v[j];
                }
                return values;
            }
        }
        return load_row<CACHE_KEEP>(vector + start, 0.0f);
    }

    template <int CACHE, class T>
    __device__ __forceinline__ void store(T* matrix, const Row<S>& row) const {
        if (vectors) {
            T* to = matrix + first - head;
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                Vector<T, S::WIDTH> vector;
                vector.fill([&](int j) { return row.v[i][j]; });
                if (is_whole(i)) vector.template store<CACHE>(to + vector_at(i));
            }
            each_single(row, [&](size_t i, float v) { to[i] = Convert<T>::from_f32(v); });
        } else {
            SingleColumns<T> to(matrix + first + thread);
#pragma unroll
            for (int k = 0; k < S::elements; k++, to.advance()) {
                if (k < valid) to[k] = Convert<T>::from_f32(row[k]);
            }
        }
    }

    // The columns of a thread in rows that are accessed by single columns. The distance of two is an immediate, or else
    // added step by step, since as many addresses as columns would take registers.
    template <class T>
    struct SingleColumns {
        T* at;

        __device__ __forceinline__ explicit SingleColumns(T* first) : at(first) {}
        __device__ __forceinline__ T& operator[](int k) const { return at[S::any_threads ? 0 : k * S::threads]; }
        __device__ __forceinline__ void advance() {
            if constexpr (S::any_threads) at += S::launched_threads();
        }
    };

    // Whether all elements of vector i of the thread are columns of the row, in rows that move in vectors.
    __device__ __forceinline__ bool is_whole(int i) const {
        if constexpr (S::shifts) return (i + 1) * S::WIDTH <= valid && (i > 0 || begin == 0);
        else return i * S::WIDTH < valid;
    }

    // Calls f(i, v) for the columns v of the thread in vectors that are not whole; i is the distance of the column from
    // the row's first vector.
    template <class F>
    __device__ __forceinline__ void each_single(const Row<S>& row, F f) const {
        if constexpr (S::shifts) {
            if (begin > 0) {
#pragma unroll
                for (int j = 1; j < S::WIDTH; j++) {
                    if (j >= begin && j < valid) f(j, row.v[0][j]);
                }
            }
            const int last = valid / S::WIDTH;  // the vector that has both columns and padding
            if (valid % S::WIDTH && (last > 0 || begin == 0)) {
                float v[S::WIDTH];
#pragma unroll
                for (int k = 0; k < S::elements; k++) {
                    if (k < S::WIDTH || k / S::WIDTH == last) v[k % S::WIDTH] = row[k];
                }
#pragma unroll
                for (int j = 0; j < S::WIDTH - 1; j++) {
                    if (j < valid % S::WIDTH) f(vector_at(last) + j, v[j]);
                }
            }
        }
    }

    // The distance of the first element of vector i of the thread from the row's first vector.
    __device__ __forceinline__ unsigned vector_at(int i) const {
        return thread * S::WIDTH + i * (S::launched_threads() * S::WIDTH);
    }

    // Stores vector i of the thread, in rows that move in vectors.
    template <int CACHE, class T>
    __device__ __forceinline__ void store_vector(T* matrix, const Row<S>& row, int i) const {
        static_assert(!S::shifts, "all vectors are whole");
        Vector<T, S::WIDTH> vector;
        vector.fill([&](int j) { return row.v[i][j]; });
        if (i * S::WIDTH < valid) vector.template store<CACHE>(matrix + first + vector_at(i));
    }

    // Starts to load the first COUNT vectors of an array that all rows share.
    template <int COUNT, class T>
    __device__ __forceinline__ PrefetchedVector<S, COUNT, T> prefetch_shared(const T* from) const {
        PrefetchedVector<S, COUNT, T> prefetched;
        prefetched.from = from;
        if (whole()) {
#pragma unroll
            for (int i = 0; i < prefetched.count; i++)
                prefetched.vectors[i].template load<CACHE_KEEP>(from + vector_at(i));
        }
        return prefetched;
    }

    // Replaces each column v by f(v, w...), where w are the columns of arrays that all rows share. These are loaded
    // vector by vector, from L1: whole rows of them would take registers, and fewer CTAs would be resident.
    template <class F, class... T>
    __device__ __forceinline__ void apply(Row<S>& row, F f, const T*... shared) const {
        if (vectors) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, shared_piece(shared, i)...);
        } else {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, single_piece(shared, i)...);
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
    // Requests `cols` elements, by one address in each cache line.
    template <class T>
    __device__ __forceinline__ void request_columns(const T* from) const {
        constexpr unsigned line = 128 / sizeof(T);
        if (cols == 0) return;
        for (unsigned c = thread * line; c < cols + (line - 1); c += S::launched_threads() * line)
            prefetch_global_L2(from + ::min(c, cols - 1));
    }

    // Number of columns held by the COUNT consecutive threads of the row that begin with thread COUNT * which.
    template <int COUNT>
    __device__ __forceinline__ float columns_of(unsigned which) const {
        if (full) return COUNT * S::elements;
        const unsigned units = units_of(cols), threads = S::launched_threads(), first_thread = which * COUNT;
        unsigned whole = 0, rest = units;  // units = whole * threads + rest
        if constexpr (S::any_threads) {
#pragma unroll
            for (int i = 0; i < S::elements; i++) {
                if ((vectors ? i < S::VECTORS : true) && rest >= threads) rest -= threads, whole++;
            }
        } else {
            whole = units / threads, rest = units % threads;
        }
        const int left = static_cast<int>(rest - first_thread);
        const unsigned mine = whole * COUNT + ::max(0, ::min(left, COUNT));
        if (!vectors) return static_cast<float>(mine);
        unsigned columns = mine * S::WIDTH;
        if constexpr (S::shifts) {
            if (which == 0) columns -= head;
            const unsigned last = rest ? rest - 1 : threads - 1;  // the thread with the last vector
            if (last - first_thread < COUNT) columns -= units * S::WIDTH - (head + cols);
        }
        return static_cast<float>(columns);
    }

    // Number of vectors, or without `vectors` of columns, of a row of `columns` columns.
    __device__ __forceinline__ unsigned units_of(unsigned columns) const {
        if (!vectors) return columns;
        return S::shifts ? (head + columns + (S::WIDTH - 1)) / S::WIDTH : columns / S::WIDTH;
    }

    // The end of the registers of this thread that hold columns, of a row of `columns` columns.
    __device__ __forceinline__ int valid_of(unsigned columns) const {
        const unsigned units = units_of(columns), threads = S::launched_threads();
        unsigned mine = 0;
        if constexpr (S::any_threads) {
#pragma unroll
            for (int i = 0; i < S::elements; i++) {
                if (vectors ? i < S::VECTORS : true) mine += i * threads + thread < units;
            }
        } else {
            mine = units > thread ? (units - thread - 1) / threads + 1 : 0;
        }
        if (!vectors) return ::min(mine, static_cast<unsigned>(S::elements));
        unsigned end = mine * S::WIDTH;
        if constexpr (S::shifts) {
            if (mine && (mine - 1) * threads + thread + 1 == units) end -= units * S::WIDTH - (head + columns);
        }
        return ::min(end, static_cast<unsigned>(S::elements));
    }

    // Whether the row moves in vectors and this thread has no padding.
    __device__ __forceinline__ bool whole() const { return vectors && head == 0 && valid == S::elements; }

    // The end of the registers that vector loads may fill: the last vector of an array may exceed it.
    __device__ __forceinline__ int readable_registers() const {
        return S::shifts && ends_array ? valid - valid % S::WIDTH : valid;
    }

    // Completes a row that was loaded in vectors: single(i) returns the column at distance i from the first vector, for
    // registers from `readable` on, and elements of other rows become `fill`.
    template <class Single>
    __device__ __forceinline__ void complete(Row<S>& row, int readable, float fill, Single single) const {
        if constexpr (S::shifts) {
            if (readable < valid) {
                const int last = readable / S::WIDTH;
                float v[S::WIDTH] = {};
#pragma unroll
                for (int j = 0; j < S::WIDTH - 1; j++) {
                    if (readable + j < valid) v[j] = single(vector_at(last) + j);
                }
                row.each([&](float& r, int k) {
                    if (k / S::WIDTH == last) r = v[k % S::WIDTH];
                });
            }
            if (begin > 0 || valid % S::WIDTH)
                row.each([&](float& v, int k) { v = is_column(k) ? v : fill; });
        }
    }

    // Limits how many loads of shared arrays ptxas hoists: with few registers left it would otherwise spill. No load
    // moves across the warp barrier.
    static __device__ __forceinline__ void pause(int i) {
        constexpr int part = S::VECTORS < 4 ? 1 : S::VECTORS / 4;
        if (S::elements >= 64 && i > 0 && i % part == 0) bar_warp_sync(all_lanes);
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
        if (i >= shared.count) vector.template load<CACHE_KEEP>(shared.from + vector_at(i));
        Piece piece;
        piece.set(vector);
        return piece;
    }

    // The columns of an array that all rows share at the places of vector i of the thread, with 0 for padding.
    template <class T>
    __device__ __forceinline__ Piece shared_piece(const T* from, int i) const {
        Vector<T, S::WIDTH> vector;
        vector.fill([](int) { return 0.0f; });
        Piece piece;
        if constexpr (!S::shifts) {
            if (i * S::WIDTH < valid) vector.template load<CACHE_KEEP>(from + vector_at(i));
            piece.set(vector);
        } else {
            if (i * S::WIDTH >= valid) {
                piece.set(vector);
                return piece;
            }
            const int c = static_cast<int>(vector_at(i)) - static_cast<int>(head);  // the first column
            const int end = head ? c + static_cast<int>(head) + S::WIDTH : c + S::WIDTH;
            if (c >= 0 && end <= static_cast<int>(cols)) {
                if (head == 0) {
                    vector.template load<CACHE_KEEP>(from + c);
                } else {
                    Vector<T, S::WIDTH> low, high;
                    low.template load<CACHE_KEEP>(from + (c + static_cast<int>(head) - S::WIDTH));
                    high.template load<CACHE_KEEP>(from + (c + static_cast<int>(head)));
                    vector = elements_of(low, high, S::WIDTH - head);
                }
                piece.set(vector);
            } else {
#pragma unroll
                for (int j = 0; j < S::WIDTH; j++) {
                    const int at = c + j;
                    piece.v[j] = at >= 0 && at < static_cast<int>(cols) ? to_f32(from[at]) : 0.0f;
                }
            }
        }
        return piece;
    }

    // The columns of such an array that belong to registers i * WIDTH to i * WIDTH + WIDTH - 1, in rows that are
    // accessed by single columns.
    template <class T>
    __device__ __forceinline__ Piece single_piece(const T* from, int i) const {
        Piece piece;
        SingleColumns<const T> at(from + thread + i * S::WIDTH * S::launched_threads());
#pragma unroll
        for (int j = 0; j < S::WIDTH; j++, at.advance())
            piece.v[j] = i * S::WIDTH + j < valid ? to_f32(at[j]) : 0.0f;
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
            from -= head;
            const int readable = readable_registers();
            Vector<T, S::WIDTH> vector[S::VECTORS];
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                vector[i].fill([&](int) { return fill; });
                if (i * S::WIDTH < readable) vector[i].template load<CACHE>(from + vector_at(i));
            }
            values.each([&](float& v, int k) { v = vector[k / S::WIDTH][k % S::WIDTH]; });
            complete(values, readable, fill, [&](size_t i) { return to_f32(from[i]); });
        } else {
            SingleColumns<const T> at(from + thread);
            values.each([&](float& v, int k) {
                v = k < valid ? to_f32(at[k]) : fill;
                at.advance();
            });
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
