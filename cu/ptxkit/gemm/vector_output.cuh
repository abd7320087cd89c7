// The epilogue of products whose rows of c begin at multiples of 16 bytes, by vectors of 8 elements of a column of c^T.
#pragma once
#include "ptxkit/gemm/gemm.cuh"

namespace ptxkit {

// The epilogue of Output in gemm.cuh without BETA, where n and the pitch of c are multiples of 8.
template <int EPILOGUE, class T>
struct VectorOutput : Output<EPILOGUE, T> {
    static_assert(!(EPILOGUE & BETA), "the old elements of c are read by pairs");

    static __device__ __forceinline__ constexpr bool whole_vectors() { return true; }

    // What all elements of a column have in common.
    __device__ __forceinline__ float of_column(unsigned col) const {
        if constexpr (EPILOGUE & (ADD_BIAS | BIAS_GELU)) return col < this->n ? Convert<T>::low(this->bias[col].bits) : 0.0f;
        else return 0.0f;
    }

    __device__ __forceinline__ float value(float x, float bias) const {
        if constexpr (EPILOGUE & ALPHA) x *= this->alpha;
        if constexpr (EPILOGUE & (ADD_BIAS | BIAS_GELU)) x = activate<EPILOGUE & BIAS_GELU ? GELU : NONE>(x + bias);
        return x;
    }

    // The elements of two sums of one column.
    __device__ __forceinline__ unsigned pack(float x, float y, float bias) const {
        return Convert<T>::pack(value(x, bias), value(y, bias));
    }

    using Output<EPILOGUE, T>::store;
    __device__ __forceinline__ void store(const uint4& eight, unsigned row, unsigned col) const {
        if (row < this->m && col < this->n) *reinterpret_cast<uint4*>(this->at(row, col)) = eight;
    }
};

template <class Out>
constexpr bool stores_vectors = false;
template <int EPILOGUE, class T>
constexpr bool stores_vectors<VectorOutput<EPILOGUE, T>> = true;

// Whether an epilogue stores four neighbouring sums at a time.
template <class Out>
constexpr bool stores_fours = false;

}  // namespace ptxkit
