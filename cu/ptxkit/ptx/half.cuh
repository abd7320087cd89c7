// f16 and bf16: element types that need no CUDA header; cvt; add, mul, fma.rn and max.NaN on f16x2 and bf16x2. PTX ISA,
// "Half Precision Floating-Point Instructions" and "Data Movement and Conversion Instructions: cvt".
//
// Target: sm_75 or newer for cvt between f16 and f32 and for add, mul and fma of f16x2; sm_80 or newer for the others.
//
// f16x2 and bf16x2 are two elements packed into a 32-bit register, the element with the lower address in the lower
// half.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};

// cvt to f32. The conversion is exact.

__device__ __forceinline__ float cvt_f32_f16(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// A bf16 is the upper half of an f32, so that a shift converts it on every target.
__device__ __forceinline__ float f32_of_bf16(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// cvt.rn from f32: rounds to nearest even. Values beyond the largest finite number become infinity.

__device__ __forceinline__ f16 cvt_rn_f16_f32(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

__device__ __forceinline__ bf16 cvt_rn_bf16_f32(float x) {
    bf16 y = {};
#if PTXKIT_SM >= 80
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    PTXKIT_UNSUPPORTED("cvt.rn.bf16", "sm_80");
#endif
    return y;
}

// cvt.rn of two elements. The instruction has the upper element as its first operand; these functions have the lower
// one as their first argument, in the order of memory.

__device__ __forceinline__ unsigned cvt_rn_f16x2_f32(float low, float high) {
    unsigned y = 0;
#if PTXKIT_SM >= 80
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    PTXKIT_UNSUPPORTED("cvt.rn.f16x2", "sm_80");
#endif
    return y;
}

__device__ __forceinline__ unsigned cvt_rn_bf16x2_f32(float low, float high) {
    unsigned y = 0;
#if PTXKIT_SM >= 80
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    PTXKIT_UNSUPPORTED("cvt.rn.bf16x2", "sm_80");
#endif
    return y;
}

// Packed arithmetic. Each element is rounded to f16 or bf16 separately, in fma once. relu replaces negative results and
// NaN by zero. max_NaN returns NaN if either operand is NaN.

__device__ __forceinline__ unsigned add_f16x2(unsigned a, unsigned b) {
    unsigned d;
    asm("add.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ unsigned mul_f16x2(unsigned a, unsigned b) {
    unsigned d;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ unsigned fma_rn_f16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ unsigned fma_rn_relu_f16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d = 0;
#if PTXKIT_SM >= 80
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    PTXKIT_UNSUPPORTED("fma.rn.relu.f16x2", "sm_80");
#endif
    return d;
}

__device__ __forceinline__ unsigned max_NaN_f16x2(unsigned a, unsigned b) {
    unsigned d = 0;
#if PTXKIT_SM >= 80
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    PTXKIT_UNSUPPORTED("max.NaN.f16x2", "sm_80");
#endif
    return d;
}

// Before sm_90, fma is the only arithmetic instruction on bf16x2. a + b is then computed as fma(a, 1, b), and a * b as
// fma(a, b, -0), with the same results, since fma rounds once.

__device__ __forceinline__ unsigned fma_rn_bf16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d = 0;
#if PTXKIT_SM >= 80
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    PTXKIT_UNSUPPORTED("fma.rn.bf16x2", "sm_80");
#endif
    return d;
}

__device__ __forceinline__ unsigned fma_rn_relu_bf16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d = 0;
#if PTXKIT_SM >= 80
    asm("fma.rn.relu.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    PTXKIT_UNSUPPORTED("fma.rn.relu.bf16x2", "sm_80");
#endif
    return d;
}

__device__ __forceinline__ unsigned add_bf16x2(unsigned a, unsigned b) {
#if PTXKIT_SM >= 90
    unsigned d;
    asm("add.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return fma_rn_bf16x2(a, 0x3f803f80, b);
#endif
}

__device__ __forceinline__ unsigned mul_bf16x2(unsigned a, unsigned b) {
#if PTXKIT_SM >= 90
    unsigned d;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return fma_rn_bf16x2(a, b, 0x80008000);
#endif
}

__device__ __forceinline__ unsigned max_NaN_bf16x2(unsigned a, unsigned b) {
    unsigned d = 0;
#if PTXKIT_SM >= 80
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    PTXKIT_UNSUPPORTED("max.NaN.bf16x2", "sm_80");
#endif
    return d;
}

// Conversions for templates over the element type: to_f32 and Convert<T>::from_f32 convert one element, pack rounds two
// f32 to a packed register, low and high return its elements.

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(f16 x) { return cvt_f32_f16(x); }
__device__ __forceinline__ float to_f32(bf16 x) { return f32_of_bf16(x); }

template <class T>
struct Convert;

template <>
struct Convert<float> {
    static __device__ __forceinline__ float from_f32(float x) { return x; }
};

template <>
struct Convert<f16> {
    static __device__ __forceinline__ f16 from_f32(float x) { return cvt_rn_f16_f32(x); }
    static __device__ __forceinline__ unsigned pack(float low, float high) { return cvt_rn_f16x2_f32(low, high); }
    static __device__ __forceinline__ float low(unsigned pair) {
        return cvt_f32_f16({static_cast<unsigned short>(pair)});
    }
    static __device__ __forceinline__ float high(unsigned pair) {
        return cvt_f32_f16({static_cast<unsigned short>(pair >> 16)});
    }
};

template <>
struct Convert<bf16> {
    static __device__ __forceinline__ bf16 from_f32(float x) { return cvt_rn_bf16_f32(x); }
    static __device__ __forceinline__ unsigned pack(float low, float high) { return cvt_rn_bf16x2_f32(low, high); }
    static __device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
    static __device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000); }
};

}  // namespace ptxkit
