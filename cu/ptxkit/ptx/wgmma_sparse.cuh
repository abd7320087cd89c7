// wgmma.mma_async.sp: the products of wgmma.cuh with a 2:4 sparse a. PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions: wgmma.mma_async.sp" and "Sparse matrix storage". Target: sm_90a only.
//
// d = a * b^T, or d += a * b^T with `accumulate`, where a is 64 x K, b is N x K and d is 64 x N. Of every four
// neighbouring elements of a row of a, two are stored: `a` is the descriptor of a K-major tile of 64 x K / 2 elements.
// The accumulators and their fences are those of wgmma.cuh.
//
// Metadata: the positions of the stored elements, in a register of each thread. Each four elements have four bits: the
// position of the first one that is stored in bits 0-1 and that of the second one, which must be larger, in bits 2-3;
// elements further along k are in higher bits. With g = t % 32 / 4 and q = t % 4, a warp has rows g and g + 8 of its 16
// (PTX ISA, figures "Sparse WGMMA .m64nNk32 metadata layout for .f16/.bf16 type" and "Sparse WGMMA .m64nNk64 metadata
// layout for .e4m3/.e5m2/.s8/.u8 type"):
//
//   16-bit elements, K = 32: thread q = 2 SELECTOR has elements 0 to 15 of row g in its bits 0-15 and of row g + 8 in
//     its bits 16-31, thread q = 2 SELECTOR + 1 has elements 16 to 31. The registers of the other two threads are not
//     read, so that one register has the metadata of two instructions.
//   8-bit elements, K = 64: threads q = 0 and 2 have elements 0 to 31 and 32 to 63 of row g, q = 1 and 3 of row g + 8.
//
// mma.sp of matrix.cuh has the same layout in each warp.
#pragma once
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/wgmma_operands.cuh"

namespace ptxkit {

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n64k32_f32_bf16_bf16(
    float (&d)[32], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %35, 0; wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.bf16.bf16 "
                 "{" PTXKIT_R32 "}, %32, %33, %34, %36, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n128k32_f32_bf16_bf16(
    float (&d)[64], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %67, 0; wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.bf16.bf16 "
                 "{" PTXKIT_R64 "}, %64, %65, %66, %68, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n176k32_f32_bf16_bf16(
    float (&d)[88], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %91, 0; wgmma.mma_async.sp.sync.aligned.m64n176k32.f32.bf16.bf16 "
                 "{" PTXKIT_R88 "}, %88, %89, %90, %92, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D8(72), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n192k32_f32_bf16_bf16(
    float (&d)[96], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %99, 0; wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.bf16.bf16 "
                 "{" PTXKIT_R96 "}, %96, %97, %98, %100, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n200k32_f32_bf16_bf16(
    float (&d)[100], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %103, 0; wgmma.mma_async.sp.sync.aligned.m64n200k32.f32.bf16.bf16 "
                 "{" PTXKIT_R100 "}, %100, %101, %102, %104, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n256k32_f32_bf16_bf16(
    float (&d)[128], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %131, 0; wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.bf16.bf16 "
                 "{" PTXKIT_R128 "}, %128, %129, %130, %132, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n64k32_f32_f16_f16(
    float (&d)[32], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %35, 0; wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.f16.f16 "
                 "{" PTXKIT_R32 "}, %32, %33, %34, %36, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n128k32_f32_f16_f16(
    float (&d)[64], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %67, 0; wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.f16.f16 "
                 "{" PTXKIT_R64 "}, %64, %65, %66, %68, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n176k32_f32_f16_f16(
    float (&d)[88], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %91, 0; wgmma.mma_async.sp.sync.aligned.m64n176k32.f32.f16.f16 "
                 "{" PTXKIT_R88 "}, %88, %89, %90, %92, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D8(72), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n192k32_f32_f16_f16(
    float (&d)[96], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %99, 0; wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.f16.f16 "
                 "{" PTXKIT_R96 "}, %96, %97, %98, %100, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n200k32_f32_f16_f16(
    float (&d)[100], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %103, 0; wgmma.mma_async.sp.sync.aligned.m64n200k32.f32.f16.f16 "
                 "{" PTXKIT_R100 "}, %100, %101, %102, %104, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void wgmma_mma_async_sp_m64n256k32_f32_f16_f16(
    float (&d)[128], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %131, 0; wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.f16.f16 "
                 "{" PTXKIT_R128 "}, %128, %129, %130, %132, p, 1, 1, 0, 0;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n64k64_f32_e4m3_e4m3(
    float (&d)[32], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %35, 0; wgmma.mma_async.sp.sync.aligned.m64n64k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R32 "}, %32, %33, %34, 0, p, 1, 1;}"
                 : PTXKIT_D32(0)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n128k64_f32_e4m3_e4m3(
    float (&d)[64], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %67, 0; wgmma.mma_async.sp.sync.aligned.m64n128k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R64 "}, %64, %65, %66, 0, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n176k64_f32_e4m3_e4m3(
    float (&d)[88], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %91, 0; wgmma.mma_async.sp.sync.aligned.m64n176k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R88 "}, %88, %89, %90, 0, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D8(72), PTXKIT_D8(80)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n192k64_f32_e4m3_e4m3(
    float (&d)[96], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %99, 0; wgmma.mma_async.sp.sync.aligned.m64n192k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R96 "}, %96, %97, %98, 0, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n200k64_f32_e4m3_e4m3(
    float (&d)[100], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %103, 0; wgmma.mma_async.sp.sync.aligned.m64n200k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R100 "}, %100, %101, %102, 0, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D4(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

__device__ __forceinline__ void wgmma_mma_async_sp_m64n256k64_f32_e4m3_e4m3(
    float (&d)[128], unsigned long long a, unsigned long long b, unsigned metadata, bool accumulate) {
#if PTXKIT_SM90A
    asm volatile("{.reg .pred p; setp.ne.b32 p, %131, 0; wgmma.mma_async.sp.sync.aligned.m64n256k64.f32.e4m3.e4m3 "
                 "{" PTXKIT_R128 "}, %128, %129, %130, 0, p, 1, 1;}"
                 : PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D32(96)
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif
}

// The wgmma with a sparse a whose N follows from the number of accumulators of a thread, N / 2, and whose type is that
// of the last argument. PART: the number of the instruction, 0 or 1, of the two that have a metadata register in common
// if elements have 16 bits.

template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[32], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n64k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[64], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n128k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[88], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n176k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[96], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n192k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[100], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n200k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[128], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, bf16) {
    wgmma_mma_async_sp_m64n256k32_f32_bf16_bf16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[32], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n64k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[64], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n128k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[88], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n176k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[96], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n192k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[100], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n200k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[128], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, f16) {
    wgmma_mma_async_sp_m64n256k32_f32_f16_f16<PART>(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[32], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n64k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[64], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n128k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[88], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n176k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[96], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n192k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[100], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n200k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}
template <int PART>
__device__ __forceinline__ void wgmma_sparse(float (&d)[128], unsigned long long a, unsigned long long b,
                                             unsigned metadata, bool accumulate, e4m3) {
    wgmma_mma_async_sp_m64n256k64_f32_e4m3_e4m3(d, a, b, metadata, accumulate);
}

}  // namespace ptxkit
