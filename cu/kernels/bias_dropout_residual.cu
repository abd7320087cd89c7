// out = residual + dropout(x + bias), rows x cols elements of f32, f16 or bf16, one bias per column, computed in f32.
//
// Element i is dropped if word i % 4 of Philox4x32-10 at counter i / 4 is below `threshold` = p * 2^32, otherwise
// scaled by 1 / (1 - p). The random numbers depend only on the seed and the element, not on tile, grid or variant, and
// no mask has to be stored, since the backward pass can generate the same numbers again. The unfused chain stores the
// mask, as a framework does.
//
// Product and sum are rounded separately (no fma), so that in f32 the results of all variants are bit-identical.
#include "ptxkit/elementwise/elementwise.cuh"
#include "ptxkit/elementwise/philox.cuh"

using namespace ptxkit;

struct Dropout {
    unsigned threshold;
    float scale;

    __device__ __forceinline__ bool drops(unsigned word) const { return word < threshold; }
    __device__ __forceinline__ float operator()(float x, unsigned word) const {
        return drops(word) ? 0.0f : __fmul_rn(x, scale);
    }
};

__device__ __forceinline__ float finished(float x, float bias, float residual, Dropout dropout, unsigned word) {
    return __fadd_rn(dropout(__fadd_rn(x, bias), word), residual);
}

// ---------------------------------------------------------------------------------------------------------------------
// unfused: three launches

template <class T, int THREADS, int LANES, int ROWS>
__global__ void __launch_bounds__(THREADS) add_bias(const T* x, const T* bias, T* out, int rows, int cols) {
    constexpr int width = vector_width<T>;
    Vector<T, width> b, v[ROWS];
    auto column = [&](unsigned c) { b.template load<CACHE_KEEP>(bias + c); };
    auto load = [&](int k, long long i) { v[k].template load<CACHE_KEEP>(x + i); };
    auto store = [&](int k, long long i) {
        Vector<T, width> sum;
        sum.fill([&](int j) { return v[k][j] + b[j]; });
        sum.template store<CACHE_KEEP>(out + i);
    };
    auto one = [&](long long i, unsigned c) {
        out[i] = Convert<T>::from_f32(load_element(x + i) + load_element(bias + c));
    };
    for_each_row_vector<THREADS, LANES, ROWS, width>(rows, cols, aligned16(x, bias, out), column, load, store, one);
}

template <class T, int THREADS, int VECTORS>
__global__ void __launch_bounds__(THREADS) dropout(const T* x, T* out, unsigned char* mask, long long n,
                                                   unsigned threshold, float scale, unsigned long long seed) {
    constexpr int width = vector_width<T>;
    const Dropout dropout{threshold, scale};
    Vector<T, width> v[VECTORS];
    auto load = [&](int k, long long i) { v[k].template load<CACHE_KEEP>(x + i); };
    auto store = [&](int k, long long i) {
        const RandomWords<width> words(i, seed);
        Vector<T, width> dropped;
        dropped.fill([&](int j) { return dropout(v[k][j], words.word[j]); });
        dropped.template store<CACHE_KEEP>(out + i);
        unsigned kept[width / 4] = {};
#pragma unroll
        for (int j = 0; j < width; j++) kept[j / 4] |= (dropout.drops(words.word[j]) ? 0u : 1u) << j % 4 * 8;
        store_words<CACHE_KEEP>(mask + i, kept);
    };
    auto one = [&](long long i) {
        const unsigned word = philox_element(i, seed);
        out[i] = Convert<T>::from_f32(dropout(load_element(x + i), word));
        mask[i] = !dropout.drops(word);
    };
    const bool aligned = aligned16(x, out) && (reinterpret_cast<size_t>(mask) & (width - 1)) == 0;
    for_each_vector<THREADS, VECTORS, width, false>(n, aligned, load, store, one);
}

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add(const T* x, const T* residual, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Add(), out, x, residual);
}

// ---------------------------------------------------------------------------------------------------------------------
// fused

// One element per thread, which uses one of the four random words that it generates.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) bias_dropout_residual_fused(const T* x, const T* bias, const T* residual,
                                                                       T* out, int rows, int cols, unsigned threshold,
                                                                       float scale, unsigned long long seed) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= static_cast<long long>(rows) * cols) return;
    const float result = finished(load_element(x + i), load_element(bias + i % cols), load_element(residual + i),
                                  {threshold, scale}, philox_element(i, seed));
    out[i] = Convert<T>::from_f32(result);
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// A vector needs one or two quads of random words, generated while its loads are in flight. A thread loads its bias
// once for ROWS rows. With AHEAD, random words are generated before the previous grid has ended, and L2 is requested to load
// the elements meanwhile: its writes go to L2 as well, so that a request has no effect on what a later load returns.
template <class T, int THREADS, int LANES, int ROWS, int CACHE, bool AHEAD>
__global__ void __launch_bounds__(THREADS) bias_dropout_residual_vectorized(const T* x, const T* bias,
                                                                            const T* residual, T* out, int rows,
                                                                            int cols, unsigned threshold, float scale,
                                                                            unsigned long long seed) {
    constexpr int width = vector_width<T>;
    const Dropout dropout{threshold, scale};
    const unsigned long long policy = load_policy<CACHE>();
    Vector<T, width> b, v[ROWS], r[ROWS];
    unsigned random[ROWS][width];
    auto generate = [&](int k, long long i) {
        const RandomWords<width> words(i, seed);
#pragma unroll
        for (int j = 0; j < width; j++) random[k][j] = words.word[j];
    };
    auto ahead = [&](int k, long long i, unsigned c) {
        if constexpr (AHEAD) {
            if (i == c) prefetch_global_L2(bias + c);  // by the first row for all
            prefetch_global_L2(x + i), prefetch_global_L2(residual + i);
            generate(k, i);
#pragma unroll
            for (int j = 0; j < width; j++) random[k][j] = optimization_barrier(random[k][j]);  // before the wait
        }
    };
    auto column = [&](unsigned c) { b.template load<CACHE_KEEP>(bias + c); };
    auto load = [&](int k, long long i) {
        v[k].template load<CACHE>(x + i, policy);
        r[k].template load<CACHE>(residual + i, policy);
    };
    auto store = [&](int k, long long i) {
        if constexpr (!AHEAD) generate(k, i);
        Vector<T, width> result;
        result.fill([&](int j) { return finished(v[k][j], b[j], r[k][j], dropout, random[k][j]); });
        result.template store<CACHE>(out + i);
    };
    auto one = [&](long long i, unsigned c) {
        const float result = finished(load_element(x + i), load_element(bias + c), load_element(residual + i), dropout,
                                      philox_element(i, seed));
        out[i] = Convert<T>::from_f32(result);
    };
    const bool aligned = aligned16(x, bias, residual, out);
    for_each_row_vector<THREADS, LANES, ROWS, width>(rows, cols, aligned, column, load, store, one, ahead);
}
