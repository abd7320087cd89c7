// wgmma.mma_async on tf32 with f32 sums. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
// Target: sm_90a only. See wgmma.cuh for the order of the instructions and the layout of the accumulators, and for the
// descriptors: a row of 128 bytes has 32 elements, which are read as f32 whose low 13 bits are ignored, and an instruction
// reads 8 of them, which is 32 bytes along K as for 16 bits. Both operands are K-major.
#pragma once
#include "ptxkit/ptx/guard.cuh"
#include "ptxkit/ptx/wgmma_operands.cuh"

namespace ptxkit {

// d = a * b^T, or d += a * b^T with `accumulate`, where a is 64 x 8, b is N x 8 and d is 64 x N.

__device__ __forceinline__ void wgmma_mma_async_m64n64k8_f32_tf32_tf32(
    float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{" PTXKIT_R32 "}, %32, %33, p, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k8_f32_tf32_tf32(
    float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
                 "{" PTXKIT_R64 "}, %64, %65, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n256k8_f32_tf32_tf32(
    float (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
                 "{" PTXKIT_R128 "}, %128, %129, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The same, where N follows from the number of accumulators of a thread, N / 2.

__device__ __forceinline__ void wgmma_tf32(float (&d)[32], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n64k8_f32_tf32_tf32(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_tf32(float (&d)[64], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n128k8_f32_tf32_tf32(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_tf32(float (&d)[128], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n256k8_f32_tf32_tf32(d, a, b, accumulate);
}

}  // namespace ptxkit
