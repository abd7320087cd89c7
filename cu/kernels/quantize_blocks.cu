// Quantization of a matrix in blocks, and the way back. The products of matmul_block_scaled.cu and
// matmul_mma_block_scaled.cu read what it writes; block_scale.cuh has the formats.
#include "ptxkit/gemm/block_scale.cuh"
#include "ptxkit/gemm/row_output.cuh"

using namespace ptxkit;

// One thread for each block of a row, including those that fill up the last scale factors; q is rows x k elements,
// packed.
template <class Format>
__global__ void __launch_bounds__(128) quantize_blocks(const bf16* x, unsigned* q, unsigned char* scales, int rows,
                                                       int k) {
    constexpr int block = Format::block, words = block * Format::bits / 32;
    const unsigned blocks = k / block, padded = (blocks + SCALE_COLUMNS - 1) / SCALE_COLUMNS * SCALE_COLUMNS;
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (at >= padded) return;
    unsigned scale = 0;
    if (row < rows && at < blocks) {
        const bf16* from = x + static_cast<size_t>(row) * k + at * block;
        float values[block / 8][8], largest = 0.0f;
#pragma unroll
        for (int i = 0; i < block / 8; i++) {
            RowVector<bf16>::load(from + 8 * i).unpack(values[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(values[i][j]));
        }
        scale = Format::scale_of(largest);
        const float unit = Format::value_of_scale(scale);
        unsigned packed[words];
#pragma unroll
        for (int i = 0; i < block / 8; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] = unit == 0.0f ? 0.0f : __fdiv_rn(values[i][j], unit);
            Format::quantize(values[i], packed + i * Format::bits / 4);
        }
        unsigned* to = q + (static_cast<size_t>(row) * blocks + at) * words;
#pragma unroll
        for (int i = 0; i < words; i++) to[i] = packed[i];
    }
    scales[scale_offset(row, at, blocks)] = scale;
}

// Element times scale factor, exact in bf16. One thread for each block.
template <class Format>
__global__ void __launch_bounds__(128) dequantize_blocks(const unsigned* q, const unsigned char* scales, bf16* x,
                                                         int rows, int k) {
    constexpr int block = Format::block, words = block * Format::bits / 32;
    const unsigned blocks = k / block, at = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (at >= blocks) return;
    const unsigned* from = q + (static_cast<size_t>(row) * blocks + at) * words;
    const float unit = Format::value_of_scale(scales[scale_offset(row, at, blocks)]);
#pragma unroll
    for (int i = 0; i < block / 8; i++) {
        unsigned packed[Format::bits / 4];
#pragma unroll
        for (int j = 0; j < Format::bits / 4; j++) packed[j] = from[i * Format::bits / 4 + j];
        float values[8];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned pair = Format::pair(packed, j);
            values[2 * j] = unit * Convert<f16>::low(pair);
            values[2 * j + 1] = unit * Convert<f16>::high(pair);
        }
        RowVector<bf16>::pack(values).store(x + static_cast<size_t>(row) * k + at * block + 8 * i);
    }
}
