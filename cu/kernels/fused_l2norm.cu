// Rows divided by their L2 norm: y[r, :] = x[r, :] / sqrt(sum(x[r, :]^2) + eps), f32, rows contiguous.
//
// Variants:
// - unfused, `l2norm_square` to `l2norm_divide`: five kernels and five passes over device memory, as a framework
//   launches them.
// - `l2norm_fused`: the same arithmetic in one read and one write, with bit-identical results.
// - `l2norm_vectorized`: rows in registers, 128-bit accesses.
// - `l2norm_streamed`: rows that no cluster's registers hold stay in shared memory between passes.
// - `l2norm_persistent`: long rows; clusters take rows from a tile scheduler and prefetch them through TMA.
//
// Range: squares overflow f32 above 1.8e19 and lose bits below 1e-19, although the quotient is harmless. Nearly all
// rows are in between, so each kernel sums plain f32 squares and tests the sum (is_safe). Only if it has left the safe
// range are the squares summed again in f64, which holds any sum of f32 squares. The row is still in registers or
// shared memory then, and rows in the safe range execute one comparison for it.
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// Sums of f32 squares in [2^-80, 2^126) are accurate: no square has overflowed, and what 2^31 squares can lose to
// underflow, 2^-150 each, is below 2^-38 of the sum. False for NaN.
__device__ __forceinline__ bool is_safe(double sum) { return sum >= 0x1p-80 && sum < 0x1p126; }
__device__ __forceinline__ bool is_safe(float sum) { return sum >= 0x1p-80f && sum < 0x1p126f; }

// A norm that fits in f32: x / norm is (x * scale) / value, where scale is a power of two. The largest norm, of 2^31
// values near 2^128, is 2^143.5; the smallest, of one subnormal value without eps, 2^-149.
struct Norm {
    float scale, value;
};

__device__ __forceinline__ Norm norm_from_square(double square) {
    float scale = square > 0x1p200 ? 0x1p-64f : square < 0x1p-200 ? 0x1p64f : 1.0f;
    return {scale, static_cast<float>(sqrt(square) * scale)};
}

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the same in five launches

// Sum of f32 squares over a row, or of exact squares if the plain sum is not safe. square(c) returns the square of
// column c rounded to f32 and value(c) the column itself. A thread calls both for the same columns.
template <int THREADS, class Square, class Value>
__device__ __forceinline__ double square_sum(int cols, Square square, Value value) {
    __shared__ GroupSlots<double, THREADS / 32> slots;
    double sum = 0;
#pragma unroll 4
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) sum += square(c);
    sum = cta_sum<THREADS>(sum, slots, 0);
    if (is_safe(sum)) return sum;
    sum = 0;
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) {
        double v = value(c);
        sum = fma(v, v, sum);
    }
    return cta_sum<THREADS>(sum, slots, 1);
}

__device__ __forceinline__ float divided(float x, Norm norm) { return x * norm.scale / norm.value; }

// One CTA per row. With KEEP the row stays in dynamic shared memory (4 bytes per column); without, rows too long for
// shared memory are read again, mostly from L2.
template <int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) l2norm_fused(const float* x, float* y, int cols, float eps) {
    extern __shared__ float kept[];
    x += static_cast<size_t>(blockIdx.x) * cols;
    y += static_cast<size_t>(blockIdx.x) * cols;
    auto value = [&](unsigned c) { return KEEP ? kept[c] : x[c]; };
    auto square = [&](unsigned c) {
        float v = x[c];
        if (KEEP) kept[c] = v;
        return v * v;
    };
    Norm norm = norm_from_square(square_sum<THREADS>(cols, square, value) + eps);
#pragma unroll 4
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) y[c] = divided(value(c), norm);
}

// The element-wise kernels have ELEMENTS loads in flight per thread, as those of PyTorch have four.
template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) l2norm_square(const float* x, float* squares, long long n) {
    long long first = static_cast<long long>(blockIdx.x) * THREADS * ELEMENTS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ELEMENTS; k++) {
        long long i = first + k * THREADS;
        if (i < n) squares[i] = x[i] * x[i];
    }
}

// Stores sums[r] in f64. x is read only for rows whose squares left the safe range.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) l2norm_row_sum(const float* x, const float* squares, double* sums,
                                                          int cols) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    squares += static_cast<size_t>(blockIdx.x) * cols;
    auto square = [&](unsigned c) { return squares[c]; };
    auto value = [&](unsigned c) { return x[c]; };
    double sum = square_sum<THREADS>(cols, square, value);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) l2norm_add_eps(double* sums, int rows, float eps) {
    unsigned r = blockIdx.x * THREADS + threadIdx.x;
    if (r < rows) sums[r] += eps;
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) l2norm_sqrt(const double* sums, Norm* norms, int rows) {
    unsigned r = blockIdx.x * THREADS + threadIdx.x;
    if (r < rows) norms[r] = norm_from_square(sums[r]);
}

// A row takes cdiv(cols, THREADS * ELEMENTS) consecutive CTAs.
template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) l2norm_divide(const float* x, const Norm* norms, float* y, int cols) {
    unsigned ctas_per_row = (cols - 1) / (THREADS * ELEMENTS) + 1;
    unsigned row = blockIdx.x / ctas_per_row;
    unsigned first = blockIdx.x % ctas_per_row * (THREADS * ELEMENTS) + threadIdx.x;
    Norm norm = norms[row];
    x += static_cast<size_t>(row) * cols;
    y += static_cast<size_t>(row) * cols;
#pragma unroll
    for (int k = 0; k < ELEMENTS; k++) {
        unsigned c = first + k * THREADS;
        if (c < cols) y[c] = divided(x[c], norm);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// L2 policy of the accesses to device memory; results are the same. KEEP_X: L2 evicts y first, which then goes to
// device memory in a steady stream. KEEP_Y: L2 evicts x first.
enum Hint { HINT_NONE = 0, HINT_KEEP_X = 1, HINT_KEEP_Y = 2 };

// The columns of a row that one of `threads` threads holds: 4 * QUADS columns, zeros past the end. A quad is 16 bytes.
// `quads` says whether the row can be accessed in quads (aligned, and cols a multiple of 4); otherwise the registers
// hold single columns, and adjacent lanes hold adjacent columns, so that the accesses still coalesce.
template <int QUADS, int HINT>
struct Part {
    float v[4 * QUADS];

    __device__ __forceinline__ void load(const float* row, unsigned cols, unsigned thread, unsigned threads,
                                         bool quads) {
        if (quads) {
            const uint4* row4 = reinterpret_cast<const uint4*>(row);
            unsigned long long policy = HINT == HINT_KEEP_X   ? createpolicy_L2_evict_last()
                                        : HINT == HINT_KEEP_Y ? createpolicy_L2_evict_first()
                                                              : 0;
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                unsigned q = i * threads + thread;
                uint4 quad = uint4();
                if (q < cols / 4) quad = HINT == HINT_NONE ? ld_global(row4 + q) : ld_global(row4 + q, policy);
                v[4 * i] = __uint_as_float(quad.x), v[4 * i + 1] = __uint_as_float(quad.y);
                v[4 * i + 2] = __uint_as_float(quad.z), v[4 * i + 3] = __uint_as_float(quad.w);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4 * QUADS; k++) {
                unsigned c = k * threads + thread;
                v[k] = c < cols ? row[c] : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void store(float* row, unsigned cols, unsigned thread, unsigned threads,
                                          bool quads) const {
        if (quads) {
            float4* row4 = reinterpret_cast<float4*>(row);
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                unsigned q = i * threads + thread;
                float4 quad = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
                if (q < cols / 4) st_global(row4 + q, quad);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4 * QUADS; k++) {
                unsigned c = k * threads + thread;
                if (c < cols) row[c] = v[k];
            }
        }
    }

    __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
        for (int k = 0; k < 4 * QUADS; k++) v[k] *= factor;
    }
};

// Four independent accumulators keep four fma in flight and shorten the chains in which rounding errors of equal values
// add up.
template <class T, int QUADS, int HINT>
__device__ __forceinline__ T sum_of_squares(const Part<QUADS, HINT>& part) {
    T sum[4] = {};
#pragma unroll
    for (int k = 0; k < 4 * QUADS; k++) sum[k % 4] = fma(T(part.v[k]), T(part.v[k]), sum[k % 4]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Shared memory for the sum of a row that LANES threads in each of CTAS CTAs hold. LANES is a power of two.
template <class T, int THREADS, int LANES, int CTAS>
struct RowSlots {
    static constexpr int groups = THREADS / LANES;
    static_assert(groups <= 16 || LANES <= 32, "a group of several warps needs one of 16 barriers");
    static_assert(CTAS == 1 || groups == 1, "a cluster takes one row at a time");

    GroupSlots < T, LANES<32 ? 1 : LANES / 32> group[LANES <= 32 || CTAS > 1 ? 1 : groups];
    ClusterSlots<T, CTAS, CTAS == 1 ? 1 : THREADS / 32> cluster;

    __device__ __forceinline__ T sum(T value, unsigned iteration) {
        if constexpr (CTAS > 1) return cluster_sum<THREADS, CTAS>(value, cluster, iteration);
        else if constexpr (LANES <= 32) return warp_sum<LANES>(value);
        else return group_sum<LANES, groups>(value, group[threadIdx.x / LANES], threadIdx.x / LANES, iteration);
    }
};

// Tile parameters of l2norm_vectorized. The description gives them by name (L2normTile in
// ptxkit/kernels/rows/fused_l2norm.py).
template <int THREADS_, int LANES_, int QUADS_, int CTAS_, int ROWS_, int HINT_, bool NO_EARLY_LAUNCH_, bool FULL_TILE_>
struct L2normTile {
    static constexpr int THREADS = THREADS_, LANES = LANES_, QUADS = QUADS_, CTAS = CTAS_, ROWS = ROWS_, HINT = HINT_;
    static constexpr bool NO_EARLY_LAUNCH = NO_EARLY_LAUNCH_, FULL_TILE = FULL_TILE_;
};

// LANES threads in each of CTAS CTAs hold a row, 4 * QUADS columns per thread. Short rows share a CTA, THREADS / LANES
// of them; a long row is held by a cluster. Each group of threads computes ROWS rows one after another and loads the
// next one while it sums the squares of this one.
template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS) l2norm_vectorized(const float* x, float* y, int rows, int cols,
                                                                   float eps) {
    constexpr int THREADS = Tile::THREADS, LANES = Tile::LANES, QUADS = Tile::QUADS, CTAS = Tile::CTAS,
                  ROWS = Tile::ROWS;
    constexpr int HINT = Tile::HINT;
    constexpr bool FULL_TILE = Tile::FULL_TILE;
    constexpr unsigned groups = THREADS / LANES, threads = LANES * CTAS;
    __shared__ RowSlots<float, THREADS, LANES, CTAS> slots;
    __shared__ RowSlots<double, THREADS, LANES, CTAS> exact_slots;
    const unsigned thread = cluster_ctarank() * (CTAS > 1 ? LANES : 0) + threadIdx.x % LANES;
    const unsigned stride = gridDim.x / CTAS * groups;
    const bool aligned =
        ((reinterpret_cast<size_t>(x) | reinterpret_cast<size_t>(y) | 4 * static_cast<size_t>(cols)) & 15) == 0;
    unsigned row = blockIdx.x / CTAS * groups + threadIdx.x / LANES;
    // A thread past the last row continues with an empty row, since the other threads of its warp wait for it in
    // shuffles.
    auto columns = [&](unsigned r) { return FULL_TILE ? 4 * QUADS * threads : r < rows ? cols : 0; };
    auto offset = [&](unsigned r) { return static_cast<size_t>(r) * cols; };

    auto run = [&](bool quads) {
        follow_previous_grid<Tile::NO_EARLY_LAUNCH>();
        if constexpr (CTAS > 1) barrier_cluster_arrive_relaxed();
        Part<QUADS, HINT> part, next;
        part.load(x + offset(row), columns(row), thread, threads, quads);
        if constexpr (CTAS > 1) barrier_cluster_wait_acquire();  // all CTAs of the cluster have started

#pragma unroll 1
        for (unsigned iteration = 0; iteration < ROWS; iteration++) {
            if constexpr (ROWS > 1) {
                if (iteration + 1 < ROWS)
                    next.load(x + offset(row + stride), columns(row + stride), thread, threads, quads);
            }
            float square = slots.sum(sum_of_squares<float>(part), iteration) + eps;
            float factor = inverse_sqrt(square);
            bool unsafe = !is_safe(square);
            // All threads that take part in a sum must take the same branch. Rows with fewer than 32 lanes share
            // shuffles.
            if (__builtin_expect(LANES < 32 ? vote_sync_any(all_lanes, unsafe) : unsafe, false)) {
                double exact = exact_slots.sum(sum_of_squares<double>(part), iteration) + eps;
                if (unsafe) {
                    Norm norm = norm_from_square(exact);
                    part.multiply(norm.scale);
                    factor = 1.0f / norm.value;
                }
            }
            part.multiply(factor);
            part.store(y + offset(row), columns(row), thread, threads, quads);
            if constexpr (ROWS > 1) {
                part = next;
                row += stride;
            }
        }
    };
    if (FULL_TILE && aligned) run(true);  // a copy of the code without bounds checks
    else run(aligned);
}

// Dynamic persistent kernel for long rows: see tile_scheduler.cuh.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) l2norm_persistent(const T* x, T* y, unsigned* next,
                                                                                      int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename ClusterRecords<float, S>::Shared records;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    __shared__ RowRecords<double, S> exact_slots;
    ClusterRecords<float, S> sent(records);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const RowLayout<S> layout(rows, cols, aligned16(x, y));
    row_arrive<S>();
    auto started = [] { row_wait<S>(); };
    auto compute = [&](const RowLayout<S>& layout, Row<S>& row) {
        const float square = row_sum(row.sum([](float v, int) { return v * v; }), sent) + eps;
        float factor = inverse_sqrt(square);
        if (!is_safe(square)) {
            auto squared = [](float v, int) { return static_cast<double>(v) * v; };
            const double exact = row_sum(row.template sum<double>(squared), exact_slots);
            const Norm norm = norm_from_square(exact + eps);
            row.each([&](float& v, int) { v *= norm.scale; });
            factor = 1.0f / norm.value;
        }
        row.each([&](float& v, int) { v *= factor; });
        layout.template store<Tile::CACHE>(y, row);
    };
    persistent_rows<Tile::FULL_TILE>(chunks, layout, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the passes, or is read again in
// descending order, so that the second pass begins with the columns that L2 read last. THREADS * CTAS threads take 4 *
// QUADS columns each at a time.
template <int THREADS, int QUADS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) l2norm_streamed(const float* x, float* y, int rows, int cols, float eps) {
    using S = RowShape<THREADS, THREADS, QUADS, CTAS, 4>;
    __shared__ RowRecords<double, S, 2> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, y));
    const Staged<float, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(layout, x);
    row_wait<S>();
    double sum = 0;
    forward_chunks<S>(cols, [&](unsigned begin) {
        const Row<S> row = staged.template first<CACHE_KEEP>(layout.chunk(begin), begin, x);
        sum += row.sum([](float v, int) { return v * v; });
    });
    double square = row_sum(sum, slots, 0) + eps;
    if (!is_safe(square)) {
        sum = 0;
        forward_chunks<S>(cols, [&](unsigned begin) {
            const Row<S> row = staged.template again<CACHE_KEEP>(layout.chunk(begin), begin, x);
            sum += row.template sum<double>([](float v, int) { return static_cast<double>(v) * v; });
        });
        square = row_sum(sum, slots, 1) + eps;
    }
    const Norm norm = norm_from_square(square);
    const float inverse = 1.0f / norm.value;
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(chunk, begin, x);
        row.each([&](float& v, int) { v = v * norm.scale * inverse; });
        chunk.template store<CACHE_STREAM>(y, row);
    });
}
