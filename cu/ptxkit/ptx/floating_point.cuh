// PTX ISA, "Floating Point Instructions": the approximate ones, with the error that the manual documents, and packed
// f32.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// No instruction: the compiler does not know the value again, and so keeps nothing that it computed from it before.
__device__ __forceinline__ float anew(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// Relative error at most 2^-22.9 over the full range.
__device__ __forceinline__ float rsqrt_approx_ftz(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// At most 1 ulp.
__device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x, at most 2 ulp.
__device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The ftz forms are a single MUFU: subnormal arguments and results become zero.

__device__ __forceinline__ float rcp_approx_ftz(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2(x), absolute error at most 2^-22 near 1 and relative error at most 2^-22 elsewhere.
__device__ __forceinline__ float lg2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Relative error at most 2^-11.
__device__ __forceinline__ float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The larger one; NaN when one is NaN. Older targets have the same in two instructions.
__device__ __forceinline__ float max_NaN_f32(float a, float b) {
#if PTXKIT_SM >= 80
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
#else
    return a == a ? fmaxf(b == b ? a : b, b) : a;
#endif
}

// sum += a * b. The asm is volatile: products stay in the order of the source.
__device__ __forceinline__ void fma_rn_f32(float& sum, float a, float b) {
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}

// Two f32 in a 64-bit register, the one with the lower address in its lower half.

__device__ __forceinline__ unsigned long long f32x2_of(float2 v) {
    return static_cast<unsigned long long>(__float_as_uint(v.y)) << 32 | __float_as_uint(v.x);
}

// Two fused multiply-adds an instruction, each rounded as by fma.rn.f32.
__device__ __forceinline__ float2 fma_rn_f32x2(float2 a, float2 b, float2 c) {
#if PTXKIT_SM >= 100
    unsigned long long d;
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d) : "l"(f32x2_of(a)), "l"(f32x2_of(b)), "l"(f32x2_of(c)));
    return make_float2(__uint_as_float(static_cast<unsigned>(d)), __uint_as_float(static_cast<unsigned>(d >> 32)));
#else
    PTXKIT_UNSUPPORTED("fma.rn.f32x2", "sm_100");
    return float2();
#endif
}

}  // namespace ptxkit
