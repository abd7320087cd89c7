// ldmatrix, stmatrix, movmatrix, mma.sync, mma.sp. PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions". All
// 32 threads of a warp execute them together. Target: ldmatrix and movmatrix sm_75, mma.sync and mma.sp with these
// shapes sm_80, stmatrix sm_90, or newer; mma.sync with block scaling sm_120f and its family.
//
// A matrix has 8 rows of 16 bytes. Thread t holds 4 bytes of each matrix: with 16-bit elements, row t / 4, columns
// 2 (t % 4) and 2 (t % 4) + 1. Operand `row` is the shared address (cvta_to_shared), a multiple of 16, of one row of 16
// bytes: threads 0-7 give the rows of the first matrix, 8-15 those of the second, and so on.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// ldmatrix: loads one, two or four matrices from shared memory to registers. trans: transposes each matrix of 16-bit
// elements.

__device__ __forceinline__ void ldmatrix_x1(unsigned (&m)[1], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(m[0]) : "r"(row) : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

__device__ __forceinline__ void ldmatrix_x2(unsigned (&m)[2], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(m[0]), "=r"(m[1])
                 : "r"(row)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&m)[4], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

__device__ __forceinline__ void ldmatrix_x1_trans(unsigned (&m)[1], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(m[0]) : "r"(row) : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&m)[2], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(m[0]), "=r"(m[1])
                 : "r"(row)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&m)[4], unsigned row) {
#if PTXKIT_SM >= 75
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("ldmatrix", "sm_75");
#endif
}

// stmatrix: stores one, two or four matrices from registers to shared memory. trans: as for ldmatrix.

__device__ __forceinline__ void stmatrix_x1(unsigned row, const unsigned (&m)[1]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(row), "r"(m[0]) : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

__device__ __forceinline__ void stmatrix_x2(unsigned row, const unsigned (&m)[2]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(m[0]), "r"(m[1])
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

__device__ __forceinline__ void stmatrix_x4(unsigned row, const unsigned (&m)[4]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]), "r"(m[1]),
                 "r"(m[2]), "r"(m[3])
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

__device__ __forceinline__ void stmatrix_x1_trans(unsigned row, const unsigned (&m)[1]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(row), "r"(m[0]) : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

__device__ __forceinline__ void stmatrix_x2_trans(unsigned row, const unsigned (&m)[2]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(m[0]), "r"(m[1])
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

__device__ __forceinline__ void stmatrix_x4_trans(unsigned row, const unsigned (&m)[4]) {
#if PTXKIT_SM >= 90
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]),
                 "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("stmatrix", "sm_90");
#endif
}

// movmatrix: transposes a matrix of 16-bit elements that is distributed over the registers of the warp.
__device__ __forceinline__ unsigned movmatrix_trans(unsigned m) {
#if PTXKIT_SM >= 75
    unsigned transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(m));
    return transposed;
#else
    PTXKIT_UNSUPPORTED("movmatrix", "sm_75");
    return 0;
#endif
}

// mma.sync: d += a * b with a of 16 x 16, b of 16 x 8 and d of 16 x 8 elements. a is row-major and consists of four
// matrices (a[0] upper left, a[1] lower left, a[2] upper right, a[3] lower right), b is column-major and consists of
// two (b[0] upper, b[1] lower). Of d, thread t holds columns 2 (t % 4) and 2 (t % 4) + 1 of row t / 4 in d[0] and d[1],
// and of row t / 4 + 8 in d[2] and d[3].

__device__ __forceinline__ void mma_sync_m16n8k16_f32_bf16_bf16(float (&d)[4], const unsigned (&a)[4],
                                                                const unsigned (&b)[2]) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    PTXKIT_UNSUPPORTED("mma.sync.m16n8k16", "sm_80");
#endif
}

__device__ __forceinline__ void mma_sync_m16n8k16_f32_f16_f16(float (&d)[4], const unsigned (&a)[4],
                                                              const unsigned (&b)[2]) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    PTXKIT_UNSUPPORTED("mma.sync.m16n8k16", "sm_80");
#endif
}

// The same with a of 16 x 8 and b of 8 x 8 elements of tf32: f32 registers, rounded by cvt.rna.tf32.f32, with one
// element each.
__device__ __forceinline__ void mma_sync_m16n8k8_f32_tf32_tf32(float (&d)[4], const unsigned (&a)[4],
                                                               const unsigned (&b)[2]) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    PTXKIT_UNSUPPORTED("mma.sync.m16n8k8", "sm_80");
#endif
}

// The same with a of 16 x 32 and b of 32 x 8 signed 8-bit integers, four in each register. The s32 sums are exact
// unless they overflow.
__device__ __forceinline__ void mma_sync_m16n8k32_s32_s8_s8(int (&d)[4], const unsigned (&a)[4],
                                                            const unsigned (&b)[2]) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    PTXKIT_UNSUPPORTED("mma.sync.m16n8k32", "sm_80");
#endif
}

// The same with e4m3, and f32 sums, of which the tensor cores keep about 13 bits. Target: sm_89.
__device__ __forceinline__ void mma_sync_m16n8k32_f32_e4m3_e4m3(float (&d)[4], const unsigned (&a)[4],
                                                                const unsigned (&b)[2]) {
#if PTXKIT_SM >= 89
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    PTXKIT_UNSUPPORTED("mma.sync.m16n8k32.e4m3", "sm_89");
#endif
}

// mma.sync with block scaling: d += (a sa) * (b sb) with a of 16 rows and b of 8 columns of 32 bytes along K, in the
// layout of 8-bit integers. Each block of a row of a and of a column of b has a scale factor of one byte. The factors
// of a row for the instruction are consecutive bytes of a register, from byte `byte` on. Of a, thread 4 g + 2 thread_a
// has them for row g and the next thread for row g + 8; of b, thread 4 g + thread_b has them for column g. The three
// selectors are compile-time constants after unrolling. PTX ISA, "Block Scaling for mma.sync".

// e4m3, one ue8m0 factor for 32 elements.
__device__ __forceinline__ void mma_sync_m16n8k32_mxf8f6f4_e4m3(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned scales_a, unsigned scales_b,
    unsigned short byte, unsigned short thread_a, unsigned short thread_b) {
#if PTXKIT_SM120F
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        ".f32.e4m3.e4m3.f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%12, %13}, %11, {%12, %14};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales_a), "r"(scales_b), "h"(byte),
          "h"(thread_a), "h"(thread_b));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("mma.sync.block_scale", PTXKIT_SM120F_TARGETS);
#endif
}

// e5m2, one ue8m0 factor for 32 elements.
__device__ __forceinline__ void mma_sync_m16n8k32_mxf8f6f4_e5m2(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned scales_a, unsigned scales_b,
    unsigned short byte, unsigned short thread_a, unsigned short thread_b) {
#if PTXKIT_SM120F
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        ".f32.e5m2.e5m2.f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%12, %13}, %11, {%12, %14};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales_a), "r"(scales_b), "h"(byte),
          "h"(thread_a), "h"(thread_b));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("mma.sync.block_scale", PTXKIT_SM120F_TARGETS);
#endif
}

// e2m1, two ue8m0 factors, each for 32 elements; `byte` is 0 or 2.
__device__ __forceinline__ void mma_sync_m16n8k64_mxf4_2X(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned scales_a, unsigned scales_b,
    unsigned short byte, unsigned short thread_a, unsigned short thread_b) {
#if PTXKIT_SM120F
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X"
        ".f32.e2m1.e2m1.f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%12, %13}, %11, {%12, %14};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales_a), "r"(scales_b), "h"(byte),
          "h"(thread_a), "h"(thread_b));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("mma.sync.block_scale", PTXKIT_SM120F_TARGETS);
#endif
}

// e2m1, four ue4m3 factors, each for 16 elements; `byte` is 0.
__device__ __forceinline__ void mma_sync_m16n8k64_mxf4nvf4_4X(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned scales_a, unsigned scales_b,
    unsigned short byte, unsigned short thread_a, unsigned short thread_b) {
#if PTXKIT_SM120F
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
        ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%12, %13}, %11, {%12, %14};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales_a), "r"(scales_b), "h"(byte),
          "h"(thread_a), "h"(thread_b));
#else
    PTXKIT_UNSUPPORTED_EXCEPT("mma.sync.block_scale", PTXKIT_SM120F_TARGETS);
#endif
}

// mma.sp: d += a * b with a 2:4 sparse a of 16 x 32, b of 32 x 8 and d of 16 x 8 elements. Of every four neighbouring
// elements of a row of a, two are stored: a has the layout of the 16 x 16 elements of a dense a, b[i] has rows 8 i to
// 8 i + 7. The positions of the stored elements are in `metadata`, with the layout in wgmma_sparse.cuh for 16-bit
// elements (PTX ISA, "Sparse MMA .m16n8k32 metadata layout for .f16/.bf16 type").

template <int SELECTOR>
__device__ __forceinline__ void mma_sp_sync_m16n8k32_f32_bf16_bf16(float (&d)[4], const unsigned (&a)[4],
                                                                 const unsigned (&b)[4], unsigned metadata) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
          "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED("mma.sp.m16n8k32", "sm_80");
#endif
}

template <int SELECTOR>
__device__ __forceinline__ void mma_sp_sync_m16n8k32_f32_f16_f16(float (&d)[4], const unsigned (&a)[4],
                                                                const unsigned (&b)[4], unsigned metadata) {
#if PTXKIT_SM >= 80
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
          "n"(SELECTOR));
#else
    PTXKIT_UNSUPPORTED("mma.sp.m16n8k32", "sm_80");
#endif
}

}  // namespace ptxkit
