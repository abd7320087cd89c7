// wgmma.mma_async of 16-bit types with more numbers of columns, so that a tile may have as many columns as a matrix divided by the
// number of SMs. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Target: sm_90a only. See
// wgmma.cuh for the order of the instructions, the descriptors and the layout of the accumulators.
#pragma once
#include "ptxkit/ptx/wgmma.cuh"

namespace ptxkit {

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n24k16_f32_bf16_bf16(
    float (&d)[12], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
                 "{" PTXKIT_R12 "}, %12, %13, p, 1, 1, %15, %16;}"
                 : PTXKIT_D8(0), PTXKIT_D4(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n40k16_f32_bf16_bf16(
    float (&d)[20], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %22, 0; wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 "
                 "{" PTXKIT_R20 "}, %20, %21, p, 1, 1, %23, %24;}"
                 : PTXKIT_D16(0), PTXKIT_D4(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n56k16_f32_bf16_bf16(
    float (&d)[28], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %30, 0; wgmma.mma_async.sync.aligned.m64n56k16.f32.bf16.bf16 "
                 "{" PTXKIT_R28 "}, %28, %29, p, 1, 1, %31, %32;}"
                 : PTXKIT_D16(0), PTXKIT_D8(16), PTXKIT_D4(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n72k16_f32_bf16_bf16(
    float (&d)[36], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %38, 0; wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 "
                 "{" PTXKIT_R36 "}, %36, %37, p, 1, 1, %39, %40;}"
                 : PTXKIT_D32(0), PTXKIT_D4(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n80k16_f32_bf16_bf16(
    float (&d)[40], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
                 "{" PTXKIT_R40 "}, %40, %41, p, 1, 1, %43, %44;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n88k16_f32_bf16_bf16(
    float (&d)[44], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %46, 0; wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 "
                 "{" PTXKIT_R44 "}, %44, %45, p, 1, 1, %47, %48;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D4(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n104k16_f32_bf16_bf16(
    float (&d)[52], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %54, 0; wgmma.mma_async.sync.aligned.m64n104k16.f32.bf16.bf16 "
                 "{" PTXKIT_R52 "}, %52, %53, p, 1, 1, %55, %56;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D4(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n112k16_f32_bf16_bf16(
    float (&d)[56], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 "
                 "{" PTXKIT_R56 "}, %56, %57, p, 1, 1, %59, %60;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n120k16_f32_bf16_bf16(
    float (&d)[60], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %62, 0; wgmma.mma_async.sync.aligned.m64n120k16.f32.bf16.bf16 "
                 "{" PTXKIT_R60 "}, %60, %61, p, 1, 1, %63, %64;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48), PTXKIT_D4(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n136k16_f32_bf16_bf16(
    float (&d)[68], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 "
                 "{" PTXKIT_R68 "}, %68, %69, p, 1, 1, %71, %72;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D4(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n144k16_f32_bf16_bf16(
    float (&d)[72], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 "
                 "{" PTXKIT_R72 "}, %72, %73, p, 1, 1, %75, %76;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n152k16_f32_bf16_bf16(
    float (&d)[76], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %78, 0; wgmma.mma_async.sync.aligned.m64n152k16.f32.bf16.bf16 "
                 "{" PTXKIT_R76 "}, %76, %77, p, 1, 1, %79, %80;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D4(72)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n160k16_f32_bf16_bf16(
    float (&d)[80], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
                 "{" PTXKIT_R80 "}, %80, %81, p, 1, 1, %83, %84;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n168k16_f32_bf16_bf16(
    float (&d)[84], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %86, 0; wgmma.mma_async.sync.aligned.m64n168k16.f32.bf16.bf16 "
                 "{" PTXKIT_R84 "}, %84, %85, p, 1, 1, %87, %88;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D4(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n176k16_f32_bf16_bf16(
    float (&d)[88], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 "
                 "{" PTXKIT_R88 "}, %88, %89, p, 1, 1, %91, %92;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n184k16_f32_bf16_bf16(
    float (&d)[92], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %94, 0; wgmma.mma_async.sync.aligned.m64n184k16.f32.bf16.bf16 "
                 "{" PTXKIT_R92 "}, %92, %93, p, 1, 1, %95, %96;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80), PTXKIT_D4(88)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n200k16_f32_bf16_bf16(
    float (&d)[100], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %102, 0; wgmma.mma_async.sync.aligned.m64n200k16.f32.bf16.bf16 "
                 "{" PTXKIT_R100 "}, %100, %101, p, 1, 1, %103, %104;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n208k16_f32_bf16_bf16(
    float (&d)[104], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %106, 0; wgmma.mma_async.sync.aligned.m64n208k16.f32.bf16.bf16 "
                 "{" PTXKIT_R104 "}, %104, %105, p, 1, 1, %107, %108;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n216k16_f32_bf16_bf16(
    float (&d)[216 / 2], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %110, 0; wgmma.mma_async.sync.aligned.m64n216k16.f32.bf16.bf16 "
                 "{" PTXKIT_R108 "}, %108, %109, p, 1, 1, %111, %112;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96), PTXKIT_D4(104)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n224k16_f32_bf16_bf16(
    float (&d)[112], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 "
                 "{" PTXKIT_R112 "}, %112, %113, p, 1, 1, %115, %116;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n232k16_f32_bf16_bf16(
    float (&d)[116], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %118, 0; wgmma.mma_async.sync.aligned.m64n232k16.f32.bf16.bf16 "
                 "{" PTXKIT_R116 "}, %116, %117, p, 1, 1, %119, %120;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D4(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n240k16_f32_bf16_bf16(
    float (&d)[120], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %122, 0; wgmma.mma_async.sync.aligned.m64n240k16.f32.bf16.bf16 "
                 "{" PTXKIT_R120 "}, %120, %121, p, 1, 1, %123, %124;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n248k16_f32_bf16_bf16(
    float (&d)[124], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %126, 0; wgmma.mma_async.sync.aligned.m64n248k16.f32.bf16.bf16 "
                 "{" PTXKIT_R124 "}, %124, %125, p, 1, 1, %127, %128;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112), PTXKIT_D4(120)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n24k16_f32_f16_f16(
    float (&d)[12], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 "
                 "{" PTXKIT_R12 "}, %12, %13, p, 1, 1, %15, %16;}"
                 : PTXKIT_D8(0), PTXKIT_D4(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n40k16_f32_f16_f16(
    float (&d)[20], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %22, 0; wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 "
                 "{" PTXKIT_R20 "}, %20, %21, p, 1, 1, %23, %24;}"
                 : PTXKIT_D16(0), PTXKIT_D4(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n56k16_f32_f16_f16(
    float (&d)[28], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %30, 0; wgmma.mma_async.sync.aligned.m64n56k16.f32.f16.f16 "
                 "{" PTXKIT_R28 "}, %28, %29, p, 1, 1, %31, %32;}"
                 : PTXKIT_D16(0), PTXKIT_D8(16), PTXKIT_D4(24)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n72k16_f32_f16_f16(
    float (&d)[36], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %38, 0; wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 "
                 "{" PTXKIT_R36 "}, %36, %37, p, 1, 1, %39, %40;}"
                 : PTXKIT_D32(0), PTXKIT_D4(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n80k16_f32_f16_f16(
    float (&d)[40], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
                 "{" PTXKIT_R40 "}, %40, %41, p, 1, 1, %43, %44;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n88k16_f32_f16_f16(
    float (&d)[44], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %46, 0; wgmma.mma_async.sync.aligned.m64n88k16.f32.f16.f16 "
                 "{" PTXKIT_R44 "}, %44, %45, p, 1, 1, %47, %48;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D4(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n104k16_f32_f16_f16(
    float (&d)[52], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %54, 0; wgmma.mma_async.sync.aligned.m64n104k16.f32.f16.f16 "
                 "{" PTXKIT_R52 "}, %52, %53, p, 1, 1, %55, %56;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D4(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n112k16_f32_f16_f16(
    float (&d)[56], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32.f16.f16 "
                 "{" PTXKIT_R56 "}, %56, %57, p, 1, 1, %59, %60;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n120k16_f32_f16_f16(
    float (&d)[60], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %62, 0; wgmma.mma_async.sync.aligned.m64n120k16.f32.f16.f16 "
                 "{" PTXKIT_R60 "}, %60, %61, p, 1, 1, %63, %64;}"
                 : PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48), PTXKIT_D4(56)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n136k16_f32_f16_f16(
    float (&d)[68], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n136k16.f32.f16.f16 "
                 "{" PTXKIT_R68 "}, %68, %69, p, 1, 1, %71, %72;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D4(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n144k16_f32_f16_f16(
    float (&d)[72], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k16.f32.f16.f16 "
                 "{" PTXKIT_R72 "}, %72, %73, p, 1, 1, %75, %76;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n152k16_f32_f16_f16(
    float (&d)[76], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %78, 0; wgmma.mma_async.sync.aligned.m64n152k16.f32.f16.f16 "
                 "{" PTXKIT_R76 "}, %76, %77, p, 1, 1, %79, %80;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D4(72)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n160k16_f32_f16_f16(
    float (&d)[80], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 "
                 "{" PTXKIT_R80 "}, %80, %81, p, 1, 1, %83, %84;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n168k16_f32_f16_f16(
    float (&d)[84], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %86, 0; wgmma.mma_async.sync.aligned.m64n168k16.f32.f16.f16 "
                 "{" PTXKIT_R84 "}, %84, %85, p, 1, 1, %87, %88;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D4(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n176k16_f32_f16_f16(
    float (&d)[88], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32.f16.f16 "
                 "{" PTXKIT_R88 "}, %88, %89, p, 1, 1, %91, %92;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n184k16_f32_f16_f16(
    float (&d)[92], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %94, 0; wgmma.mma_async.sync.aligned.m64n184k16.f32.f16.f16 "
                 "{" PTXKIT_R92 "}, %92, %93, p, 1, 1, %95, %96;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80), PTXKIT_D4(88)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n200k16_f32_f16_f16(
    float (&d)[100], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %102, 0; wgmma.mma_async.sync.aligned.m64n200k16.f32.f16.f16 "
                 "{" PTXKIT_R100 "}, %100, %101, p, 1, 1, %103, %104;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n208k16_f32_f16_f16(
    float (&d)[104], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %106, 0; wgmma.mma_async.sync.aligned.m64n208k16.f32.f16.f16 "
                 "{" PTXKIT_R104 "}, %104, %105, p, 1, 1, %107, %108;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n216k16_f32_f16_f16(
    float (&d)[216 / 2], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %110, 0; wgmma.mma_async.sync.aligned.m64n216k16.f32.f16.f16 "
                 "{" PTXKIT_R108 "}, %108, %109, p, 1, 1, %111, %112;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96), PTXKIT_D4(104)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n224k16_f32_f16_f16(
    float (&d)[112], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224k16.f32.f16.f16 "
                 "{" PTXKIT_R112 "}, %112, %113, p, 1, 1, %115, %116;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n232k16_f32_f16_f16(
    float (&d)[116], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %118, 0; wgmma.mma_async.sync.aligned.m64n232k16.f32.f16.f16 "
                 "{" PTXKIT_R116 "}, %116, %117, p, 1, 1, %119, %120;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D4(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n240k16_f32_f16_f16(
    float (&d)[120], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %122, 0; wgmma.mma_async.sync.aligned.m64n240k16.f32.f16.f16 "
                 "{" PTXKIT_R120 "}, %120, %121, p, 1, 1, %123, %124;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n248k16_f32_f16_f16(
    float (&d)[124], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %126, 0; wgmma.mma_async.sync.aligned.m64n248k16.f32.f16.f16 "
                 "{" PTXKIT_R124 "}, %124, %125, p, 1, 1, %127, %128;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112), PTXKIT_D4(120)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2.

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[12], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n24k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[20], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n40k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[28], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n56k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[36], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n72k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[40], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n80k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[44], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n88k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[52], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n104k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[56], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n112k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[60], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n120k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[68], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n136k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[72], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n144k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[76], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n152k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[80], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n160k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[84], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n168k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[88], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n176k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[92], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n184k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[100], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n200k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[104], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n208k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[216 / 2], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n216k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[112], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n224k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[116], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n232k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[120], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n240k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[124], unsigned long long a, unsigned long long b,
                                        bool accumulate) {
    wgmma_mma_async_m64n248k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
// The same, where N follows from the number of accumulators of a thread, N / 2.

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[12], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n24k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[20], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n40k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[28], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n56k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[36], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n72k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[40], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n80k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[44], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n88k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[52], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n104k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[56], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n112k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[60], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n120k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[68], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n136k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[72], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n144k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[76], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n152k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[80], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n160k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[84], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n168k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[88], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n176k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[92], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n184k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[100], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n200k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[104], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n208k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[216 / 2], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n216k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[112], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n224k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[116], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n232k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[120], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n240k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[124], unsigned long long a, unsigned long long b,
                                       bool accumulate) {
    wgmma_mma_async_m64n248k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
}  // namespace ptxkit
