// rsqrt, rcp, ex2, lg2 and tanh (the .approx forms), max.NaN, fma.rn.f32, fma.rn.f32x2. PTX ISA, "Floating Point
// Instructions", which also documents the errors given here. Target: sm_75 or newer, unless a comment states another
// one. The forms with .ftz flush subnormal arguments and results to zero.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// No instruction. The compiler must assume that the asm changes x, so it does not keep values in registers that it has
// computed from x, but computes them again from the result.
__device__ __forceinline__ float optimization_barrier(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// rsqrt.approx: 1 / sqrt(x), relative error at most 2^-22.9.
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

// rcp.approx: 1 / x, error at most 1 ulp.
__device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ex2.approx: 2^x, error at most 2 ulp.
__device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The .ftz forms of rcp and ex2 compile to a single MUFU instruction, because they need no scaling of subnormal
// numbers.

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

// lg2.approx: log2(x), absolute error at most 2^-22 near x = 1, relative error at most 2^-22 elsewhere.
__device__ __forceinline__ float lg2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// tanh.approx: relative error at most 2^-11.
__device__ __forceinline__ float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// max.NaN: the maximum of a and b, or NaN if either is NaN. Before sm_80, which introduces the instruction, it is
// computed with comparisons.
__device__ __forceinline__ float max_NaN_f32(float a, float b) {
#if PTXKIT_SM >= 80
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
#else
    return a == a ? fmaxf(b == b ? a : b, b) : a;
#endif
}

// fma.rn: sum += a * b, rounded once. The asm is volatile, so that the fma keep their order in the source.
__device__ __forceinline__ void fma_rn_f32(float& sum, float a, float b) {
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}

// Packs two f32 into a 64-bit register, v.x in the lower half.

__device__ __forceinline__ unsigned long long f32x2_of(float2 v) {
    return static_cast<unsigned long long>(__float_as_uint(v.y)) << 32 | __float_as_uint(v.x);
}

// fma.rn.f32x2: two fused multiply-adds in one instruction, each rounded like fma.rn.f32. Target: sm_100 or newer.
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
