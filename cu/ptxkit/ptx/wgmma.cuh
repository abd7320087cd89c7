// wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group, setmaxnreg. PTX ISA, "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate Instructions" and "Miscellaneous Instructions: setmaxnreg". Target: sm_90a only;
// setmaxnreg also sm_100a, sm_100f and others of this family.
//
// A warpgroup is four consecutive warps, the first of which has an index that is a multiple of four. All its threads
// execute a wgmma together. The operands are tiles in shared memory, the sums stay in registers. The product is
// computed asynchronously:
//
//     wgmma_fence();                                            // registers and shared memory are ready
//     wgmma_mma_async_m64n256k16_f32_bf16_bf16(d, a, b, true);  // any number of these
//     wgmma_commit_group();
//     wgmma_wait_group<0>();                                    // now d may be read and the tiles overwritten
//
// Layout of d: thread t of the warpgroup holds, in row 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4) and
// 8 j + 2 (t % 4) + 1 as d[4 j] and d[4 j + 1], and the same columns of the row 8 below as d[4 j + 2] and d[4 j + 3]
// (PTX ISA, figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D").
#pragma once
#include "ptxkit/ptx/guard.cuh"
#include "ptxkit/ptx/wgmma_operands.cuh"

namespace ptxkit {

// Orders accesses to registers and shared memory before later wgmma.mma_async. Required before the first one, and
// whenever the accumulators have been written by other instructions.
__device__ __forceinline__ void wgmma_fence() {
#if PTXKIT_SM90A
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.fence", "sm_90a");
#endif
}

// Combines the wgmma.mma_async of the warpgroup since its last commit into a group.
__device__ __forceinline__ void wgmma_commit_group() {
#if PTXKIT_SM90A
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.commit_group", "sm_90a");
#endif
}

// Waits until at most the PENDING most recent groups are incomplete.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
#if PTXKIT_SM90A
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.wait_group", "sm_90a");
#endif
}

// No instruction. Called after wgmma_wait_group: wgmma writes the accumulators asynchronously until then, which the
// compiler does not know, and the asm keeps it from moving their uses to before this point.
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// The matrix descriptor of a K-major tile in shared memory with the 128-byte swizzle: contiguous rows of 64 elements of
// 16 bits (128 bytes). `address` is the shared address of the first row, a multiple of 1024, plus 32 bytes for each 16
// elements along K. PTX ISA, "Matrix Descriptor Format": bits 0-13, address / 16; bits 16-29, leading dimension byte
// offset / 16, which this layout does not use; bits 32-45, stride dimension byte offset / 16, the 1024 bytes from 8
// rows to the next 8; bits 62-63, swizzle mode, 1 for 128 bytes.
__device__ __forceinline__ unsigned long long matrix_descriptor_128B(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

// The same with the 64-byte swizzle: contiguous rows of 64 bytes, 512 bytes from 8 rows to the next 8, swizzle mode 2.
// `address` is a multiple of 512, plus 32 for the second half of the rows.
__device__ __forceinline__ unsigned long long matrix_descriptor_64B(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}

// The matrix descriptor of an MN-major tile in shared memory with the 128-byte swizzle: for each element along K a row
// of 64 elements of 16 bits (128 bytes) along M or N, in blocks of 64 elements along M or N that are `block_bytes`
// apart. `address` is the shared address of the first row, a multiple of 1024, plus 2048 for each 16 elements along K.
// PTX ISA, "Matrix Descriptor Format", "Strides": bits 16-29, leading dimension byte offset / 16, from one block to the
// next; bits 32-45, stride dimension byte offset / 16, the 1024 bytes from 8 rows to the next 8.
__device__ __forceinline__ unsigned long long transposed_descriptor_128B(unsigned address, unsigned block_bytes) {
    return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(block_bytes >> 4) << 16 | (1024ull >> 4) << 32 |
           1ull << 62;
}

// The dimension along which a tile in shared memory is contiguous: K, or M of a and N of b. The values are those of the
// operands imm-trans-a and imm-trans-b of wgmma.mma_async, which only has them for elements of 16 bits.
enum Major { K_MAJOR = 0, MN_MAJOR = 1 };

// wgmma.mma_async: d = a * b^T, or d += a * b^T with `accumulate`, where a is 64 x 16, b is N x 16 and d is 64 x N. a
// and b are the descriptors of tiles in shared memory: matrix_descriptor_128B for K-major tiles, and
// transposed_descriptor_128B for MN-major ones, as A_MAJOR and B_MAJOR say.

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n64k16_f32_bf16_bf16(
    float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" PTXKIT_R32 "}, %32, %33, p, 1, 1, %35, %36;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n128k16_f32_bf16_bf16(
    float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" PTXKIT_R64 "}, %64, %65, p, 1, 1, %67, %68;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n192k16_f32_bf16_bf16(
    float (&d)[96], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
                 "{" PTXKIT_R96 "}, %96, %97, p, 1, 1, %99, %100;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n256k16_f32_bf16_bf16(
    float (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{" PTXKIT_R128 "}, %128, %129, p, 1, 1, %131, %132;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n64k16_f32_f16_f16(
    float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" PTXKIT_R32 "}, %32, %33, p, 1, 1, %35, %36;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n128k16_f32_f16_f16(
    float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" PTXKIT_R64 "}, %64, %65, p, 1, 1, %67, %68;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n192k16_f32_f16_f16(
    float (&d)[96], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 "
                 "{" PTXKIT_R96 "}, %96, %97, p, 1, 1, %99, %100;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n256k16_f32_f16_f16(
    float (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{" PTXKIT_R128 "}, %128, %129, p, 1, 1, %131, %132;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n8k16_f32_bf16_bf16(
    float (&d)[4], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3}, %4, %5, p, 1, 1, %7, %8;}"
                 : PTXKIT_D4(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n16k16_f32_bf16_bf16(
    float (&d)[8], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, %12;}"
                 : PTXKIT_D8(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n32k16_f32_bf16_bf16(
    float (&d)[16], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %20;}"
                 : PTXKIT_D8(0), PTXKIT_D8(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n8k16_f32_f16_f16(
    float (&d)[4], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                 "{%0, %1, %2, %3}, %4, %5, p, 1, 1, %7, %8;}"
                 : PTXKIT_D4(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n16k16_f32_f16_f16(
    float (&d)[8], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, %12;}"
                 : PTXKIT_D8(0)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n32k16_f32_f16_f16(
    float (&d)[16], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %20;}"
                 : PTXKIT_D8(0), PTXKIT_D8(8)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n48k16_f32_bf16_bf16(
    float (&d)[24], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
                 "{" PTXKIT_R24 "}, %24, %25, p, 1, 1, %27, %28;}"
                 : PTXKIT_D8(0), PTXKIT_D8(8), PTXKIT_D8(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n96k16_f32_bf16_bf16(
    float (&d)[48], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
                 "{" PTXKIT_R48 "}, %48, %49, p, 1, 1, %51, %52;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D8(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n48k16_f32_f16_f16(
    float (&d)[24], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{" PTXKIT_R24 "}, %24, %25, p, 1, 1, %27, %28;}"
                 : PTXKIT_D8(0), PTXKIT_D8(8), PTXKIT_D8(16)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_mma_async_m64n96k16_f32_f16_f16(
    float (&d)[48], unsigned long long a, unsigned long long b, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
                 "{" PTXKIT_R48 "}, %48, %49, p, 1, 1, %51, %52;}"
                 : PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D8(40)
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_MAJOR), "n"(B_MAJOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async", "sm_90a");
#endif
}

// The wgmma with bf16 or f16 operands whose N follows from the number of accumulators of a thread, N / 2.

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[4], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n8k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[8], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n16k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[16], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n32k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[32], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n64k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[64], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n128k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[96], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n192k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[128], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n256k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[24], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n48k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_bf16(float (&d)[48], unsigned long long a, unsigned long long b,
                                           bool accumulate) {
    wgmma_mma_async_m64n96k16_f32_bf16_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}

template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[4], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n8k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[8], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n16k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[16], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n32k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[32], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n64k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[64], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n128k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[96], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n192k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[128], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n256k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[24], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n48k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}
template <int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR>
__device__ __forceinline__ void wgmma_f16(float (&d)[48], unsigned long long a, unsigned long long b,
                                          bool accumulate) {
    wgmma_mma_async_m64n96k16_f32_f16_f16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
}

// setmaxnreg: sets the number of registers of each thread of the executing warpgroup to REGISTERS, a multiple of 8 from
// 24 to 256. dec releases registers; inc requests registers and waits until the CTA's pool has enough of them. ptxas
// requires a kernel with a known number of registers at launch, for instance from __launch_bounds__ with a minimum of
// CTAs per SM.

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
#if PTXKIT_SM90A || PTXKIT_BLACKWELL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("setmaxnreg", "sm_90a, " PTXKIT_BLACKWELL_TARGETS);
#endif
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
#if PTXKIT_SM90A || PTXKIT_BLACKWELL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("setmaxnreg", "sm_90a, " PTXKIT_BLACKWELL_TARGETS);
#endif
}

}  // namespace ptxkit
