// Activation functions in f32. Errors are relative to the exact function, for all finite arguments.
//
// gelu and silu are computed as x / (1 + 2^s), with two MUFU operations, ex2 and rcp. tanh.approx would need only one,
// but its relative error of 2^-11 becomes an absolute error where 1 + tanh cancels: gelu(-3) = -0.0036 would be wrong
// by a fifth, which is visible even in bf16. In kernels limited by device memory, the second MUFU operation costs no
// time.
#pragma once
#include "ptxkit/ptx/floating_point.cuh"

namespace ptxkit {

enum Activation { NONE = 0, RELU = 1, GELU = 2, SILU = 3 };

// x / (1 + 2^s). The relative error is below 2^-21 + 2^-22 |s|: the errors of ex2 and rcp, and the rounding of s, which
// matters only where 2^s is large. For s >= 126 the result, whose magnitude is below |x| 2^-126, is x * 0: zero with
// the sign of x, or NaN if x is infinite.
__device__ __forceinline__ float logistic_times(float x, float s) {
    return x * rcp_approx_ftz(1.0f + ex2_approx_ftz(s));
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))).
__device__ __forceinline__ float gelu_tanh(float x) {
    constexpr float c1 = -2.3022082f, c3 = -0.10294324f;  // -2 log2(e) sqrt(2/pi), and 0.044715 times that
    return logistic_times(x, x * fmaf(c3, x * x, c1));
}

// x / (1 + exp(-x)).
__device__ __forceinline__ float silu(float x) { return logistic_times(x, -1.442695041f * x); }

// 1 / (1 + exp(-x)).
__device__ __forceinline__ float sigmoid(float x) { return rcp_approx_ftz(1.0f + ex2_approx_ftz(-1.442695041f * x)); }

// max(x, 0), exactly; NaN for NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

template <Activation A>
__device__ __forceinline__ float activate(float x) {
    if constexpr (A == RELU) return relu(x);
    else if constexpr (A == GELU) return gelu_tanh(x);
    else if constexpr (A == SILU) return silu(x);
    else return x;
}

// The derivative of gelu_tanh. With s as there, x / (1 + 2^s) has the derivative r (1 - x ln(2) s'(x) (1 - r)), where
// r = 1 / (1 + 2^s), and 1 - r = 2^s r does not cancel. The absolute error is below 2^-20. Beyond +-10 the derivative is
// 1 or 0 to within 2^-100; the clamp prevents products of infinity and 0.
__device__ __forceinline__ float gelu_tanh_derivative(float x) {
    constexpr float c1 = -2.3022082f, c3 = -0.10294324f;  // of s, as in gelu_tanh
    constexpr float d1 = 1.5957691f, d3 = 0.21406445f;    // of -ln(2) s'(x): sqrt(8/pi), and 3 * 0.044715 times that
    x = fabsf(x) > 10.0f ? copysignf(10.0f, x) : x;       // NaN for NaN
    const float e = ex2_approx_ftz(x * fmaf(c3, x * x, c1)), r = rcp_approx_ftz(1.0f + e);
    return r * fmaf(x * fmaf(d3, x * x, d1), e * r, 1.0f);
}

// 1 for positive numbers and NaN, else 0, as in frameworks.
__device__ __forceinline__ float relu_derivative(float x) { return x <= 0.0f ? 0.0f : 1.0f; }

// The derivative of silu: r (1 + x (1 - r)), where r = 1 / (1 + exp(-x)), and 1 - r = exp(-x) r does not cancel. The absolute
// error is below 2^-20. Beyond +-80 the derivative is 1 or 0 to within 2^-100, as in gelu_tanh_derivative.
__device__ __forceinline__ float silu_derivative(float x) {
    x = fabsf(x) > 80.0f ? copysignf(80.0f, x) : x;  // NaN for NaN
    const float e = ex2_approx_ftz(-1.442695041f * x), r = rcp_approx_ftz(1.0f + e);
    return r * fmaf(x, e * r, 1.0f);
}

template <Activation A>
__device__ __forceinline__ float activation_derivative(float x) {
    static_assert(A == RELU || A == GELU || A == SILU, "an activation with a derivative");
    if constexpr (A == RELU) return relu_derivative(x);
    else if constexpr (A == GELU) return gelu_tanh_derivative(x);
    else return silu_derivative(x);
}

}  // namespace ptxkit
