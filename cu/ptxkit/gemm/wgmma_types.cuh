// The element types of wgmma beside those of 16 bits, as WgmmaOf in wgmma_product.cuh describes them: float (read as tf32), e4m3
// and signed char. An instruction reads 32 bytes of a row whatever the type is, so that descriptors and swizzle are those of
// 16-bit types. Both operands are K-major.
#pragma once
#include "ptxkit/gemm/wgmma_product.cuh"
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/wgmma_columns_e4m3.cuh"
#include "ptxkit/ptx/wgmma_columns_s8.cuh"
#include "ptxkit/ptx/wgmma_columns_tf32.cuh"

namespace ptxkit {

template <>
struct WgmmaOf<float> {
    using Sum = float;
    template <class Of, int N>
    static __device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b,
                                                    bool accumulate) {
        wgmma_tf32(d, a, b, accumulate);
    }
};

template <>
struct WgmmaOf<e4m3> {
    using Sum = float;
    template <class Of, int N>
    static __device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b,
                                                    bool accumulate) {
        wgmma_e4m3(d, a, b, accumulate);
    }
};

template <>
struct WgmmaOf<signed char> {
    using Sum = int;
    template <class Of, int N>
    static __device__ __forceinline__ void multiply(int (&d)[N], unsigned long long a, unsigned long long b,
                                                    bool accumulate) {
        wgmma_s8(d, a, b, accumulate);
    }
};

}  // namespace ptxkit
