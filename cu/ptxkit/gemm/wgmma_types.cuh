// wgmma on tiles of any element type whose rows have 128 bytes in shared memory: bf16, f16, float (read as tf32), e4m3 or
// signed char, chosen by an argument. An instruction reads 32 bytes of a row whatever the type is, so that descriptors and
// swizzle are those of 16-bit types. Sums are f32, or exact s32 of signed char.
#pragma once
#include "ptxkit/gemm/wgmma_product.cuh"
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/wgmma_columns_e4m3.cuh"
#include "ptxkit/ptx/wgmma_columns_s8.cuh"
#include "ptxkit/ptx/wgmma_columns_tf32.cuh"

namespace ptxkit {

template <class T>
struct SumOf {
    using type = float;
};
template <>
struct SumOf<signed char> {
    using type = int;
};

// wgmma on elements of the type of the last argument. Only 16-bit types may be MN-major.
template <class Of, int N>
__device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b, bool accumulate,
                                         bf16 type) {
    wgmma<Of>(d, a, b, accumulate, type);
}
template <class Of, int N>
__device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b, bool accumulate,
                                         f16 type) {
    wgmma<Of>(d, a, b, accumulate, type);
}
template <class Of, int N>
__device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b, bool accumulate,
                                         float) {
    wgmma_tf32(d, a, b, accumulate);
}
template <class Of, int N>
__device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b, bool accumulate,
                                         e4m3) {
    wgmma_e4m3(d, a, b, accumulate);
}
template <class Of, int N>
__device__ __forceinline__ void multiply(int (&d)[N], unsigned long long a, unsigned long long b, bool accumulate,
                                         signed char) {
    wgmma_s8(d, a, b, accumulate);
}

// Multiplies one stage: the 64 ROWS x BN sums of a consumer, from tiles in shared memory whose rows have WGMMA_ROW_BYTES.
// Asynchronous, one wgmma group.
template <class T, class Of, class Sum, int ROWS, int SUMS>
__device__ __forceinline__ void multiply_stage(Sum (&sums)[ROWS][SUMS], unsigned a, unsigned b, bool accumulate) {
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < WGMMA_ROW_BYTES / 32; q++) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            multiply<Of>(sums[i], operand_descriptor<Of::A_MAJOR>(a + i * WGMMA_BLOCK_BYTES, q),
                         operand_descriptor<Of::B_MAJOR>(b, q), q > 0 || accumulate, T());
        }
    }
    wgmma_commit_group();
}

// Waits until all products of this warpgroup are complete.
template <class Sum, int ROWS, int SUMS>
__device__ __forceinline__ void wait_for_all(Sum (&sums)[ROWS][SUMS]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) warpgroup_fence_operand(sums[i]);
}

}  // namespace ptxkit
