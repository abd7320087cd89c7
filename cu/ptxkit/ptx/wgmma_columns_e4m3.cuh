// wgmma.mma_async of e4m3 with more numbers of columns, so that a tile may have as many columns as a matrix divided by the
// number of SMs. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Target: sm_90a only. See
// wgmma_e4m3.cuh for the order of the instructions, the descriptors and the layout of the accumulators.
#pragma once
#include "ptxkit/ptx/wgmma_e4m3.cuh"

namespace ptxkit {

__device__ __forceinline__ void wgmma_mma_async_m64n24k32_f32_e4m3_e4m3(
    float (&d)[12], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R12 "}, %12, %13, p, 1, 1;}"
                 : PTXKIT_D8(0), PTXKIT_D4(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n40k32_f32_e4m3_e4m3(
    float (&d)[20], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %22, 0; wgmma.mma_async.sync.aligned.m64n40k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R20 "}, %20, %21, p, 1, 1;}"
                 : PTXKIT_D16(0), PTXKIT_D4(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n48k32_f32_e4m3_e4m3(
    float (&d)[24], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R24 "}, %24, %25, p, 1, 1;}"
                 : PTXKIT_D16(0), PTXKIT_D8(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n56k32_f32_e4m3_e4m3(
    float (&d)[28], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %30, 0; wgmma.mma_async.sync.aligned.m64n56k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R28 "}, %28, %29, p, 1, 1;}"
                 : PTXKIT_D16(0), PTXKIT_D8(16), PTXKIT_D4(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n72k32_f32_e4m3_e4m3(
    float (&d)[36], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %38, 0; wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R36 "}, %36, %37, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D4(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n80k32_f32_e4m3_e4m3(
    float (&d)[40], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R40 "}, %40, %41, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n88k32_f32_e4m3_e4m3(
    float (&d)[44], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %46, 0; wgmma.mma_async.sync.aligned.m64n88k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R44 "}, %44, %45, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D4(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n96k32_f32_e4m3_e4m3(
    float (&d)[48], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R48 "}, %48, %49, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n104k32_f32_e4m3_e4m3(
    float (&d)[52], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %54, 0; wgmma.mma_async.sync.aligned.m64n104k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R52 "}, %52, %53, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D4(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n112k32_f32_e4m3_e4m3(
    float (&d)[56], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R56 "}, %56, %57, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n120k32_f32_e4m3_e4m3(
    float (&d)[60], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %62, 0; wgmma.mma_async.sync.aligned.m64n120k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R60 "}, %60, %61, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48), PTXKIT_D4(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n136k32_f32_e4m3_e4m3(
    float (&d)[68], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R68 "}, %68, %69, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D4(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n144k32_f32_e4m3_e4m3(
    float (&d)[72], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R72 "}, %72, %73, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n152k32_f32_e4m3_e4m3(
    float (&d)[76], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %78, 0; wgmma.mma_async.sync.aligned.m64n152k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R76 "}, %76, %77, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D4(72)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n160k32_f32_e4m3_e4m3(
    float (&d)[80], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R80 "}, %80, %81, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n168k32_f32_e4m3_e4m3(
    float (&d)[84], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %86, 0; wgmma.mma_async.sync.aligned.m64n168k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R84 "}, %84, %85, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D4(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n176k32_f32_e4m3_e4m3(
    float (&d)[88], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R88 "}, %88, %89, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n184k32_f32_e4m3_e4m3(
    float (&d)[92], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %94, 0; wgmma.mma_async.sync.aligned.m64n184k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R92 "}, %92, %93, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80), PTXKIT_D4(88)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n192k32_f32_e4m3_e4m3(
    float (&d)[96], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R96 "}, %96, %97, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n200k32_f32_e4m3_e4m3(
    float (&d)[100], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %102, 0; wgmma.mma_async.sync.aligned.m64n200k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R100 "}, %100, %101, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n208k32_f32_e4m3_e4m3(
    float (&d)[104], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %106, 0; wgmma.mma_async.sync.aligned.m64n208k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R104 "}, %104, %105, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n216k32_f32_e4m3_e4m3(
    float (&d)[216 / 2], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %110, 0; wgmma.mma_async.sync.aligned.m64n216k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R108 "}, %108, %109, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96), PTXKIT_D4(104)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n224k32_f32_e4m3_e4m3(
    float (&d)[112], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R112 "}, %112, %113, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n232k32_f32_e4m3_e4m3(
    float (&d)[116], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %118, 0; wgmma.mma_async.sync.aligned.m64n232k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R116 "}, %116, %117, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D4(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n240k32_f32_e4m3_e4m3(
    float (&d)[120], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %122, 0; wgmma.mma_async.sync.aligned.m64n240k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R120 "}, %120, %121, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n248k32_f32_e4m3_e4m3(
    float (&d)[124], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %126, 0; wgmma.mma_async.sync.aligned.m64n248k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R124 "}, %124, %125, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112), PTXKIT_D4(120)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2.

__device__ __forceinline__ void wgmma_e4m3(float (&d)[12], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n24k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[20], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n40k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[24], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n48k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[28], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n56k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[36], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n72k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[40], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n80k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[44], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n88k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[48], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n96k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[52], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n104k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[56], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n112k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[60], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n120k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[68], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n136k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[72], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n144k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[76], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n152k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[80], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n160k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[84], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n168k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[88], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n176k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[92], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n184k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[96], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n192k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[100], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n200k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[104], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n208k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[216 / 2], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n216k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[112], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n224k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[116], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n232k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[120], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n240k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[124], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n248k32_f32_e4m3_e4m3(d, a, b, accumulate);
}

}  // namespace ptxkit
