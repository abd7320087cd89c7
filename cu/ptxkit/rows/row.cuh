// Rows of a matrix held in registers: how a row lies over threads, loads and stores of any width and alignment, and what the
// warps of a row tell each other. A kernel that reduces rows then reads as its algorithm:
//
//     Place<Shape> place(rows, cols, aligned16(x, y));
//     Row<Shape> row = place.template load<CACHE>(x);
//     float factor = 1 / row_sum(row.sum([](float v, int) { return v; }), slots);
//     row.each([&](float& v, int) { v *= factor; });
//     place.template store<CACHE>(y, row);
#pragma once
#include "ptxkit/elementwise/elementwise.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/rows/reduce.cuh"

namespace ptxkit {

// LANES threads of each of CTAS CTAs hold a row, VECTORS vectors of WIDTH columns a thread: THREADS / LANES rows a CTA when rows
// are short, one row a cluster when they are long.
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int WIDTH_>
struct RowShape {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_, WIDTH = WIDTH_;
    static constexpr int groups = THREADS / LANES;                        // rows of a CTA
    static constexpr int threads = LANES * CTAS;                          // of a row
    static constexpr int elements = VECTORS * WIDTH;                      // of a thread
    static constexpr int capacity = threads * elements;                   // columns
    static constexpr int lanes = LANES < 32 ? LANES : 32;                 // of a warp that hold the same row
    static constexpr int cta_warps = LANES / lanes, warps = cta_warps * CTAS;  // of a row
    static constexpr bool alone = true;                                   // whether the CTA has no other threads
    static_assert((LANES & (LANES - 1)) == 0 && (CTAS & (CTAS - 1)) == 0, "LANES and CTAS are powers of two");
    static_assert(THREADS % LANES == 0 && (groups <= 16 || LANES <= 32), "a group of several warps needs one of 16 barriers");
    static_assert(CTAS == 1 || groups == 1, "a cluster takes one row at a time");
};

// Rows of the first THREADS threads of a CTA, which has others, too.
template <int THREADS, int LANES, int VECTORS, int CTAS, int WIDTH>
struct RowBesideOthers : RowShape<THREADS, LANES, VECTORS, CTAS, WIDTH> {
    static constexpr bool alone = false;
};

// Tile parameters of a vectorized kernel, which holds rows in registers. Descriptions give them by name (VectorizedTile in
// ptxkit/kernels/rows/rows.py).
template <int THREADS_, int LANES_, int VECTORS_, int CTAS_, int CACHE_, bool PREFETCH_WEIGHTS_, bool NO_EARLY_LAUNCH_,
          bool FULL_TILE_>
struct VectorizedTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape
    static constexpr int CACHE = CACHE_;                          // a Cache of elementwise.cuh
    static constexpr bool PREFETCH_WEIGHTS = PREFETCH_WEIGHTS_;   // load the weights before the row's sums are known
    static constexpr bool NO_EARLY_LAUNCH = NO_EARLY_LAUNCH_;     // of the next grid: see follow_previous_grid
    static constexpr bool FULL_TILE = FULL_TILE_;                 // each register of the CTA or cluster holds a column
    template <class T>
    using Shape = RowShape<THREADS, LANES, VECTORS, CTAS, vector_width<T>>;
};

// The minimum of resident CTAs for __launch_bounds__, from ROWS registers for each column that a thread holds and BESIDE more.
// Without it the compiler takes more registers, and fewer loads are in flight.
template <class T, class Tile, int ROWS, int BESIDE = 32>
constexpr int row_ctas = 65536 / (Tile::THREADS * (ROWS * Tile::VECTORS * vector_width<T> + BESIDE));

// ---------------------------------------------------------------------------------------------------------------------------
// What warps of a row tell each other

// Shared memory for a record of each warp of a row, at the same place in every CTA of a cluster. Each turn (0 to TURNS - 1) may
// be used again after another turn was: the barrier of that one has then been passed by whoever read these records.
template <class Record, class S, int TURNS = 1>
struct RowRecords {
    using Shape = S;
    static constexpr bool by_ctas = false;  // as SentRecords of tile_scheduler.cuh do it
    static constexpr int words = sizeof(Record) / 4;
    Record slots[TURNS][S::lanes < 32 ? 1 : S::groups][S::warps];

    // Gives every warp's record, the caller's row's, in the order of their columns. One barrier.
    __device__ __forceinline__ const Record* gather(Record mine, unsigned turn = 0) {
        const unsigned group = threadIdx.x / S::LANES, warp = threadIdx.x / 32 % S::cta_warps;
        Record* all = slots[turn][S::groups == 1 ? 0 : group];
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
            if constexpr (S::groups == 1 && S::alone) barrier_sync();
            else barrier_sync_below<S::groups>(group, S::LANES);
        }
        return all;
    }
};

// Before the first record goes to another CTA, all must have started. Called early, so that nobody waits.
template <class S, bool NO_EARLY_LAUNCH = false>
__device__ __forceinline__ void row_arrive() {
    follow_previous_grid<NO_EARLY_LAUNCH>();
    if constexpr (S::CTAS > 1) barrier_cluster_arrive_relaxed();
}

template <class S>
__device__ __forceinline__ void row_wait() {
    if constexpr (S::CTAS > 1) barrier_cluster_wait_acquire();
}

// Sum, or maximum, of f(i) over i below COUNT, a power of two: whole warps call it, and every lane gets the same bits.

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

// Sum, or maximum, of a value of every thread of a row.

template <class T, class S, int TURNS>
__device__ __forceinline__ T row_sum(T value, RowRecords<T, S, TURNS>& slots, unsigned turn = 0) {
    value = warp_sum<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const T* all = slots.gather(value, turn);
    return sum_below<S::warps>([&](unsigned i) { return all[i]; });
}

template <class S, int TURNS>
__device__ __forceinline__ float row_max(float value, RowRecords<float, S, TURNS>& slots, unsigned turn = 0) {
    value = warp_max<S::lanes>(value);
    if constexpr (S::warps == 1) return value;
    const float* all = slots.gather(value, turn);
    return max_below<S::warps>([&](unsigned i) { return all[i]; });
}

// Whether any row that shares the warp says so: below a warp, rows share their shuffles and must go the same way.
template <class S>
__device__ __forceinline__ bool any_row(bool value) {
    return S::LANES < 32 ? vote_sync_any(all_lanes, value) : value;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Registers

// A thread's part of a row, in f32.
template <class S>
struct Row {
    float v[S::VECTORS][S::WIDTH];

    // f(value, k) for each register k.
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

    // Sum of f(value, k) as T. Four chains: equal values, whose rounding errors add up, meet in few additions; and four
    // additions are in flight.
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

    // Maximum of f(value, k); NaN counts for nothing.
    template <class F>
    __device__ __forceinline__ float max(F f) const {
        float part[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
#pragma unroll
        for (int k = 0; k < S::elements; k++) part[k % 4] = fmaxf(part[k % 4], f(v[k / S::WIDTH][k % S::WIDTH], k));
        return fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
};

// A vector that all rows share, of which a thread has begun to load the first COUNT vectors.
template <class S, int COUNT, class T>
struct Begun {
    static constexpr int count = COUNT < S::VECTORS ? COUNT : S::VECTORS;
    const T* from;
    Vector<T, S::WIDTH> vectors[count];
};

// Where a thread stands: its row, and which columns its registers hold.
//
// With `vectors`, register k is element k % WIDTH of the thread's (k / WIDTH)-th vector, and rows move in vectors. Where a row
// cannot (an unaligned start, cols no multiple of WIDTH), each register holds a single column, a warp's 32 being adjacent, so
// that the accesses still coalesce. Either way the registers below `held` hold columns and the others are padding.
template <class S>
struct Place {
    unsigned row, cols;  // cols is 0 past the last row: such threads go on with an empty one, others of the warp wait for them
    unsigned thread;     // of the row's threads
    size_t first;        // element of the matrix that is the row's first
    bool vectors;
    int held;

    __device__ __forceinline__ Place(unsigned rows, unsigned columns, bool aligned) {
        row = blockIdx.x / S::CTAS * S::groups + threadIdx.x / S::LANES;
        thread = (S::CTAS > 1 ? cluster_ctarank() * S::LANES : 0) + threadIdx.x % S::LANES;
        vectors = aligned && columns % S::WIDTH == 0;
        take(row, row < rows ? columns : 0, columns);
    }

    // Stand in another row.
    __device__ __forceinline__ void take(unsigned new_row, unsigned new_cols, unsigned stride) {
        row = new_row;
        cols = new_cols;
        first = static_cast<size_t>(row) * stride;
        held = held_of(cols);
    }

    // The place in a row of `columns` columns, whether or not this thread has one.
    __device__ __forceinline__ Place any(unsigned columns) const {
        Place place = *this;
        place.take(0, columns, columns);
        return place;
    }

    // All threads' registers hold columns: who launched the kernel knows, and now the compiler does.
    __device__ __forceinline__ void assume_full_tile() { cols = S::capacity, held = S::elements; }

    // The place in the part of a longer row that begins at column `begin` and is at most S::capacity columns long.
    __device__ __forceinline__ Place part(unsigned begin) const {
        Place place = *this;
        place.cols = begin < cols ? cols - begin : 0;
        place.first += begin;
        place.held = held_of(place.cols);
        return place;
    }

    // Column of register k; past the end for padding.
    __device__ __forceinline__ unsigned column(int k) const {
        return vectors ? (k / S::WIDTH * S::threads + thread) * S::WIDTH + k % S::WIDTH : k * S::threads + thread;
    }

    // Columns that warp `warp` of the row holds, or the only one's lanes of this row; and those of CTA `cta`.
    __device__ __forceinline__ float warp_columns(unsigned warp) const { return columns_of<S::lanes>(warp); }
    __device__ __forceinline__ float cta_columns(unsigned cta) const { return columns_of<S::LANES>(cta); }

    // The row of a matrix, with `fill` for padding.
    template <int CACHE, class T>
    __device__ __forceinline__ Row<S> load(const T* matrix, float fill = 0.0f) const {
        return load_row<CACHE>(matrix + first, fill);
    }

    // Makes padding `value`. A thread whose registers all hold columns pays a comparison for that.
    __device__ __forceinline__ void pad(Row<S>& row, float value) const {
        if (held < S::elements) row.each([&](float& v, int k) { v = k < held ? v : value; });
    }

    // f of the row of one matrix and that of another, with `fill` for padding of both.
    template <int CACHE, class T, class F>
    __device__ __forceinline__ Row<S> load_with(const T* matrix, const T* other, F f, float fill) const {
        constexpr int batch = S::VECTORS < 4 ? S::VECTORS : 4;  // more of both at once would not fit beside what is done
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
                    if ((b + i) * S::WIDTH < held) {
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
                v = k < held ? f(to_f32((one + thread)[k * S::threads]), to_f32((two + thread)[k * S::threads])) : f(fill, fill);
            });
        }
        return row;
    }

    // Columns of a vector that all rows share: weights, bias. They are worth keeping in L1.
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
                if (i * S::WIDTH < held) vector.template store<CACHE>(to + i * S::threads * S::WIDTH);
            }
        } else {
#pragma unroll
            for (int k = 0; k < S::elements; k++) {
                if (k < held) to[k * S::threads] = Convert<T>::from_f32(row[k]);
            }
        }
    }

    // The thread's vector i, where rows move in vectors.
    template <int CACHE, class T>
    __device__ __forceinline__ void store_vector(T* matrix, const Row<S>& row, int i) const {
        Vector<T, S::WIDTH> vector;
        vector.fill([&](int j) { return row.v[i][j]; });
        if (i * S::WIDTH < held) vector.template store<CACHE>(matrix + first + (i * S::threads + thread) * S::WIDTH);
    }

    // A vector that all rows share, with the first COUNT vectors of what a thread holds of it on their way.
    template <int COUNT, class T>
    __device__ __forceinline__ Begun<S, COUNT, T> begin_shared(const T* from) const {
        Begun<S, COUNT, T> begun;
        begun.from = from;
        if (whole()) {
#pragma unroll
            for (int i = 0; i < begun.count; i++) {
                begun.vectors[i].template load<CACHE_KEEP>(from + (i * S::threads + thread) * S::WIDTH);
            }
        }
        return begun;
    }

    // Makes each column f(column, shared...) with those of vectors that all rows share, loaded piece by piece: they come from L1,
    // and whole rows of them would take registers from other CTAs.
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

    // The same with vectors that are begun. A thread whose registers all hold columns, as in most rows, asks for none.
    template <class F, int COUNT, class... T>
    __device__ __forceinline__ void apply(Row<S>& row, F f, const Begun<S, COUNT, T>&... shared) const {
        if (!whole()) return apply(row, f, shared.from...);
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) pause(i), combine(row.v[i], f, piece_of(shared, i)...);
    }

private:
    // Columns of the row's COUNT threads from number COUNT * which.
    template <int COUNT>
    __device__ __forceinline__ float columns_of(unsigned which) const {
        const unsigned units = vectors ? cols / S::WIDTH : cols, whole = units / S::threads;
        const int rest = static_cast<int>(units % S::threads - which * COUNT);
        const unsigned mine = whole * COUNT + ::max(0, ::min(rest, COUNT));
        return static_cast<float>(vectors ? mine * S::WIDTH : mine);
    }

    // Of `columns` columns, dealt out by vectors or one by one, those that this thread gets and can hold.
    __device__ __forceinline__ int held_of(unsigned columns) const {
        const unsigned width = vectors ? S::WIDTH : 1, units = columns / width;
        const unsigned mine = units > thread ? (units - thread - 1) / S::threads + 1 : 0;
        return ::min(mine * width, static_cast<unsigned>(S::elements));
    }

    // Whether each of the thread's registers holds a column, and they move in vectors.
    __device__ __forceinline__ bool whole() const { return vectors && held == S::elements; }

    // Where registers are short ptxas must not have all loads of vectors that rows share under way together: it would spill. None
    // passes a barrier.
    static __device__ __forceinline__ void pause(int i) {
        if (S::elements >= 64 && i > 0 && i % (S::VECTORS / 4) == 0) bar_warp_sync(all_lanes);
    }

    // What registers i * WIDTH and on hold of a vector that all rows share.
    struct Piece {
        float v[S::WIDTH];

        template <class T>
        __device__ __forceinline__ void set(const Vector<T, S::WIDTH>& vector) {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) v[j] = vector[j];
        }
    };

    // The same where the thread is whole().
    template <int COUNT, class T>
    __device__ __forceinline__ Piece piece_of(const Begun<S, COUNT, T>& shared, int i) const {
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
            if (i * S::WIDTH < held) vector.template load<CACHE_KEEP>(from + thread * S::WIDTH + i * S::threads * S::WIDTH);
            piece.set(vector);
        } else {
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                const int k = i * S::WIDTH + j;
                piece.v[j] = k < held ? to_f32((from + thread)[k * S::threads]) : 0.0f;
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
                if (i * S::WIDTH < held) vector[i].template load<CACHE>(from + thread * S::WIDTH + i * S::threads * S::WIDTH);
            }
            values.each([&](float& v, int k) { v = vector[k / S::WIDTH][k % S::WIDTH]; });
        } else {
            values.each([&](float& v, int k) { v = k < held ? to_f32((from + thread)[k * S::threads]) : fill; });
        }
        return values;
    }
};

// run(place). Where the launch says that a row is FULL_TILE, rows that move in vectors have code of their own, which asks nothing.
template <bool FULL_TILE, class S, class F>
__device__ __forceinline__ void with_place(Place<S> place, F run) {
    if constexpr (FULL_TILE) {
        place.assume_full_tile();
        if (place.vectors) {
            place.vectors = true;  // now ptxas knows
            return run(place);
        }
        place.vectors = false;
    }
    run(place);
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rows in parts, for those that no registers hold; and rows by columns, one CTA a row

// f(begin) for each part of S::capacity columns, forwards and then, in `backward_parts`, backwards: the second reading begins
// with what L2 has just seen.

template <class S, class F>
__device__ __forceinline__ void forward_parts(unsigned cols, F f) {
    for (size_t begin = 0; begin < cols; begin += S::capacity) f(static_cast<unsigned>(begin));
}

template <class S, class F>
__device__ __forceinline__ void backward_parts(unsigned cols, F f) {
    for (unsigned part = (cols - 1) / S::capacity + 1; part > 0; part--) f((part - 1) * S::capacity);
}

// A row in parts that is read several times. STAGED: a thread's columns wait in dynamic shared memory, in slots that no other
// thread reads, so that device memory is read once and no barrier is needed. In vectors, cp.async takes them there, all parts at
// once and past the registers. Not STAGED: columns are loaded again.
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

    // Whether columns come by cp.async.
    static __device__ __forceinline__ bool copies(const Place<S>& place) { return STAGED && PTXKIT_SM >= 80 && place.vectors; }

    // Begins to copy a row, a group for each part.
    __device__ __forceinline__ void begin(const Place<S>& place, const T* matrix) const {
        if (!copies(place)) return;
        for (size_t begin = 0; begin < place.cols; begin += S::capacity) {
            const Place<S> part = place.part(begin);
            const T* from = matrix + part.first + part.thread * S::WIDTH;
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                if (i * S::WIDTH < part.held) {
                    cp_async_cg_shared_global(cvta_to_shared(slot(begin, i)), from + i * S::threads * S::WIDTH);
                }
            }
            cp_async_commit_group();
        }
    }

    // A part, which begins at column `begin`, when it is read first. Parts come in order.
    template <int CACHE>
    __device__ __forceinline__ Row<S> first(const Place<S>& part, unsigned begin, const T* matrix, float fill = 0.0f) const {
        if (copies(part)) {
            wait<6>((part.cols - 1) / S::capacity);
            return kept(part, begin, fill);
        }
        const Row<S> row = part.template load<CACHE>(matrix, fill);
        keep(begin, row);
        return row;
    }

    // And when it is read again.
    template <int CACHE>
    __device__ __forceinline__ Row<S> again(const Place<S>& part, unsigned begin, const T* matrix, float fill = 0.0f) const {
        if constexpr (STAGED) return kept(part, begin, fill);
        else return part.template load<CACHE>(matrix, fill);
    }

    // Columns that T holds exactly, made by the kernel.
    __device__ __forceinline__ void keep(unsigned begin, const Row<S>& row) const {
        if constexpr (STAGED) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                Vector<T, S::WIDTH> vector;
                vector.fill([&](int j) { return row.v[i][j]; });
#pragma unroll
                for (int w = 0; w < words; w++) slot(begin, i)[w * S::LANES] = reinterpret_cast<const uint4*>(vector.word)[w];
            }
        }
    }

    __device__ __forceinline__ Row<S> kept(const Place<S>& part, unsigned begin, float fill) const {
        Row<S> row;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            Vector<T, S::WIDTH> vector;
            vector.fill([&](int) { return fill; });
            if (!copies(part) || i * S::WIDTH < part.held) {
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

    // Until all parts but the last `pending` are there, or more: the instruction takes a constant.
    template <int PENDING>
    __device__ __forceinline__ void wait(unsigned pending) const {
        if constexpr (PENDING > 0) {
            if (pending < PENDING) return wait<PENDING - 1>(pending);
        }
        cp_async_wait_group<PENDING>();
    }
};

// f(c) for the columns c of this thread: the same ones each time.
template <int THREADS, class F>
__device__ __forceinline__ void each_column(unsigned cols, F f) {
#pragma unroll 4
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) f(c);
}

// Maximum, or sum in f64, of f(c) over the columns of the CTA's row. Each call in a kernel has an f, and so shared memory, of its own.

template <int THREADS, class F>
__device__ __forceinline__ float column_max(unsigned cols, F f) {
    __shared__ GroupSlots<float, THREADS / 32> slots;
    float largest = -infinity();
    each_column<THREADS>(cols, [&](unsigned c) { largest = fmaxf(largest, f(c)); });
    return cta_max<THREADS>(largest, slots);
}

template <int THREADS, class F>
__device__ __forceinline__ double column_sum(unsigned cols, F f) {
    __shared__ GroupSlots<double, THREADS / 32> slots;
    double sum = 0;
    each_column<THREADS>(cols, [&](unsigned c) { sum += f(c); });
    return cta_sum<THREADS>(sum, slots);
}

// f(row, c) with THREADS * ELEMENTS columns a CTA: a row takes cdiv(cols, THREADS * ELEMENTS) CTAs, one after another in the grid.
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
