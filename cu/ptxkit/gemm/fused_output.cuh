// The epilogue of matmul_fused.cu: scales, bias, activation, residual and the largest magnitude, on two neighbouring sums of a
// thread, which are stored by TMA (tma_boxes.cuh) or directly, or on rows of 64 sums in shared memory (staged_rows.cuh).
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/gemm/tma_boxes.cuh"
#include "ptxkit/gemm/vector_output.cuh"
#include "ptxkit/ptx/data_movement.cuh"
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

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned bits_of(int x) { return static_cast<unsigned>(x); }
__device__ __forceinline__ unsigned short bits_of(bf16 x) { return x.bits; }
__device__ __forceinline__ unsigned short bits_of(f16 x) { return x.bits; }

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
    // The low bits of the place of a row, in elements: of neighbouring elements two are stored together if it is even, four if it is
    // a multiple of 4, and vectors of 8 if it is a multiple of 8.
    unsigned unaligned = (static_cast<unsigned>(reinterpret_cast<size_t>(c) / sizeof(Out)) | pitch | static_cast<unsigned>(matrix)) % 8;

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

    // The scale of a row.
    __device__ __forceinline__ float of_row(unsigned row) const {
        if constexpr (PARTS & ROW_SCALES) return row < m ? row_scales[static_cast<size_t>(product) * m + row] : 1.0f;
        else return 1.0f;
    }

    // An element of c from a result before the residual.
    __device__ __forceinline__ float last(float x, unsigned row, unsigned col) {
        if (row < m && col < (PAIRS ? n / 2 : n)) {
            if constexpr (PARTS & RESIDUAL) {
                x += as_f32(residual[(static_cast<size_t>(product) * m + row) * (PAIRS ? n / 2 : n) + col]);
            }
            if constexpr (PARTS & LARGEST) magnitude = fmaxf(magnitude, fabsf(x));
        }
        return x;
    }

    // The element of column `col` of c from its sum, before it is rounded to Out, or from the two sums of its pair.
    __device__ __forceinline__ auto value(Sum sum, unsigned row, unsigned col, float row_scale, const Column& of) {
        if constexpr (EMPTY) return sum;
        else return last(activate<static_cast<Activation>(ACTIVATION)>(scaled(sum, row_scale, of)), row, col);
    }
    __device__ __forceinline__ Out element(Sum sum, unsigned row, unsigned col, float row_scale, const Column& of) {
        return converted<Out>(value(sum, row, col, row_scale, of));
    }
    __device__ __forceinline__ Out pair(Sum gate, Sum up, unsigned row, unsigned col, float row_scale, const Columns& of) {
        return converted<Out>(last(silu(scaled(gate, row_scale, of.first)) * scaled(up, row_scale, of.second), row, col));
    }

    // Two neighbouring elements of 16 bits, of columns `col` and col + 1.
    __device__ __forceinline__ unsigned finish(Sum x, Sum y, unsigned row, unsigned col, float row_scale) {
        return Convert<Out>::pack(value(x, row, col, row_scale, column(col)),
                                  value(y, row, col + 1, row_scale, column(col + 1)));
    }

    // The same of 32 bits.
    __device__ __forceinline__ uint2 two(Sum x, Sum y, unsigned row, unsigned col, float row_scale) {
        return {bits_of(element(x, row, col, row_scale, column(col))), bits_of(element(y, row, col + 1, row_scale, column(col + 1)))};
    }

    __device__ __forceinline__ Out& at(unsigned row, unsigned col) const {
        return c[product * matrix + static_cast<size_t>(row) * pitch + col];
    }

    // Stores two neighbouring sums, or what they make.
    __device__ __forceinline__ void store(Sum x, Sum y, unsigned row, unsigned col) {
        store(x, y, row, col, of_row(row));
    }
    __device__ __forceinline__ void store(Sum x, Sum y, unsigned row, unsigned col, float row_scale) {
        if (row >= m) return;
        if constexpr (PAIRS) {  // n is even
            if (col < n) at(row, col / 2) = pair(x, y, row, col / 2, row_scale, {column(col), column(col + 1)});
        } else {
            if (unaligned % 2 == 0 && col + 1 < n) {
                if constexpr (sizeof(Out) == 2) *reinterpret_cast<unsigned*>(&at(row, col)) = finish(x, y, row, col, row_scale);
                else *reinterpret_cast<uint2*>(&at(row, col)) = two(x, y, row, col, row_scale);
                return;
            }
            if (col < n) at(row, col) = element(x, row, col, row_scale, column(col));
            if (col + 1 < n) at(row, col + 1) = element(y, row, col + 1, row_scale, column(col + 1));
        }
    }

    // Stores four neighbouring sums, or what they make; col is a multiple of 4.
    template <class Four>
    __device__ __forceinline__ void store_four(const Four& sums, unsigned row, unsigned col) {
        if constexpr (!PAIRS) {
            if (row < m && unaligned % 4 == 0 && col + 3 < n) {
                const float row_scale = of_row(row);
                if constexpr (sizeof(Out) == 2) {
                    *reinterpret_cast<uint2*>(&at(row, col)) = {finish(sums.x, sums.y, row, col, row_scale),
                                                                finish(sums.z, sums.w, row, col + 2, row_scale)};
                } else {
                    const uint2 first = two(sums.x, sums.y, row, col, row_scale);
                    const uint2 second = two(sums.z, sums.w, row, col + 2, row_scale);
                    *reinterpret_cast<uint4*>(&at(row, col)) = {first.x, first.y, second.x, second.y};
                }
                return;
            }
        }
        store(sums.x, sums.y, row, col);
        store(sums.z, sums.w, row, col + 2);
    }

    // For store_vectors of multicast_product.cuh: whether rows of c consist of vectors of 8 elements at multiples of 16 bytes, what
    // all elements of a column have in common, the elements of two sums of a column, and a vector of a row.
    __device__ __forceinline__ bool whole_vectors() const { return unaligned == 0 && n % 8 == 0; }
    __device__ __forceinline__ Column of_column(unsigned col) const { return column(col); }
    __device__ __forceinline__ unsigned pack(Sum x, Sum y, const Column& of) const {
        auto value = [&](Sum sum) { return activate<static_cast<Activation>(ACTIVATION)>(scaled(sum, 1.0f, of)); };
        return Convert<Out>::pack(value(x), value(y));
    }
    __device__ __forceinline__ void store(const uint4& eight, unsigned row, unsigned col) const {
        if (row < m && col < n) *reinterpret_cast<uint4*>(&at(row, col)) = eight;
    }

    // Stores a row of 64 sums in shared memory.
    __device__ __forceinline__ void row(const Sum* sums, unsigned row, unsigned col, const Columns& of) {
        if (row >= m) return;
        const unsigned first = col + first_column(), second = col + second_column();
        const Sum x = sums[first_column()], y = sums[second_column()];
        const float row_scale = of_row(row);
        if constexpr (PAIRS) {
            if (first < n) at(row, first / 2) = pair(x, y, row, first / 2, row_scale, of);
        } else {
            if (first < n) at(row, first) = element(x, row, first, row_scale, of.first);
            if (second < n) at(row, second) = element(y, row, second, row_scale, of.second);
        }
    }

    // Adds the largest magnitude of a warp to that of all; all lanes call it.
    __device__ __forceinline__ void publish() const {
        if constexpr (PARTS & LARGEST) {
            const unsigned found = redux_sync_max(all_lanes, __float_as_uint(magnitude));
            if (laneid() == 0) atomicMax(reinterpret_cast<unsigned*>(largest), found);
        }
    }
};

template <int PARTS, int ACTIVATION, class Sum, class Out>
constexpr bool stores_fours<FusedOutput<PARTS, ACTIVATION, Sum, Out>> = true;

// With epilogues that need no other elements of a row.
template <int PARTS, int ACTIVATION, class Sum, class Out>
constexpr bool stores_vectors<FusedOutput<PARTS, ACTIVATION, Sum, Out>> =
    sizeof(Out) == 2 && ACTIVATION != SILU_MUL && !(PARTS & (ROW_SCALES | RESIDUAL | LARGEST));

// Boxes of elements of four bytes, or of those that pairs of sums make.
template <class Out, bool PAIRS>
struct FusedForm {
    static constexpr int ELEMENT = sizeof(Out), COLUMNS = PAIRS ? 2 : 1;

    template <int ROW_BYTES, class Sum, class Output, class OfRow>
    static __device__ __forceinline__ void fill(const Sum* sums, Output& output, unsigned r, unsigned col, const OfRow& upper,
                                                const OfRow& lower, unsigned box) {
        const unsigned lane = laneid(), quad = lane % 4;
        auto place = [&](unsigned element) { return box + swizzled<ROW_BYTES>(lane / 4 * ROW_BYTES + element * ELEMENT); };
        constexpr unsigned below = 8 * ROW_BYTES;  // from a row to that 8 rows further, which has the same swizzle
#pragma unroll
        for (int q = 0; q < ROW_BYTES / ELEMENT * COLUMNS / 8; q++) {  // 8 columns of the sums
            const Sum* d = sums + 4 * q;
            const unsigned at = col + 8 * q + 2 * quad;
            if constexpr (PAIRS) {
                const typename Output::Columns of = {output.column(at), output.column(at + 1)};
                const unsigned to = place(4 * q + quad);
                st_shared(to, bits_of(output.pair(d[0], d[1], r, at / 2, upper, of)));
                st_shared(to + below, bits_of(output.pair(d[2], d[3], r + 8, at / 2, lower, of)));
            } else {
                const auto first = output.column(at), second = output.column(at + 1);
                const unsigned to = place(8 * q + 2 * quad);
                st_shared(to, uint2{bits_of(output.element(d[0], r, at, upper, first)),
                                    bits_of(output.element(d[1], r, at + 1, upper, second))});
                st_shared(to + below, uint2{bits_of(output.element(d[2], r + 8, at, lower, first)),
                                            bits_of(output.element(d[3], r + 8, at + 1, lower, second))});
            }
        }
    }
};

template <int PARTS, int ACTIVATION, class Sum, class Out>
struct FormOf<FusedOutput<PARTS, ACTIVATION, Sum, Out>> {
    static constexpr bool PAIRS = ACTIVATION == SILU_MUL;
    template <bool SIXTEEN_BITS, class = void>
    struct Choice {
        using type = FusedForm<Out, PAIRS>;
    };
    template <class Unused>
    struct Choice<true, Unused> {
        using type = SixteenBitForm;
    };
    using type = typename Choice<sizeof(Out) == 2 && !PAIRS>::type;
};

}  // namespace ptxkit
