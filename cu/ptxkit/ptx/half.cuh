// f16 and bf16: element types that need no CUDA header, conversions, and arithmetic on two elements packed in a
// register. PTX ISA, "Half Precision Floating-Point Instructions" and "Data Movement and Conversion Instructions: cvt".
//
// In a packed register the element with the lower address is in the lower half.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};

// cvt to f32: exact.

__device__ __forceinline__ float cvt_f32_f16(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// bf16 is the upper half of an f32: a shift, on every target.
__device__ __forceinline__ float f32_of_bf16(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// cvt.rn from f32: to nearest even; beyond the largest number becomes infinity.

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

// The instruction takes the upper element first; these take the elements in the order of their addresses.

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

// Packed arithmetic: each element rounded on its own, as f16 or bf16. fma rounds once; relu makes negative results and
// NaN zero.

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

// bf16 had fma alone until sm_90; a + b is fma(a, 1, b) there, and a * b is fma(a, b, -0), both rounded once all the
// same.

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

// One element, and two packed ones, of any type to and from f32, for templates.

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
