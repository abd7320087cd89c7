// PTX ISA, "Data Movement and Conversion Instructions: cvt": 8- and 4-bit floating-point types. They are converted in
// pairs; in a packed register the element with the lower address is in the lower bits.
//
// e4m3, e5m2 and e2m1 have a sign; ue8m0 is a power of two, 2^(bits - 127); ue4m3 is e4m3 without a sign.
#pragma once
#include "ptxkit/ptx/half.cuh"

namespace ptxkit {

struct e4m3 {
    unsigned char bits;
};

// Two f32 to e4m3, to nearest even; beyond 448 becomes 448.
__device__ __forceinline__ unsigned cvt_rn_satfinite_e4m3x2_f32(float low, float high) {
    unsigned short pair = 0;
#if PTXKIT_SM >= 89
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#else
    PTXKIT_UNSUPPORTED("cvt.e4m3x2", "sm_89");
#endif
    return pair;
}

// Two e4m3 to f16, which is exact.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2(unsigned pair) {
    unsigned halves = 0;
#if PTXKIT_SM >= 89
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(pair)));
#else
    PTXKIT_UNSUPPORTED("cvt.f16x2.e4m3x2", "sm_89");
#endif
    return halves;
}

// Two f32 to e5m2, to nearest even; beyond 57344 becomes 57344.
__device__ __forceinline__ unsigned cvt_rn_satfinite_e5m2x2_f32(float low, float high) {
    unsigned short pair = 0;
#if PTXKIT_SM >= 89
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#else
    PTXKIT_UNSUPPORTED("cvt.e5m2x2", "sm_89");
#endif
    return pair;
}

// Two e5m2 to f16, which is exact.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e5m2x2(unsigned pair) {
    unsigned halves = 0;
#if PTXKIT_SM >= 89
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(pair)));
#else
    PTXKIT_UNSUPPORTED("cvt.f16x2.e5m2x2", "sm_89");
#endif
    return halves;
}

// Eight f32 to e2m1, to nearest even; beyond 6 becomes 6.
__device__ __forceinline__ unsigned cvt_rn_satfinite_e2m1x2_f32(const float (&x)[8]) {
    unsigned eight = 0;
#if PTXKIT_BLACKWELL
    asm(
        "{\n\t.reg .b8 b0, b1, b2, b3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n\tcvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n\tcvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n\t"
        "mov.b32 %0, {b0, b1, b2, b3};\n\t}"
        : "=r"(eight)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("cvt.e2m1x2", PTXKIT_BLACKWELL_TARGETS);
#endif
    return eight;
}

// Two e2m1, the lower byte of `pair`, to f16, which is exact.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e2m1x2(unsigned pair) {
    unsigned halves = 0;
#if PTXKIT_BLACKWELL
    asm(
        "{\n\t.reg .b8 b0, b1, b2, b3;\n\tmov.b32 {b0, b1, b2, b3}, %1;\n\tcvt.rn.f16x2.e2m1x2 %0, b0;\n\t}"
        : "=r"(halves) : "r"(pair));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("cvt.f16x2.e2m1x2", PTXKIT_BLACKWELL_TARGETS);
#endif
    return halves;
}

// The smallest power of two that is not below x, as ue8m0.
__device__ __forceinline__ unsigned cvt_rp_satfinite_ue8m0_f32(float x) {
    unsigned short pair = 0;
#if PTXKIT_BLACKWELL
    asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("cvt.ue8m0x2", PTXKIT_BLACKWELL_TARGETS);
#endif
    return pair & 0xff;
}

// 2^(bits - 127), exact.
__device__ __forceinline__ float f32_of_ue8m0(unsigned bits) {
    return __uint_as_float(bits == 0 ? 1u << 22 : bits << 23);
}

}  // namespace ptxkit
