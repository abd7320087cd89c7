// Layer normalization: y[r, :] = activation((x[r, :] - mean) * rstd * gamma + beta), where mean is that of the row and
// rstd = 1 / sqrt(variance + eps), rows contiguous, in f32, f16 or bf16. For training, mean and rstd of each row are
// stored.
//
// Variants:
// - unfused, `layernorm_mean` to `layernorm_activate`: the operations as separate kernels, as a framework launches
//   them; eight passes over device memory.
// - `layernorm_fused`: the same arithmetic in one read and one write, with bit-identical results.
// - `layernorm_vectorized`: rows in registers, 128-bit accesses, one barrier.
// - `layernorm_streamed`: rows that no cluster's registers hold stay in shared memory between passes.
// - `layernorm_persistent`: long rows; clusters take rows from a tile scheduler and prefetch them through TMA.
//
// The first two sum in f64, whose range no row of f32 values exceeds; cu/ptxkit/rows/normalize.cuh explains how the
// others sum in f32.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the same in five launches

// One CTA per row. With KEEP the row stays in dynamic shared memory (cols elements); without, rows too long for shared
// memory are read again, mostly from L2. means and rstds may be null.
template <class T, Activation A, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) layernorm_fused(const T* x, const T* gamma, const T* beta, T* y,
                                                           float* means, float* rstds, int cols, float eps) {
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
__global__ void __launch_bounds__(THREADS) layernorm_rstd(const T* x, const double* means, double* exact, float* rstds,
                                                          int cols, float eps) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    const double mean = means[blockIdx.x];
    const double squares = column_sum<THREADS>(cols, [&](unsigned c) { return squared(to_f32(x[c]) - mean); });
    if (threadIdx.x == 0) {
        exact[blockIdx.x] = rstd_of(squares, cols, eps);
        if (rstds) rstds[blockIdx.x] = static_cast<float>(exact[blockIdx.x]);
    }
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_normalize(const T* x, const double* means, const double* rstds,
                                                               float* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = ExactStatistics{means[row], rstds[row]}.standardized(to_f32(x[i]));
    });
}

template <class T, class Out, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) layernorm_affine(const float* x, const T* gamma, const T* beta, Out* y,
                                                            int cols) {
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

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// With an activation and 32 columns of 16 bits for each thread, requests of the row need registers that the launch bounds would
// leave to another CTA.
template <Activation A, class Tile>
constexpr int layernorm_beside = A != NONE && Tile::PREFETCH_L2 && Tile::WIDTH == 8 && Tile::VECTORS == 4 ? 44 : 36;

// With PREFETCH_WEIGHTS, gamma and beta are requested before the row's sums are known: after x has arrived, because L2
// bandwidth is limited, or together with x where the row is short or where ptxas would spill otherwise. Without
// PREFETCH_WEIGHTS they are read from L1 after the sums, and more CTAs are resident because fewer registers are used.
template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 3 : 1, layernorm_beside<A, Tile>>)
layernorm_vectorized(const T* x, const T* gamma, const T* beta, T* y, float* means, float* rstds, int rows, int cols,
                     float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    with_layout<Tile::FULL_TILE>(
        RowLayout<S>(rows, cols, aligned16(x, gamma, beta, y)), [&](const RowLayout<S>& layout) {
            if constexpr (Tile::PREFETCH_L2) layout.request(x);
            layout.request_shared(gamma, beta);
            row_arrive<S, Tile::NO_EARLY_LAUNCH>();
            Row<S> row = layout.template load<Tile::CACHE>(x), weight, bias;
            auto load_weights = [&] { weight = layout.load_shared(gamma), bias = layout.load_shared(beta); };
            constexpr bool behind = S::elements <= 16 && Tile::LANES >= 128;
            if constexpr (Tile::PREFETCH_WEIGHTS && !behind) load_weights();
            row_wait<S>();
            const Statistics statistics = standardize(row, layout, eps, slots, [&] {
                if constexpr (Tile::PREFETCH_WEIGHTS && behind) load_weights();
            });
            auto finished = [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); };
            if constexpr (Tile::PREFETCH_WEIGHTS)
                row.each([&](float& v, int k) { v = finished(v, weight[k], bias[k]); });
            else layout.apply(row, finished, gamma, beta);
            layout.template store<Tile::CACHE>(y, row);
            if (means && layout.cols && layout.thread == 0) {
                means[layout.row] = statistics.mean;
                rstds[layout.row] = statistics.rstd;
            }
        });
}

// Dynamic persistent kernel for long rows: see tile_scheduler.cuh.
template <class T, Activation A, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_persistent(const T* x, const T* gamma,
                                                                                         const T* beta, T* y,
                                                                                         float* means, float* rstds,
                                                                                         unsigned* next, int rows,
                                                                                         int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename ClusterRecords<Deviations, S>::Shared deviations;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    __shared__ RowRecords<float, S> largest;
    ClusterRecords<Deviations, S> sent(deviations);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const RowLayout<S> layout(rows, cols, aligned16(x, gamma, beta, y));
    const Weights<T, S, 2, Tile::SMEM_VECTORS> weights(chunks.after_stages());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(layout.any(cols), gamma, beta);
        row_wait<S>();
    };
    struct {
        ClusterRecords<Deviations, S>& deviations;
        RowRecords<float, S>& largest;
    } slots = {sent, largest};
    auto compute = [&](const RowLayout<S>& layout, Row<S>& row) {
        const Statistics statistics = standardize(row, layout, eps, slots);
        auto finished = [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); };
        weights.template store<Tile::CACHE>(layout, y, row, finished, gamma, beta);
        if (means && layout.thread == 0) {
            means[layout.row] = statistics.mean;
            rstds[layout.row] = statistics.rstd;
        }
    };
    persistent_rows<Tile::FULL_TILE>(chunks, layout, rows, cols, x, 0.0f, scheduler, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the pass for the statistics and the
// last pass, or is read again.
template <class T, Activation A, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) layernorm_streamed(const T* x, const T* gamma, const T* beta, T* y,
                                                              float* means, float* rstds, int rows, int cols,
                                                              float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, gamma, beta, y));
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(layout, x);
    row_wait<S>();
    const ChunkedStatistics statistics = chunked_statistics<CACHE_KEEP>(x, layout, eps, slots, staged);
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(chunk, begin, x);
        statistics.standardize(row);
        chunk.apply(
            row, [](float v, float weight, float bias) { return activate<A>(fmaf(v, weight, bias)); }, gamma + begin,
            beta + begin);
        chunk.template store<CACHE_STREAM>(y, row);
    });
    if (means && layout.thread == 0) {
        means[layout.row] = static_cast<float>(statistics.mean);
        rstds[layout.row] = static_cast<float>(statistics.rstd);
    }
}
