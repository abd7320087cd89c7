// The order of the tiles and the epilogue of the tensor-core matrix products.
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/ptx/half.cuh"

namespace ptxkit {

struct TileIndex {
    unsigned row, col;
};

// Tile number `index` of rows x cols tiles: down GROUP rows, then the next column, and after the last column the next
// GROUP rows. CTAs that run at the same time then share rows of a and columns of b, which L2 reads once from device
// memory.
template <int GROUP>
__device__ __forceinline__ TileIndex grouped_tile(unsigned index, unsigned rows, unsigned cols) {
    unsigned first = index / (GROUP * cols) * GROUP, within = index % (GROUP * cols);
    unsigned height = min(rows - first, static_cast<unsigned>(GROUP));
    return {first + within % height, within / height};
}

// Bits of an epilogue: c = gelu(alpha a b + beta c + bias), each part only if its bit is set; ADD_BIAS without gelu. With
// PITCHED, c is a part of a larger matrix.
enum Epilogue { PLAIN = 0, ALPHA = 1, BETA = 2, BIAS_GELU = 4, ADD_BIAS = 8, PITCHED = 16 };

// The epilogue of a product. c is m x n, row-major, n even; its rows are n elements apart, or `pitch`, an even number, with
// PITCHED. bias has n elements. T: bf16 or f16.
//
// Other epilogues have the same members: of_row(row) returns what `finish` needs of a row, which is loaded once for all
// columns; finish(x, y, row, col, of_row) and store() handle two neighbouring sums; at(), m and n describe c.
template <int EPILOGUE, class T = bf16>
struct Output {
    T* c;
    const T* bias;
    unsigned m, n;
    float alpha, beta;
    unsigned pitch = 0;

    struct OfRow {};
    __device__ __forceinline__ OfRow of_row(unsigned) const { return {}; }

    // Two neighbouring sums in the form in which they are stored. Outside of c nothing is read, and the result is
    // unspecified.
    __device__ __forceinline__ unsigned finish(float x, float y, unsigned row, unsigned col, OfRow = {}) const {
        if constexpr (EPILOGUE & ALPHA) {
            x *= alpha;
            y *= alpha;
        }
        if constexpr (EPILOGUE & BETA) {
            unsigned old = row < m && col < n ? *at(row, col) : 0;
            x = fmaf(beta, Convert<T>::low(old), x);
            y = fmaf(beta, Convert<T>::high(old), y);
        }
        if constexpr (EPILOGUE & (ADD_BIAS | BIAS_GELU)) {
            unsigned pair = col < n ? *reinterpret_cast<const unsigned*>(bias + col) : 0;
            x = activate<EPILOGUE & BIAS_GELU ? GELU : NONE>(x + Convert<T>::low(pair));
            y = activate<EPILOGUE & BIAS_GELU ? GELU : NONE>(y + Convert<T>::high(pair));
        }
        return Convert<T>::pack(x, y);
    }

    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col, OfRow = {}) const {
        if (row < m && col < n) *at(row, col) = finish(x, y, row, col);
    }

    __device__ __forceinline__ unsigned* at(unsigned row, unsigned col) const {
        return reinterpret_cast<unsigned*>(c + static_cast<size_t>(row) * (EPILOGUE & PITCHED ? pitch : n) + col);
    }
};

}  // namespace ptxkit
