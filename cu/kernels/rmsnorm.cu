// RMS normalization: y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * gamma, rows contiguous, in f32, f16 or bf16. For training, the
// factor of each row, rstd = 1 / sqrt(mean + eps), is kept.
//
// The story: `rmsnorm_square` ... `rmsnorm_scale` are what a framework launches that has these as operations, seven passes over
// device memory; `rmsnorm_fused` does the same arithmetic in one read and one write, bit for bit; `rmsnorm_vectorized` holds the
// row in registers and moves 128 bits an access; `rmsnorm_streamed` is for rows that fit in no cluster's registers: they wait in
// shared memory. `rmsnorm_persistent`, for long rows, takes rows from a tile scheduler and prefetches them.
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------------
// fused, and the same in five launches

// Mean of the squares of a row. square(c) gives column c rounded to f32 and value(c) the column itself, for when a square left the
// range of f32; both are asked of the same thread for the same c.
template <int THREADS, class Square, class Value>
__device__ __forceinline__ double mean_square(int cols, float eps, Square square, Value value) {
    const double sum = column_sum<THREADS>(cols, square);
    if (sum < 0x1p126 && sum / cols + eps >= 0x1p-80) return sum / cols;
    return column_sum<THREADS>(cols, [&](unsigned c) { return static_cast<double>(value(c)) * value(c); }) / cols;
}

__device__ __forceinline__ double factor_of(double mean_square, float eps) { return 1.0 / sqrt(mean_square + eps); }
__device__ __forceinline__ float normalized(float x, double factor) { return static_cast<float>(x * factor); }

// One CTA a row. With KEEP the row waits in dynamic shared memory (cols elements) for its factor; without, rows too long for that
// are read again, mostly from L2. rstds may be null.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS)
rmsnorm_fused(const T* x, const T* gamma, T* y, float* rstds, int cols, float eps) {
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
    each_column<THREADS>(cols, [&](unsigned c) {
        y[c] = Convert<T>::from_f32(normalized(value(c), factor) * to_f32(gamma[c]));
    });
    if (rstds && threadIdx.x == 0) rstds[blockIdx.x] = static_cast<float>(factor);
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) rmsnorm_square(const T* x, float* squares, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        squares[i] = to_f32(x[i]) * to_f32(x[i]);
    });
}

// x is read for rows whose squares left the range of f32 only.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_mean(const T* x, const float* squares, double* means, int cols, float eps) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    squares += static_cast<size_t>(blockIdx.x) * cols;
    auto square = [&](unsigned c) { return squares[c]; };
    auto value = [&](unsigned c) { return to_f32(x[c]); };
    const double mean = mean_square<THREADS>(cols, eps, square, value);
    if (threadIdx.x == 0) means[blockIdx.x] = mean;
}

template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS)
rmsnorm_factor(const double* means, double* factors, float* rstds, int rows, float eps) {
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

// ---------------------------------------------------------------------------------------------------------------------------
// vectorized

// With PREFETCH_WEIGHTS gamma is on its way together with x. Without, it comes from L1 when the row is ready, and its registers hold more rows
// instead. NO_EARLY_LAUNCH: see follow_previous_grid. FULL_TILE: a row fills the registers of a CTA or cluster.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 3 : 2>)
rmsnorm_vectorized(const T* x, const T* gamma, T* y, float* rstds, int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ RootMeanSquareSlots<S> slots;
    with_place<Tile::FULL_TILE>(Place<S>(rows, cols, aligned16(x, gamma, y)), [&](const Place<S>& place) {
        row_arrive<S, Tile::NO_EARLY_LAUNCH>();
        Row<S> row = place.template load<Tile::CACHE>(x), weight;
        if constexpr (Tile::PREFETCH_WEIGHTS) weight = place.load_shared(gamma);
        row_wait<S>();
        const RootMeanSquare rms = root_mean_square(row, place, eps, slots);
        auto finished = [&](float v, float weight) { return v * rms.factor * weight; };
        if constexpr (Tile::PREFETCH_WEIGHTS) row.each([&](float& v, int k) { v = finished(v, weight[k]); });
        else place.apply(row, finished, gamma);
        place.template store<Tile::CACHE>(y, row);
        if (rstds && place.cols && place.thread == 0) rstds[place.row] = rms.factor * rms.scale;
    });
}

// Dynamic persistent kernel for long rows. STAGES chunks of rows, of CHUNK_VECTORS vectors a thread, are in flight
// while one is computed; SMEM_VECTORS vectors of gamma a thread wait in shared memory. An SM holds CTAS_PER_SM CTAs; FULL_TILE: a row fills the
// cluster's registers.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM)
rmsnorm_persistent(const T* x, const T* gamma, T* y, float* rstds, unsigned* next, int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename SentRecords<float, S>::Shared squares;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    __shared__ RowRecords<float, S> largest;
    SentRecords<float, S> sent(squares);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const Place<S> place(rows, cols, aligned16(x, gamma, y));
    const Weights<T, S, 1, Tile::SMEM_VECTORS> weights(chunks.behind());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(place.any(cols), gamma);
        row_wait<S>();
    };
    struct {
        SentRecords<float, S>& squares;
        RowRecords<float, S>& largest;
    } slots = {sent, largest};
    auto compute = [&](const Place<S>& place, Row<S>& row) {
        const RootMeanSquare rms = root_mean_square(row, place, eps, slots);
        weights.template store<Tile::CACHE>(place, y, row, [&](float v, float weight) { return v * rms.factor * weight; }, gamma);
        if (rstds && place.thread == 0) rstds[place.row] = rms.factor * rms.scale;
    };
    persistent_rows<Tile::FULL_TILE>(chunks, place, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, by a cluster: it waits in shared memory for its factor, or is read once more. Squares that leave the range
// of f32 are summed again in f64.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS)
rmsnorm_streamed(const T* x, const T* gamma, T* y, float* rstds, int rows, int cols, float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const Place<S> place(rows, cols, aligned16(x, gamma, y));
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(place, x);
    row_wait<S>();
    double sum = 0;
    forward_parts<S>(cols, [&](unsigned begin) {
        const Row<S> row = staged.template first<CACHE_KEEP>(place.part(begin), begin, x);
        sum += row.sum([](float v, int) { return v * v; });
    });
    double mean = row_sum(sum, slots, 0) / cols;
    const bool safe = squares_are_safe(static_cast<float>(mean * cols), static_cast<float>(mean + eps));
    if (!safe) {
        sum = 0;
        forward_parts<S>(cols, [&](unsigned begin) {
            const Row<S> row = staged.template again<CACHE_KEEP>(place.part(begin), begin, x);
            sum += row.template sum<double>([](float v, int) { return static_cast<double>(v) * v; });
        });
        mean = row_sum(sum, slots, 1) / cols;
    }
    const double factor = factor_of(mean, eps);
    backward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(part, begin, x);
        if (safe) row.each([rounded = static_cast<float>(factor)](float& v, int) { v *= rounded; });
        else row.each([&](float& v, int) { v = normalized(v, factor); });
        part.apply(row, [](float v, float weight) { return v * weight; }, gamma + begin);
        part.template store<CACHE_STREAM>(y, row);
    });
    if (rstds && place.thread == 0) rstds[place.row] = static_cast<float>(factor);
}
