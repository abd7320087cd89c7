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
    const double sum = column_sum<THREADS>(cols, square);
    if (is_safe(sum)) return sum;
    return column_sum<THREADS>(cols, [&](unsigned c) { return static_cast<double>(value(c)) * value(c); });
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
    each_column<THREADS>(cols, [&](unsigned c) { y[c] = divided(value(c), norm); });
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

// A row takes cdiv(cols, THREADS * ELEMENTS) consecutive CTAs. Not each_element of row.cuh: the norm is loaded once.
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

// Divides each column of a row by the norm. All threads of the row call it.
template <class S, class Slots>
__device__ __forceinline__ void normalize(Row<S>& row, float eps, Slots& slots, RowRecords<double, S>& exact_slots) {
    const float square = row_sum(row.sum([](float v, int) { return v * v; }), slots) + eps;
    float factor = inverse_sqrt(square);
    const bool unsafe = !is_safe(square);
    if (__builtin_expect(any_row<S>(unsafe), false)) {
        auto squared = [](float v, int) { return static_cast<double>(v) * v; };
        const double exact = row_sum(row.template sum<double>(squared), exact_slots);
        if (unsafe) {
            const Norm norm = norm_from_square(exact + eps);
            row.each([&](float& v, int) { v *= norm.scale; });
            factor = 1.0f / norm.value;
        }
    }
    row.each([&](float& v, int) { v *= factor; });
}

template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS) l2norm_vectorized(const float* x, float* y, int rows, int cols,
                                                                   float eps) {
    using S = typename Tile::template Shape<float>;
    __shared__ RowRecords<float, S> slots;
    __shared__ RowRecords<double, S> exact_slots;
    with_layout<Tile::FULL_TILE>(RowLayout<S>(rows, cols, aligned16(x, y)), [&](const RowLayout<S>& layout) {
        if constexpr (Tile::PREFETCH_L2) layout.request(x);
        row_arrive<S, Tile::NO_EARLY_LAUNCH>();
        Row<S> row = layout.template load<Tile::CACHE>(x);
        row_wait<S>();
        normalize(row, eps, slots, exact_slots);
        layout.template store<Tile::CACHE>(y, row);
    });
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
        normalize(row, eps, sent, exact_slots);
        layout.template store<Tile::CACHE>(y, row);
    };
    persistent_rows<Tile::FULL_TILE>(chunks, layout, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the passes, or is read again in
// descending order, so that the second pass begins with the columns that L2 read last.
template <int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) l2norm_streamed(const float* x, float* y, int rows, int cols, float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<float>>;
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
