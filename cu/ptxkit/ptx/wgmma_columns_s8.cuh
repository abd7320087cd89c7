// wgmma.mma_async of s8 with more numbers of columns, so that a tile may have as many columns as a matrix divided by the
// number of SMs. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Target: sm_90a only. See
// wgmma_s8.cuh for the order of the instructions, the descriptors and the layout of the accumulators.
#pragma once
#include "ptxkit/ptx/wgmma_s8.cuh"

namespace ptxkit {

__device__ __forceinline__ void wgmma_mma_async_m64n24k32_s32_s8_s8(
    int (&d)[12], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.s8 "
                 "{" PTXKIT_R12 "}, %12, %13, p;}"
                 : PTXKIT_I8(0), PTXKIT_I4(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n48k32_s32_s8_s8(
    int (&d)[24], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 "
                 "{" PTXKIT_R24 "}, %24, %25, p;}"
                 : PTXKIT_I16(0), PTXKIT_I8(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n80k32_s32_s8_s8(
    int (&d)[40], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k32.s32.s8.s8 "
                 "{" PTXKIT_R40 "}, %40, %41, p;}"
                 : PTXKIT_I32(0), PTXKIT_I8(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n96k32_s32_s8_s8(
    int (&d)[48], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 "
                 "{" PTXKIT_R48 "}, %48, %49, p;}"
                 : PTXKIT_I32(0), PTXKIT_I16(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n112k32_s32_s8_s8(
    int (&d)[56], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k32.s32.s8.s8 "
                 "{" PTXKIT_R56 "}, %56, %57, p;}"
                 : PTXKIT_I32(0), PTXKIT_I16(32), PTXKIT_I8(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n144k32_s32_s8_s8(
    int (&d)[72], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k32.s32.s8.s8 "
                 "{" PTXKIT_R72 "}, %72, %73, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I8(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n160k32_s32_s8_s8(
    int (&d)[80], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k32.s32.s8.s8 "
                 "{" PTXKIT_R80 "}, %80, %81, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I16(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n176k32_s32_s8_s8(
    int (&d)[88], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k32.s32.s8.s8 "
                 "{" PTXKIT_R88 "}, %88, %89, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I16(64), PTXKIT_I8(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n192k32_s32_s8_s8(
    int (&d)[96], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8 "
                 "{" PTXKIT_R96 "}, %96, %97, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I32(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n208k32_s32_s8_s8(
    int (&d)[104], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %106, 0; wgmma.mma_async.sync.aligned.m64n208k32.s32.s8.s8 "
                 "{" PTXKIT_R104 "}, %104, %105, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I32(64), PTXKIT_I8(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n224k32_s32_s8_s8(
    int (&d)[112], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224k32.s32.s8.s8 "
                 "{" PTXKIT_R112 "}, %112, %113, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I32(64), PTXKIT_I16(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n240k32_s32_s8_s8(
    int (&d)[120], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %122, 0; wgmma.mma_async.sync.aligned.m64n240k32.s32.s8.s8 "
                 "{" PTXKIT_R120 "}, %120, %121, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I32(64), PTXKIT_I16(96), PTXKIT_I8(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2.

__device__ __forceinline__ void wgmma_s8(int (&d)[12], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n24k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[24], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n48k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[40], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n80k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[48], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n96k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[56], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n112k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[72], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n144k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[80], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n160k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[88], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n176k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[96], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n192k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[104], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n208k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[112], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n224k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[120], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
    wgmma_mma_async_m64n240k32_s32_s8_s8(d, a, b, accumulate);
}

}  // namespace ptxkit
