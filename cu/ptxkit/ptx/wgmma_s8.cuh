// wgmma.mma_async on signed 8-bit integers with exact s32 sums. PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions". Target: sm_90a only. See wgmma.cuh for the order of the instructions and the
// layout of the accumulators, and for the descriptors: a row of 128 bytes has 128 elements, and an instruction reads
// 32 of them, which is 32 bytes along K as for 16 bits. Both operands are K-major.
#pragma once
#include "ptxkit/ptx/guard.cuh"
#include "ptxkit/ptx/wgmma_operands.cuh"

namespace ptxkit {

// d = a * b^T, or d += a * b^T with `accumulate`, where a is 64 x 32, b is N x 32 and d is 64 x N.

__device__ __forceinline__ void wgmma_mma_async_m64n8k32_s32_s8_s8(
    int (&d)[4], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 "
                 "{" PTXKIT_R4 "}, %4, %5, p;}"
                 : PTXKIT_I4(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n16k32_s32_s8_s8(
    int (&d)[8], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 "
                 "{" PTXKIT_R8 "}, %8, %9, p;}"
                 : PTXKIT_I8(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n32k32_s32_s8_s8(
    int (&d)[16], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
                 "{" PTXKIT_R16 "}, %16, %17, p;}"
                 : PTXKIT_I8(0), PTXKIT_I8(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n64k32_s32_s8_s8(
    int (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
                 "{" PTXKIT_R32 "}, %32, %33, p;}"
                 : PTXKIT_I32(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k32_s32_s8_s8(
    int (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
                 "{" PTXKIT_R64 "}, %64, %65, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n256k32_s32_s8_s8(
    int (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 "
                 "{" PTXKIT_R128 "}, %128, %129, p;}"
                 : PTXKIT_I32(0), PTXKIT_I32(32), PTXKIT_I32(64), PTXKIT_I32(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2.

__device__ __forceinline__ void wgmma_s8(int (&d)[4], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n8k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[8], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n16k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[16], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n32k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[32], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n64k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[64], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n128k32_s32_s8_s8(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[128], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n256k32_s32_s8_s8(d, a, b, accumulate);
}

}  // namespace ptxkit
