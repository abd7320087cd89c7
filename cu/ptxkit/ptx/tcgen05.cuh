// PTX ISA, "TensorCore 5th Generation Family Instructions": tcgen05, for sm_100a, sm_103a, sm_110a and their families.
//
// Accumulators are in tensor memory: 128 lanes x 512 columns of 32 bits for each SM, which a warp allocates and
// deallocates. A tensor-memory address has the lane in bits 16-31 and the column in bits 0-15. One thread issues
// products, which execute asynchronously:
//
//     tcgen05_mma<bf16, 1>(d, a, b, instruction, false);  // any number of these, in order
//     tcgen05_commit(barrier);                            // arrives at an mbarrier when they are complete
//     mbarrier_wait(barrier, parity);                     // by the threads that read d or overwrite a and b
//     tcgen05_fence_after_thread_sync();                  // orders what follows after the wait
//     tcgen05_ld_32x32b_x32(values, d + column);          // each thread reads 32 columns of one lane
//     tcgen05_wait_ld(values);
//
// CTAS is the cta_group of an instruction: 1, or 2 for the two CTAs of a pair, whose ranks in the cluster differ in the
// lowest bit. A product of a pair reads the shared memory and writes the tensor memory of both.
#pragma once
#include "ptxkit/ptx/narrow.cuh"

namespace ptxkit {

// An element type of operands that is no CUDA type.
struct tf32 {  // an f32 whose low 13 bits are ignored
    unsigned bits;
};

// ---------------------------------------------------------------------------------------------------------------------
// Allocation. A whole warp executes each; of a pair, one warp of each CTA.

// Allocates `columns`, a power of two from 32 to 512, and writes the address of the first to shared memory. Waits while
// other CTAs of the SM hold too many.
template <int CTAS>
__device__ __forceinline__ void tcgen05_alloc(unsigned shared_address, unsigned columns) {
#if PTXKIT_TCGEN05
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                     :: "r"(shared_address), "r"(columns) : "memory");
    } else {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;"
                     :: "r"(shared_address), "r"(columns) : "memory");
    }
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.alloc", PTXKIT_TCGEN05_TARGETS);
#endif
}

// The number of columns to allocate where `used` are needed.
__host__ __device__ constexpr int tcgen05_columns(int used) {
    int power = 32;
    while (power < used) power *= 2;
    return power;
}

// The CTA allocates nothing from here on.
template <int CTAS>
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
#if PTXKIT_TCGEN05
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    } else {
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    }
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.relinquish_alloc_permit", PTXKIT_TCGEN05_TARGETS);
#endif
}

// Must be called before the CTA exits, with the address and the columns of the allocation.
template <int CTAS>
__device__ __forceinline__ void tcgen05_dealloc(unsigned address, unsigned columns) {
#if PTXKIT_TCGEN05
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(address), "r"(columns) : "memory");
    } else {
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" :: "r"(address), "r"(columns) : "memory");
    }
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.dealloc", PTXKIT_TCGEN05_TARGETS);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Order. tcgen05 instructions are not ordered by barriers alone: before_thread_sync stands before the barrier or the
// arrival, after_thread_sync after the wait.

__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
#if PTXKIT_TCGEN05
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.fence", PTXKIT_TCGEN05_TARGETS);
#endif
}

__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
#if PTXKIT_TCGEN05
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.fence", PTXKIT_TCGEN05_TARGETS);
#endif
}

// One arrival at an mbarrier of this CTA when all earlier tcgen05.mma, cp and shift of this thread are complete.
__device__ __forceinline__ void tcgen05_commit(unsigned barrier) {
#if PTXKIT_TCGEN05
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.commit", PTXKIT_TCGEN05_TARGETS);
#endif
}

// The same for products of a pair: one arrival at the mbarrier at this offset in each CTA that has a bit in `ctas`, by
// rank in the cluster.
__device__ __forceinline__ void tcgen05_commit_cta_group_2_multicast(unsigned barrier, unsigned short ctas) {
#if PTXKIT_TCGEN05
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
        :: "r"(barrier), "h"(ctas) : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.commit", PTXKIT_TCGEN05_TARGETS);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Products

// A K-major tile in shared memory as tcgen05.mma reads it: rows of 128 bytes, swizzled by 128 bytes, one after another.
// `address` is that of the first row, a multiple of 1024, plus 32 bytes for each instruction along K. PTX ISA,
// "Shared memory descriptor": the address in bits 0-13 and the stride from 8 rows to the next 8 in bits 32-45, in units
// of 16 bytes; the constant 0b001 in bits 46-48; swizzle mode 2 in bits 61-63. The leading dimension's offset (bits
// 16-29) is not used with this layout.
__device__ __forceinline__ unsigned long long tcgen05_descriptor_128B(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

// The same with rows of 32 bytes, swizzled by 32 bytes (mode 6): one instruction along K. `address` is a multiple of 256.
__device__ __forceinline__ unsigned long long tcgen05_descriptor_32B(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (256ull >> 4) << 32 | 1ull << 46 | 6ull << 61;
}

// How an element type is multiplied: its kind, and its code in an instruction descriptor.
template <class T>
struct Tcgen05Type;
template <>
struct Tcgen05Type<f16> {
    static constexpr unsigned code = 0;
};
template <>
struct Tcgen05Type<bf16> {
    static constexpr unsigned code = 1;
};
template <>
struct Tcgen05Type<tf32> {
    static constexpr unsigned code = 2;
};
template <>
struct Tcgen05Type<e4m3> {
    static constexpr unsigned code = 0;
};

// PTX ISA, "Instruction descriptor": d is f32 (1 in bits 4-5), the types of a and b in bits 7-9 and 10-12, both
// K-major, N / 8 in bits 17-22, M / 16 in bits 24-28.
template <class T>
__host__ __device__ constexpr unsigned tcgen05_instruction(unsigned m, unsigned n) {
    return 1u << 4 | Tcgen05Type<T>::code << 7 | Tcgen05Type<T>::code << 10 | (n >> 3) << 17 | (m >> 4) << 24;
}

// d = a b^T, or d += where `accumulate`: a is M x 32 bytes and b is N x 32 bytes, in shared memory, given by
// descriptors; d is in tensor memory. Of a pair, the CTA of even rank issues it, and each CTA holds half of the rows of
// a, of b and of d.

#define PTXKIT_TCGEN05_MMA(KIND)                                                                 \
    if constexpr (CTAS == 1) {                                                                   \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::" KIND \
                     " [%0], %1, %2, %3, p;}" ::"r"(d),                                          \
                     "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(accumulate))         \
                     : "memory");                                                                \
    } else {                                                                                     \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::2.kind::" KIND \
                     " [%0], %1, %2, %3, p;}" ::"r"(d),                                          \
                     "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(accumulate))         \
                     : "memory");                                                                \
    }

// f16 and bf16, 16 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_f16(unsigned d, unsigned long long a, unsigned long long b,
                                                     unsigned instruction, bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA("f16")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma", PTXKIT_TCGEN05_TARGETS);
#endif
}

// tf32, 8 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_tf32(unsigned d, unsigned long long a, unsigned long long b,
                                                      unsigned instruction, bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA("tf32")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma", PTXKIT_TCGEN05_TARGETS);
#endif
}

// 8-, 6- and 4-bit floating point, 32 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_f8f6f4(unsigned d, unsigned long long a, unsigned long long b,
                                                        unsigned instruction, bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA("f8f6f4")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma", PTXKIT_TCGEN05_TARGETS);
#endif
}
#undef PTXKIT_TCGEN05_MMA

template <class T, int CTAS>
__device__ __forceinline__ void tcgen05_mma(unsigned d, unsigned long long a, unsigned long long b,
                                            unsigned instruction, bool accumulate) {
    if constexpr (sizeof(T) == 2) tcgen05_mma_kind_f16<CTAS>(d, a, b, instruction, accumulate);
    else if constexpr (sizeof(T) == 4) tcgen05_mma_kind_tf32<CTAS>(d, a, b, instruction, accumulate);
    else tcgen05_mma_kind_f8f6f4<CTAS>(d, a, b, instruction, accumulate);
}

// ---------------------------------------------------------------------------------------------------------------------
// Block-scaled products: each BLOCK elements of a row along K have a common scale factor.

// Copies scale factors from shared to tensor memory, asynchronously and in order with the products that the same thread
// issues: 32 rows of 16 bytes, to four columns of each 32 lanes. `from` describes them without a swizzle. For a pair,
// each CTA's shared memory is copied to its own tensor memory.
template <int CTAS>
__device__ __forceinline__ void tcgen05_cp_32x128b_warpx4(unsigned to, unsigned long long from) {
#if PTXKIT_TCGEN05
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(to), "l"(from) : "memory");
    } else {
        asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" :: "r"(to), "l"(from) : "memory");
    }
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.cp", PTXKIT_TCGEN05_TARGETS);
#endif
}

// 32 rows of 16 bytes one after another. PTX ISA, "Shared memory descriptor": the stride from 8 rows to the next 8, 128
// bytes, in bits 32-45; no swizzle.
__device__ __forceinline__ unsigned long long tcgen05_descriptor_rows_of_16_bytes(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (128ull >> 4) << 32 | 1ull << 46;
}

// PTX ISA, "Instruction descriptor" of the block-scaled kinds: the types of a and b in bits 7-9 and 10-12, N / 8 in
// bits 17-22, the type of the scale factors in bit 23 (1: ue8m0, 0: ue4m3), M / 128 in bits 27-28.
__host__ __device__ constexpr unsigned tcgen05_instruction_block_scaled(unsigned type, bool ue8m0, unsigned m,
                                                                        unsigned n) {
    return type << 7 | type << 10 | (n >> 3) << 17 | (ue8m0 ? 1u : 0u) << 23 | (m >> 7) << 27;
}

// Sets the first byte of the 32-bit columns that holds the scale factors, for an instruction with one or two factors for
// each row: bits 4-5 for b, 29-30 for a.
__device__ __forceinline__ unsigned tcgen05_scale_factor_byte(unsigned instruction, unsigned byte) {
    return instruction | byte << 4 | byte << 29;
}

// d = a b^T as above, with scale factors in tensor memory.

#define PTXKIT_TCGEN05_MMA_BLOCK_SCALED(KIND)                                                                   \
    if constexpr (CTAS == 1) {                                                                                  \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; tcgen05.mma.cta_group::1.kind::" KIND                \
                     " [%0], %1, %2, %3, [%4], [%5], p;}" ::"r"(d),                                             \
                     "l"(a), "l"(b), "r"(instruction), "r"(scales_a), "r"(scales_b),                            \
                     "r"(static_cast<int>(accumulate))                                                          \
                     : "memory");                                                                               \
    } else {                                                                                                    \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; tcgen05.mma.cta_group::2.kind::" KIND                \
                     " [%0], %1, %2, %3, [%4], [%5], p;}" ::"r"(d),                                             \
                     "l"(a), "l"(b), "r"(instruction), "r"(scales_a), "r"(scales_b),                            \
                     "r"(static_cast<int>(accumulate))                                                          \
                     : "memory");                                                                               \
    }

// 8-bit elements with a ue8m0 scale factor for each 32, 32 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_mxf8f6f4(unsigned d, unsigned long long a, unsigned long long b,
                                                          unsigned instruction, unsigned scales_a, unsigned scales_b,
                                                          bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA_BLOCK_SCALED("mxf8f6f4.block_scale.block32")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma.block_scale", PTXKIT_TCGEN05_TARGETS);
#endif
}

// 4-bit elements with a ue8m0 scale factor for each 32, 64 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_mxf4_block32(unsigned d, unsigned long long a, unsigned long long b,
                                                          unsigned instruction, unsigned scales_a, unsigned scales_b,
                                                          bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA_BLOCK_SCALED("mxf4.block_scale.block32")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma.block_scale", PTXKIT_TCGEN05_TARGETS);
#endif
}

// 4-bit elements with a ue4m3 scale factor for each 16, 64 elements along K.
template <int CTAS>
__device__ __forceinline__ void tcgen05_mma_kind_mxf4nvf4_block16(unsigned d, unsigned long long a, unsigned long long b,
                                                          unsigned instruction, unsigned scales_a, unsigned scales_b,
                                                          bool accumulate) {
#if PTXKIT_TCGEN05
    PTXKIT_TCGEN05_MMA_BLOCK_SCALED("mxf4nvf4.block_scale.block16")
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.mma.block_scale", PTXKIT_TCGEN05_TARGETS);
#endif
}
#undef PTXKIT_TCGEN05_MMA_BLOCK_SCALED

// ---------------------------------------------------------------------------------------------------------------------
// Reading tensor memory

// 32 columns of 32 bits: lane i of a warp reads lane 32 (warp % 4) + i of tensor memory, the only 32 lanes that its
// warp may access. A whole warp executes it; the values may be used after tcgen05_wait_ld.
__device__ __forceinline__ void tcgen05_ld_32x32b_x32(float (&v)[32], unsigned address) {
#if PTXKIT_TCGEN05
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(v[8]),
          "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]), "=f"(v[16]),
          "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]),
          "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
        : "r"(address)
        : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.ld", PTXKIT_TCGEN05_TARGETS);
#endif
}

// The same with eight columns.
__device__ __forceinline__ void tcgen05_ld_32x32b_x8(float (&v)[8], unsigned address) {
#if PTXKIT_TCGEN05
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                 : "r"(address)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.ld", PTXKIT_TCGEN05_TARGETS);
#endif
}

// Waits until all earlier tcgen05.ld of this thread are complete. The compiler must not move what it computes from
// `values` to before this point.
template <int N>
__device__ __forceinline__ void tcgen05_wait_ld(float (&values)[N]) {
#if PTXKIT_TCGEN05
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("tcgen05.wait::ld", PTXKIT_TCGEN05_TARGETS);
#endif
}

}  // namespace ptxkit
