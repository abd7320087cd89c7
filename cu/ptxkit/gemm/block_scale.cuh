// Matrices whose rows are quantized in blocks: the formats, quantization, and where scale factors are stored.
#pragma once
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/tcgen05.cuh"

namespace ptxkit {

// MXFP8 (OCP Microscaling Formats): e4m3 or e5m2 elements, and for each 32 of a row a power of two, the smallest with
// which no element exceeds the largest finite one, 448 or 57344.
template <bool E5M2>
struct Mxf8 {
    static constexpr int bits = 8;              // of an element
    static constexpr int block = 32;            // elements that have a common scale factor
    static constexpr int scales = 1;            // scale factors that an instruction needs for each row
    static constexpr unsigned type = E5M2;      // of the elements, in an instruction descriptor
    static constexpr bool power_of_two = true;  // scale factors are ue8m0

    static __device__ __forceinline__ unsigned scale_of(float largest) {
        return cvt_rp_satfinite_ue8m0_f32(__fdiv_rn(largest, E5M2 ? 57344.0f : 448.0f));
    }
    static __device__ __forceinline__ float value_of_scale(unsigned scale) { return f32_of_ue8m0(scale); }
    static __device__ __forceinline__ unsigned quantize(float low, float high) {
        if constexpr (E5M2) return cvt_rn_satfinite_e5m2x2_f32(low, high);
        else return cvt_rn_satfinite_e4m3x2_f32(low, high);
    }
    // Eight elements as two words.
    static __device__ __forceinline__ void quantize(const float (&x)[8], unsigned* words) {
        words[0] = quantize(x[0], x[1]) | quantize(x[2], x[3]) << 16;
        words[1] = quantize(x[4], x[5]) | quantize(x[6], x[7]) << 16;
    }
    // Elements 2 i and 2 i + 1 of eight quantized elements in two words, as f16.
    static __device__ __forceinline__ unsigned pair(const unsigned* words, int i) {
        const unsigned both = words[i / 2] >> i % 2 * 16 & 0xffff;
        if constexpr (E5M2) return cvt_rn_f16x2_e5m2x2(both);
        else return cvt_rn_f16x2_e4m3x2(both);
    }
    template <int CTAS>
    static __device__ __forceinline__ void multiply(unsigned d, unsigned long long a, unsigned long long b,
                                                    unsigned instruction, unsigned sa, unsigned sb, bool accumulate) {
        tcgen05_mma_kind_mxf8f6f4<CTAS>(d, a, b, instruction, sa, sb, accumulate);
    }
    static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                    unsigned sa, unsigned sb, int byte, int thread_a, int thread_b) {
        if constexpr (E5M2) mma_sync_m16n8k32_mxf8f6f4_e5m2(d, a, b, sa, sb, byte, thread_a, thread_b);
        else mma_sync_m16n8k32_mxf8f6f4_e4m3(d, a, b, sa, sb, byte, thread_a, thread_b);
    }
};
using mxf8 = Mxf8<false>;
using mxf8_e5m2 = Mxf8<true>;

// Two formats with e2m1 elements. MXFP4: for each 32 of a row a power of two, the smallest with which no element
// exceeds 6. NVFP4: for each 16 a factor in ue4m3, the largest element divided by 6; the factor of the whole matrix that
// NVFP4 also has is 1.
template <bool NVFP4>
struct Fp4 {
    static constexpr int bits = 4;
    static constexpr int block = NVFP4 ? 16 : 32;
    static constexpr int scales = 64 / block;
    static constexpr unsigned type = 1;
    static constexpr bool power_of_two = !NVFP4;

    static __device__ __forceinline__ unsigned scale_of(float largest) {
        const float unit = __fdiv_rn(largest, 6.0f);
        if constexpr (NVFP4) return cvt_rn_satfinite_e4m3x2_f32(unit, 0.0f);
        else return cvt_rp_satfinite_ue8m0_f32(unit);
    }
    static __device__ __forceinline__ float value_of_scale(unsigned scale) {
        if constexpr (NVFP4) return Convert<f16>::low(cvt_rn_f16x2_e4m3x2(scale));
        else return f32_of_ue8m0(scale);
    }
    static __device__ __forceinline__ void quantize(const float (&x)[8], unsigned* words) {
        words[0] = cvt_rn_satfinite_e2m1x2_f32(x);
    }
    static __device__ __forceinline__ unsigned pair(const unsigned* words, int i) {
        return cvt_rn_f16x2_e2m1x2(words[0] >> 8 * i & 0xff);
    }
    template <int CTAS>
    static __device__ __forceinline__ void multiply(unsigned d, unsigned long long a, unsigned long long b,
                                                    unsigned instruction, unsigned sa, unsigned sb, bool accumulate) {
        if constexpr (NVFP4) tcgen05_mma_kind_mxf4nvf4_block16<CTAS>(d, a, b, instruction, sa, sb, accumulate);
        else tcgen05_mma_kind_mxf4_block32<CTAS>(d, a, b, instruction, sa, sb, accumulate);
    }
    static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                    unsigned sa, unsigned sb, int byte, int thread_a, int thread_b) {
        if constexpr (NVFP4) mma_sync_m16n8k64_mxf4nvf4_4X(d, a, b, sa, sb, byte, thread_a, thread_b);
        else mma_sync_m16n8k64_mxf4_2X(d, a, b, sa, sb, byte, thread_a, thread_b);
    }
};
using mxf4 = Fp4<false>;
using nvf4 = Fp4<true>;

// Scale factors are stored as tcgen05.mma reads them: 512 bytes for each 128 rows and four consecutive factors of a
// row, those of the first rows first, and within them row r's four factors at byte 16 (r % 32) + 4 (r / 32). Rows and
// factors that fill up the last 512 bytes are zero. PTX ISA, "Block scaling for tcgen05.mma.sync"; cuBLAS, "1D Block
// Scaling Factors Layout".
constexpr int SCALE_ROWS = 128, SCALE_COLUMNS = 4, SCALE_BYTES = SCALE_ROWS * SCALE_COLUMNS;

// The byte of the factor of `row` for block number `block` of it, where a row has `blocks` blocks.
__device__ __forceinline__ size_t scale_offset(unsigned row, unsigned block, unsigned blocks) {
    const unsigned across = (blocks - 1) / SCALE_COLUMNS + 1, within = row % SCALE_ROWS;
    const size_t tile = static_cast<size_t>(row / SCALE_ROWS) * across + block / SCALE_COLUMNS;
    return tile * SCALE_BYTES + within % 32 * 16 + within / 32 * 4 + block % SCALE_COLUMNS;
}

}  // namespace ptxkit
