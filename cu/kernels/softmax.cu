// Softmax of rows, y[r, :] = exp(x[r, :] - max) / sum(exp(x[r, :] - max)), rows contiguous, in f32, f16 or bf16;
// optionally with dropout, whose random numbers depend only on a seed and the element. As in PyTorch, a row of only
// -inf gives NaN.
//
// Variants:
// - unfused, `softmax_max` to `softmax_dropout`: the operations as separate kernels, as a framework launches them; six
//   passes over device memory, eight with dropout.
// - `softmax_fused`: the same arithmetic in one read and one write, with bit-identical results.
// - `softmax_vectorized`: rows in registers, 128-bit accesses, one barrier.
// - `softmax_streamed`: rows that no cluster's registers hold stay in shared memory between passes.
// - `softmax_persistent`: long rows; clusters take rows from a tile scheduler and prefetch them through TMA.
#include "ptxkit/rows/softmax.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the same in four or five launches

// One CTA per row. With KEEP the row, and then its exponentials, stay in dynamic shared memory (4 bytes per column);
// without, rows too long for shared memory are read again, mostly from L2.
template <class T, bool DROPOUT, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) softmax_fused(const T* x, T* y, int cols, unsigned threshold, float scale,
                                                         unsigned long long seed) {
    extern __shared__ float kept[];
    const Dropout dropout = {threshold, scale, seed};
    const size_t first = static_cast<size_t>(blockIdx.x) * cols;
    const float largest = column_max<THREADS>(cols, [&](unsigned c) {
        float v = to_f32(x[first + c]);
        if (KEEP) kept[c] = v;
        return v;
    });
    auto exponential_of = [&](unsigned c) { return exponential((KEEP ? kept[c] : to_f32(x[first + c])) - largest); };
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) {
        float e = exponential_of(c);
        if (KEEP) kept[c] = e;
        return e;
    }));
    each_column<THREADS>(cols, [&](unsigned c) {
        float p = (KEEP ? kept[c] : exponential_of(c)) / sum;
        y[first + c] = Convert<T>::from_f32(DROPOUT ? dropout(p, first + c) : p);
    });
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) softmax_max(const T* x, float* maxima, int cols) {
    x += static_cast<size_t>(blockIdx.x) * cols;
    const float largest = column_max<THREADS>(cols, [&](unsigned c) { return to_f32(x[c]); });
    if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) softmax_exp(const T* x, const float* maxima, float* exponentials, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        exponentials[i] = exponential(to_f32(x[i]) - maxima[row]);
    });
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) softmax_sum(const float* exponentials, float* sums, int cols) {
    exponentials += static_cast<size_t>(blockIdx.x) * cols;
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) { return exponentials[c]; }));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class Out, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) softmax_divide(const float* exponentials, const float* sums, Out* y,
                                                          int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<Out>::from_f32(exponentials[i] / sums[row]);
    });
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) softmax_dropout(const float* x, T* y, int cols, unsigned threshold,
                                                           float scale, unsigned long long seed) {
    const Dropout dropout = {threshold, scale, seed};
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<T>::from_f32(dropout(x[i], i));
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

template <class T, bool DROPOUT, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, 1, DROPOUT ? 48 : 32>) softmax_vectorized(
    const T* x, T* y, int rows, int cols, unsigned threshold, float scale, unsigned long long seed) {
    using S = typename Tile::template Shape<T>;
    __shared__ GuessedSlots<S> slots;
    with_layout<Tile::FULL_TILE>(RowLayout<S>(rows, cols, aligned16(x, y)), [&](const RowLayout<S>& layout) {
        if constexpr (Tile::PREFETCH_L2) layout.request(x);
        row_arrive<S, Tile::NO_EARLY_LAUNCH>();
        const Guess<S, T> guess(layout, x);
        Row<S> row = layout.template load<Tile::CACHE>(x, -infinity());
        auto again = [&] { return layout.template load<Tile::CACHE>(x, -infinity()); };
        if constexpr (DROPOUT) {
            const Dropped<S> dropped(layout, {threshold, scale, seed});
            row_wait<S>();
            const float factor = exponentials_from(guess.value(), row, slots, again) * scale;
            row.each([&](float& v, int k) { v = dropped[k] ? 0.0f : v * factor; });
        } else {
            row_wait<S>();
            const float factor = exponentials_from(guess.value(), row, slots, again);
            row.each([&](float& v, int) { v *= factor; });
        }
        layout.template store<Tile::CACHE>(y, row);
    });
}

// Dynamic persistent kernel for long rows: see tile_scheduler.cuh.
template <class T, bool DROPOUT, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) softmax_persistent(const T* x, T* y, unsigned* next,
                                                                                       int rows, int cols,
                                                                                       unsigned threshold, float scale,
                                                                                       unsigned long long seed) {
    using S = typename Tile::template Shape<T>;
    using Chunks = ChunkPipeline<T, S, Tile::CHUNK_VECTORS, Tile::STAGES, Tile::CACHE>;
    using Scheduler = TileScheduler<S, Chunks::ahead + 1>;
    __shared__ typename ClusterRecords<MaxSum, S>::Shared records;
    __shared__ typename Chunks::Shared stages;
    __shared__ typename Scheduler::Shared scheduler_storage;
    ClusterRecords<MaxSum, S> sent(records);
    Scheduler scheduler(scheduler_storage, next);
    const Chunks chunks(stages);
    const RowLayout<S> layout(rows, cols, aligned16(x, y));
    row_arrive<S>();
    auto started = [] { row_wait<S>(); };
    auto compute = [&](const RowLayout<S>& layout, Row<S>& row) {
        float factor = exponentials(row, sent).factor;
        if constexpr (DROPOUT) factor *= scale;
        row.each([&](float& v, int) { v *= factor; });
        if constexpr (DROPOUT) {
            const Dropped<S> dropped(layout, {threshold, scale, seed});
            row.each([&](float& v, int k) { v = dropped[k] ? 0.0f : v; });
        }
        layout.template store<Tile::CACHE>(y, row);
    };
    persistent_rows<Tile::FULL_TILE>(chunks, layout, rows, cols, x, -infinity(), scheduler, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the pass for maximum and sum and the
// last pass, or is read again.
template <class T, bool DROPOUT, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) softmax_streamed(const T* x, T* y, int rows, int cols, unsigned threshold,
                                                            float scale, unsigned long long seed) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<MaxSum, S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, y));
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(layout, x);
    row_wait<S>();
    const MaxSum all = chunked_max_sum(layout, slots, [&](const RowLayout<S>& chunk, unsigned begin) {
        return staged.template first<CACHE_KEEP>(chunk, begin, x, -infinity());
    });
    const float base = base_of(all.largest), factor = inverse_of(all.sum) * scale;
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(chunk, begin, x, -infinity());
        row.each([&](float& v, int) { v = exponential(v - base) * factor; });
        if constexpr (DROPOUT) {
            const Dropped<S> dropped(chunk, {threshold, scale, seed});
            row.each([&](float& v, int k) { v = dropped[k] ? 0.0f : v; });
        }
        chunk.template store<CACHE_STREAM>(y, row);
    });
}
