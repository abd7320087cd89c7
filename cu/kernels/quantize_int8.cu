// Quantization of n elements of f32 to int8: q = clamp(round(x / scale + zero_point), -128, 127), ties round to even. The
// zero point is an f32, which need not be an integer.
//
// The quotient and the sum are each rounded to f32 to nearest, as in numpy and PyTorch, so that all variants give the
// same integers as these, also where x / scale is halfway between two integers. NaN becomes 0, as in a conversion to an
// integer.
//
// Variants:
// - unfused, `divide` to `to_int8`: five launches.
// - `quantize_fused`: the same operations in one kernel, one element per thread.
// - `quantize_vectorized`: 128-bit loads, and no division: x is multiplied by the reciprocal of the scale, which the
//   host computes, and two corrections give the correctly rounded quotient (Divisor).
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// unfused: five launches

struct Divide {
    float scale;
    __device__ __forceinline__ float operator()(float x) const { return x / scale; }
};
struct AddZeroPoint {
    float zero_point;
    __device__ __forceinline__ float operator()(float x) const { return x + zero_point; }
};
struct Round {
    __device__ __forceinline__ float operator()(float x) const { return rintf(x); }
};
struct Clamp {  // returns NaN for NaN
    __device__ __forceinline__ float operator()(float x) const {
        return x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
    }
};

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) divide(const float* x, float* out, long long n, float scale) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Divide{scale}, out, x);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add_zero_point(const float* x, float* out, long long n, float zero_point) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, AddZeroPoint{zero_point}, out, x);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) round_even(const float* x, float* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Round(), out, x);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) clamp(const float* x, float* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Clamp(), out, x);
}

// ---------------------------------------------------------------------------------------------------------------------
// fused

// Rounds four values to integers, clamps them to int8 and packs them into a word, a in the lowest byte. The conversion
// to int32 saturates, so that values beyond its range are clamped correctly, too.
__device__ __forceinline__ unsigned pack_int8(float a, float b, float c, float d) {
    unsigned upper = cvt_pack_sat_s8_s32(__float2int_rn(d), __float2int_rn(c), 0);
    return cvt_pack_sat_s8_s32(__float2int_rn(b), __float2int_rn(a), upper);
}

__device__ __forceinline__ signed char to_int8(float x) { return max(-128, min(127, __float2int_rn(x))); }

template <int THREADS>
__global__ void __launch_bounds__(THREADS) to_int8(const float* x, signed char* q, long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) q[i] = to_int8(x[i]);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) quantize_fused(const float* x, signed char* q, long long n, float scale,
                                                          float zero_point) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) q[i] = to_int8(x[i] / scale + zero_point);
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// Division by `value` without a division instruction. `inverse` is 1 / value, rounded to nearest; `value` is between
// 1e-30 and 1e30.
//
// For |x / value| < 1024 the result is the quotient rounded to nearest: the error after the first correction is less
// than an ulp, and then the second one gives the correctly rounded quotient (Markstein, "Computation of elementary
// functions on the IBM RISC System/6000 processor", 1990, theorem 7). If the remainder underflows in a correction, the
// quotient is below 2^-25 and does not change the rounded integer. Larger quotients are not corrected, because they are
// clamped.
struct Divisor {
    float value, inverse;

    __device__ __forceinline__ float divide(float x) const {
        float q = x * inverse;
        float better = fmaf(fmaf(-q, value, x), inverse, q);
        better = fmaf(fmaf(-better, value, x), inverse, better);
        return fabsf(q) < 1024.0f ? better : q;
    }
};

// Vectors of four elements: 128-bit loads, 32-bit stores.
template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) quantize_vectorized(const float* x, signed char* q, long long n, float scale,
                                                               float inverse, float zero_point) {
    const Divisor divisor{scale, inverse};
    const unsigned long long policy = load_policy<CACHE>();
    Vector<float, 4> v[VECTORS];
    auto load = [&](int k, long long i) { v[k].template load<CACHE>(x + i, policy); };
    auto store = [&](int k, long long i) {
        auto value = [&](int j) { return divisor.divide(v[k][j]) + zero_point; };
        store_word<CACHE>(reinterpret_cast<unsigned*>(q + i), pack_int8(value(0), value(1), value(2), value(3)));
    };
    auto one = [&](long long i) { q[i] = to_int8(divisor.divide(load_element(x + i)) + zero_point); };
    const bool aligned = aligned16(x) && (reinterpret_cast<size_t>(q) & 3) == 0;
    auto request = [&](long long i) { prefetch_global_L2(x + i); };
    for_each_vector<THREADS, VECTORS, 4, STRIDE>(n, aligned, load, store, one, request);
}
