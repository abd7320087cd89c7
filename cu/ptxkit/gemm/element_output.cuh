// The epilogue of products for rows of c of any length.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/shifted_rows.cuh"
#include "ptxkit/ptx/special_registers.cuh"

namespace ptxkit {

// The epilogue of single elements: that of Output in gemm.cuh, for rows of c of any length, `pitch` elements apart.
template <int EPILOGUE, class T>
struct ElementOutput {
    using Element = T;
    T* c;
    const T* bias;
    unsigned m, n, pitch;
    float alpha, beta;

    static __device__ __forceinline__ float as_f32(T x) { return Convert<T>::low(x.bits); }

    __device__ __forceinline__ float scaled(float x) const { return EPILOGUE & ALPHA ? alpha * x : x; }

    __device__ __forceinline__ float bias_of(unsigned col) const {
        if constexpr (EPILOGUE & (ADD_BIAS | BIAS_GELU)) return col < n ? as_f32(bias[col]) : 0.0f;
        else return 0.0f;
    }

    // A sum as it is stored, before it is rounded; `old` is the element of c.
    __device__ __forceinline__ float finished(float x, T old, float column_bias) const {
        x = scaled(x);
        if constexpr (EPILOGUE & BETA) x = fmaf(beta, as_f32(old), x);
        if constexpr (EPILOGUE & ADD_BIAS) x += column_bias;
        if constexpr (EPILOGUE & BIAS_GELU) x = activate<GELU>(x + column_bias);
        return x;
    }

    // Two neighbouring sums as a pair of elements. Outside of c nothing is read, and the result is unspecified.
    __device__ __forceinline__ unsigned finish(float x, float y, unsigned row, unsigned col) const {
        T old[2] = {};
        if constexpr (EPILOGUE & BETA) {
            const T* const from = c + static_cast<size_t>(row) * pitch + col;
            if (row < m && col < n) old[0] = from[0];
            if (row < m && col + 1 < n) old[1] = from[1];
        }
        return Convert<T>::pack(finished(x, old[0], bias_of(col)), finished(y, old[1], bias_of(col + 1)));
    }

    // The bias of the two columns of a lane.
    __device__ __forceinline__ float2 columns(unsigned col) const {
        return {bias_of(col + laneid()), bias_of(col + 32 + laneid())};
    }

    // 64 sums of a row. Where nothing else is read, they are stored as pairs at multiples of 4 bytes; if the row begins between
    // two of these, the first and the last sum are stored alone.
    __device__ __forceinline__ void row(const float* sums, unsigned row, unsigned col, float2 bias_of_columns) const {
        const unsigned lane = laneid();
        if constexpr (!(EPILOGUE & (BETA | ADD_BIAS | BIAS_GELU))) {
            if (row >= m) return;
            T* const to = c + static_cast<size_t>(row) * pitch + col;
            const unsigned odd = reinterpret_cast<unsigned long long>(to) / sizeof(T) % 2, first = 2 * lane + odd;
            const float x = sums[first], y = sums[(first + 1) % 64];
            if (first + 1 < 64 && col + first + 1 < n) {
                *reinterpret_cast<unsigned*>(to + first) = Convert<T>::pack(scaled(x), scaled(y));
            } else {
                if (col + first < n) to[first] = Convert<T>::from_f32(scaled(x));
                if (first == 63 && col < n) to[0] = Convert<T>::from_f32(scaled(y));
            }
            return;
        }
        store(sums[lane], row, col + lane, bias_of_columns.x);
        store(sums[lane + 32], row, col + 32 + lane, bias_of_columns.y);
    }

    // Two neighbouring sums.
    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col) const {
        if (row >= m) return;
        unsigned* const pair = reinterpret_cast<unsigned*>(c + static_cast<size_t>(row) * pitch + col);
        if (reinterpret_cast<unsigned long long>(pair) % sizeof(unsigned) == 0 && col + 1 < n) {
            *pair = finish(x, y, row, col);
            return;
        }
        store(x, row, col, bias_of(col));
        store(y, row, col + 1, bias_of(col + 1));
    }

    __device__ __forceinline__ void store(float x, unsigned row, unsigned col, float column_bias) const {
        if (row >= m || col >= n) return;
        T& out = c[static_cast<size_t>(row) * pitch + col];
        out = Convert<T>::from_f32(finished(x, EPILOGUE & BETA ? out : T{}, column_bias));
    }
};

template <int EPILOGUE, class T>
constexpr bool shifts_rows<ElementOutput<EPILOGUE, T>> = true;

// The epilogue for any n: of pairs of elements where PAIRS says that all rows of c begin and end at a multiple of 16 bytes.
template <int EPILOGUE, int PAIRS, class T>
__device__ __forceinline__ auto epilogue_of(T* c, const T* bias, unsigned m, unsigned n, float alpha, float beta,
                                            unsigned pitch) {
    if constexpr (PAIRS) return Output<EPILOGUE, T>{c, bias, m, n, alpha, beta, pitch};
    else return ElementOutput<EPILOGUE, T>{c, bias, m, n, pitch, alpha, beta};
}

}  // namespace ptxkit
