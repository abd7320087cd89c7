// Epilogues of linear layers, with the members that gemm.cuh describes.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/residual.cuh"
#include "ptxkit/gemm/vector_output.cuh"

namespace ptxkit {

// Two neighbouring elements of a row of an m x n matrix. Outside of the matrix they are 0, and nothing is read.
template <class T>
__device__ __forceinline__ unsigned pair_of(const T* x, unsigned row, unsigned col, unsigned m, unsigned n) {
    return row < m && col < n ? *reinterpret_cast<const unsigned*>(x + static_cast<size_t>(row) * n + col) : 0;
}

// c = activation(a b^T + bias) + residual, each part only if its argument says so. c and residual are m x n,
// row-major, n even; bias has n elements.
template <class T, bool BIAS, Activation A, bool RESIDUAL>
struct LinearOutput {
    T* c;
    const T* bias;
    const T* residual;
    unsigned m, n;

    struct OfRow {};
    __device__ __forceinline__ OfRow of_row(unsigned) const { return {}; }

    __device__ __forceinline__ unsigned finish(float x, float y, unsigned row, unsigned col, OfRow) const {
        unsigned of_bias = 0, of_residual = 0;
        if constexpr (BIAS) of_bias = pair_of(bias, 0, col, 1, n);
        if constexpr (RESIDUAL) of_residual = pair_of(residual, row, col, m, n);
        return packed(x, y, of_bias, of_residual);
    }

    // The same with the pairs of the bias and of the residual.
    static __device__ __forceinline__ unsigned packed(float x, float y, unsigned of_bias, unsigned of_residual) {
        if constexpr (BIAS) {
            x += Convert<T>::low(of_bias);
            y += Convert<T>::high(of_bias);
        }
        x = activate<A>(x);
        y = activate<A>(y);
        if constexpr (RESIDUAL) {
            x += Convert<T>::low(of_residual);
            y += Convert<T>::high(of_residual);
        }
        return Convert<T>::pack(x, y);
    }

    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col, OfRow of_row) const {
        if (row < m && col < n) *at(row, col) = finish(x, y, row, col, of_row);
    }

    __device__ __forceinline__ unsigned* at(unsigned row, unsigned col) const {
        return reinterpret_cast<unsigned*>(c + static_cast<size_t>(row) * n + col);
    }
};

// The same for products that store four neighbouring sums at a time; n is a multiple of 4.
template <class T, bool BIAS, Activation A, bool RESIDUAL>
struct LinearFours : LinearOutput<T, BIAS, A, RESIDUAL> {
    using Base = LinearOutput<T, BIAS, A, RESIDUAL>;

    static __device__ __forceinline__ uint2 four_of(const T* x) { return *reinterpret_cast<const uint2*>(x); }

    __device__ __forceinline__ void store_four(const float4& sums, unsigned row, unsigned col) const {
        if (row >= this->m || col >= this->n) return;
        uint2 of_bias = {}, of_residual = {};
        if constexpr (RESIDUAL) of_residual = four_of(this->residual + static_cast<size_t>(row) * this->n + col);
        if constexpr (BIAS) of_bias = four_of(this->bias + col);
        *reinterpret_cast<uint2*>(this->at(row, col)) = {Base::packed(sums.x, sums.y, of_bias.x, of_residual.x),
                                                         Base::packed(sums.z, sums.w, of_bias.y, of_residual.y)};
    }
};

// The same for products that store vectors of 8 elements, made of sums of a column; n is a multiple of 8.
template <class T, bool BIAS, Activation A, bool RESIDUAL>
struct LinearVectors : LinearFours<T, BIAS, A, RESIDUAL> {
    static __device__ __forceinline__ constexpr bool whole_vectors() { return true; }

    __device__ __forceinline__ float of_column(unsigned col) const {
        if constexpr (BIAS) return col < this->n ? Convert<T>::low(this->bias[col].bits) : 0.0f;
        else return 0.0f;
    }

    __device__ __forceinline__ uint4 residual_vector(unsigned row, unsigned col) const {
        if (row >= this->m || col >= this->n) return {};
        return *reinterpret_cast<const uint4*>(this->residual + static_cast<size_t>(row) * this->n + col);
    }

    __device__ __forceinline__ unsigned pack(float x, float y, float of_bias, unsigned of_residual) const {
        x = activate<A>(x + of_bias) + Convert<T>::low(of_residual);
        y = activate<A>(y + of_bias) + Convert<T>::high(of_residual);
        return Convert<T>::pack(x, y);
    }

    __device__ __forceinline__ void store(const uint4& eight, unsigned row, unsigned col) const {
        if (row < this->m && col < this->n) *reinterpret_cast<uint4*>(this->at(row, col)) = eight;
    }
};

// Normalizes the sums of products with x itself. For layer_norm(x) w^T + bias, gamma is multiplied into w beforehand, and the
// mean and the reciprocal standard deviation of a row of x are applied to its sums: see docs/ffn.md.
struct FoldedColumns {
    const float* sums;   // of the columns' folded weights
    const float* shift;  // beta w^T + bias

    // Two neighbouring sums of a row with these statistics, normalized. Outside of the n columns they are
    // unspecified.
    __device__ __forceinline__ float2 normalized(float x, float y, float mean, float rstd, unsigned col,
                                                 unsigned n) const {
        const unsigned at = col < n ? col : 0;
        const float2 of = *reinterpret_cast<const float2*>(sums + at);
        const float2 add = *reinterpret_cast<const float2*>(shift + at);
        return {fmaf(rstd, fmaf(-mean, of.x, x), add.x), fmaf(rstd, fmaf(-mean, of.y, y), add.y)};
    }
};

// c = gelu(layer_norm(x) w^T + bias) + residual from the product of x and the folded weights. statistics: mean and
// rstd of each row of x.
template <class T>
struct FoldedOutput : LinearOutput<T, false, GELU, true> {
    using Rest = LinearOutput<T, false, GELU, true>;
    const float2* statistics;
    FoldedColumns columns;

    __device__ __forceinline__ FoldedOutput(T* c, const T* residual, const float2* statistics, FoldedColumns columns,
                                            unsigned m, unsigned n)
        : Rest{c, nullptr, residual, m, n}, statistics(statistics), columns(columns) {}

    __device__ __forceinline__ float2 of_row(unsigned row) const {
        return row < this->m ? statistics[row] : make_float2(0.0f, 0.0f);
    }

    __device__ __forceinline__ unsigned finish(float x, float y, unsigned row, unsigned col, float2 of_row) const {
        const float2 v = columns.normalized(x, y, of_row.x, of_row.y, col, this->n);
        return Rest::finish(v.x, v.y, row, col, {});
    }

    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col, float2 of_row) const {
        if (row < this->m && col < this->n) *this->at(row, col) = finish(x, y, row, col, of_row);
    }
};

template <class T, bool BIAS, Activation A, bool RESIDUAL>
constexpr bool stores_fours<LinearFours<T, BIAS, A, RESIDUAL>> = true;
template <class T, bool BIAS, Activation A>
constexpr bool adds_residual<LinearFours<T, BIAS, A, true>> = true;
template <class T, bool BIAS, Activation A, bool RESIDUAL>
constexpr bool stores_fours<LinearVectors<T, BIAS, A, RESIDUAL>> = true;
template <class T, bool BIAS, Activation A, bool RESIDUAL>
constexpr bool stores_vectors<LinearVectors<T, BIAS, A, RESIDUAL>> = true;
template <class T, bool BIAS, Activation A>
constexpr bool adds_residual<LinearVectors<T, BIAS, A, true>> = true;

}  // namespace ptxkit
