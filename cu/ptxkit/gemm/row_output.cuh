// The epilogue where a thread holds neighbouring sums of one row, as it reads them from tensor memory.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/tcgen05.cuh"

namespace ptxkit {

// 16 bytes of an array of T, as T is stored.
template <class T>
struct RowVector {
    static constexpr int size = 16 / sizeof(T);
    unsigned words[4];

    static __device__ __forceinline__ RowVector load(const T* from) {
        uint4 v = *reinterpret_cast<const uint4*>(from);
        return {{v.x, v.y, v.z, v.w}};
    }

    __device__ __forceinline__ void store(T* to) const {
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }

    __device__ __forceinline__ void store_shared(unsigned address) const {
        st_shared(address, make_uint4(words[0], words[1], words[2], words[3]));
    }

    __device__ __forceinline__ void unpack(float (&values)[size]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (sizeof(T) == 4) {
                values[i] = __uint_as_float(words[i]);
            } else {
                values[2 * i] = Convert<T>::low(words[i]);
                values[2 * i + 1] = Convert<T>::high(words[i]);
            }
        }
    }

    static __device__ __forceinline__ RowVector pack(const float (&values)[size]) {
        RowVector v;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (sizeof(T) == 4) v.words[i] = __float_as_uint(values[i]);
            else v.words[i] = Convert<T>::pack(values[2 * i], values[2 * i + 1]);
        }
        return v;
    }
};

// c is m x n, row-major with rows of a multiple of 16 bytes; bias has n elements. T: bf16, f16 or float.
template <int EPILOGUE, class T>
struct RowOutput {
    using V = RowVector<T>;
    T* c;
    const T* bias;
    unsigned m, n;
    float alpha, beta;

    // V::size sums of a row, from column `col`, in the form in which they are stored. Outside of c nothing is read, and
    // the result is unspecified.
    __device__ __forceinline__ V finish(const float* sums, unsigned row, unsigned col) const {
        float x[V::size];
        const bool inside = row < m && col < n;
#pragma unroll
        for (int i = 0; i < V::size; i++) x[i] = EPILOGUE & ALPHA ? alpha * sums[i] : sums[i];
        if constexpr (EPILOGUE & BETA) {
            float old[V::size] = {};
            if (inside) V::load(at(row, col)).unpack(old);
#pragma unroll
            for (int i = 0; i < V::size; i++) x[i] = fmaf(beta, old[i], x[i]);
        }
        if constexpr (EPILOGUE & BIAS_GELU) {
            float added[V::size] = {};
            if (inside) V::load(bias + col).unpack(added);
#pragma unroll
            for (int i = 0; i < V::size; i++) x[i] = activate<GELU>(x[i] + added[i]);
        }
        return V::pack(x);
    }

    __device__ __forceinline__ void store(const float* sums, unsigned row, unsigned col) const {
        if (row < m && col < n) finish(sums, row, col).store(at(row, col));
    }

    __device__ __forceinline__ T* at(unsigned row, unsigned col) const {
        return c + static_cast<size_t>(row) * n + col;
    }
};

// Stores COLUMNS columns of accumulators from tensor memory to row `row` of c; each thread stores one row. The four
// warps of a warpgroup call it. Warp w can access rows 32 w to 32 w + 31 of tensor memory alone (its "lanes" in PTX),
// so the address `accumulator` has 32 w in bits 16-31.
template <int COLUMNS, int EPILOGUE, class T>
__device__ __forceinline__ void store_tensor_memory(unsigned accumulator, const RowOutput<EPILOGUE, T>& output,
                                                    unsigned row, unsigned col) {
#pragma unroll 1
    for (unsigned at = 0; at < COLUMNS; at += 32) {
        float sums[32];
        tcgen05_ld_32x32b_x32(sums, accumulator + at);
        tcgen05_wait_ld(sums);
#pragma unroll
        for (int i = 0; i < 32; i += RowVector<T>::size) output.store(sums + i, row, col + at + i);
    }
}

}  // namespace ptxkit
