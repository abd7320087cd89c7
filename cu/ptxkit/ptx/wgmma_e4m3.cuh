// wgmma.mma_async on e4m3. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Target: sm_90a
// only. See wgmma.cuh for the order of the instructions and the layout of the accumulators, and for the descriptors: a
// row of 128 bytes has 128 elements, and an instruction reads 32 of them, which is 32 bytes along K as for 16 bits.
//
// Both operands are K-major: only types of 16 bits can be transposed. Of the partial sums about 13 bits of fraction are
// kept (ptxkit/emulator/tensor_core/accumulation.py), so that sums of many instructions should be added in f32.
//
// Layout of a in registers: thread t of the warpgroup holds, in row 16 (t / 32) + t % 32 / 4, columns 4 (t % 4) to
// 4 (t % 4) + 3 in a[0] and the columns 16 further in a[2]; a[1] and a[3] have the same columns of the row 8 below (PTX
// ISA, figure "WGMMA .m64nNk32 register fragment layout for matrix A").
#pragma once
#include "ptxkit/ptx/guard.cuh"
#include "ptxkit/ptx/wgmma_operands.cuh"

namespace ptxkit {

// d = a * b^T, or d += a * b^T with `accumulate`, where a is 64 x 32, b is N x 32 and d is 64 x N.

__device__ __forceinline__ void wgmma_mma_async_m64n8k32_f32_e4m3_e4m3(
    float (&d)[4], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R4 "}, %4, %5, p, 1, 1;}"
                 : PTXKIT_D4(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n16k32_f32_e4m3_e4m3(
    float (&d)[8], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R8 "}, %8, %9, p, 1, 1;}"
                 : PTXKIT_D8(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n32k32_f32_e4m3_e4m3(
    float (&d)[16], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R16 "}, %16, %17, p, 1, 1;}"
                 : PTXKIT_D8(0), PTXKIT_D8(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n64k32_f32_e4m3_e4m3(
    float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R32 "}, %32, %33, p, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k32_f32_e4m3_e4m3(
    float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R64 "}, %64, %65, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n256k32_f32_e4m3_e4m3(
    float (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R128 "}, %128, %129, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n64k32_f32_e4m3_e4m3(
    float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R32 "}, {%32, %33, %34, %35}, %36, p, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k32_f32_e4m3_e4m3(
    float (&d)[64], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
                 "{" PTXKIT_R64 "}, {%64, %65, %66, %67}, %68, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2, and a is a descriptor or in registers.

template <class A>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[32], const A& a, unsigned long long b, bool accumulate) {
    wgmma_mma_async_m64n64k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
template <class A>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], const A& a, unsigned long long b, bool accumulate) {
    wgmma_mma_async_m64n128k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[4], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n8k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[8], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n16k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[16], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n32k32_f32_e4m3_e4m3(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[128], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
    wgmma_mma_async_m64n256k32_f32_e4m3_e4m3(d, a, b, accumulate);
}

}  // namespace ptxkit
