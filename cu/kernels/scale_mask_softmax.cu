// Softmax of scaled and masked scores, as in attention: y[r, :] = softmax(s[r, :] * scale + mask[r, :]), rows
// contiguous, in f32, f16 or bf16. The mask is added; -inf masks a column. A row whose columns are all masked gives
// zeros instead of the NaN of softmax and PyTorch, which would propagate to every product with it.
//
// Variants:
// - unfused, `scores_scale` to `scores_divide`: the operations as separate kernels, as a framework launches them;
//   eleven passes over device memory.
// - `scale_mask_softmax_fused`: the same arithmetic in two reads and one write, with bit-identical results.
// - `scale_mask_softmax_vectorized`: rows in registers, 128-bit accesses, one barrier.
// - `scale_mask_softmax_streamed`: the scores of rows that no cluster's registers hold stay in shared memory between
//   passes.
#include "ptxkit/rows/softmax.cuh"

using namespace ptxkit;

// Product and sum are rounded separately (no fma), so that all variants compute the same scores.
__device__ __forceinline__ float scaled(float s, float scale) { return __fmul_rn(s, scale); }
__device__ __forceinline__ float masked(float s, float mask) { return __fadd_rn(s, mask); }

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the same in six launches

__device__ __forceinline__ float quotient(float e, float sum) { return sum == 0.0f ? 0.0f : e / sum; }

// One CTA per row. With KEEP the scores, and then their exponentials, stay in dynamic shared memory (4 bytes per
// column); without, rows too long for shared memory are read again, mostly from L2.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) scale_mask_softmax_fused(const T* s, const T* mask, T* y, int cols,
                                                                    float scale) {
    extern __shared__ float kept[];
    const size_t first = static_cast<size_t>(blockIdx.x) * cols;
    auto score = [&](unsigned c) { return masked(scaled(to_f32(s[first + c]), scale), to_f32(mask[first + c])); };
    const float base = base_of(column_max<THREADS>(cols, [&](unsigned c) {
        float v = score(c);
        if (KEEP) kept[c] = v;
        return v;
    }));
    auto exponential_of = [&](unsigned c) { return exponential((KEEP ? kept[c] : score(c)) - base); };
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) {
        float e = exponential_of(c);
        if (KEEP) kept[c] = e;
        return e;
    }));
    each_column<THREADS>(cols, [&](unsigned c) {
        y[first + c] = Convert<T>::from_f32(quotient(KEEP ? kept[c] : exponential_of(c), sum));
    });
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) scores_scale(const T* s, float* out, int cols, float scale) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        out[i] = scaled(to_f32(s[i]), scale);
    });
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) scores_mask(const float* s, const T* mask, float* out, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        out[i] = masked(s[i], to_f32(mask[i]));
    });
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) scores_max(const float* s, float* maxima, int cols) {
    s += static_cast<size_t>(blockIdx.x) * cols;
    const float largest = column_max<THREADS>(cols, [&](unsigned c) { return s[c]; });
    if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) scores_exp(const float* s, const float* maxima, float* exponentials,
                                                      int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        exponentials[i] = exponential(s[i] - base_of(maxima[row]));
    });
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) scores_sum(const float* exponentials, float* sums, int cols) {
    exponentials += static_cast<size_t>(blockIdx.x) * cols;
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) { return exponentials[c]; }));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) scores_divide(const float* exponentials, const float* sums, T* y, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        y[i] = Convert<T>::from_f32(quotient(exponentials[i], sums[row]));
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// Loads scaled and masked columns, with -inf for padding, whatever the scale.
template <int CACHE, class S, class T>
__device__ __forceinline__ Row<S> load_scores(const RowLayout<S>& layout, const T* s, const T* mask, float scale) {
    auto score = [scale](float s, float mask) { return masked(scaled(s, scale), mask); };
    Row<S> row = layout.template load_with<CACHE>(s, mask, score, 0.0f);
    layout.pad(row, -infinity());
    return row;
}

__device__ __forceinline__ float zero_if_empty(float factor, float sum) { return sum == 0.0f ? 0.0f : factor; }

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, 2>) scale_mask_softmax_vectorized(
    const T* s, const T* mask, T* y, int rows, int cols, float scale) {
    using S = typename Tile::template Shape<T>;
    __shared__ RowRecords<MaxSum, S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(s, mask, y));
    if constexpr (Tile::PREFETCH_L2) layout.request(s, mask);
    row_arrive<S, Tile::NO_EARLY_LAUNCH>();
    Row<S> row = load_scores<Tile::CACHE>(layout, s, mask, scale);
    row_wait<S>();
    const Softmax softmax = exponentials(row, slots);
    const float factor = zero_if_empty(softmax.factor, softmax.sum);
    row.each([&](float& v, int) { v *= factor; });
    layout.template store<Tile::CACHE>(y, row);
}

// A row of any length, computed by a cluster. Its scores stay in shared memory between the pass for maximum and sum and
// the last pass, or are computed again.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) scale_mask_softmax_streamed(const T* s, const T* mask, T* y, int rows,
                                                                       int cols, float scale) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<MaxSum, S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(s, mask, y));
    const Staged<float, S, STAGED> staged;
    row_arrive<S>();
    row_wait<S>();
    const MaxSum all = chunked_max_sum(layout, slots, [&](const RowLayout<S>& chunk, unsigned begin) {
        const Row<S> row = load_scores<CACHE_KEEP>(chunk, s, mask, scale);
        staged.keep(begin, row);
        return row;
    });
    const float base = base_of(all.largest), factor = zero_if_empty(inverse_of(all.sum), all.sum);
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = STAGED ? staged.kept(chunk, begin, -infinity()) : load_scores<CACHE_ONCE>(chunk, s, mask, scale);
        row.each([&](float& v, int) { v = exponential(v - base) * factor; });
        chunk.template store<CACHE_STREAM>(y, row);
    });
}
