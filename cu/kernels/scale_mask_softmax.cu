// Softmax of scaled and masked scores, as in attention: y[r, :] = softmax(s[r, :] * scale + mask[r, :]), rows contiguous, in f32, f16
// or bf16. The mask is added; -inf takes a column out. A row that is masked as a whole gives zeros: it attends to nothing, and NaN
// (what softmax has there, and PyTorch) would spoil whatever it is multiplied with.
//
// The story: `scores_scale` ... `scores_divide` are what a framework launches that has these as operations, eleven passes over
// device memory; `scale_mask_softmax_fused` does the same arithmetic in two reads and one write, bit for bit;
// `scale_mask_softmax_vectorized` holds the row in registers, moves 128 bits an access and meets at one barrier;
// `scale_mask_softmax_streamed` is for rows that fit in no cluster's registers: their scores wait in shared memory.
#include "ptxkit/rows/softmax.cuh"

using namespace ptxkit;

// Rounded one by one (no fma), so that all variants see the same scores.
__device__ __forceinline__ float scaled(float s, float scale) { return __fmul_rn(s, scale); }
__device__ __forceinline__ float masked(float s, float mask) { return __fadd_rn(s, mask); }

// ---------------------------------------------------------------------------------------------------------------------------
// fused, and the same in six launches

__device__ __forceinline__ float quotient(float e, float sum) { return sum == 0.0f ? 0.0f : e / sum; }

// One CTA a row. With KEEP the scores, and then their exponentials, wait in dynamic shared memory (4 bytes a column); without, rows
// too long for that are read again, mostly from L2.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS)
scale_mask_softmax_fused(const T* s, const T* mask, T* y, int cols, float scale) {
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
__global__ void __launch_bounds__(THREADS) scores_exp(const float* s, const float* maxima, float* exponentials, int cols) {
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

// ---------------------------------------------------------------------------------------------------------------------------
// vectorized

// Scaled and masked columns, -inf for padding, whatever the scale.
template <int CACHE, class S, class T>
__device__ __forceinline__ Row<S> load_scores(const Place<S>& place, const T* s, const T* mask, float scale) {
    auto score = [scale](float s, float mask) { return masked(scaled(s, scale), mask); };
    Row<S> row = place.template load_with<CACHE>(s, mask, score, 0.0f);
    place.pad(row, -infinity());
    return row;
}

__device__ __forceinline__ float zero_if_empty(float factor, float sum) { return sum == 0.0f ? 0.0f : factor; }

// NO_EARLY_LAUNCH: see follow_previous_grid.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, 2>)
scale_mask_softmax_vectorized(const T* s, const T* mask, T* y, int rows, int cols, float scale) {
    using S = typename Tile::template Shape<T>;
    __shared__ RowRecords<MaxSum, S> slots;
    const Place<S> place(rows, cols, aligned16(s, mask, y));
    row_arrive<S, Tile::NO_EARLY_LAUNCH>();
    Row<S> row = load_scores<Tile::CACHE>(place, s, mask, scale);
    row_wait<S>();
    const Softmax softmax = exponentials(row, slots);
    const float factor = zero_if_empty(softmax.factor, softmax.sum);
    row.each([&](float& v, int) { v *= factor; });
    place.template store<Tile::CACHE>(y, row);
}

// A row of any length, by a cluster: its scores wait in shared memory for maximum and sum, or are made once more.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS)
scale_mask_softmax_streamed(const T* s, const T* mask, T* y, int rows, int cols, float scale) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<MaxSum, S> slots;
    const Place<S> place(rows, cols, aligned16(s, mask, y));
    const Staged<float, S, STAGED> staged;
    row_arrive<S>();
    row_wait<S>();
    const MaxSum all = max_sum_in_parts(place, slots, [&](const Place<S>& part, unsigned begin) {
        const Row<S> row = load_scores<CACHE_KEEP>(part, s, mask, scale);
        staged.keep(begin, row);
        return row;
    });
    const float base = base_of(all.largest), factor = zero_if_empty(inverse_of(all.sum), all.sum);
    backward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> row = STAGED ? staged.kept(part, begin, -infinity()) : load_scores<CACHE_ONCE>(part, s, mask, scale);
        row.each([&](float& v, int) { v = exponential(v - base) * factor; });
        part.template store<CACHE_STREAM>(y, row);
    });
}
