// The gradient of softmax, dx[r, :] = scale * y[r, :] * (dy[r, :] - sum(y[r, :] * dy[r, :])), from its result y, rows contiguous,
// in f32, f16 or bf16. With a scale it is the gradient of the scores of softmax(scale * scores + mask).
//
// Variants:
// - unfused, `softmax_backward_multiply` to `softmax_backward_combine`: the operations as separate kernels; seven passes over
//   device memory.
// - `softmax_backward_fused`: two reads and one write of rows that fit in shared memory, four reads of longer ones.
// - `softmax_backward_vectorized`: rows in registers, 128-bit accesses, one barrier.
#include "ptxkit/rows/softmax.cuh"

using namespace ptxkit;

__device__ __forceinline__ float product(float y, float dy) { return __fmul_rn(y, dy); }
__device__ __forceinline__ float gradient(float y, float dy, float sum, float scale) {
    return __fmul_rn(__fmul_rn(scale, y), __fsub_rn(dy, sum));
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) softmax_backward_multiply(const T* y, const T* dy, float* products, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        products[i] = product(to_f32(y[i]), to_f32(dy[i]));
    });
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) softmax_backward_sum(const float* products, float* sums, int cols) {
    products += static_cast<size_t>(blockIdx.x) * cols;
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) { return products[c]; }));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) softmax_backward_combine(const T* y, const T* dy, const float* sums, T* dx, int cols,
                                                                    float scale) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        dx[i] = Convert<T>::from_f32(gradient(to_f32(y[i]), to_f32(dy[i]), sums[row], scale));
    });
}

// One CTA per row. With KEEP both rows stay in dynamic shared memory (8 bytes per column); without, they are read again, mostly
// from L2.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) softmax_backward_fused(const T* y, const T* dy, T* dx, int cols, float scale) {
    extern __shared__ float2 kept[];
    const size_t first = static_cast<size_t>(blockIdx.x) * cols;
    const float sum = static_cast<float>(column_sum<THREADS>(cols, [&](unsigned c) {
        const float2 both = make_float2(to_f32(y[first + c]), to_f32(dy[first + c]));
        if (KEEP) kept[c] = both;
        return product(both.x, both.y);
    }));
    each_column<THREADS>(cols, [&](unsigned c) {
        const float2 both = KEEP ? kept[c] : make_float2(to_f32(y[first + c]), to_f32(dy[first + c]));
        dx[first + c] = Convert<T>::from_f32(gradient(both.x, both.y, sum, scale));
    });
}

// The gradient of a row of which `y` and `dy` hold the columns of this thread.
template <class T, class Tile, class S, class Columns>
__device__ __forceinline__ void gradient_of_row(const RowLayout<S>& layout, const Columns& y, const Columns& dy, T* dx, float scale,
                                                RowRecords<float, S>& slots) {
    Row<S> row;
    row.each([&](float& v, int k) { v = y[k]; });
    row_wait<S>();
    const float sum = row_sum(row.sum([&](float v, int k) { return v * dy[k]; }), slots);
    row.each([&](float& v, int k) { v = gradient(y[k], dy[k], sum, scale); });
    layout.template store<Tile::CACHE>(dx, row);
}

// Registers hold the columns of both rows in the format of memory, and more CTAs are resident; those of vectors that are put
// together from two are in f32.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS) softmax_backward_vectorized(const T* y, const T* dy, T* dx, int rows, int cols,
                                                                             float scale) {
    using S = typename Tile::template Shape<T>;
    __shared__ RowRecords<float, S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(y, dy, dx));
    if constexpr (Tile::PREFETCH_L2) layout.request(y, dy);
    row_arrive<S, Tile::NO_EARLY_LAUNCH>();
    if constexpr (S::shifts) {
        const Row<S> of_y = layout.template load<Tile::CACHE>(y), of_dy = layout.template load<Tile::CACHE>(dy);
        gradient_of_row<T, Tile>(layout, of_y, of_dy, dx, scale, slots);
    } else {
        const PackedRow<T, S> of_y = layout.template load_packed<Tile::CACHE>(y), of_dy = layout.template load_packed<Tile::CACHE>(dy);
        gradient_of_row<T, Tile>(layout, of_y, of_dy, dx, scale, slots);
    }
}
