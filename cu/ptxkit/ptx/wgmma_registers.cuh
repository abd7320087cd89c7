// wgmma.mma_async with the first operand in registers and the second one transposed. PTX ISA, "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate Instructions". Target: sm_90a only. See wgmma.cuh for the order of the instructions
// and the layout of the accumulators.
//
// Layout of a: thread t of the warpgroup holds, in row 16 (t / 32) + t % 32 / 4, columns 2 (t % 4) and 2 (t % 4) + 1 in
// a[0] and the columns 8 further in a[2]; a[1] and a[3] have the same columns of the row 8 below (PTX ISA, figure
// "WGMMA .m64nNk16 register fragment layout for matrix A"). This is the layout of two neighbouring groups of
// accumulators, so that the result of one product, packed to 16 bits, is an operand of the next. The registers must not
// change until wgmma_wait_group.
#pragma once
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/wgmma.cuh"

namespace ptxkit {

// No instruction. Keeps the compiler from moving writes to registers that a wgmma reads to before this point.
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(unsigned (&a)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i])::"memory");
}

// wgmma.mma_async: d = a * b, or d += a * b with `accumulate`, where a is 64 x 16 in registers, b is 16 x N and d is
// 64 x N. b is the descriptor of an N-major tile in shared memory, transposed_descriptor_128B of wgmma.cuh.

__device__ __forceinline__ void wgmma_mma_async_m64n64k16_f32_bf16_bf16(
    float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" PTXKIT_R32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k16_f32_bf16_bf16(
    float (&d)[64], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" PTXKIT_R64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n256k16_f32_bf16_bf16(
    float (&d)[128], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{" PTXKIT_R128 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n64k16_f32_f16_f16(
    float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" PTXKIT_R32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n128k16_f32_f16_f16(
    float (&d)[64], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" PTXKIT_R64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_m64n256k16_f32_f16_f16(
    float (&d)[128], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{" PTXKIT_R128 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The products with a transposed b for the element type T, where a is in registers or the descriptor of a K-major tile,
// and N follows from the number of accumulators of a thread, N / 2.

__device__ __forceinline__ void wgmma_transposed(float (&d)[32], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, bf16) {
    wgmma_mma_async_m64n64k16_f32_bf16_bf16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[64], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, bf16) {
    wgmma_mma_async_m64n128k16_f32_bf16_bf16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[128], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, bf16) {
    wgmma_mma_async_m64n256k16_f32_bf16_bf16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[32], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, f16) {
    wgmma_mma_async_m64n64k16_f32_f16_f16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[64], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, f16) {
    wgmma_mma_async_m64n128k16_f32_f16_f16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[128], const unsigned (&a)[4], unsigned long long b,
                                                 bool accumulate, f16) {
    wgmma_mma_async_m64n256k16_f32_f16_f16(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[32], unsigned long long a, unsigned long long b,
                                                 bool accumulate, bf16) {
    wgmma_mma_async_m64n64k16_f32_bf16_bf16<K_MAJOR, MN_MAJOR>(d, a, b, accumulate);
}
__device__ __forceinline__ void wgmma_transposed(float (&d)[32], unsigned long long a, unsigned long long b,
                                                 bool accumulate, f16) {
    wgmma_mma_async_m64n64k16_f32_f16_f16<K_MAJOR, MN_MAJOR>(d, a, b, accumulate);
}

}  // namespace ptxkit
