// The epilogue of matmul_fused.cu: scales, bias, activation, residual and the largest magnitude, on rows of 64 sums in shared
// memory.
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

enum Parts { SCALE = 1, ROW_SCALES = 2, COLUMN_SCALES = 4, BIAS = 8, RESIDUAL = 16, LARGEST = 32 };
enum { SILU_MUL = 4 };  // beside those of Activation

// Elements of the arrays of an epilogue as f32.
__device__ __forceinline__ float as_f32(float x) { return x; }
__device__ __forceinline__ float as_f32(int x) { return static_cast<float>(x); }
__device__ __forceinline__ float as_f32(bf16 x) { return f32_of_bf16(x); }
__device__ __forceinline__ float as_f32(f16 x) { return cvt_f32_f16(x); }

template <class To, class From>
__device__ __forceinline__ To converted(From x) {
    if constexpr (sizeof(To) == 4) return static_cast<To>(x);
    else return Convert<To>::from_f32(x);
}

// Pointers to what the bits say; m x n sums of each product; rows of c are `pitch` elements apart, and its matrices `matrix`
// elements. The residual is contiguous. `largest` has the bits of a magnitude, whose order is that of unsigned integers.
template <int PARTS, int ACTIVATION, class Sum, class Out>
struct FusedOutput {
    static constexpr bool PAIRS = ACTIVATION == SILU_MUL;
    // Sums are stored unchanged, and integers exactly.
    static constexpr bool EMPTY = PARTS == 0 && ACTIVATION == NONE;

    Out* c;
    const float *scale, *row_scales, *column_scales;
    const Out *bias, *residual;
    float* largest;
    unsigned m, n, pitch;
    size_t matrix;
    unsigned product = 0;  // that the rows belong to
    float magnitude = 0.0f;

    // What a column has for all rows.
    struct Column {
        float scale, bias;
    };
    struct Columns {
        Column first, second;
    };

    // The columns of the sums that a lane has of 64: neighbours that are a pair, or those at its number and 32 further.
    static __device__ __forceinline__ unsigned first_column() { return PAIRS ? 2 * laneid() : laneid(); }
    static __device__ __forceinline__ unsigned second_column() { return first_column() + (PAIRS ? 1 : 32); }

    __device__ __forceinline__ Column column(unsigned col) const {
        Column found = {1.0f, 0.0f};
        if constexpr (PARTS & SCALE) found.scale = *scale;
        if constexpr (PARTS & COLUMN_SCALES) {
            if (col < n) found.scale *= column_scales[static_cast<size_t>(product) * n + col];
        }
        if constexpr (PARTS & BIAS) {
            if (col < n) found.bias = as_f32(bias[col]);
        }
        return found;
    }

    __device__ __forceinline__ Columns columns(unsigned col) const {
        return {column(col + first_column()), column(col + second_column())};
    }

    // The scaled sum with the bias.
    static __device__ __forceinline__ float scaled(Sum sum, float row_scale, const Column& column) {
        float x = as_f32(sum);
        if constexpr (PARTS & (SCALE | COLUMN_SCALES)) x *= column.scale;
        if constexpr (PARTS & ROW_SCALES) x *= row_scale;
        if constexpr (PARTS & BIAS) x += column.bias;
        return x;
    }

    static __device__ __forceinline__ float activated(float x) {
        if constexpr (PAIRS) return x;
        else return activate<static_cast<Activation>(ACTIVATION)>(x);
    }

    // Stores a result before the residual.
    __device__ __forceinline__ void store(float x, unsigned row, unsigned col) {
        const size_t at = product * matrix + static_cast<size_t>(row) * pitch + col;
        if constexpr (PARTS & RESIDUAL) {
            x += as_f32(residual[(static_cast<size_t>(product) * m + row) * (PAIRS ? n / 2 : n) + col]);
        }
        if constexpr (PARTS & LARGEST) magnitude = fmaxf(magnitude, fabsf(x));
        c[at] = converted<Out>(x);
    }

    __device__ __forceinline__ void row(const Sum* sums, unsigned row, unsigned col, const Columns& of) {
        if (row >= m) return;
        const unsigned first = col + first_column(), second = col + second_column();
        const Sum x = sums[first_column()], y = sums[second_column()];
        if constexpr (EMPTY) {
            Out* out = c + product * matrix + static_cast<size_t>(row) * pitch;
            if (first < n) out[first] = converted<Out>(x);
            if (second < n) out[second] = converted<Out>(y);
        } else {
            float row_scale = 1.0f;
            if constexpr (PARTS & ROW_SCALES) row_scale = row_scales[static_cast<size_t>(product) * m + row];
            if constexpr (PAIRS) {  // n is even
                if (first < n) store(silu(scaled(x, row_scale, of.first)) * scaled(y, row_scale, of.second), row, first / 2);
            } else {
                if (first < n) store(activated(scaled(x, row_scale, of.first)), row, first);
                if (second < n) store(activated(scaled(y, row_scale, of.second)), row, second);
            }
        }
    }

    // Adds the largest magnitude of a warp to that of all; all lanes call it.
    __device__ __forceinline__ void finish() const {
        if constexpr (PARTS & LARGEST) {
            const unsigned found = redux_sync_max(all_lanes, __float_as_uint(magnitude));
            if (laneid() == 0) atomicMax(reinterpret_cast<unsigned*>(largest), found);
        }
    }
};

}  // namespace ptxkit
