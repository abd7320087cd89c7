// Layer normalization: y[r, :] = activation((x[r, :] - mean) * rstd * gamma + beta), where mean is that of the row and
// rstd = 1 / sqrt(variance + eps), rows contiguous, in f32, f16 or bf16. For training, mean and rstd of each row are kept.
//
// The story: `layernorm_mean` ... `layernorm_activate` are what a framework launches that has these as operations, eight passes
// over device memory; `layernorm_fused` does the same arithmetic in one read and one write, bit for bit; `layernorm_vectorized`
// holds the row in registers, moves 128 bits an access and meets at one barrier; `layernorm_streamed` is for rows that fit in no
// cluster's registers: they wait in shared memory. `layernorm_persistent`, for long rows, takes rows from
// a tile scheduler and prefetches them.
//
// The first two sum in f64, which no row of f32 leaves; cu/ptxkit/rows/normalize.cuh tells how the others do without.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------------
// fused, and the same in five launches

// One CTA a row. With KEEP the row waits in dynamic shared memory (cols elements) for its statistics; without, rows too long for
// that are read again, mostly from L2. mean and rstd may be null.
template <class T, Activation A, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS)
layernorm_fused(const T* x, const T* gamma, const T* beta, T* y, float* means, float* rstds, int cols, float eps) {
    extern __shared__ float4 dynamic[];
    T* kept = reinterpret_cast<T*>(dynamic);
    x += static_cast<size_t>(blockIdx.x) * cols;
    y += static_cast<size_t>(blockIdx.x) * cols;
    auto first = [&](unsigned c) {
        T v = x[c];
        if (KEEP) kept[c] = v;
        return to_f32(v);
    };
    auto again = [&](unsigned c) { return to_f32(KEEP ? kept[c] : x[c]); };
    const ExactStatistics exact = column_statistics<THREADS>(cols, eps, first, again);
    each_column<THREADS>(cols, [&](unsigned c) {
        y[c] = Convert<T>::from_f32(activate<A>(affine(exact.standardized(again(c)), gamma[c], beta[c])));
    });
    if (means && threadIdx.x == 0) {
        means[blockIdx.x] = static_cast<float>(exact.mean);
        rstds[blockIdx.x] = static_cast<float>(exact.rstd);
    }
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) layernorm_mean(const T* x, double* exact, float* means, int cols) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    const double mean = mean_of(column_sum<THREADS>(cols, [&](unsigned c) { return to_f32(x[c]); }), cols);
    if (threadIdx.x == 0) {
        exact[blockIdx.x] = mean;
        if (means) means[blockIdx.x] = static_cast<float>(mean);
    }
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
layernorm_rstd(const T* x, const double* means, double* exact, float* rstds, int cols, float eps) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    const double mean = means[blockIdx.x];
    const double squares = column_sum<THREADS>(cols, [&](unsigned c) { return squared(to_f32(x[c]) - mean); });
    if (threadIdx.x == 0) {
        exact[blockIdx.x] = rstd_of(squares, cols, eps);
        if (rstds) rstds[blockIdx.x] = static_cast<float>(exact[blockIdx.x]);
    }
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS)
layernorm_normalize(const T* x, const double* means, const double* rstds, float* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = ExactStatistics{means[row], rstds[row]}.standardized(to_f32(x[i]));
    });
}

template <class T, class Out, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS)
layernorm_affine(const float* x, const T* gamma, const T* beta, Out* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<Out>::from_f32(affine(x[i], gamma[c], beta[c]));
    });
}

template <class T, Activation A, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_activate(const float* x, T* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<T>::from_f32(activate<A>(x[i]));
    });
}

// ---------------------------------------------------------------------------------------------------------------------------
// vectorized

// With PREFETCH_WEIGHTS gamma and beta are on their way before the row's sums are made: behind x, as L2 gives just so many bytes a cycle, unless
// the row is short, and soon summed, or ptxas would then spill. Without, they come from L1 when the row is ready, and their registers
// hold more rows instead. NO_EARLY_LAUNCH: see follow_previous_grid. FULL_TILE: a row fills the registers of a CTA or cluster.
template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 3 : 2>)
layernorm_vectorized(const T* x, const T* gamma, const T* beta, T* y, float* means, float* rstds, int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    with_place<Tile::FULL_TILE>(Place<S>(rows, cols, aligned16(x, gamma, beta, y)), [&](const Place<S>& place) {
        row_arrive<S, Tile::NO_EARLY_LAUNCH>();
        Row<S> row = place.template load<Tile::CACHE>(x), weight, bias;
        auto load_weights = [&] { weight = place.load_shared(gamma), bias = place.load_shared(beta); };
        constexpr bool behind = S::elements <= 16 && Tile::LANES >= 128;
        if constexpr (Tile::PREFETCH_WEIGHTS && !behind) load_weights();
        row_wait<S>();
        const Statistics statistics = standardize(row, place, eps, slots, [&] {
            if constexpr (Tile::PREFETCH_WEIGHTS && behind) load_weights();
        });
        auto finished = [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); };
        if constexpr (Tile::PREFETCH_WEIGHTS) row.each([&](float& v, int k) { v = finished(v, weight[k], bias[k]); });
        else place.apply(row, finished, gamma, beta);
        place.template store<Tile::CACHE>(y, row);
        if (means && place.cols && place.thread == 0) {
            means[place.row] = statistics.mean;
            rstds[place.row] = statistics.rstd;
        }
    });
}

// Dynamic persistent kernel for long rows. STAGES chunks of rows, of CHUNK_VECTORS vectors a thread, are in flight
// while one is computed; SMEM_VECTORS vectors of gamma and beta a thread wait in shared memory. An SM holds CTAS_PER_SM CTAs; FULL_TILE: a row
// fills the cluster's registers.
template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM)
layernorm_persistent(const T* x, const T* gamma, const T* beta, T* y, float* means, float* rstds, unsigned* next, int rows, int cols,
                  float eps) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename SentRecords<Deviations, S>::Shared deviations;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    __shared__ RowRecords<float, S> largest;
    SentRecords<Deviations, S> sent(deviations);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const Place<S> place(rows, cols, aligned16(x, gamma, beta, y));
    const Weights<T, S, 2, Tile::SMEM_VECTORS> weights(chunks.behind());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(place.any(cols), gamma, beta);
        row_wait<S>();
    };
    struct {
        SentRecords<Deviations, S>& deviations;
        RowRecords<float, S>& largest;
    } slots = {sent, largest};
    auto compute = [&](const Place<S>& place, Row<S>& row) {
        const Statistics statistics = standardize(row, place, eps, slots);
        auto finished = [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); };
        weights.template store<Tile::CACHE>(place, y, row, finished, gamma, beta);
        if (means && place.thread == 0) {
            means[place.row] = statistics.mean;
            rstds[place.row] = statistics.rstd;
        }
    };
    persistent_rows<Tile::FULL_TILE>(chunks, place, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, by a cluster: it waits in shared memory for its statistics, or is read once more.
template <class T, Activation A, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS)
layernorm_streamed(const T* x, const T* gamma, const T* beta, T* y, float* means, float* rstds, int rows, int cols, float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const Place<S> place(rows, cols, aligned16(x, gamma, beta, y));
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(place, x);
    row_wait<S>();
    const PartsStatistics statistics = statistics_in_parts<CACHE_KEEP>(x, place, eps, slots, staged);
    backward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(part, begin, x);
        statistics.standardize(row);
        part.apply(row, [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); }, gamma + begin,
                   beta + begin);
        part.template store<CACHE_STREAM>(y, row);
    });
    if (means && place.thread == 0) {
        means[place.row] = static_cast<float>(statistics.mean);
        rstds[place.row] = static_cast<float>(statistics.rstd);
    }
}
