// RMS normalization: y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * gamma, rows contiguous, in f32, f16 or bf16. For
// training, the factor of each row, rstd = 1 / sqrt(mean + eps), is stored.
//
// Variants:
// - unfused, `rmsnorm_square` to `rmsnorm_scale`: the operations as separate kernels, as a framework launches them;
//   seven passes over device memory.
// - `rmsnorm_fused`: the same arithmetic in one read and one write, with bit-identical results.
// - `rmsnorm_vectorized`: rows in registers, 128-bit accesses.
// - `rmsnorm_streamed`: rows that no cluster's registers hold stay in shared memory between passes.
// - `rmsnorm_persistent`: long rows; clusters take rows from a tile scheduler and prefetch them through TMA.
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the same in five launches

// Mean of the squares of a row. square(c) returns the square of column c rounded to f32, and value(c) the column
// itself, which is needed where a square left the range of f32. A thread calls both for the same columns.
template <int THREADS, class Square, class Value>
__device__ __forceinline__ double mean_square(int cols, float eps, Square square, Value value) {
    const double sum = column_sum<THREADS>(cols, square);
    if (sum < 0x1p126 && sum / cols + eps >= 0x1p-80) return sum / cols;
    return column_sum<THREADS>(cols, [&](unsigned c) { return static_cast<double>(value(c)) * value(c); }) / cols;
}

__device__ __forceinline__ double factor_of(double mean_square, float eps) { return 1.0 / sqrt(mean_square + eps); }
__device__ __forceinline__ float normalized(float x, double factor) { return static_cast<float>(x * factor); }

// One CTA per row. With KEEP the row stays in dynamic shared memory (cols elements); without, rows too long for shared
// memory are read again, mostly from L2. rstds may be null.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) rmsnorm_fused(const T* x, const T* gamma, T* y, float* rstds, int cols,
                                                         float eps) {
    extern __shared__ float4 dynamic[];
    T* kept = reinterpret_cast<T*>(dynamic);
    x += static_cast<size_t>(blockIdx.x) * cols;
    y += static_cast<size_t>(blockIdx.x) * cols;
    auto value = [&](unsigned c) { return to_f32(KEEP ? kept[c] : x[c]); };
    auto square = [&](unsigned c) {
        T v = x[c];
        if (KEEP) kept[c] = v;
        return to_f32(v) * to_f32(v);
    };
    const double factor = factor_of(mean_square<THREADS>(cols, eps, square, value), eps);
    each_column<THREADS>(
        cols, [&](unsigned c) { y[c] = Convert<T>::from_f32(normalized(value(c), factor) * to_f32(gamma[c])); });
    if (rstds && threadIdx.x == 0) rstds[blockIdx.x] = static_cast<float>(factor);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_square(const T* x, float* squares, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        squares[i] = to_f32(x[i]) * to_f32(x[i]);
    });
}

// x is read only for rows whose squares left the range of f32.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) rmsnorm_mean(const T* x, const float* squares, double* means, int cols,
                                                        float eps) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    squares += static_cast<size_t>(blockIdx.x) * cols;
    auto square = [&](unsigned c) { return squares[c]; };
    auto value = [&](unsigned c) { return to_f32(x[c]); };
    const double mean = mean_square<THREADS>(cols, eps, square, value);
    if (threadIdx.x == 0) means[blockIdx.x] = mean;
}

template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_factor(const double* means, double* factors, float* rstds, int rows,
                                                          float eps) {
    each_element<THREADS, ELEMENTS>(rows, [&](unsigned, unsigned r) {
        factors[r] = factor_of(means[r], eps);
        if (rstds) rstds[r] = static_cast<float>(factors[r]);
    });
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_normalize(const T* x, const double* factors, float* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = normalized(to_f32(x[i]), factors[row]);
    });
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_scale(const float* x, const T* gamma, T* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<T>::from_f32(x[i] * to_f32(gamma[c]));
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// With PREFETCH_WEIGHTS, gamma is requested together with x. Without, it is read from L1 after the sum, and more CTAs
// are resident because fewer registers are used.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 2 : 1>) rmsnorm_vectorized(
    const T* x, const T* gamma, T* y, float* rstds, int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ RootMeanSquareSlots<S> slots;
    with_layout<Tile::FULL_TILE>(RowLayout<S>(rows, cols, aligned16(x, gamma, y)), [&](const RowLayout<S>& layout) {
        if constexpr (Tile::PREFETCH_L2) layout.request(x);
        layout.request_shared(gamma);
        row_arrive<S, Tile::NO_EARLY_LAUNCH>();
        Row<S> row = layout.template load<Tile::CACHE>(x), weight;
        if constexpr (Tile::PREFETCH_WEIGHTS) weight = layout.load_shared(gamma);
        row_wait<S>();
        const RootMeanSquare rms = root_mean_square(row, layout, eps, slots);
        auto finished = [&](float v, float weight) { return v * rms.factor * weight; };
        if constexpr (Tile::PREFETCH_WEIGHTS) row.each([&](float& v, int k) { v = finished(v, weight[k]); });
        else layout.apply(row, finished, gamma);
        layout.template store<Tile::CACHE>(y, row);
        if (rstds && layout.cols && layout.thread == 0) rstds[layout.row] = rms.factor * rms.scale;
    });
}

// Dynamic persistent kernel for long rows: see tile_scheduler.cuh.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) rmsnorm_persistent(const T* x, const T* gamma, T* y,
                                                                                       float* rstds, unsigned* next,
                                                                                       int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename ClusterRecords<float, S>::Shared squares;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    __shared__ RowRecords<float, S> largest;
    ClusterRecords<float, S> sent(squares);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const RowLayout<S> layout(rows, cols, aligned16(x, gamma, y));
    const Weights<T, S, 1, Tile::SMEM_VECTORS> weights(chunks.after_stages());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(layout.any(cols), gamma);
        row_wait<S>();
    };
    struct {
        ClusterRecords<float, S>& squares;
        RowRecords<float, S>& largest;
    } slots = {sent, largest};
    auto compute = [&](const RowLayout<S>& layout, Row<S>& row) {
        const RootMeanSquare rms = root_mean_square(row, layout, eps, slots);
        weights.template store<Tile::CACHE>(
            layout, y, row, [&](float v, float weight) { return v * rms.factor * weight; }, gamma);
        if (rstds && layout.thread == 0) rstds[layout.row] = rms.factor * rms.scale;
    };
    persistent_rows<Tile::FULL_TILE>(chunks, layout, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the pass for the factor and the last
// pass, or is read again. Squares that leave the range of f32 are summed again in f64.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) rmsnorm_streamed(const T* x, const T* gamma, T* y, float* rstds, int rows,
                                                            int cols, float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, gamma, y));
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(layout, x);
    row_wait<S>();
    double sum = 0;
    forward_chunks<S>(cols, [&](unsigned begin) {
        const Row<S> row = staged.template first<CACHE_KEEP>(layout.chunk(begin), begin, x);
        sum += row.sum([](float v, int) { return v * v; });
    });
    double mean = row_sum(sum, slots, 0) / cols;
    const bool safe = squares_are_safe(static_cast<float>(mean * cols), static_cast<float>(mean + eps));
    if (!safe) {
        sum = 0;
        forward_chunks<S>(cols, [&](unsigned begin) {
            const Row<S> row = staged.template again<CACHE_KEEP>(layout.chunk(begin), begin, x);
            sum += row.template sum<double>([](float v, int) { return static_cast<double>(v) * v; });
        });
        mean = row_sum(sum, slots, 1) / cols;
    }
    const double factor = factor_of(mean, eps);
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(chunk, begin, x);
        if (safe) row.each([rounded = static_cast<float>(factor)](float& v, int) { v *= rounded; });
        else row.each([&](float& v, int) { v = normalized(v, factor); });
        chunk.apply(row, [](float v, float weight) { return v * weight; }, gamma + begin);
        chunk.template store<CACHE_STREAM>(y, row);
    });
    if (rstds && layout.thread == 0) rstds[layout.row] = static_cast<float>(factor);
}
